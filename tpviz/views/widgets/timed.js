/**
 * A film on a time axis (`scene.axis`): a play-head passes, one zooms, bars glide. What Python drew in `[data-timed]`
 * moves to where the window has it.
 */
import { Film } from "./film.js";
import { make, seconds, ticks } from "./view.js";
import { Zoomed } from "./zoom.js";

const DIGIT = 8; // px

export class TimedFilm extends Zoomed(Film) {
  get finest() { return 1 / 400; }
  get left() { return this.scene.axis.left; }
  get right() { return this.scene.axis.right + this.width - this.scene.width; }
  /** In px of the picture as Python drew it; in less room its axis is shorter. */
  get whole() { return [this.left, this.scene.axis.right]; }
  get width() { return Math.min(this.scene.width, Math.max(this.stage.clientWidth || Infinity, this.scene.least ?? 0)); }

  get bars() { return [...this.common?.querySelectorAll("path[data-key]") ?? []]; }
  get places() { return this.bars.map((path) => path.dataset.key + path.getAttribute("d")); }
  /** Bars glide from where they were, where there are as many of each ink. */
  glide(from = []) {
    const to = this.places, form = (all) => all.join().replace(/[^a-z]+/gi, "");
    const shape = (place) => `path("${place.slice(place.indexOf("M"))}")`;
    if (this.calm || form(from) !== form(to)) return;
    this.bars.forEach((path, i) => path.animate({ d: [shape(from[i]), shape(to[i])] }, 250));
  }

  load() {
    const scene = this.host.get("scene");
    this.was = this.places;
    if (scene.axis) [this.low, this.high] = [scene.axis.left, scene.axis.right];
    super.load();
    this.placed = this.gathered ? "" : `${this.window},${scene.axis?.right}`;
  }

  get said() { return this.wordsOf(this.step); }

  get window() { return `${this.low},${this.high}`; }

  /** The steps in the window: it plays those. */
  get span() {
    const { stops } = this.scene, inside = (x) => x > this.low - 0.1 && x < this.high + 0.1;
    return stops?.some(inside) ? [stops.findIndex(inside), stops.findLastIndex(inside)] : [0, this.last];
  }

  /** Seconds of the step: its part of `length`, in which the play-head crosses the window. */
  get pace() {
    const { stops } = this.scene;
    return this.length * (stops[this.step + 1] - stops[this.step]) / (this.high - this.low) || 1;
  }

  /** px of the play-head, as Python drew it. */
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
    if (this.placed !== `${this.window},${this.right}`) this.arrange();
    this.stretch(this.group(this.mark, make("g", { class: "tpv-at", "clip-path": this.tile("window") }, svg)));
    this.line = make("path", { class: "s-fg f-fg tpv-at", "stroke-width": 1.4,
      d: `M0,${head}V${foot}V${head}l-5,-6h10z` }, svg);
    if (!this.playing) this.say();
    this.glide(this.was);
    this.was = [];
  }

  move() {
    super.move();
    const x = this.x(this.here), inside = x >= this.left - 0.1 && x <= this.right + 0.1;
    this.line.setAttribute("transform", `translate(${x},0)`);
    this.line.setAttribute("visibility", inside && (this.playing || this.step) ? "visible" : "hidden");
  }

  arrange() {
    this.placed = `${this.window},${this.right}`;
    this.common.querySelectorAll("[data-timed]").forEach((group) => this.stretch(group));
    this.drawAxis(this.common.querySelector("[data-axis]"));
    this.drawNames(this.common.querySelector("[data-names]"));
  }

  /** Bars and lines keep their height. What has `data-to` begins there, if it is `gathered`. */
  stretch(group) {
    const k = (this.right - this.left) / (this.high - this.low);
    const put = (node, name, from) => {
      const given = (node.given ??= {})[name] ??= node.getAttribute(name);
      node.setAttribute(name, from(given));
    };
    for (const node of group.querySelectorAll("path")) {
      const to = this.gathered && node.dataset.to?.split(" ");
      put(node, "d", (d) => d.split(/(?=M)/)
        .map((part, i) => this.seenOf(to ? part.replace(/[^M,]+/, to[i]) : part, k)).join(""));
    }
    for (const node of group.querySelectorAll("rect")) {
      put(node, "x", (x) => this.x(+x));
      put(node, "width", (width) => width * k);
    }
    for (const node of group.querySelectorAll("text")) {
      put(node, "x", (x) => this.x(+x));
      node.setAttribute("visibility", k < .6 ? "hidden" : "visible");
    }
  }

  /** A part of a path in the window, without bars outside: browsers draw those slowly. */
  seenOf(part, k) {
    const [, x, wide] = part.match(/^M([\d.]+),[\d.]+h([\d.]+)/) ?? [];
    if (this.x(+x) > this.right + 4 || this.x(+x + +wide) < this.left - 4) return "";
    return part.replace(/([MLHhl])(-?[\d.]+)/g, (_, sign, at) => sign + (/[hl]/.test(sign) ? at * k : this.x(+at)).toFixed(2));
  }

  drawAxis(group) {
    if (!group) return;
    const { duration, unit, y, right } = this.scene.axis, scale = duration / (right - this.left);
    group.replaceChildren();
    const most = Math.min(10, (this.right - this.left) / (unit ? 60 : 44));
    for (const time of ticks((this.low - this.left) * scale, (this.high - this.left) * scale, most)) {
      const x = this.x(this.left + time / scale);
      make("path", { d: `M${x},${y}v5`, class: "s-muted" }, group);
      make("text", { x, y: y + 17, "font-size": 13, "text-anchor": "middle", class: "f-muted" }, group,
        unit ? seconds(time, 5) : `${+time.toPrecision(5)}`);
    }
  }

  /** As `named` in schedule_lanes.py. */
  drawNames(group) {
    group?.replaceChildren();
    for (const [ink, y, width, several] of this.scene.names ?? []) {
      const most = DIGIT * Math.max(...several.map(([, name]) => name.length)) + 4;
      for (const [at, name] of several) {
        const x0 = Math.max(this.x(at), this.left), x1 = Math.min(this.x(at + width), this.right), x = (x0 + x1) / 2;
        if (most < x1 - x0) make("text", { x, y, class: `f-halo-${ink}` }, group, name);
      }
    }
  }
}
