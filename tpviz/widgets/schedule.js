/** The schedule view: a film on a time axis, in which Python looks at one row. */
import { Film } from "./film.js";
import { make, rendered } from "./view.js";

class ScheduleView extends Film {
  get length() { return 14; } // seconds in all
  get hint() { return "Click a lane, or press Up or Down: what its rank waits for."; }

  buildBody() {
    super.buildBody();
    this.summary = make("div", { style: "min-height:3em;white-space:pre-line" });
    this.svg.parentNode.before(this.summary);
  }

  get row() { return this.host.get("row"); }

  /** Of the row's moment up to a stop; nothing until Python has looked at that row. */
  mine(what, step) {
    const { row, stops, [what]: list } = this.host.get("detail");
    return row === this.row ? list[stops.findIndex((stop) => stop >= step)] ?? list.at(-1) ?? "" : "";
  }

  wordsOf(step) { return this.row < 0 ? this.scene.summary : this.mine("words", step); }

  draw() {
    super.draw();
    this.summary.textContent = this.wordsOf(this.step);
    this.root.dataset.row = this.row;
    if (!this.playing) this.say();
    this.line.before(this.group(this.mine("marks", this.step)));
  }

  select(row, step) {
    if (row < this.scene.rows.length) this.host.set("row", Math.max(row, -1));
    this.go(step);
  }

  onClick({ clientX, clientY }) {
    const { x, y } = new DOMPoint(clientX, clientY).matrixTransform(this.svg.getScreenCTM().inverse());
    const { rows, lane, stops } = this.scene, stop = stops.findIndex((end) => end >= x);
    this.select(rows.findIndex(([, , top]) => y >= top && y <= top + lane), stop < 0 ? this.last : stop);
  }

  keys() {
    return { ...super.keys(), ArrowUp: () => this.select(this.row - 1, this.step),
      ArrowDown: () => this.select(this.row + 1, this.step) };
  }
}

export default rendered(ScheduleView, "schedule", ["row", "detail", "step"]);
