/**
 * A film on a time axis (`scene.axis`) of which Python describes one part: a play-head passes, and one zooms. What Python
 * drew in `[data-timed]` moves to where the window has it, and `names` stand where they fit.
 */
import { Film } from "./film.js";
import { make, seconds, ticks } from "./view.js";
import { Zoomed } from "./zoom.js";

const LETTER = 0.62, FONT = 13; // a mean letter, of the font's size; px
const lettersOf = (name) => name.length + 0.7 * name.includes("W");

export class TimedFilm extends Zoomed(Film) {
  get finest() { return 1 / 400; }
  get left() { return this.scene.axis.left; }
  get right() { return this.scene.axis.right; }
  get whole() { return [this.left, this.right]; } // a window is in px of the picture as Python drew it

  load() {
    const scene = this.host.get("scene");
    if (scene.axis) [this.low, this.high] = [scene.axis.left, scene.axis.right];
    super.load();
    this.placed = this.window;
  }

  get said() { return this.wordsOf(this.step); }

  get window() { return `${this.low},${this.high}`; }

  /** The steps in the window: those that it plays. */
  get span() {
    const { stops } = this.scene, inside = (x) => x > this.low - 0.1 && x < this.high + 0.1;
    return stops?.some(inside) ? [stops.findIndex(inside), stops.findLastIndex(inside)] : [0, this.last];
  }

  /** Seconds that the step shown takes: its part of `length`, in which the play-head crosses the window. */
  get pace() {
    const { stops } = this.scene;
    return this.length * (stops[this.step + 1] - stops[this.step]) / (this.high - this.low) || 1;
  }

  /** Where the play-head is in the picture as Python drew it, in px. */
  get here() {
    const [from, to = from] = this.scene.stops.slice(this.step);
    return from + (to - from) * this.part;
  }

  go(step) {
    super.go(step);
    const { here, low, high } = this, half = (high - low) / 2;
    if (here < low || here > high) this.setWindow(here - half, here + half);
  }

  draw() {
    super.draw();
    const { svg, scene: { head, foot } } = this;
    this.root.dataset.window = this.window;
    if (this.placed !== this.window) this.arrange();
    this.marks = this.group(this.mark, make("g", { "clip-path": this.tile("window") }, svg));
    this.stretch(this.marks);
    this.line = make("path", { class: "s-fg f-fg", "stroke-width": 1.4,
      d: `M0,${head}V${foot}V${head}l-5,-6h10z` }, svg);
    if (!this.playing) this.say();
  }

  move() {
    super.move();
    const x = this.x(this.here), inside = x >= this.left - 0.1 && x <= this.right + 0.1;
    this.line.setAttribute("transform", `translate(${x},0)`);
    this.line.setAttribute("visibility", inside && (this.playing || this.step) ? "visible" : "hidden");
  }

  /** Everything on the axis, where another window has it. */
  arrange() {
    this.placed = this.window;
    this.common.querySelectorAll("[data-timed]").forEach((group) => this.stretch(group));
    this.drawAxis(this.common.querySelector("[data-axis]"));
    this.drawNames(this.common.querySelector("[data-names]"));
  }

  /** Bars and lines keep their height; words that belong to a place are for the whole axis only. */
  stretch(group) {
    const k = (this.right - this.left) / (this.high - this.low);
    const put = (node, name, from) => {
      const given = (node.given ??= {})[name] ??= node.getAttribute(name);
      node.setAttribute(name, from(given));
    };
    for (const node of group.querySelectorAll("path")) {
      put(node, "d", (d) => d.split(/(?=M)/).map((part) => this.seenOf(part, k)).join(""));
    }
    for (const node of group.querySelectorAll("rect")) {
      put(node, "x", (x) => this.x(+x));
      put(node, "width", (width) => width * k);
    }
    for (const node of group.querySelectorAll("text")) node.setAttribute("visibility", k > 1 ? "hidden" : "visible");
  }

  /** A part of a path in the window; nothing where it is outside, since browsers draw that slowly. */
  seenOf(part, k) {
    let at = 0, low = Infinity, high = -Infinity;
    const moved = part.replace(/([MLHhl])(-?[\d.]+)/g, (_, sign, given) => {
      const by = /[hl]/.test(sign), x = by ? given * k : this.x(Number(given));
      at = by ? at + x : x;
      [low, high] = [Math.min(low, at), Math.max(high, at)];
      return sign + x.toFixed(2);
    });
    return high < this.left - 4 || low > this.right + 4 ? "" : moved;
  }

  drawAxis(group) {
    const { duration, unit, y } = this.scene.axis, scale = duration / (this.right - this.left);
    group.replaceChildren();
    const most = Math.min(10, (this.right - this.left) / (unit ? 60 : 44));
    for (const time of ticks((this.low - this.left) * scale, (this.high - this.left) * scale, most)) {
      const x = this.x(this.left + time / scale);
      make("path", { d: `M${x},${y}v5`, class: "s-muted" }, group);
      make("text", { x, y: y + 17, "font-size": FONT, "text-anchor": "middle", class: "f-muted" }, group,
        unit ? seconds(time, 5) : `${+time.toPrecision(5)}`);
    }
  }

  /** What fits into what is seen of each bar, its name or its microbatch alone; as `named` in schedule_lanes.py. */
  drawNames(group) {
    group?.replaceChildren();
    for (const [ink, y, width, several] of this.scene.names ?? []) {
      for (let i = 0; i < several.length; i += 2) {
        const [at, name] = several.slice(i, i + 2), x0 = Math.max(this.x(at), this.left);
        const x1 = Math.min(this.x(at + width), this.right);
        const fits = [name, name.match(/\d*$/)[0]].find((words) => LETTER * FONT * lettersOf(words) + 2 < x1 - x0);
        if (fits) make("text", { x: (x0 + x1) / 2, y, class: `f-halo-${ink}` }, group, fits);
      }
    }
  }
}
