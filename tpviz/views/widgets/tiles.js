/** The tile view: a film on a time axis whose parts change their state as the play-head passes. */
import { TimedFilm } from "./timed.js";
import { rendered } from "./view.js";

class TileView extends TimedFilm {
  get length() { return 16; } // seconds in all
  get hint() {
    return "Click a tile for its story; Up, Down, Shift+Left, Shift+Right: the next one's; Page Up, Page Down: the same one's "
      + "on another GPU, or in the other run. Escape: all.";
  }

  load() {
    super.load();
    this.parts = [...this.common.querySelectorAll("[data-at]")].map((node, i) => {
      const { at, is, place } = node.dataset;
      return { node, at: at.split(",").map(Number), is, place, lines: [...place.split(","), i % this.scene.map] };
    });
  }

  /** What Python said of the part looked at; nothing until it has. */
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

  get mark() { return ""; } // the part looked at is no place in time

  move() {
    super.move();
    const { here } = this;
    for (const tile of this.parts) {
      const key = tile.is[tile.at.filter((at) => at <= here).length];
      if (tile.key === key) continue;
      tile.key = key;
      tile.node.replaceChildren(this.group(this.scene.parts[key].replaceAll("@", tile.place)));
    }
  }

  select(part) { if (part) this.publish({ part: this.parts.indexOf(part) }); }

  onClick({ target }) {
    const node = target.closest("[data-at]");
    this.select(this.parts.find((part) => part.node === node));
  }

  /** Look at the part before or after (`by`) in the same column (`line` 0), row (1), or place of a map (2). */
  near(line, by) {
    const here = this.parts[this.host.get("part")];
    const along = this.parts.filter((part) => part.lines[line] === here?.lines[line]);
    this.select(here ? along[along.indexOf(here) + by] : this.parts[0]);
  }

  keys(event) {
    const to = (line, by) => () => this.near(line, by);
    return { ...super.keys(event), ...(event.shiftKey && { ArrowLeft: to(1, -1), ArrowRight: to(1, 1) }), ArrowUp: to(0, -1),
      ArrowDown: to(0, 1), PageUp: to(2, -1), PageDown: to(2, 1), Escape: () => this.publish({ part: -1 }) };
  }
}

export default rendered(TileView, "tiles", ["part", "detail", "step"]);
