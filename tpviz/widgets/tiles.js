/** The tile theatre: a film on a time axis whose parts change their state as the play-head passes. */
import { Film } from "./film.js";
import { make, rendered } from "./view.js";

class TileView extends Film {
  get length() { return 16; } // seconds in all
  get hint() { return "Click a tile, or press Up or Down: its story. Escape: of all tiles again."; }

  buildBody() {
    super.buildBody();
    this.says = make("div", { style: "min-height:3em;white-space:pre-line" });
    this.svg.parentNode.before(this.says);
  }

  load() {
    super.load();
    const drawn = (key) => [key, this.group(this.scene.parts[key]).innerHTML];
    this.looks = Object.fromEntries(Object.keys(this.scene.parts ?? {}).map(drawn));
    this.parts = [...this.common.querySelectorAll("[data-at]")].map((node) => (
      { node, at: node.dataset.at.split(",").map(Number), is: node.dataset.is }));
  }

  /** What Python said of the part looked at; nothing until it has. */
  get looked() {
    const look = this.host.get("look");
    return look.part === this.host.get("part") ? look : {};
  }

  wordsOf(step) { return this.looked.words || this.scene.words[step]; }

  draw() {
    super.draw();
    this.says.textContent = this.wordsOf(this.step);
    this.root.dataset.part = this.host.get("part");
    if (!this.playing) this.say();
    this.line.before(this.group(this.looked.mark ?? ""));
  }

  move() {
    super.move();
    const { x } = this;
    for (const tile of this.parts) {
      const key = tile.is[tile.at.filter((at) => at <= x).length];
      if (tile.key !== key) tile.node.innerHTML = this.looks[tile.key = key];
    }
  }

  look(part) { if (part < this.parts.length) this.publish({ part: Math.max(part, -1) }); }

  onClick({ target }) {
    const node = target.closest("[data-at]");
    if (node) this.look(this.parts.findIndex((part) => part.node === node));
  }

  keys() {
    const part = this.host.get("part");
    return { ...super.keys(), ArrowUp: () => this.look(part - 1), ArrowDown: () => this.look(part + 1),
      Escape: () => this.look(-1) };
  }
}

export default rendered(TileView, "tiles", ["part", "look", "step"]);
