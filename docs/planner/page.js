// The planner's page: controls that the worker says, and what it answers when one is turned. What is chosen is in the
// page's address, in the gallery's words: `#planner&planner.model=llama2 7B&planner.tp=4`.
const page = document.getElementById("planner");
const part = (name) => page.querySelector(`.${name}`);
const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
const controls = new Map();
let number = 0; // of the question that was asked last
let waiting = null; // what was turned while the worker was busy: the last alone is asked
let busy = false;
let moved = false; // by the reader, since the address was read
let said = {}; // what the address says once something was moved: {control: value}
let writing;
let cell = "";

function ask(asked) {
  delete page.dataset.settled;
  if (busy) {
    waiting = asked;
    return;
  }
  busy = true;
  worker.postMessage({ asked, number: ++number });
}

worker.onmessage = ({ data }) => {
  if (data.controls) {
    if (data.number !== number) return;
    layOut(data.controls);
    page.dataset.settled = data.number;
    return;
  }
  busy = false;
  if (data.scene) show(data.scene);
  else say(part("error"), data.failed);
  if (!page.dataset.seconds) say(part("facts"), ""); // it did not start
  page.dataset.generation = data.number;
  const next = waiting;
  waiting = null;
  if (next) ask(next);
};
worker.onerror = (event) => say(part("error"), `Python did not start: ${event.message}`);

function say(where, words) {
  where.textContent = words;
  where.hidden = !words;
}

function show(scene) {
  say(part("facts"), scene.facts);
  say(part("gave"), scene.gave);
  say(part("error"), scene.error);
  page.dataset.seconds = scene.seconds;
  cell = scene.cell;
  part("open").hidden = false;
  said = scene.said;
  if (moved) later();
  part("pictures").innerHTML = scene.pictures;
  part("axes").innerHTML = scene.axes;
}

// In a frame of another page, such as JupyterLab's, addresses stay as they are.
const framed = window.top !== window;
const PREFIX = "planner.";

function write() {
  const all = new URLSearchParams(Object.entries(said).map(([name, text]) => [PREFIX + name, text]));
  const words = ["planner", ...(all.size ? [all] : [])].join("&");
  try {
    history.replaceState(null, "", `#${words}`);
  } catch {} // a page that may not change its address
}

function later() {
  clearTimeout(writing);
  if (!framed) writing = setTimeout(write, 200); // browsers take no more than a few a second
}

function read() {
  const names = framed ? [] : [...new URLSearchParams(location.hash.slice(1))];
  const told = names.filter(([name]) => name.startsWith(PREFIX));
  return Object.fromEntries(told.map(([name, text]) => [name.slice(PREFIX.length), text]));
}

addEventListener("hashchange", () => {
  const opened = read();
  clearTimeout(writing);
  if (Object.keys(opened).length) {
    moved = false;
    ask({ opened });
  } else if (moved || Object.keys(said).length) write(); // a link within the page: what was moved stays so
});

part("open").querySelector("button").addEventListener("click", () => {
  const shown = part("tpv-cell");
  const code = `${cell}\nview`;
  shown.textContent = code;
  shown.showPopover();
  navigator.clipboard?.writeText(code).then(() => { shown.dataset.copied = ""; }, () => {});
});

function layOut(all) {
  const names = all.map((control) => control.name).join("\n");
  if (names !== page.dataset.names) lay(all);
  page.dataset.names = names;
  for (const control of all) set(control);
}

// Controls that stay are kept: one that is being dragged must not be replaced.
function lay(all) {
  const groups = new Map();
  for (const control of all) {
    if (!groups.has(control.group)) groups.set(control.group, []);
    groups.get(control.group).push(control);
  }
  const boxes = [...groups].map(([heading, several]) => {
    const box = document.createElement("fieldset");
    const legend = document.createElement("legend");
    legend.textContent = heading;
    box.append(legend, ...several.map((control) => line(control)));
    return box;
  });
  part("controls").replaceChildren(...boxes);
}

function line(control) {
  const kept = controls.get(control.name);
  if (kept && kept.kind === control.kind) return kept.line;
  const label = document.createElement("label");
  const [name, value] = [document.createElement("span"), document.createElement("output")];
  const slider = control.kind === "slider";
  const input = document.createElement(slider ? "input" : "select");
  label.title = control.help;
  name.textContent = control.name;
  input.name = control.name;
  if (slider) input.type = "range";
  label.append(name, input, ...(slider ? [value] : []));
  input.addEventListener("input", () => {
    const at = slider ? Number(input.value) : input.selectedIndex;
    value.textContent = controls.get(control.name).labels[at];
    moved = true;
    ask({ name: control.name, at });
  });
  controls.set(control.name, { kind: control.kind, line: label, input, value, labels: [] });
  return label;
}

function set(control) {
  const known = controls.get(control.name);
  const { input, value } = known;
  if (known.labels.join("\n") !== control.labels.join("\n")) {
    known.labels = control.labels;
    if (known.kind === "slider") input.max = control.labels.length - 1;
    else input.replaceChildren(...control.labels.map((words) => new Option(words)));
  }
  if (known.kind === "slider") input.value = control.at;
  else input.selectedIndex = control.at;
  if (known.kind === "slider") input.setAttribute("aria-valuetext", control.labels[control.at]);
  value.textContent = control.labels[control.at];
}

ask({ opened: read() });
