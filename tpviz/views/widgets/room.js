/** Room for the tallest picture that knobs bring. high : px of a scene's. */
export function reserve(view, high) {
  const { stage } = view, scenes = (view.host.states ?? [view]).flatMap(({ scene }) => scene ?? []);
  if (view.wide !== stage.clientWidth) [view.wide, view.tallest] = [stage.clientWidth, 0];
  view.tallest = Math.max(view.tallest, ...scenes.map(high));
  stage.style.minHeight = `${view.tallest}px`;
}
