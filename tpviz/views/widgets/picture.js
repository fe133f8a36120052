/** A picture made in Python, as it is; with an error, why there is none for other knobs. */
import { least, reserve } from "./room.js";
import { make } from "./view.js";

export default {
  render({ model, el }) {
    el.classList.add("tpv-column");
    const root = make("div", { class: "tpv" }, el);
    const place = make("div", { class: "tpv-picture tpv-stage" }, root);
    const rail = make("div", { class: "tpv-rail" }, root), now = make("div", { class: "tpv-now" });
    const sized = { stage: place, host: { states: model.states ?? [] }, onChange: () => draw() };
    const tall = (svg) => Number(/viewBox='0 0 \S+ (\S+)'/.exec(svg)?.[1]) || 0; // px in the picture
    const draw = () => {
      const { svg, says } = model.get("scene");
      place.innerHTML = svg;
      now.textContent = says;
      if (says) rail.prepend(now); // before the knobs
      const drawn = place.querySelector("svg"), low = least(sized, Number(drawn.getAttribute("width")));
      drawn.style.minWidth = `${low}px`;
      const scale = drawn.clientHeight / tall(svg) || 0;
      reserve(sized, (scene) => scale * tall(scene.svg));
      const error = model.get("error");
      if (error) place.prepend(make("div", { class: "tpv-error", role: "alert" }, null, error));
      place.dataset.ready = "true";
      place.dataset.generation = model.get("generation");
    };
    for (const name of ["scene", "error", "generation"]) model.on(`change:${name}`, draw);
    draw();
  },
};
