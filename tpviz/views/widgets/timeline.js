/**
 * The timeline view. The kernel hears of the rank and the event chosen and, where it merged events, of the window,
 * and sends its detail.
 */
import { TimelineDrawing } from "./timeline_draw.js";
import { amount, make, rendered, seconds } from "./view.js";

const SWEEP = 12; // seconds the play-head takes to cross the window

class TimelineView extends TimelineDrawing {
  get unit() { return "event"; }

  buildTools(tools) {
    super.buildTools(tools);
    this.button(this.more, "step", "show one step (s)", () => this.showStep());
    const pair = make("div", { class: "tpv-pair" }, tools);
    this.tabs = ["time", "memory"].map((name) =>
      this.button(pair, name, name, () => { this.tab = name; this.onChange(); }));
    this.axes = false;
    this.apart = this.button(this.more, "axes", "a lane for each axis", () => { this.axes = !this.axes; this.onChange(); });
  }

  buildBody() {
    super.buildBody();
    this.parts = make("div", { class: "tpv-legend tpv-parts" }, this.stage);
    this.legend = make("div", { class: "tpv-legend" }, this.below);
    this.note = make("div", { class: "tpv-hint tpv-note" }, this.below);
    this.svg.addEventListener("pointermove", (e) => this.onMove(e));
    for (const name of ["pointerleave", "blur"]) this.svg.addEventListener(name, () => { this.tip.hidden = true; });
    if (this.host.send) this.takeDrops(); // else no kernel could read them
  }

  /** Files dropped here: Python asks for their bytes, piece after piece, and draws them. */
  takeDrops() {
    const { host, root } = this, coming = make("div", { class: "tpv-hint tpv-coming", hidden: "" }, root);
    let files = [];
    root.addEventListener("dragover", (e) => e.preventDefault());
    root.addEventListener("drop", (e) => {
      e.preventDefault();
      files = [...e.dataTransfer.files];
      if (files.length) host.send({ dropped: files.map(({ name, size }) => [name, size]) });
    });
    this.hear("msg:custom", async ({ want: [i, start, end] }) => {
      if (!files[i]) return; // dropped onto another view of this model
      coming.hidden = false;
      coming.textContent = `reading ${files[i].name}, ${amount(end, "B")} of ${amount(files[i].size, "B")}`;
      host.send({ chunk: [i, start, end] }, undefined, [await files[i].slice(start, end).arrayBuffer()]);
    });
    this.hear("change:generation", () => { coming.hidden = true; });
  }

  get span() { return [this.low, this.high]; }
  get speed() { return (this.high - this.low) / SWEEP; }

  lasts(start, end, busy = end - start) { return `${seconds(busy)}, from ${seconds(start)} to ${seconds(end)}`; }

  facts(i) {
    const { bars, strings, keys } = this.scene, lane = this.lanes[bars.lane[i]], key = keys[bars.key[i]];
    const text = (column) => strings[bars[column][i]], number = (column) => bars[column][i];
    const source = this.place.get(number("waits_for")), many = bars.count?.[i] ?? 1;
    return [text("name") || key.label, [
      many > 1 ? `${many} events, merged` : "",
      [text("phase"), text("layer"), `rank ${lane.rank}`, lane.name].filter(Boolean).join(" · "),
      this.lasts(bars.start[i], bars.end[i], bars.busy?.[i]),
      number("flops") ? amount(number("flops"), "FLOP") : "",
      number("bytes") > 0 ? `${amount(number("bytes"), "B")} payload` : number("bytes") < 0 ? "bytes unknown" : "",
      text("members") ? `axis ${lane.axis || lane.name}, ranks ${text("members")}` : "",
      ...["microbatch", "chunk"].map((column) => number(column) >= 0 ? `${column} ${number(column)}` : ""),
      source === undefined ? "" : `waits for ${strings[bars.name[source]]} on ${this.lanes[bars.lane[source]].name}`]];
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

  /** The step under the play-head, or the last, fills the window. */
  showStep() {
    const steps = this.scene.steps, here = steps.find(([a, b]) => a <= this.head && this.head < b) ?? steps.at(-1);
    if (here) this.setWindow(...here);
  }

  keys(event) {
    return { ...super.keys(event), ArrowDown: () => this.changeLane(1), ArrowUp: () => this.changeLane(-1),
      s: () => this.showStep(), Escape: () => { this.tip.hidden = true; } };
  }

  /** x, the event there (of the lane pointed at or, where that is empty, of its rank), and the rank. */
  hit(event) {
    const { x, y } = this.point(event), slack = 2 * (this.high - this.low) / (this.right - this.left);
    const here = (l) => y >= l.y - 1 && y <= l.y + l.height + 1, { rank } = x < this.left ? {} : this.lanes.find(here) ?? {};
    const found = this.lanes.filter((l) => l.rank === rank && (here(l) || !this.axes)).sort((a, b) => here(b) - here(a))
      .map((l) => this.barAt(l, this.time(x), slack));
    return [x, found.find((i) => i >= 0) ?? -1, rank];
  }

  onClick(event) {
    const [x, i] = this.hit(event);
    if (i >= 0) this.choose(i);
    else if (x >= this.left) { this.head = this.time(x); this.focus = -1; this.request(); }
  }

  onMove(event) {
    const [x, i, rank] = this.hit(event), t = this.time(x), { lane, start, end } = this.scene.idle;
    const k = lane.findIndex((l, j) => this.lanes[l].rank === rank && start[j] <= t && t < end[j]);
    const tip = i >= 0 ? this.facts(i) : k >= 0 && ["idle", [`rank ${rank}`, this.lasts(start[k], end[k])]];
    if (tip && !event.buttons) this.showTip(...tip, x, event.clientY - this.stage.getBoundingClientRect().top);
    else this.tip.hidden = true;
  }
}

export default rendered(TimelineView, "timeline", ["rank", "detail"]);
