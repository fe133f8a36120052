/**
 * What every view has that is played: its controls, its keys and its clock. `head` is where the clock stands, within
 * `span`; it moves by `speed` a second.
 *
 * A view says what its controls step through (`unit`), goes there (`jump`), and draws what moves (`move`).
 */
import { View, make } from "./view.js";

export class Player extends View {
  buildBody() {
    const tools = make("div", { class: "tpv-tools", role: "toolbar", "aria-label": "controls" }, this.root);
    this.playButton = this.button(tools, "▶ Play", "Play", () => this.play(!this.playing));
    for (const [text, which, by] of [["|◀", "first # (Home)", -Infinity], ["◀", "previous # (Left)", -1],
      ["▶", "next # (Right)", 1], ["▶|", "the end (End)", Infinity]]) {
      this.button(tools, text, which.replace("#", this.unit), () => this.jump(by));
    }
    this.buildTools(tools);
    this.now = make("b", { class: "tpv-now" }, tools);
    const scroll = make("div", { class: "tpv-scroll" }, this.root);
    this.svg = make("svg", { tabindex: 0, role: "application", "aria-roledescription": "animation" }, scroll);
    this.svg.addEventListener("keydown", (e) => this.onKey(e));
  }

  buildTools() {}

  /** From the start or from where it stands, once it is seen, unless motion is to be reduced. */
  autoplay() {
    this.play(false);
    this.seen?.disconnect();
    if (!this.host.get("autoplay") || this.calm || this.span[1] <= this.span[0]) return;
    this.seen = new IntersectionObserver(([{ isIntersecting }], seen) => {
      if (!isIntersecting) return;
      seen.disconnect();
      this.play(true);
    });
    this.seen.observe(this.svg);
  }

  destroy() {
    this.seen?.disconnect();
    super.destroy();
  }

  play(on) {
    const [start, end] = this.span;
    this.playing = on;
    this.before = undefined;
    if (on && this.head >= end - (end - start) / 1000) this.head = start;
    this.playButton.textContent = on ? "⏸ Pause" : "▶ Play";
    this.playButton.setAttribute("aria-label", on ? "Pause" : "Play");
    this.root.classList.toggle("tpv-playing", on);
    this.request();
  }

  tick(now) {
    if (this.playing) {
      const [, end] = this.span;
      this.head += Math.min((now - this.before) / 1000 || 0, 0.1) * this.speed;
      this.before = now;
      if (this.head >= end) { this.head = end; this.play(false); }
    }
    super.tick();
    this.move();
    if (this.playing) this.request();
  }

  keys() {
    return { " ": () => this.play(!this.playing), Home: () => this.jump(-Infinity), End: () => this.jump(Infinity),
      ArrowLeft: () => this.jump(-1), ArrowRight: () => this.jump(1) };
  }
}
