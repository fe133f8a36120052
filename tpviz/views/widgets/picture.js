/** A picture made in Python, as it is; with an error, why there is none for other knobs. */
import { make } from "./view.js";

export default {
  render({ model, el }) {
    el.classList.add("tpv-column");
    const root = make("div", { class: "tpv" }, el);
    const place = make("div", { class: "tpv-picture tpv-stage" }, root);
    make("div", { class: "tpv-rail" }, root);
    const draw = () => {
      place.innerHTML = model.get("scene").svg;
      const error = model.get("error");
      if (error) place.prepend(make("div", { class: "tpv-error", role: "alert" }, null, error));
      place.dataset.ready = "true";
      place.dataset.generation = model.get("generation");
    };
    for (const name of ["scene", "error", "generation"]) model.on(`change:${name}`, draw);
    draw();
  },
};
