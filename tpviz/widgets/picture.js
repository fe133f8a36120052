/** A picture made in Python, as it is. */
import { make } from "./view.js";

export default {
  render({ model, el }) {
    const place = make("div", { class: "tpv-picture" }, el);
    const draw = () => { place.innerHTML = model.get("scene").svg; place.dataset.ready = "true"; };
    model.on("change:scene", draw);
    draw();
  },
};
