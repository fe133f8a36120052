/** Drawing the timeline: bars of one kind on a lane are one path. */
import { Player } from "./player.js";
import { addRun, amount, make, reserve, seconds, ticks } from "./view.js";
import { Zoomed } from "./zoom.js";

const RIGHT = 14, TOP = 24, BLOCK = 44, IDLE = 34;

export class TimelineDrawing extends Zoomed(Player) {
  load() {
    const scene = this.coarse = this.host.get("scene");
    this.lanes = (scene.lanes ?? []).map((lane) => ({ ...lane }));
    const [low, high] = scene.first ?? [0, 0];
    [this.low, this.high, this.head, this.focus, this.lane, this.level] = [low, high, low, -1, 0, null];
    this.opened = this.head;
    this.pick();
    this.autoplay();
  }

  /** The scene with the bars of the finest level that has all of the window. */
  pick() {
    const slack = 1e-9 * this.coarse.duration, level = [this.host.get("detail"), this.coarse.detail].find((l) =>
      l?.window && l.window[0] - slack <= this.low && this.high <= l.window[1] + slack) ?? this.coarse;
    if (level === this.level) return;
    const chosen = this.level && this.scene.bars.id[this.focus], scene = { ...this.coarse, ...level };
    [this.level, this.scene] = [level, scene];
    for (const lane of this.lanes) lane.bars = [];
    scene.bars?.lane.forEach((lane, i) => this.lanes[lane].bars.push(i));
    this.place = new Map((scene.bars?.id ?? []).map((id, i) => [id, i]));
    this.place.delete(-1); // merged bars
    this.focus = this.place.get(chosen) ?? -1;
  }

  /** Where events are merged in a narrow window, ask the kernel for its detail. */
  ask() {
    const { scene, low, high } = this, asked = `${[low, high]}`;
    clearTimeout(this.asking);
    if (!scene.cut || high - low > 0.6 * (scene.window[1] - scene.window[0]) || `${this.host.get("window")}` === asked) return;
    this.asking = setTimeout(() => this.publish({ window: [low, high] }), 150);
  }

  get help() {
    return "Space plays, ←/→ step events, ↑/↓ change lane, +/− and, with the focus, the wheel zoom, 0 all, drag pans.";
  }

  get rank() { return this.host.get("rank"); }
  get memory() { return this.scene.memory[String(this.rank)]; }
  get right() { return this.width - RIGHT; }
  get left() { return this.coarse.gutter[+this.axes]; }
  get whole() { return [0, this.scene.duration]; }

  draw() {
    this.pick();
    this.ask();
    const { scene, svg } = this;
    if (this.lanes[this.lane].rank !== this.rank) {
      [this.lane, this.focus] = [Math.max(this.lanes.findIndex((l) => l.rank === this.rank), 0), -1];
    }
    this.width = Math.max(this.stage.clientWidth, 300);
    for (const lane of this.lanes) [lane.y, lane.height] = lane.at[+this.axes].map((px, i) => i ? px : px + TOP);
    this.bottom = TOP + scene.high[+this.axes];
    const height = this.bottom + BLOCK + 28;
    const label = `Timeline, ${scene.badge}: ${scene.ranks.length} ranks, ${scene.events} events`;
    this.root.setAttribute("aria-label", label);
    svg.setAttribute("aria-label", `${label}. ${this.help}`);
    this.resize(svg, this.width, height);
    reserve(this, ({ high }) => high[+this.axes]);
    svg.replaceChildren();
    make("rect", { x: this.left, y: 0, width: this.right - this.left, height },
      make("clipPath", { id: `${this.uid}-clip` }, this.group(scene.defs, svg)));
    this.drawAxis();
    this.plot = make("g", { "clip-path": this.tile("clip") }, svg);
    this.lanes.forEach((lane, i) => this.drawLane(lane, i)); // later ones under
    const critical = scene.critical.map((i) => this.outline(i)).join("");
    if (critical) make("path", { d: critical, class: "s-fg tpv-critical", fill: "none", "stroke-width": 1.8 }, this.plot);
    this.drawBlock();
    this.overlay = make("g", { "clip-path": this.tile("clip"), "pointer-events": "none" }, svg);
    this.line = make("g", { "pointer-events": "none" }, svg); // at an edge it is whole
    this.drawHead(scene, scene.metrics);
    this.put(this.now, scene.spent.finding, ({ spent }) => spent.finding);
    this.drawLegend(scene.keys.filter((k) => k.kind !== "wait").map((k) =>
      [k, k.kind === "comm" ? `communication ${k.label}` : k.label]));
    this.note.textContent = scene.notes.concat(scene.note ?? "").join(" ");
  }

