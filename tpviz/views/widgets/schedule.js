/** The schedule view: a film on a time axis, in which Python looks at one row. */
import { TimedFilm } from "./timed.js";
import { rendered } from "./view.js";

class ScheduleView extends TimedFilm {
  get length() { return 14; } // seconds
  get hint() {
    return "Click a lane, or Up or Down: what its rank waits for. +/- and, with the focus, the wheel zoom; drag pans.";
  }

  buildTools(tools) {
    super.buildTools(tools);
    this.bubble = this.switch(tools, "the bubble", "the bubble: a rank's idle time as one block (b)", "tpv-gathered");
    this.bubble.addEventListener("click", () => {
      const from = this.places;
      this.gathered = !this.gathered;
      this.arrange();
      this.glide(from);
    });
    this.switch(tools, "critical path", "critical path: what the step waits for", "tpv-critical");
  }

  get row() { return this.host.get("row"); }

  /** Of the row's moment up to a stop, once Python has looked at it. */
  mine(what, step) {
    const { row, stops, [what]: list } = this.host.get("detail");
    return row === this.row ? list[stops.findIndex((stop) => stop >= step)] ?? list.at(-1) ?? "" : "";
  }

  wordsOf(step) { return this.row < 0 ? super.wordsOf(step) : this.mine("words", step); }

  get mark() { return this.mine("marks", this.step); }

  draw() {
    super.draw();
    this.root.dataset.row = this.row;
  }

  select(row, step) {
    if (row < this.scene.rows.length) this.host.set("row", Math.max(row, -1));
    this.go(step);
  }

  onClick(event) {
    const { x, y } = this.point(event), { rows, lane, stops } = this.scene;
    const stop = stops.findIndex((end) => end >= this.time(x));
    this.select(rows.findIndex(([, , top]) => y >= top && y <= top + lane), stop < 0 ? this.last : stop);
  }

  keys(event) {
    return { ...super.keys(event), b: () => this.bubble.click(), ArrowUp: () => this.select(this.row - 1, this.step),
      ArrowDown: () => this.select(this.row + 1, this.step) };
  }
}

export default rendered(ScheduleView, "schedule", ["row", "detail", "step"]);
