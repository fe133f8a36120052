/**
 * What is played: controls, keys, clock. `head` is where the clock stands in `span`; it moves by `speed` a second, times
 * what the reader chose. What is rarely used stands behind "more".
 *
 * A view says what its controls step through (`unit`), goes there (`jump`), draws what moves (`move`), and what a click
 * does (`onClick`).
 */
import { View, make } from "./view.js";

const SPEEDS = [0.25, 0.5, 1, 2, 4];
/** Paths in a box of 12 px: some systems draw characters as emoji. */
const ICONS = { play: "M3,1v10l7.5,-5z", pause: "M2.5,1h2.5v10h-2.5zM7,1h2.5v10h-2.5z",
  first: "M1.5,1h1.8v10h-1.8zM10.5,1v10l-6.5,-5z", back: "M8,1l1.5,1.5l-3.5,3.5l3.5,3.5l-1.5,1.5l-5,-5z" };

function icon(name, by = 0) {
  const svg = make("svg", { class: "tpv-icon", viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" });
  make("path", { d: ICONS[name], fill: "currentColor", transform: `rotate(${by > 0 ? 180 : 0} 6 6)` }, svg);
  return svg;
}

export class Player extends View {
  buildBody() {
    const tools = make("div", { class: "tpv-tools", role: "toolbar", "aria-label": "controls" }, this.rail);
    this.playButton = this.button(tools, "", "Play", () => this.play(!this.playing));
    this.playButton.className = "tpv-play";
    for (const [name, which, by] of [["first", "first # (Home)", -Infinity], ["back", "previous # (Left)", -1],
      ["back", "next # (Right)", 1], ["first", "the end (End)", Infinity]]) {
      this.button(tools, "", which.replace("#", this.unit), () => this.jump(by)).append(icon(name, by));
    }
    const more = this.more = make("div", { class: "tpv-tools", hidden: "" });
    this.rate = make("select", { "aria-label": "speed", title: "speed (< and >)" }, more);
    for (const speed of SPEEDS) make("option", { value: speed }, this.rate, `${speed}x`);
    this.rate.value = 1;
    this.switch(more, "patterns", "patterns over the colours of the page", "tpv-patterns", document.documentElement);
    const help = make("div", { class: "tpv-hint" }, more);
    const ask = this.button(tools, "more", "more controls, keys, and what can be clicked", () => {
      more.hidden = !more.hidden;
      help.textContent = this.help;
      ask.setAttribute("aria-expanded", !more.hidden);
    });
    ask.setAttribute("aria-expanded", false);
    this.buildTools(tools);
    tools.append(more);
    const scroll = make("div", { class: "tpv-scroll" }, this.stage);
    this.svg = make("svg", { tabindex: 0, role: "application", "aria-roledescription": "animation" }, scroll);
    this.svg.addEventListener("keydown", (e) => this.onKey(e));
    this.svg.addEventListener("click", (e) => { if (!this.dragged) this.onClick(e); });
  }

  buildTools() {}

  /** Where an event is in the picture, in its px. */
  point({ clientX, clientY }) {
    return new DOMPoint(clientX, clientY).matrixTransform(this.svg.getScreenCTM().inverse());
  }

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

  play(on) {
    const [start, end] = this.span;
    [this.playing, this.before] = [on];
    if (on && (this.head >= end - (end - start) / 1000 || this.head < start)) this.head = start;
    this.playButton.replaceChildren(icon(on ? "pause" : "play"), on ? " Pause" : " Play");
    this.playButton.setAttribute("aria-label", on ? "Pause" : "Play");
    this.root.classList.toggle("tpv-playing", on);
    this.request();
  }

  tick(now) {
    if (this.playing) {
      const [, end] = this.span;
      this.head += Math.min((now - this.before) / 1000 || 0, 0.1) * this.speed * this.rate.value;
      this.before = now;
      if (this.head >= end) { this.head = end; this.play(false); }
    }
    super.tick();
    this.move();
    if (this.playing) this.request();
  }

  faster(by) {
    this.rate.selectedIndex = Math.min(Math.max(this.rate.selectedIndex + by, 0), SPEEDS.length - 1);
    this.live.textContent = `speed ${this.rate.value}x`;
  }

  keys() {
    return { " ": () => this.play(!this.playing), Home: () => this.jump(-Infinity), End: () => this.jump(Infinity),
      ArrowLeft: () => this.jump(-1), ArrowRight: () => this.jump(1),
      "<": () => this.faster(-1), ">": () => this.faster(1) };
  }
}
