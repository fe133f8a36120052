/**
 * The timeline view: zoom, pan, hover, stepping through events and the play-head.
 *
 * The scene comes once and everything here happens in the browser; the kernel hears of the rank and the event
 * chosen and, where it merged events, of the window, and sends its detail. The pointer finds its bar by searching the lane's own list.
 */
import { GUTTER, HINT, TimelineDrawing } from "./timeline_draw.js";
import { amount, make, rendered, seconds } from "./view.js";

const SWEEP = 12; // seconds the play-head takes to cross the window

class TimelineView extends TimelineDrawing {
  get unit() { return "event"; }

  buildTools(tools) {
    this.button(tools, "+", "zoom in (+)", () => this.zoom(0.6));
    this.button(tools, "−", "zoom out (-)", () => this.zoom(1 / 0.6));
    this.button(tools, "step", "show one step (s)", () => this.showStep());
    this.button(tools, "all", "show everything (0)", () => this.setWindow(0, this.scene.duration));
  }

  buildBody() {
    super.buildBody();
    this.legend = make("div", { class: "tpv-legend" }, this.root);
    this.note = make("div", { class: "tpv-hint tpv-note" }, this.root);
    make("div", { class: "tpv-hint" }, this.root, HINT);
    this.svg.addEventListener("wheel", (e) => this.onWheel(e), { passive: false });
    this.svg.addEventListener("pointerdown", (e) => this.onDown(e));
    this.svg.addEventListener("pointermove", (e) => this.onMove(e));
    for (const name of ["pointerleave", "blur"]) {
      this.svg.addEventListener(name, () => { this.tip.hidden = true; });
    }
  }

  get span() { return [this.low, this.high]; }
  get speed() { return (this.high - this.low) / SWEEP; }

  facts(i) {
    const { bars, strings, keys } = this.scene, lane = this.lanes[bars.lane[i]], key = keys[bars.key[i]];
    const text = (column) => strings[bars[column][i]], number = (column) => bars[column][i];
    const source = this.place.get(number("waits_for")), many = bars.count?.[i] ?? 1;
    const busy = many > 1 ? bars.busy[i] : bars.end[i] - bars.start[i];
    return [text("name") || key.label, [
      many > 1 ? `${many} events, merged` : "",
      [text("phase"), text("layer"), `rank ${lane.rank}`, lane.name].filter(Boolean).join(" · "),
      `${seconds(busy)}, from ${seconds(bars.start[i])} to ${seconds(bars.end[i])}`,
      number("flops") ? amount(number("flops"), "FLOP") : "",
      number("bytes") ? `${amount(number("bytes"), "B")} payload` : "",
      text("members") ? `axis ${lane.axis || lane.name}, ranks ${text("members")}` : "",
      number("microbatch") >= 0 ? `microbatch ${number("microbatch")}` : "",
      number("chunk") >= 0 ? `chunk ${number("chunk")}` : "",
      source === undefined ? "" : `waits for ${strings[bars.name[source]]} on ${this.lanes[bars.lane[source]].name}`]];
  }

  select(rank) {
    if (rank !== this.rank) this.publish({ rank });
  }

  /** Focus an event: move the head there, show and say its facts. */
  choose(i) {
    const { bars } = this.scene, middle = (bars.start[i] + bars.end[i]) / 2, span = this.high - this.low;
    [this.focus, this.head, this.lane] = [i, bars.start[i], bars.lane[i]];
    if (middle < this.low || middle > this.high) this.setWindow(middle - span / 2, middle + span / 2);
    const [title, lines] = this.facts(i), lane = this.lanes[this.lane];
    this.publish({ rank: lane.rank, selected: bars.id[i] });
    this.showTip(title, lines, this.x(middle), lane.y + this.svg.parentNode.offsetTop + lane.height);
    this.live.textContent = [title, ...lines.filter(Boolean)].join(", ");
  }

  jump(by) {
    const list = this.lanes[this.lane].bars, { start } = this.scene.bars;
    let at = list.indexOf(this.focus) + by;
    if (!list.length) return;
    this.play(false);
    if (this.focus < 0 && Number.isFinite(by)) at = list.findIndex((i) => start[i] >= this.head) >>> 0;
    this.choose(list[Math.min(Math.max(at, 0), list.length - 1)]);
  }

  changeLane(by) {
    this.lane = Math.min(Math.max(this.lane + by, 0), this.lanes.length - 1);
    const lane = this.lanes[this.lane], later = lane.bars.find((i) => this.scene.bars.end[i] > this.head);
    if (lane.bars.length) this.choose(later ?? lane.bars.at(-1));
  }

  setWindow(low, high) {
    const span = Math.min(Math.max(high - low, this.scene.duration * 1e-5), this.scene.duration);
    this.low = Math.min(Math.max(low, 0), this.scene.duration - span);
    this.high = this.low + span;
    this.onChange();
  }

  /** The step under the play-head fills the window; the last one where there is none. */
  showStep() {
    const steps = this.scene.steps, here = steps.find(([a, b]) => a <= this.head && this.head < b) ?? steps.at(-1);
    if (here) this.setWindow(...here);
  }

  zoom(factor, center = this.head >= this.low && this.head <= this.high ? this.head : (this.low + this.high) / 2) {
    this.setWindow(center - (center - this.low) * factor, center + (this.high - center) * factor);
  }

  keys({ shiftKey }) {
    const span = this.high - this.low, pan = (by) => this.setWindow(this.low + by * span, this.high + by * span);
    return { ...super.keys(), ...shiftKey && { ArrowRight: () => pan(0.2), ArrowLeft: () => pan(-0.2) },
      ArrowDown: () => this.changeLane(1), ArrowUp: () => this.changeLane(-1), "+": () => this.zoom(0.6),
      "=": () => this.zoom(0.6), "-": () => this.zoom(1 / 0.6), 0: () => this.setWindow(0, this.scene.duration),
      s: () => this.showStep(), Escape: () => { this.tip.hidden = true; } };
  }

  onWheel(event) {
    if (document.activeElement !== this.svg && !event.ctrlKey) return;
    event.preventDefault();
    const by = event.deltaX / (this.right - GUTTER) * (this.high - this.low);
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.setWindow(this.low + by, this.high + by);
    else this.zoom(Math.exp(Math.sign(event.deltaY) * 0.2), this.time(event.offsetX));
  }

  hit(event) {
    const box = this.svg.getBoundingClientRect(), [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const lane = this.lanes.find((l) => y >= l.y - 1 && y <= l.y + l.height + 1);
    const slack = 2 * (this.high - this.low) / (this.right - GUTTER);
    return [x, lane && x >= GUTTER ? this.barAt(lane, this.time(x), slack) : -1];
  }

  onDown(event) {
    const [x, i] = this.hit(event), [low, high] = [this.low, this.high];
    if (x < GUTTER || event.button) return;
    let moved = false;
    const scale = (high - low) / (this.right - GUTTER);
    const move = (e) => {
      const by = e.clientX - event.clientX;
      moved ||= Math.abs(by) > 4;
      if (moved) this.setWindow(low - by * scale, high - by * scale);
    };
    const up = () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", up);
      if (moved) return;
      if (i >= 0) this.choose(i);
      else { this.head = this.time(x); this.focus = -1; this.request(); }
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", up);
  }

  onMove(event) {
    const [x, i] = this.hit(event), root = this.root.getBoundingClientRect();
    if (i >= 0 && !event.buttons) this.showTip(...this.facts(i), x, event.clientY - root.top);
    else this.tip.hidden = true;
  }
}

export default rendered(TimelineView, "timeline", ["rank", "detail"]);
