/** The tile view: a film on a time axis whose parts change their state as the play-head passes. */
import { TimedFilm } from "./timed.js";
import { make, rendered } from "./view.js";

class TileView extends TimedFilm {
  get length() { return 16; } // seconds
  get hint() {
    return "Click a tile for its story; Up, Down: the next; Page Up, Page Down: the same elsewhere; Escape: all.";
  }

  load() {
    super.load();
    this.shown = "";
    this.layer = make("g", {}, this.common);
    this.common.append(this.group(this.scene.over));
  }

  /** What Python said of the part looked at. */
  get detail() {
    const detail = this.host.get("detail");
    return detail.part === this.host.get("part") ? detail : {};
  }

  wordsOf(step) { return this.detail.words || this.scene.words[step]; }

  draw() {
    super.draw();
    this.root.dataset.part = this.host.get("part");
    this.svg.append(this.group(this.detail.mark ?? ""));
  }

  get mark() { return ""; }

  move() {
    super.move();
    const { tiles, looks, size: [wide, high] } = this.scene;
    const states = tiles.map(([, , at, keys]) => keys[at.filter((x) => x <= this.here).length]).join("");
    if (states === this.shown) return;
    this.shown = states;
    const drawn = [...new Set(states)].map((key) => looks[key].replaceAll("@",
      tiles.map(([x, y], i) => states[i] === key ? `M${x},${y}h${wide}v${high}h-${wide}z` : "").join("")));
    this.layer.replaceChildren(this.group(drawn.join("")));
  }

  /** The part at an event's place, or -1. */
  at(event) {
    const { x, y } = this.point(event), { tiles, size: [wide, high] } = this.scene;
    return tiles.findIndex(([left, top]) => x >= left && x < left + wide && y >= top && y < top + high);
  }

  select(part) { if (this.scene.tiles[part]) this.publish({ part }); }

  onClick(event) { this.select(this.at(event)); }

  keys(event) {
    const to = (by) => () => this.select(this.host.get("part") + by);
    return { ...super.keys(event), ArrowUp: to(-1), ArrowDown: to(1), PageUp: to(-this.scene.map), PageDown: to(this.scene.map),
      Escape: () => this.publish({ part: -1 }) };
  }
}

export default rendered(TileView, "tiles", ["part", "detail", "step"]);
