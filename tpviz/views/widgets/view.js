/**
 * What every view shares: making elements, readable numbers, patterns, and the base class `View`.
 *
 * `host` is anywidget's model in Jupyter, and a small stand-in with the same get/set/on in a plain page.
 */
export function make(tag, attrs = {}, parent = null, text = null) {
  const html = /^(div|span|b|button|select|option|label|input|d[ltd])$/.test(tag);
  const node = html ? document.createElement(tag) : document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attrs)) node.setAttribute(name, value);
  if (text !== null) node.textContent = text;
  parent?.append(node);
  return node;
}

/** A node has the room of its longest text. */
export const roomy = (node, texts) => {
  node.dataset.longest = texts.map(String).sort((a, b) => b.length - a.length)[0];
};

function scaled(value, units, digits = 3) {
  const [unit, scale] = units.find(([, s]) => Math.abs(value) >= s * 0.9995) ?? units.at(-1);
  return `${+(value / scale).toPrecision(digits)} ${unit}`;
}
export const seconds = (t, digits) => t ? scaled(t, [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]], digits) : "0 s";
export const amount = (v, unit) => scaled(v, [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3], ["", 1]]) + unit;

/** About `count` round numbers between low and high. */
export function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const out = [];
  for (let i = Math.ceil(low / step); i * step <= high; i++) out.push(i * step);
  return out;
}

/** JupyterLab's sliders get their labels as names. */
export const nameSliders = (el) => el.closest(".jp-OutputArea-output")?.querySelectorAll(".widget-inline-hbox").forEach((row) =>
  row.querySelector(".noUi-handle")?.setAttribute("aria-label", row.firstChild.textContent));

/** What a module gives: `render` shows a view of this kind in Jupyter, or in a page. */
export const rendered = (Kind, name, traits) => ({
  render({ model, el }) {
    const view = new Kind(model, el, name, traits);
    return () => view.destroy();
  },
});

/** Bars closer than this many px are drawn as one. */
const SUBPIXEL = 0.35;
export function addRun(run, from, to) {
  const last = run.at(-1);
  if (last && from - last[1] < SUBPIXEL) last[1] = Math.max(last[1], to);
  else run.push([from, to]);
}

/** The scenes of all knobs that are known: a page's, or the one shown. */
export const scenesOf = (view) => (view.host.states ?? [view]).flatMap(({ scene }) => scene ?? []);

/** Room below a view's picture for the tallest that knobs bring. high : px of a scene's. wide : px of the stage. */
export function reserve(view, high, wide = view.stage.clientWidth) {
  if (view.wide !== wide) [view.wide, view.tallest] = [wide, 0];
  view.tallest = Math.max(view.tallest, ...scenesOf(view).map(high));
  view.stage.style.paddingBottom = `${view.tallest - high(view.scene)}px`;
}

export class View {
  constructor(host, el, kind, traits) {
    this.host = host;
    this.heard = [];
    this.uid = "tpv" + Math.random().toString(36).slice(2, 9);
    this.calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    el.classList.add("tpv-column"); // its width says where the rail stands: view.css
    this.root = make("div", { class: `tpv tpv-${kind} tpv-empty`, role: "group",
      "data-lm-suppress-shortcuts": "true" }, el); // JupyterLab's own keys stay out
    this.error = make("div", { class: "tpv-error", role: "alert" }, this.root);
    const put = (name, parent, tag = "div") => { this[name] = make(tag, { class: `tpv-${name}` }, parent); };
    for (const name of ["stage", "rail", "below"]) put(name, this.root);
    const head = make("div", { class: "tpv-head" }, this.rail);
    for (const name of ["badge", "title"]) put(name, head, "span");
    for (const name of ["now", "more"]) put(name, this.rail);
    put("summary", this.more);
    put("metrics", this.more, "dl");
    this.buildBody();
    this.tip = make("div", { class: "tpv-tip", hidden: "" }, this.stage);
    this.live = make("div", { class: "tpv-live", "aria-live": "polite" }, this.root);
    this.listen(traits);
    this.load();
    this.onChange();
  }

  listen(traits) {
    this.onChange = () => { this.stale = true; this.request(); };
    this.hear("change:scene", () => { this.load(); this.onChange(); });
    for (const name of ["generation", "error", ...traits]) this.hear(`change:${name}`, this.onChange);
    this.sized = new ResizeObserver(() => {
      if (this.stage.clientWidth !== this.seenWidth) this.onChange();
      this.seenWidth = this.stage.clientWidth;
    });
    this.sized.observe(this.stage);
  }

  /** What the host tells, until the view goes. */
  hear(...what) {
    this.host.on(...what);
    this.heard.push(what);
  }

  destroy() {
    this.sized.disconnect();
    cancelAnimationFrame(this.frame);
    for (const what of this.heard) this.host.off(...what);
  }

  /** Many changes, one drawing, at the next frame. */
  request() {
    this.frame ||= requestAnimationFrame((now) => { this.frame = 0; this.tick(now); });
  }

