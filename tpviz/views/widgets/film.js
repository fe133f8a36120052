/**
 * A film: pictures made in Python (its scene: `Film` in base.py), stepped through and played. The whole part of `head`
 * is the step shown, the rest how far what moves has come. A view gives `hint`, and `pace` or `length`.
 */
import { Player } from "./player.js";
import { fit } from "./room.js";
import { make, rendered, roomy, scenesOf } from "./view.js";

const LEAD = 0.2, TRAVEL = 0.8; // parts of a step: the sentence stands first; then it moves until here

export class Film extends Player {
  get unit() { return "step"; }

  buildTools(tools) {
    this.slider = make("input", { type: "range", min: 0, step: 1, "aria-label": "step" }, tools);
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
    super.buildTools(tools);
  }

  get help() { return ["Space plays, arrows step, Home and End jump.", this.hint, ...this.scene.help ?? []].join(" "); }

  buildBody() {
    super.buildBody();
    this.legend = make("div", { class: "tpv-one" }, this.stage);
    this.notes = make("div", { class: "tpv-hint" }, this.below);
    this.under = make("div", { class: "tpv-one" }, this.below);
    this.aside = make("svg", { class: "tpv-aside", "aria-hidden": "true" });
    this.metrics.after(this.aside);
  }

  load() {
    const scene = this.scene = this.host.get("scene");
    this.last = Math.max(scene.captions?.length ?? 0, 1) - 1;
    this.slider.max = this.last;
    this.head = this.host.get("step");
    this.common = this.group(scene.common ?? "");
    this.stack(this.legend, "legend", (items) => this.drawLegend(items, make("div", { class: "tpv-legend" })));
    this.put(this.notes, (scene.notes ?? []).join("\n"), ({ notes = [] }) => notes.join("\n"));
    this.stack(this.under, "under", (html) => Object.assign(make("div"), { innerHTML: html }));
    this.fresh = this.head === (scene.opens ?? 0);
    this.autoplay();
  }

  /** What the scene has of a name and, unseen, what those of other knobs have: a place for the tallest. */
  stack(place, name, drawn) {
    const all = [...scenesOf(this), this.scene].map((scene) => JSON.stringify(scene[name] ?? []));
    place.replaceChildren(...[...new Set(all.reverse())].map((one) => drawn(JSON.parse(one))));
  }

  /** By itself a film plays on from the step that shows most; on a time axis all that comes counts. */
  autoplay() {
    if (this.host.get("autoplay") && !this.scene.stops) this.fresh = false;
    super.autoplay();
  }

  get width() { return this.scene.width; }

  get step() { return Math.min(Math.floor(this.head), this.last); }
  get span() { return [0, this.last]; }
  get speed() { return 1 / this.pace; }

  /** A film opens at the step that shows most, and plays from the start unless another step was chosen. */
  play(on) {
    if (on && this.fresh) [this.head] = this.span;
    this.fresh &&= !on;
    super.play(on);
  }

  tick(now) {
    const { playing } = this;
    if (!playing && this.host.get("step") !== this.step) [this.head, this.fresh] = [this.host.get("step"), false];
    super.tick(now);
    if (playing && this.host.get("step") !== this.step) this.publish({ step: this.step });
  }

  go(step) {
    this.play(false);
    this.fresh = false;
    this.head = Math.min(Math.max(step, 0), this.last);
    this.publish({ step: this.head });
    this.say();
  }

  jump(by) { this.go(this.step + by); }

  wordsOf(step) { return this.scene.words?.[step] ?? ""; }

  /** What the rail says of the step beside its caption. */
  get said() { return (this.scene.says ?? this.scene.words)?.[this.step] ?? ""; }

  say() { this.live.textContent = [this.scene.captions[this.step], this.wordsOf(this.step) || this.scene.finding].filter(Boolean).join("; "); }

  onClick({ target }) {
    const [step, rank] = ["step", "rank"].map((name) => target.closest(`[data-${name}]`)?.dataset[name]);
    if (step) this.go(Number(step));
    if (rank) this.publish({ rank: Number(rank) });
  }

  draw() {
    const { scene, svg, step, width } = this, { top, height, frames, pieces } = scene;
    fit(this, (of) => [width + of.width - scene.width, of.height - of.top]);
    this.drawHead(scene, scene.numbers?.[step] ?? scene.facts);
    const { finding } = scene, all = scenesOf(this);
    const lines = (caption, said) => finding ? `${caption}\n${said}` : said;
    const longest = (texts) => texts.flat().sort((a, b) => b.length - a.length)[0];
    const room = [all.map((of) => of.captions), all.map((of) => of.says ?? of.words ?? "")].map(longest);
    roomy(this.summary, [lines(...room)]); // each line has that of its longest
    this.summary.textContent = lines(scene.captions[step], this.said);
    this.aside.toggleAttribute("hidden", !scene.aside);
    if (scene.aside) {
      this.aside.setAttribute("viewBox", `0 0 ${scene.aside_size.join(" ")}`);
      this.aside.replaceChildren(this.group(scene.aside[step]));
    }
    this.slider.value = step;
    this.slider.setAttribute("aria-valuetext", scene.captions[step]);
    this.put(this.now, finding ?? scene.captions[step], (of) => of.finding ?? of.captions);
    this.root.dataset.step = step;
    this.resize(svg, width, height, top);
    const rows = scenesOf(this).flatMap(({ numbers, facts }) => numbers ?? [facts ?? []]);
    this.metrics.style.minHeight = `${25 * Math.max(...rows.map(({ length }) => length))}px`;
    svg.setAttribute("aria-label", `${scene.title}, ${scene.captions[step]}`);
    if (svg.firstChild !== this.common) svg.replaceChildren(this.common); // it is large
    while (this.common.nextSibling) this.common.nextSibling.remove();
    const frame = this.group([frames?.[step] ?? ""].flat().map((part) => pieces?.[part] ?? part).join(""), svg);
    this.travelling = [...frame.querySelectorAll("[data-path]")].map((node) => (
      [node, JSON.parse(node.dataset.path), Number(node.dataset.lag), node.getAttribute("transform")]));
  }

  /** How far into the step shown it is. */
  get part() { return this.playing ? this.head - this.step : 0; }

  move() {
    const { part } = this, gone = Math.min(Math.max(part - LEAD, 0) / (TRAVEL - LEAD), 1), eased = gone * gone * (3 - 2 * gone);
    for (const [node, [x0, y0, cx, cy, x1, y1], lag, rest] of this.travelling ?? []) {
      const t = Math.max(eased - lag * (1 - part), 0);
      const at = (a, c, b) => ((1 - t) ** 2 * a + 2 * t * (1 - t) * c + t * t * b).toFixed(1);
      node.setAttribute("transform", this.playing && !this.calm
        ? `translate(${at(x0, cx, x1)},${at(y0, cy, y1)})` : rest);
    }
  }
}

/** The module of a film without code of its own. pace : seconds a step; hint : what one can click. */
export const film = (name, pace, hint) => rendered(class extends Film {
  get pace() { return pace; }
  get hint() { return hint; }
}, name, ["step"]);
