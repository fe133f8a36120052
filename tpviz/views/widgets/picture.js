/** A picture made in Python, as it is; with an error, why there is none for other knobs. */
import { make, nameSliders, reserve, roomy, scenesOf } from "./view.js";

export default {
  render({ model, el }) {
    el.classList.add("tpv-column");
    const root = make("div", { class: "tpv" }, el);
    const place = make("div", { class: "tpv-picture tpv-stage" }, root);
    const rail = make("div", { class: "tpv-rail" }, root), now = make("div", { class: "tpv-now" });
    const sized = { stage: place, host: model };
    const tall = (svg) => Number(/viewBox='0 0 \S+ (\S+)'/.exec(svg)?.[1]) || 0; // px in the picture
    const size = () => {
      nameSliders(el);
      const svg = place.querySelector("svg"), scale = svg.getBoundingClientRect().height / tall(sized.scene.svg) || 0;
      if (svg.getAttribute("width") > place.clientWidth) place.tabIndex = 0; // a click shows it in its own size
      else place.removeAttribute("tabindex");
      reserve(sized, (scene) => scale * tall(scene.svg));
    };
    const draw = () => {
      const { svg, says } = sized.scene = model.get("scene");
      place.innerHTML = svg;
      now.textContent = says;
      roomy(now, scenesOf(sized).map((scene) => scene.says ?? ""));
      if (says) rail.prepend(now); // before the knobs
      size();
      const error = model.get("error");
      if (error) place.prepend(make("div", { class: "tpv-error", role: "alert" }, null, error));
      place.dataset.ready = "true";
      place.dataset.generation = model.get("generation");
    };
    for (const name of ["scene", "error", "generation"]) model.on(`change:${name}`, draw);
    draw();
    new ResizeObserver(() => { if (sized.wide !== place.clientWidth) size(); }).observe(place);
  },
};
