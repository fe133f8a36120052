/** Room that pictures take: of the tallest that knobs bring, and in a window narrower than they are. */
import { make } from "./view.js";

/** high : px of a scene's. */
export function reserve(view, high) {
  const { stage } = view, scenes = (view.host.states ?? [view]).flatMap(({ scene }) => scene ?? []);
  if (view.wide !== stage.clientWidth) [view.wide, view.tallest] = [stage.clientWidth, 0];
  view.tallest = Math.max(view.tallest, ...scenes.map(high));
  stage.style.minHeight = `${view.tallest}px`;
}

/** px below which a picture does not shrink: 0 where there is less room, until one asks for its full size. */
export function least(view, width) {
  const { stage } = view, narrow = stage.clientWidth < width;
  if (narrow && !view.full) {
    view.full = make("button", { type: "button", class: "tpv-full" }, null, "full size");
    view.full.addEventListener("click", () => {
      [view.large, view.wide] = [!view.large, 0];
      view.onChange();
    });
  }
  if (view.full) {
    if (view.full.parentNode !== stage) stage.append(view.full);
    view.full.hidden = !narrow;
    view.full.setAttribute("aria-pressed", Boolean(view.large));
  }
  return narrow && !view.large ? 0 : width;
}