  tick() {
    if (!this.stale) return;
    this.stale = false;
    this.error.textContent = this.host.get("error") ?? "";
    const empty = !Object.keys(this.host.get("scene")).length;
    this.root.classList.toggle("tpv-empty", empty);
    if (!empty) this.draw();
    nameSliders(this.root);
    if (!this.stage.clientWidth) { // hidden: the next width is news
      this.seenWidth = 0;
      this.sized.unobserve(this.stage);
      this.sized.observe(this.stage);
    }
    this.root.dataset.generation = this.host.get("generation");
    this.root.dataset.ready = "true";
  }

  /** Tell the kernel (or the page): traits first, `generation` last. */
  publish(traits) {
    for (const [name, value] of Object.entries(traits)) this.host.set(name, value);
    this.host.set("generation", this.host.get("generation") + 1);
    this.host.save_changes();
    this.onChange();
  }

  button(parent, text, label, action) {
    const node = make("button", { type: "button", "aria-label": label, title: label }, parent, text);
    node.addEventListener("click", action);
    return node;
  }

  /** SVG made in Python, its ids this view's own: another's may be hidden, and not drawn. */
  group(drawn, parent = null) {
    const group = make("g", {}, parent);
    group.innerHTML = drawn.replace(/(#|id=')tpv-/g, `$1${this.uid}-`);
    return group;
  }

  /** An SVG's size in px, without its top. */
  resize(svg, width, height, top = 0) {
    svg.setAttribute("viewBox", `0 ${top} ${width} ${height - top}`);
    svg.setAttribute("width", width);
    svg.setAttribute("height", height - top);
  }

  /** A chip, unless it is of several colours, and words of each [key as in drawRun, words]. */
  drawLegend(items, legend = this.legend) {
    legend.replaceChildren(...items.map(([keys, words]) => {
      const node = make("span");
      for (const key of [keys].flat()) {
        const [y, height] = key.kind === "memory" ? [6, 5] : [1, 10]; // as `mark` in figures/lanes.py
        if (key.under) node.style.flexBasis = `${100 * key.under}%`;
        this.drawRun([[0, 14]], y, height, key, make("svg", { width: 14, height: 13, "aria-hidden": "true" }, node));
      }
      node.append(words);
      return node;
    }));
    return legend;
  }

  /** The room of the longest text that scenes have there. */
  keep(node, of) { roomy(node, scenesOf(this).flatMap((scene) => of(scene) ?? "")); }

  put(node, text, of) {
    this.keep(node, of);
    node.textContent = text;
  }

  /** Badge, title (`about` is more of it, where one points), and facts as [label, value]. */
  drawHead({ badge, title, about = "", notes = [] }, facts = []) {
    Object.assign(this.badge, { textContent: badge, title: notes.join("\n") });
    Object.assign(this.title, { textContent: title, title: about });
    this.keep(this.title, (scene) => scene.title);
    this.metrics.replaceChildren(...facts.flatMap(([label, value]) => [
      make("dt", {}, null, label), make("dd", {}, null, value)]));
  }

  /** A button that shows something, by a class of `node`. */
  switch(parent, text, label, name, node = this.root) {
    const say = (on) => button.setAttribute("aria-pressed", on);
    const button = this.button(parent, text, label, () => say(node.classList.toggle(name)));
    say(node.classList.contains(name));
    return button;
  }

  /** A key that `keys` has does what it says; the page does not hear it. */
  onKey(event) {
    const act = this.keys(event)[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  tile(pattern) { return `url(#${this.uid}-${pattern})`; }

  /** Bars of one kind as one path (and one more for its pattern): `run` is [[x0, x1], ...] in px. */
  drawRun(run, y, height, { key, kind, pattern }, parent) {
    if (!run.length) return;
    const path = run.map(([a, b]) => [a, Math.max(b, a + 0.5)].map((x) => x.toFixed(2)))
      .map(([from, to]) => `M${from},${y}H${to}v${height}H${from}z`).join("");
    const paint = (look) => make("path", { d: path, ...look }, parent);
    const mark = (name) => paint({ fill: this.tile(name), class: "tpv-mark" }); // shows where patterns are on
    if (kind === "exposed" || kind === "idle") {
      paint({ class: `f-${kind} tpv-${kind}`, "fill-opacity": .3 });
      return kind === "idle" ? mark(kind) : paint({ fill: this.tile(kind) });
    }
    paint({ class: `f-${key}`, "data-key": key });
    if (pattern && pattern !== "solid") mark(pattern);
  }

  showTip(title, lines, x, y) {
    this.tip.replaceChildren();
    make("b", {}, this.tip, title);
    this.tip.append(lines.filter(Boolean).join("\n"));
    this.tip.hidden = false;
    const room = this.stage.clientWidth - this.tip.offsetWidth - 8;
    this.tip.style.left = `${Math.max(4, Math.min(x + 14, room))}px`;
    this.tip.style.top = `${y + 16}px`;
  }
}
