/**
 * The microscope view. Python has placed everything; `head` is the time in steps: its whole part says which
 * buffers to show, the rest how far the messages are.
 */
import { View, make } from "./view.js";

const PACE = 1.6, TRAVEL = 0.8, HALFWAY = 0.36, TOKEN = [38, 20]; // seconds a step; the part of it spent travelling

class MicroscopeView extends View {
  buildBody() {
    this.metrics = make("div", { class: "tpv-metrics" }, this.root);
    const tools = make("div", { class: "tpv-tools", role: "toolbar", "aria-label": "microscope controls" }, this.root);
    this.playButton = this.button(tools, "▶ Play", "Play", () => this.play(!this.playing));
    for (const [text, label, by] of [["|◀", "first step (Home)", -Infinity], ["◀", "previous step (Left)", -1],
      ["▶", "next step (Right)", 1], ["▶|", "the end (End)", Infinity]]) {
      this.button(tools, text, label, () => this.go(this.step + by));
    }
    this.slider = document.createElement("input");
    Object.assign(this.slider, { type: "range", min: 0, step: 1 });
    this.slider.setAttribute("aria-label", "step");
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
    tools.append(this.slider);
    this.now = make("b", { class: "tpv-now" }, tools);
    const scroll = make("div", { class: "tpv-scroll" }, this.root);
    this.svg = make("svg", { tabindex: 0, role: "application", "aria-roledescription": "animation" }, scroll);
    this.notes = make("div", { class: "tpv-hint" }, this.root);
    make("div", { class: "tpv-hint" }, this.root, "Space plays, arrows step, Home and End jump. c0: chunk 0; filled: "
      + "complete; its bar: how many ranks are in a sum. Point at a message for its bytes.");
    this.svg.addEventListener("keydown", (e) => this.onKey(e));
  }

  load() {
    this.scene = this.host.get("scene");
    this.last = this.scene.steps?.length ?? 0;
    this.slider.max = this.last;
    this.head = this.host.get("step");
    this.play(Boolean(this.host.get("autoplay")) && !this.calm && this.last > 0);
  }

  get step() { return Math.min(Math.floor(this.head), this.last); }

  tick(now) {
    if (this.playing) {
      const before = this.step;
      this.head += Math.min((now - this.before) / 1000 || 0, 0.1) / PACE;
      this.before = now;
      if (this.head >= this.last) { this.head = this.last; this.play(false); }
      if (this.step !== before) this.publish({ step: this.step });
    } else if (this.host.get("step") !== this.step) this.head = this.host.get("step");
    super.tick();
    this.moveTokens();
    if (this.playing) this.request();
  }

  play(on) {
    this.playing = on;
    this.before = undefined;
    if (on && this.head >= this.last) { this.head = 0; this.publish({ step: 0 }); }
    this.playButton.textContent = on ? "⏸ Pause" : "▶ Play";
    this.playButton.setAttribute("aria-label", on ? "Pause" : "Play");
    this.request();
  }

  go(step) {
    this.play(false);
    this.head = Math.min(Math.max(step, 0), this.last);
    this.publish({ step: this.head });
    const words = this.scene.steps[this.head]?.messages.map((m) => m.words) ?? [];
    this.live.textContent = [this.caption, ...words].join("; ");
  }

  get caption() { return this.scene.steps[this.step]?.caption ?? `the end, after ${this.last} steps`; }

  draw() {
    const { scene, svg, step } = this, { width, height } = scene;
    [this.badge.textContent, this.title.textContent] = [scene.badge, scene.title];
    this.metrics.replaceChildren(...scene.facts.map(([label, value]) => {
      const node = make("span", {}, null, `${label} `);
      make("b", {}, node, value);
      return node;
    }));
    this.notes.replaceChildren(...scene.notes.map((note) => make("div", {}, null, note)));
    this.slider.value = step;
    this.now.textContent = this.caption;
    this.root.dataset.step = step;
    svg.setAttribute("viewBox", `0 44 ${width} ${height - 44}`);
    svg.setAttribute("style", `width:100%;max-width:${width}px`);
    svg.setAttribute("aria-label", `${scene.title}, ${this.caption}`);
    svg.replaceChildren();
    this.drawDefs(svg, scene.patterns);
    for (const [a, b, c, d] of scene.edges) this.line(`M${a},${b}L${c},${d}`, "rule");
    const messages = scene.steps[step]?.messages ?? [];
    for (const m of messages) this.drawArrow(m);
    for (const here of scene.ranks) this.drawRank(here, scene.frames[step][here.rank]);
    this.tokens = messages.map((m) => this.drawToken(m));
  }

