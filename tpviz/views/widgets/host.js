/**
 * A stand-in for the widget model, so that the views run in a plain HTML page: get, set, on, off, save_changes; and
 * knobs, whose pictures are all in the page: sliders of numbers, menus of names. Views on one page share the chosen rank;
 * what each shows is in the page's address, and a button has the notebook's cell that makes it.
 */
import { addressed, frame } from "./address.js";
import { unpacked } from "./pack.js";
import { make, roomy } from "./view.js";

class Host {
  constructor({ states, knobs, start, words }, el) {
    let first = place(knobs, start);
    if (!states[first].scene) first = states.findIndex((state) => state.scene);
    const opened = states[first];
    Object.assign(this, { states, knobs, start, words, el, opened, state: { ...opened } });
    Object.assign(this, { at: [...start], listeners: {}, changed: new Set(), said: [] });
  }
  get(name) { return this.state[name]; }
  set(name, value) {
    if (this.state[name] === value) return;
    this.state[name] = value;
    this.changed.add(name);
    const { details } = this.state;
    if (details && name in details[0]) this.set("detail", details[value + 1]); // in Jupyter Python gives it
  }
  on(event, listener) { (this.listeners[event] ??= new Set()).add(listener); }
  off(event, listener) { this.listeners[event]?.delete(listener); }
  save_changes() {
    const names = [...this.changed];
    this.changed.clear();
    for (const name of names) this.listeners[`change:${name}`]?.forEach((listener) => listener());
  }

  /** The picture of other knobs, at the same step; the last one stays where there is none. */
  show(number) {
    const { scene, ...state } = this.states[number];
    if (scene) {
      const step = this.get("step") ?? 0, { opens = 0 } = this.get("scene"); // as `_step_in` in base.py
      state.step = step === opens ? scene.opens ?? 0 : Math.min(step, (scene.captions?.length ?? 1) - 1);
      Object.assign(state, { scene });
    }
    for (const [name, value] of Object.entries({ ...state, generation: this.get("generation") + 1 })) this.set(name, value);
    this.save_changes();
  }

  /** A control for each knob, in the view's rail; the states are all combinations, the last knob's values first. */
  controls() {
    const { knobs, at, words, el } = this, names = Object.keys(knobs);
    if (!names.length) return;
    const row = make("div", { class: "tpv-knobs" }, el.querySelector(".tpv-rail"));
    names.forEach((name, i) => {
      const values = knobs[name], label = make("label", {}, row, name);
      const named = values.some(isNaN), input = make(named ? "select" : "input", { "aria-label": name }, label);
      if (named) values.forEach((value, n) => make("option", { value: n }, input, value));
      else for (const [key, value] of Object.entries({ type: "range", min: 0, max: values.length - 1 })) input[key] = value;
      const shown = named ? {} : make("b", {}, label), unit = words[name] ?? "";
      if (!named) roomy(shown, values);
      if (unit) make("span", { class: "tpv-title" }, label, unit);
      const say = () => {
        input.value = at[i];
        shown.textContent = values[at[i]];
        if (!named) input.setAttribute("aria-valuetext", `${values[at[i]]} ${unit}`.trim());
      };
      input.addEventListener("input", () => {
        at[i] = Number(input.value);
        say();
        this.show(place(knobs, at));
      });
      this.said.push(say);
      say();
    });
  }

  /** All knobs at once. */
  turn(at) {
    if (at.every((place, i) => place === this.at[i])) return;
    Object.assign(this.at, at);
    for (const say of this.said) say();
    this.show(place(this.knobs, at));
  }

  /** From here on it stands still. */
  pause() {
    for (const state of [this.state, ...this.states]) state.autoplay = false;
    this.listeners["change:scene"]?.forEach((listener) => listener()); // it is loaded, and would play
  }

  /** A button for the cell of a notebook that makes the view as it stands: copied, and shown. */
  cell() {
    if (!this.states.some(({ cell }) => cell)) return;
    const rail = this.el.querySelector(".tpv-rail"), place = rail.firstChild ? rail : this.el;
    const tools = make("div", { class: "tpv-open" }, place);
    const shown = make("div", { class: "tpv-cell", popover: "", role: "status" }, this.el);
    const button = make("button", { type: "button", title: "the cell that makes this view" }, tools, "open in notebook");
    button.addEventListener("click", () => {
      const lines = Object.entries(frame(this)).map(([name, value]) => `view.${name} = ${JSON.stringify(value)}`);
      const code = [this.get("cell"), ...lines, "view"].join("\n");
      shown.textContent = code;
      shown.showPopover();
      navigator.clipboard?.writeText(code).then(() => { shown.dataset.copied = ""; }, () => {});
    });
  }
}

/** The number of a combination. */
const place = (knobs, at) => Object.values(knobs).reduce((number, values, i) => number * values.length + at[i], 0);

const hosts = [];
for (const el of document.querySelectorAll(".tpv-place")) {
  const host = new Host(await unpacked(el.querySelector("script").textContent).json(), el);
  const source = await unpacked(document.getElementById(`tpv-module-${el.dataset.view}`).textContent).text();
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const view = await import(url);
  URL.revokeObjectURL(url);
  view.default.render({ model: host, el });
  host.controls();
  host.cell();
  const name = el.closest("section")?.id || el.dataset.view, alike = hosts.filter(({ own }) => own === name);
  Object.assign(host, { own: name, name: name + (alike.length ? alike.length + 1 : "") });
  hosts.push(host);
}
for (const host of hosts) {
  host.on("change:rank", () => {
    for (const other of hosts) {
      if (other.get("rank") === host.get("rank")) continue;
      other.set("rank", host.get("rank"));
      other.set("generation", other.get("generation") + 1);
      other.save_changes();
    }
  });
}
addressed(hosts);
