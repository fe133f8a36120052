/** The schedule theatre. Python draws all lanes, and looks at one row; here the play-head moves. */
import { make } from "./view.js";
import { Player } from "./player.js";

class ScheduleView extends Player {
  get pace() { // 14 s in all
    const { stops } = this.scene;
    return 14 * (stops[this.step + 1] - stops[this.step]) / (stops.at(-1) - stops[0]) || 1;
  }

  get hint() { return "Click a lane, or press Up or Down: what its rank waits for."; }

  buildBody() {
    super.buildBody();
    this.says = make("div", { style: "min-height:3em;white-space:pre-line" });
    this.svg.parentNode.before(this.says);
    this.svg.addEventListener("click", (event) => this.onClick(event));
  }

  get row() { return this.host.get("row"); }

  lastOf(scene) { return (scene.stops?.length ?? 1) - 1; }

  captionOf(step) { return this.scene.captions[step]; }

  /** Of the row's moment up to a stop; nothing until Python has looked at that row. */
  mine(what, step) {
    const { row, stops, [what]: list } = this.host.get("look");
    return row === this.row ? list[stops.findIndex((stop) => stop >= step)] ?? list.at(-1) ?? "" : "";
  }

  wordsOf(step) { return [this.row < 0 ? this.scene.says : this.mine("words", step)]; }

  draw() {
    const { scene, svg, step, uid } = this; // ids of its own: another view may be hidden
    super.draw(scene.top);
    svg.setAttribute("class", "tpv-page");
    if (this.drawn !== scene) {
      this.base = make("g");
      this.base.innerHTML = scene.style + scene.common.replace(/(#|id=')tpv-/g, `$1${uid}-`);
      this.drawn = scene;
    }
    svg.append(this.base);
    [this.says.textContent] = this.wordsOf(step);
    this.root.dataset.row = this.row;
    if (!this.playing) this.live.textContent = `${this.captionOf(step)}; ${this.says.textContent}`;
    make("g", {}, svg).innerHTML = this.mine("marks", step);
    this.line = make("path", { class: "s-fg f-fg", "stroke-width": 1.4,
      d: `M0,${scene.top + 28}V${scene.foot}V${scene.top + 28}l-5,-6h10z` }, svg);
  }

  move() {
    const [from, to = from] = this.scene.stops?.slice(this.step) ?? [];
    const part = this.playing ? this.head - this.step : 0;
    this.line?.setAttribute("transform", `translate(${from + (to - from) * part},0)`);
  }

  look(row, step) {
    if (row < this.scene.rows.length) this.host.set("row", Math.max(row, -1));
    this.go(step);
  }

  onClick({ clientX, clientY }) {
    const { x, y } = new DOMPoint(clientX, clientY).matrixTransform(this.svg.getScreenCTM().inverse());
    const { rows, lane, stops } = this.scene, stop = stops.findIndex((end) => end >= x);
    this.look(rows.findIndex(([, , top]) => y >= top && y <= top + lane), stop < 0 ? this.last : stop);
  }

  onKey(event) {
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!by) { super.onKey(event); return; }
    event.preventDefault();
    event.stopPropagation();
    this.look(this.row + by, this.step);
  }
}

export default {
  render({ model, el }) {
    const view = new ScheduleView(model, el, "schedule", ["row", "look", "step"]);
    return () => view.destroy();
  },
};