  write(x, y, words, anchor = "end", look = {}) {
    return make("text", { x, y, "text-anchor": anchor, "font-size": 13, class: "f-muted", ...look }, this.svg, words);
  }

  drawAxis() {
    const line = (t, look) => make("path", { d: `M${this.x(t)},${TOP - 6}V${this.bottom}`, ...look }, this.svg);
    for (const t of ticks(this.low, this.high, Math.max(this.width / 130, 2))) {
      line(t, { class: "s-rule" });
      this.write(Math.min(this.x(t), this.right - 12), 12, seconds(t), "middle");
    }
    const marks = this.scene.steps.flat().filter((t) => t >= this.low && t <= this.high);
    if (marks.length <= 100) for (const t of marks) line(t, { class: "s-muted", "stroke-dasharray": "2 3" });
  }

  drawLane(lane, index) {
    const { bars, keys, exposed, idle } = this.scene, chosen = lane.rank === this.rank, group = make("g");
    this.plot.prepend(group);
    if (lane.lane === "compute") {
      this.write(4, lane.y + 15.5, `rank ${lane.rank}`, "start", { "data-rank": lane.rank,
        "font-weight": chosen ? 800 : 500, class: "f-fg", style: "cursor:pointer" })
        .addEventListener("click", () => this.publish({ rank: lane.rank }));
    } else if (this.axes) this.write(this.left - 6, lane.y + lane.height - 2.5, lane.name);
    const runs = keys.map(() => []), spans = ({ lane: of, start, end }, kind) => {
      const run = [];
      let widest = IDLE, middle = 0;
      of.forEach((l, i) => {
        if (l !== index || start[i] >= this.high || end[i] <= this.low) return;
        const from = Math.max(this.x(start[i]), this.left), to = Math.min(this.x(end[i]), this.right);
        addRun(run, from, to);
        if (to - from > widest) [widest, middle] = [to - from, (from + to) / 2];
      });
      this.drawRun(run, lane.y, lane.height, { kind }, group);
      if (middle && kind === "idle") this.write(middle, lane.y + 15.5, kind, "middle");
    };
    spans(idle, "idle");
    for (const i of lane.bars) {
      if (bars.end[i] < this.low || bars.start[i] > this.high) continue;
      addRun(runs[bars.key[i]], Math.max(this.x(bars.start[i]), this.left - 2), Math.min(this.x(bars.end[i]), this.right + 2));
    }
    runs.forEach((run, k) => { if (keys[k].kind !== "wait") this.drawRun(run, lane.y, lane.height, keys[k], group); });
    spans(exposed, "exposed");
  }

  /** Below the lanes: where the step went, or the memory of a rank. */
  drawBlock() {
    const { memory, left, scene: { spent, memory_keys: kinds } } = this, shown = memory && this.tab === "memory";
    this.apart.setAttribute("aria-pressed", this.axes);
    this.tabs.forEach((node, i) => {
      node.hidden = !memory;
      node.setAttribute("aria-pressed", !i === !shown);
    });
    this.write(4, this.bottom + 19, shown ? `memory of rank ${this.rank}, peak ${amount(memory.peak, "B")}${memory.note}`
      : spent.title, "start", { "font-weight": 600, class: "f-fg" });
    const labels = []; // the first of several parts has the label of all
    for (const k of shown ? kinds : spent.parts) if (k.label) labels.push([[k], k.label]); else labels.at(-1)[0].push(k);
    this.drawLegend(labels, this.parts);
    this.parts.style.marginLeft = `${left}px`;
    if (shown) return this.drawMemory(memory);
    spent.parts.reduce((x, p) => {
      const end = x + p.share * (this.right - left);
      this.drawRun([[x, end]], this.bottom + 26, BLOCK, p, this.svg);
      return end;
    }, left);
  }

