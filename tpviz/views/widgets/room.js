/** How large a picture is drawn. */
import { reserve } from "./view.js";

const GROWTH = 1.4, WIDE = 1050; // times its own width, and px, to which a picture grows where its column is wide
const HIGH = 820, STACKED = 570; // px to which it grows beside its rail, and above it: both show without scrolling

/** Lets a view's picture grow with its column, before it is changed. sized : [width, height] px of a scene's picture. */
export function fit(view, sized) {
  const wide = view.stage.clientWidth, limit = wide + 60 > view.root.clientWidth ? STACKED : HIGH;
  const most = ([w, h]) => Math.floor(Math.max(w, Math.min(GROWTH * w, WIDE, limit * w / h)));
  view.svg.style = `width:100%;height:auto;max-width:${most(sized(view.scene))}px`;
  reserve(view, (of) => Math.min(wide, most(sized(of))) * sized(of)[1] / sized(of)[0], wide);
}
