/**
 * The timeline view: zoom, pan, hover, stepping through events and the play-head.
 *
 * The scene comes once and everything here happens in the browser; the kernel hears of the rank and the event
 * chosen. The pointer finds its bar by searching the lane's own list.
 */
import { GUTTER, HINT, TimelineDrawing } from "./timeline_draw.js";
import { amount, make, seconds } from "./view.js";

const SWEEP = 12; // seconds the play-head takes to cross the window

class TimelineView extends TimelineDrawing {
  buildBody() {
    this.metrics = make("div", { class: "tpv-metrics" }, this.root);
    const tools = make("div", { class: "tpv-tools", role: "toolbar", "aria-label": "timeline controls" }, this.root);
    this.playButton = this.button(tools, "▶ Play", "Play", () => this.play(!this.playing));
    this.button(tools, "|◀", "first event (Home)", () => this.step(-Infinity));
    this.button(tools, "◀", "previous event (Left)", () => this.step(-1));
    this.button(tools, "▶", "next event (Right)", () => this.step(1));
    this.button(tools, "▶|", "last event (End)", () => this.step(Infinity));
    this.button(tools, "+", "zoom in (+)", () => this.zoom(0.6));
    this.button(tools, "−", "zoom out (-)", () => this.zoom(1 / 0.6));
    this.button(tools, "step", "show one step (s)", () => this.showStep());
    this.button(tools, "all", "show everything (0)", () => this.setWindow(0, this.scene.duration));
    this.now = make("span", { class: "tpv-now" }, tools);
    const scroll = make("div", { class: "tpv-scroll" }, this.root);
    this.svg = make("svg", { tabindex: 0, role: "application", "aria-roledescription": "timeline" }, scroll);
    this.legend = make("div", { class: "tpv-legend" }, this.root);
    make("div", { class: "tpv-hint" }, this.root, HINT);
    this.svg.addEventListener("keydown", (e) => this.onKey(e));
    this.svg.addEventListener("wheel", (e) => this.onWheel(e), { passive: false });
    this.svg.addEventListener("pointerdown", (e) => this.onDown(e));
    this.svg.addEventListener("pointermove", (e) => this.onMove(e));
    for (const name of ["pointerleave", "blur"]) {
      this.svg.addEventListener(name, () => { this.tip.hidden = true; });
    }
  }

  tick(now) {
    if (this.playing) {
      this.head += (this.high - this.low) / SWEEP * Math.min((now - this.before) / 1000 || 0, 0.1);
      this.before = now;
      if (this.head >= this.high) { this.head = this.high; this.play(false); }
    }
    super.tick();
    if (this.overlay) this.drawOverlay();
    if (this.playing) this.request();
  }

  facts(i) {
    const { bars, strings, keys } = this.scene, lane = this.lanes[bars.lane[i]], key = keys[bars.key[i]];
    const text = (column) => strings[bars[column][i]], number = (column) => bars[column][i];
    const source = this.place.get(number("waits_for"));
    return [text("name") || key.label, [
      [text("phase"), text("layer"), `rank ${lane.rank}`, lane.name].filter(Boolean).join(" · "),
      `${seconds(bars.end[i] - bars.start[i])}, from ${seconds(bars.start[i])} to ${seconds(bars.end[i])}`,
      number("flops") ? amount(number("flops"), "FLOP") : "",
      number("bytes") ? `${amount(number("bytes"), "B")} payload` : "",
      text("members") ? `axis ${lane.axis || lane.name}, ranks ${text("members")}` : "",
      number("microbatch") >= 0 ? `microbatch ${number("microbatch")}` : "",
      number("chunk") >= 0 ? `chunk ${number("chunk")}` : "",
      source === undefined ? "" : `waits for ${strings[bars.name[source]]} on ${this.lanes[bars.lane[source]].name}`]];
  }

  play(on) {
    this.playing = on;
    this.before = undefined;
    if (on && this.head >= this.high * 0.999) this.head = this.low;
    this.playButton.textContent = on ? "⏸ Pause" : "▶ Play";
    this.playButton.setAttribute("aria-label", on ? "Pause" : "Play");
    this.request();
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

  step(by) {
    const list = this.lanes[this.lane].bars, at = list.indexOf(this.focus);
    if (!list.length) return;
    this.play(false);
    this.choose(list[Math.min(Math.max(at < 0 && Number.isFinite(by) ? 0 : at + by, 0), list.length - 1)]);
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

  onKey(event) {
    const span = this.high - this.low, pan = (by) => this.setWindow(this.low + by * span, this.high + by * span);
    const actions = { " ": () => this.play(!this.playing), Home: () => this.step(-Infinity), End: () => this.step(Infinity),
      ArrowRight: () => event.shiftKey ? pan(0.2) : this.step(1), ArrowLeft: () => event.shiftKey ? pan(-0.2) : this.step(-1),
      ArrowDown: () => this.changeLane(1), ArrowUp: () => this.changeLane(-1), "+": () => this.zoom(0.6),
      "=": () => this.zoom(0.6), "-": () => this.zoom(1 / 0.6), 0: () => this.setWindow(0, this.scene.duration),
      s: () => this.showStep(), Escape: () => { this.tip.hidden = true; } };
    if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    actions[event.key]();
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
      moved ||= Math.abs(e.clientX - event.clientX) > 4;
      if (moved) this.setWindow(low - (e.clientX - event.clientX) * scale, high - (e.clientX - event.clientX) * scale);
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

export default {
  render({ model, el }) {
    const view = new TimelineView(model, el, "timeline", ["rank"]);
    return () => view.destroy();
  },
};