  drawMemory(memory) {
    const top = this.bottom + 26;
    for (const [y, down, label] of [[top, 10, amount(memory.peak, "B")], [top + BLOCK, 0, "0 B"]]) {
      make("path", { d: `M${this.left - 4},${y}H${this.right}`, class: "s-rule" }, this.svg);
      this.write(this.left - 6, y + down, label);
    }
    const x = [...memory.time, Math.max(this.scene.duration, memory.time.at(-1))].map((t) => this.x(t).toFixed(1));
    const y = (v) => (top + BLOCK * (1 - v / Math.max(memory.peak, 1))).toFixed(1);
    let base = memory.time.map(() => 0);
    for (const { column, key, pattern } of this.scene.memory_keys) {
      const upper = base.map((v, i) => v + memory[column][i]);
      const there = upper.map((v, i) => `${x[i]},${y(v)}H${x[i + 1]}`).join("L");
      const back = base.map((v, i) => `L${x[i + 1]},${y(v)}H${x[i]}`).reverse().join("");
      const paint = (look) => make("path", { d: `M${there}${back}z`, ...look }, this.plot);
      paint({ class: `f-${key}`, "data-memory": column });
      if (pattern !== "solid") paint({ fill: this.tile(pattern), class: "tpv-mark" });
      base = upper;
    }
  }

  outline(i) {
    const { bars } = this.scene, { y, height } = this.lanes[bars.lane[i]], by = height < 9 ? 2 : 0; // around a strip
    const [a, b] = [this.x(bars.start[i]) - by, Math.max(this.x(bars.end[i]), this.x(bars.start[i]) + 1.5) + by];
    return `M${a.toFixed(1)},${y - by}H${b.toFixed(1)}V${y + height + by}H${a.toFixed(1)}z`;
  }

  /** The play-head, the bars under it, the chosen event and what it waited for. */
  move() {
    const { overlay } = this;
    if (!overlay) return;
    const { bars } = this.scene, x = this.x(this.head);
    const path = (d, ink, width) => make("path", { d, fill: "none", class: `s-${ink}`, "stroke-width": width }, overlay);
    overlay.replaceChildren();
    this.line.replaceChildren();
    const under = this.lanes.map((lane) => this.barAt(lane, this.head, 0)).filter((i) => i >= 0);
    const foot = this.bottom + (this.memory && this.tab === "memory" ? BLOCK + 26 : 0);
    if (this.playing || this.head !== this.opened) { // at first it stands at nothing
      path(under.map((i) => this.outline(i)).join("") || "M0,0", "fg", 1.4);
      if (this.head >= this.low && this.head <= this.high) {
        make("path", { d: `M${x},${foot}V${TOP - 6}l-5,-7h10l-5,7`, class: "s-fg f-fg", "stroke-width": 1.6 }, this.line);
      }
    }
    const { steps, duration } = this.scene, step = steps.findLastIndex(([a]) => a <= this.head);
    this.summary.textContent = (steps.length > 1 && step >= 0 ? `step ${step + 1} of ${steps.length}, ` : "")
      + `${seconds(this.head)} of ${seconds(duration)}`;
    if (this.focus < 0) return;
    path(this.outline(this.focus), "bg", 5);
    path(this.outline(this.focus), "fg", 2.6);
    const source = this.place.get(bars.waits_for[this.focus]);
    if (source === undefined) return;
    const [from, to] = [source, this.focus].map((i) => this.lanes[bars.lane[i]]);
    path(`M${this.x(bars.start[source])},${from.y + 2}L${x},${to.y + 8}`, "exposed", 2);
    path(this.outline(source), "exposed", 2.2);
  }

  /** The bar of a lane at a time (within `slack` seconds), the latest started; -1 for none. */
  barAt(lane, time, slack) {
    const { start, end } = this.scene.bars, later = lane.bars.findLastIndex((i) => start[i] <= time + slack) + 1;
    return lane.bars.slice(Math.max(later - 64, 0), later).findLast((i) => end[i] >= time - slack) ?? -1;
  }
}
