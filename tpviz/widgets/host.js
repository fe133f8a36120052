/**
 * A stand-in for the widget model, so that the views run in a plain HTML page: get, set, on, off, save_changes.
 * Views on one page share the chosen rank.
 */
class Host {
  constructor(state) { Object.assign(this, { state, listeners: {}, changed: new Set() }); }
  get(name) { return this.state[name]; }
  set(name, value) {
    if (this.state[name] === value) return;
    this.state[name] = value;
    this.changed.add(name);
  }
  on(event, listener) { (this.listeners[event] ??= new Set()).add(listener); }
  off(event, listener) { this.listeners[event]?.delete(listener); }
  save_changes() {
    const names = [...this.changed];
    this.changed.clear();
    for (const name of names) this.listeners[`change:${name}`]?.forEach((listener) => listener());
  }
}

const hosts = [];
for (const el of document.querySelectorAll(".tpv-place")) {
  const host = new Host(JSON.parse(el.querySelector("script").textContent));
  const source = document.getElementById(`tpv-module-${el.dataset.view}`).textContent;
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const view = await import(url);
  URL.revokeObjectURL(url);
  view.default.render({ model: host, el });
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
