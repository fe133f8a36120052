/** The map of plans: a picture made in Python. A click on a dot chooses its plan. */
import { View, make, rendered } from "./view.js";

class PlanMap extends View {
  buildBody() {
    this.svg = make("svg", { role: "img" }, this.stage);
    this.svg.addEventListener("click", ({ target }) => {
      const dot = target.closest("[data-plan]");
      if (dot) this.publish({ picked: Number(dot.dataset.plan) });
    });
    this.big = make("div", { class: "tpv-big" });
    this.now.before(this.big);
  }

  load() { this.scene = this.host.get("scene"); }

  draw() {
    const { scene, svg } = this;
    this.drawHead(scene, scene.numbers);
    this.big.textContent = scene.big;
    this.now.textContent = scene.says;
    this.summary.textContent = `${scene.captions[0]}. Click a dot to take its plan.`;
    this.resize(svg, scene.width, scene.height);
    svg.style = "width:100%;height:auto";
    svg.setAttribute("aria-label", `${scene.title}: ${scene.captions[0]}. ${scene.says}`);
    svg.replaceChildren(this.group(scene.common));
  }
}

export default rendered(PlanMap, "plan_map", ["picked"]);
