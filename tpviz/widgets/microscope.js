/** The microscope view. Python has placed everything; buffers of the step are shown, messages travel. */
import { make } from "./view.js";
import { Player } from "./player.js";

const TRAVEL = 0.8, HALFWAY = 0.36, TOKEN = [38, 20]; // the part of a step spent travelling

class MicroscopeView extends Player {
  get pace() { return 1.6; } // seconds a step

  get hint() {
    return "c0: chunk 0; filled: complete; its bar: how many ranks are in a sum. Point at a message for its bytes.";
  }

  lastOf(scene) { return scene.steps?.length ?? 0; }

  captionOf(step) { return this.scene.steps[step]?.caption ?? `the end, after ${this.last} steps`; }

  wordsOf(step) { return this.scene.steps[step]?.messages.map((m) => m.words) ?? []; }

  draw() {
    super.draw(44);
    const { scene, svg, step } = this;
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

  move() {
    const gliding = this.playing && !this.calm, part = Math.min((this.head - this.step) / TRAVEL, 1);
    for (const [group, { path: [x0, y0, cx, cy, x1, y1], lag }] of this.tokens ?? []) {
      const t = Math.max((gliding ? part * part * (3 - 2 * part) : HALFWAY) - lag * (1 - part), 0);
      const at = (a, c, b) => (1 - t) ** 2 * a + 2 * t * (1 - t) * c + t * t * b;
      group.setAttribute("transform", `translate(${at(x0, cx, x1).toFixed(1)},${at(y0, cy, y1).toFixed(1)})`);
    }
  }
}

export default {
  render({ model, el }) {
    const view = new MicroscopeView(model, el, "microscope", ["step"]);
    return () => view.destroy();
  },
};