  line(d, key) {
    return make("path", { d, style: `fill:none;stroke:var(--tpv-${key});stroke-width:2` }, this.svg);
  }

  drawArrow({ path: [x0, y0, cx, cy, x1, y1], key }) {
    this.line(`M${x0},${y0}Q${cx},${cy} ${x1},${y1}`, key);
    const turn = Math.atan2(y1 - cy, x1 - cx) * 180 / Math.PI;
    make("path", { d: "M0,0l-9,-4.5v9z", transform: `translate(${x1},${y1})rotate(${turn})`,
      style: `fill:var(--tpv-${key})` }, this.svg);
  }

  box(parent, x, y, width, height, rx, style) { make("rect", { x, y, width, height, rx, style }, parent); }

  text(parent, x, y, size, style, words, anchor = "start") {
    make("text", { x, y, "font-size": size, style, "text-anchor": anchor }, parent, words);
  }

  drawRank({ rank, x, y }, cells) {
    const { box, places } = this.scene, muted = "fill:var(--tpv-muted)";
    const group = make("g", { "data-rank": rank, transform: `translate(${x},${y})` }, this.svg);
    this.box(group, 0, 0, box.width, box.height, 7, "fill:var(--tpv-bg);stroke:var(--tpv-muted)");
    this.text(group, 7, 14, 11, "fill:var(--tpv-fg);font-weight:700", `rank ${rank}`);
    if (box.parting) {
      this.text(group, box.width - 6, 14, 9, muted, "to send", "end");
      this.text(group, 7, box.parting, 9, muted, "received");
    }
    cells.forEach((cell, i) => this.drawCell(group, ...places[i], ...box.cell, cell));
  }

  ink(key) { return `fill:var(--tpv-on-${key});stroke:var(--tpv-${key});stroke-width:3;paint-order:stroke`; }

  drawCell(group, x, y, width, height, cell) {
    const paint = (style) => this.box(group, x, y, width, height, 3, style);
    if (!cell) { paint("fill:none;stroke:var(--tpv-rule);stroke-dasharray:3 3"); return; }
    const { key } = cell, full = cell.full >= 1, ink = full ? this.ink(key) : "fill:var(--tpv-fg)";
    paint(full ? `fill:var(--tpv-${key})` : `fill:none;stroke:var(--tpv-${key});stroke-width:1.4`);
    if (full && cell.pattern !== "solid") paint(`fill:url(#${this.uid}-${cell.pattern})`);
    if (!full) this.box(group, x, y + height - 4, width * cell.full, 4, 0, `fill:var(--tpv-${key})`);
    this.text(group, x + 3, y + 10, 9, ink, `c${cell.chunk}`);
    this.text(group, x + width / 2, y + 24, 13, `${ink};font-weight:700`, cell.value, "middle");
    this.text(group, x + width / 2, y + 34, 9, ink, cell.terms, "middle");
    if (cell.new) this.box(group, x - 1, y - 1, width + 2, height + 2, 4, "fill:none;stroke:var(--tpv-fg);stroke-width:2");
  }

  drawToken(m) {
    const group = make("g", { "data-message": `${m.sender}-${m.receiver}-${m.chunk}` }, this.svg), [w, h] = TOKEN;
    this.box(group, -w / 2, -h / 2, w, h, 10, `fill:var(--tpv-${m.key});stroke:var(--tpv-bg);stroke-width:1.5`);
    this.text(group, 0, 4, 11, `${this.ink(m.key)};font-weight:700`,
      (m.phase === "reduce" ? "+" : "") + m.value, "middle");
    make("title", {}, group, m.words);
    return [group, m];
  }

  moveTokens() {
    const gliding = this.playing && !this.calm, part = Math.min((this.head - this.step) / TRAVEL, 1);
    for (const [group, { path: [x0, y0, cx, cy, x1, y1], lag }] of this.tokens ?? []) {
      const t = Math.max((gliding ? part * part * (3 - 2 * part) : HALFWAY) - lag * (1 - part), 0);
      const at = (a, c, b) => (1 - t) ** 2 * a + 2 * t * (1 - t) * c + t * t * b;
      group.setAttribute("transform", `translate(${at(x0, cx, x1).toFixed(1)},${at(y0, cy, y1).toFixed(1)})`);
    }
  }

  onKey(event) {
    const go = { Home: -Infinity, End: Infinity, ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if ((event.key !== " " && !go) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    if (go) this.go(this.step + go);
    else this.play(!this.playing);
  }
}

export default {
  render({ model, el }) {
    const view = new MicroscopeView(model, el, "microscope", ["step"]);
    return () => view.destroy();
  },
};
