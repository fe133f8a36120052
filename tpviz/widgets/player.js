/**
 * What every view has that is stepped through and played: its controls, keys, and the time in steps. `head` is that
 * time: its whole part is the step shown, the rest how far what moves has come.
 *
 * A view gives `lastOf(scene)`, `captionOf(step)`, `wordsOf(step)`, `pace` and `hint`, draws a step, and moves in `move`.
 */
import { View, make } from "./view.js";

export class Player extends View {
  buildBody() {
    this.metrics = make("div", { class: "tpv-metrics" }, this.root);
    const tools = make("div", { class: "tpv-tools", role: "toolbar", "aria-label": "controls" }, this.root);
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
    make("div", { class: "tpv-hint" }, this.root, `Space plays, arrows step, Home and End jump. ${this.hint}`);
    this.svg.addEventListener("keydown", (e) => this.onKey(e));
  }

  load() {
    this.scene = this.host.get("scene");
    this.last = this.lastOf(this.scene);
    this.slider.max = this.last;
    this.head = this.host.get("step");
    this.play(Boolean(this.host.get("autoplay")) && !this.calm && this.last > 0);
  }

  get step() { return Math.min(Math.floor(this.head), this.last); }

  tick(now) {
    if (this.playing) {
      const before = this.step;
      this.head += Math.min((now - this.before) / 1000 || 0, 0.1) / this.pace;
      this.before = now;
      if (this.head >= this.last) { this.head = this.last; this.play(false); }
      if (this.step !== before) this.publish({ step: this.step });
    } else if (this.host.get("step") !== this.step) this.head = this.host.get("step");
    super.tick();
    this.move();
    if (this.playing) this.request();
  }

  play(on) {
    this.playing = on;
    this.before = undefined;
    if (on && this.head >= this.last) { this.head = 0; this.publish({ step: 0 }); }
    this.playButton.textContent = on ? "⏸ Pause" : "▶ Play";
    this.playButton.setAttribute("aria-label", on ? "Pause" : "Play");
    this.root.classList.toggle("tpv-playing", on);
    this.request();
  }

  go(step) {
    this.play(false);
    this.head = Math.min(Math.max(step, 0), this.last);
    this.publish({ step: this.head });
    this.live.textContent = [this.captionOf(this.step), ...this.wordsOf(this.step)].join("; ");
  }

  wordsOf() { return []; }

  move() {}

  /** All but the picture: words, controls, and the size of the empty SVG, without its top `skip` px. */
  draw(skip) {
    const { scene, svg, step } = this, caption = this.captionOf(step);
    [this.badge.textContent, this.title.textContent] = [scene.badge, scene.title];
    this.metrics.replaceChildren(...scene.facts.map(([label, value]) => {
      const node = make("span", {}, null, `${label} `);
      make("b", {}, node, value);
      return node;
    }));
    this.notes.replaceChildren(...(scene.notes ?? []).map((note) => make("div", {}, null, note)));
    this.slider.value = step;
    this.now.textContent = caption;
    this.root.dataset.step = step;
    svg.setAttribute("viewBox", `0 ${skip} ${scene.width} ${scene.height - skip}`);
    svg.setAttribute("style", `width:100%;min-width:${Math.min(scene.width, 700)}px;max-width:${scene.width}px`);
    svg.setAttribute("aria-label", `${scene.title}, ${caption}`);
    svg.replaceChildren();
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
