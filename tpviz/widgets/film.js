/**
 * A film: pictures made in Python (its scene: `Film` in base.py), stepped through and played. The whole part of `head`
 * is the step shown, the rest how far what moves has come. A view gives `hint`, and `pace` or `length`.
 */
import { Player } from "./player.js";
import { make } from "./view.js";

const TRAVEL = 0.8; // the part of a step spent travelling

export class Film extends Player {
  get unit() { return "step"; }

  buildTools(tools) {
    this.slider = make("input", { type: "range", min: 0, step: 1, "aria-label": "step" }, tools);
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
  }

  buildBody() {
    super.buildBody();
    this.notes = make("div", { class: "tpv-hint" }, this.root);
    make("div", { class: "tpv-hint" }, this.root, `Space plays, arrows step, Home and End jump. ${this.hint}`);
    this.svg.addEventListener("click", (event) => this.onClick(event));
  }

  load() {
    this.scene = this.host.get("scene");
    this.last = Math.max(this.scene.captions?.length ?? 0, 1) - 1;
    this.slider.max = this.last;
    this.head = this.host.get("step");
    this.common = this.group(this.scene.common ?? "");
    this.autoplay();
  }

  get step() { return Math.min(Math.floor(this.head), this.last); }
  get span() { return [0, this.last]; }
  get speed() { return 1 / this.pace; }

  /** Seconds that the step shown takes: on a time axis, its part of `length`. */
  get pace() {
    const { stops } = this.scene;
    return this.length * (stops[this.step + 1] - stops[this.step]) / (stops.at(-1) - stops[0]) || 1;
  }

  tick(now) {
    const { playing } = this;
    if (!playing && this.host.get("step") !== this.step) this.head = this.host.get("step");
    super.tick(now);
    if (playing && this.host.get("step") !== this.step) this.publish({ step: this.step });
  }

  go(step) {
    this.play(false);
    this.head = Math.min(Math.max(step, 0), this.last);
    this.publish({ step: this.head });
    this.say();
  }

  jump(by) { this.go(this.step + by); }

  wordsOf(step) { return this.scene.words?.[step] ?? ""; }

  say() { this.live.textContent = [this.scene.captions[this.step], this.wordsOf(this.step)].filter(Boolean).join("; "); }

  onClick({ target }) {
    const [step, rank] = ["step", "rank"].map((name) => target.closest(`[data-${name}]`)?.dataset[name]);
    if (step) this.go(Number(step));
    if (rank) this.publish({ rank: Number(rank) });
  }

  draw() {
    const { scene, svg, step } = this, { top, width, height, frames, pieces } = scene;
    this.drawHead(scene, scene.facts);
    this.notes.replaceChildren(...(scene.notes ?? []).map((note) => make("div", {}, null, note)));
    this.slider.value = step;
    this.now.textContent = scene.captions[step];
    this.root.dataset.step = step;
    this.resize(svg, width, height, top);
    svg.style = `width:${width}px;height:auto`;
    svg.setAttribute("aria-label", `${scene.title}, ${scene.captions[step]}`);
    svg.replaceChildren(this.common);
    const frame = this.group([frames?.[step] ?? ""].flat().map((part) => pieces?.[part] ?? part).join(""), svg);
    this.travelling = [...frame.querySelectorAll("[data-path]")].map((node) => (
      [node, JSON.parse(node.dataset.path), Number(node.dataset.lag), node.getAttribute("transform")]));
    this.line = scene.stops && make("path", { class: "s-fg f-fg", "stroke-width": 1.4,
      d: `M0,${scene.head}V${scene.foot}V${scene.head}l-5,-6h10z` }, svg);
  }

  /** How far into the step shown it is, and where on a time axis, in px. */
  get part() { return this.playing ? this.head - this.step : 0; }
  get x() {
    const [from, to = from] = this.scene.stops.slice(this.step);
    return from + (to - from) * this.part;
  }

  move() {
    const { part } = this;
    this.line?.setAttribute("transform", `translate(${this.x},0)`);
    const gone = Math.min(part / TRAVEL, 1), eased = gone * gone * (3 - 2 * gone);
    for (const [node, [x0, y0, cx, cy, x1, y1], lag, rest] of this.travelling ?? []) {
      const t = Math.max(eased - lag * (1 - part), 0);
      const at = (a, c, b) => ((1 - t) ** 2 * a + 2 * t * (1 - t) * c + t * t * b).toFixed(1);
      node.setAttribute("transform", this.playing && !this.calm
        ? `translate(${at(x0, cx, x1)},${at(y0, cy, y1)})` : rest);
    }
  }
}
