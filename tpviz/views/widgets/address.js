/**
 * What a page's views show, in its address: `#blocks&blocks.mesh=(1, 4)&blocks.step=3`. First the view that was moved last,
 * to which the link leads; then the knobs and the frame of each that was moved. What does not fit is left out, or goes to
 * the nearest. In a frame of another page, such as JupyterLab's, addresses stay as they are.
 */

/** What a view's scene allows of what is chosen in it, beside its knobs. */
const CHOICES = {
  step: ({ captions = [] }) => range(0, captions.length),
  row: ({ rows = [] }) => range(-1, rows.length),
  part: ({ tiles = [] }) => range(-1, tiles.length),
  rank: ({ axes, ranks = [] }) => (axes ? range(0, axes.reduce((all, { size }) => all * size, 1)) : ranks),
  parameter: ({ parameters = [] }) => parameters.map(({ name }) => name),
};
const range = (low, end) => Array.from({ length: Math.max(end - low, 0) }, (_, i) => low + i);

/** The place in `values` of what an address says: the same, or the nearest number; -1 without. */
export function nearest(values, text) {
  const same = values.findIndex((value) => String(value) === text), number = Number(text || NaN);
  if (same >= 0 || !Number.isFinite(number)) return same;
  const far = values.map((value) => Math.abs(value - number));
  return far.findIndex((one) => one === Math.min(...far)); // -1 where values are no numbers
}

/** {name: value} of what is chosen in a view and is not as at first; the step of one that stands still. */
export function frame({ state, opened, knobs, el }) {
  const still = !el.querySelector(".tpv-playing"), { opens = 0 } = state.scene;
  const told = Object.keys(CHOICES).filter((name) => name in state && !(name in knobs)
    && CHOICES[name](state.scene).includes(state[name])
    && (name === "step" ? still && state.step !== opens : state[name] !== opened[name]));
  return Object.fromEntries(told.map((name) => [name, state[name]]));
}

/** Views follow the page's address, and it follows them. hosts : of host.js. */
export function addressed(hosts) {
  if (window.top !== window) return;
  const moved = new Set();
  let last, waiting;

  const write = () => {
    const all = new URLSearchParams();
    for (const host of moved) {
      const { name, knobs, at, start } = host;
      Object.keys(knobs).forEach((knob, i) => at[i] === start[i] || all.set(`${name}.${knob}`, knobs[knob][at[i]]));
      for (const [key, value] of Object.entries(frame(host))) all.set(`${name}.${key}`, value);
    }
    const words = [last.name, ...(all.size ? [all] : [])].join("&");
    try { history.replaceState(null, "", `#${words}`); } catch { /* a page that may not change its address */ }
  };
  const later = (host) => {
    moved.add(last = host);
    clearTimeout(waiting);
    waiting = setTimeout(write, 200); // browsers take no more than a few a second
  };

  const read = () => {
    const said = new URLSearchParams(location.hash.slice(1)), names = [...said.keys()];
    const led = hosts.find(({ name }) => names[0] === name);
    const told = hosts.filter(({ name }) => names.some((key) => key.startsWith(`${name}.`)));
    if (!told.length) { // a link within the page: what was moved stays so
      if (led && moved.size) { last = led; write(); }
      return;
    }
    for (const host of new Set([...told, ...moved])) {
      const { name, knobs, start, state } = host;
      moved.add(host);
      host.turn(Object.values(knobs).map((values, i) => {
        const found = nearest(values, said.get(`${name}.${Object.keys(knobs)[i]}`));
        return found < 0 ? start[i] : found;
      }));
      for (const key of Object.keys(CHOICES)) {
        const values = key in state && !(key in knobs) ? CHOICES[key](state.scene) : [];
        const found = nearest(values, said.get(`${name}.${key}`));
        if (found < 0) continue;
        if (key === "step") host.pause();
        host.set(key, values[found]);
      }
      host.save_changes();
    }
    last = led ?? told[0];
    const to = last.el.closest("section") ?? last.el;
    if (hosts.length > 1) requestAnimationFrame(() => requestAnimationFrame(() => to.scrollIntoView())); // all are drawn then
  };

  for (const host of hosts) {
    for (const event of ["input", "change", "click", "keyup"]) host.el.addEventListener(event, () => later(host));
  }
  addEventListener("hashchange", read);
  read();
}
