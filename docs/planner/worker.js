// Python in a worker: the page stays alive while formulas are evaluated.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const started = (async () => {
  const python = await loadPyodide({
    indexURL: new URL("./pyodide/", import.meta.url).href,
    packages: ["tpviz"], // of our own lock file, which has their hashes
  });
  if (!python.loadedPackages.numpy) throw new Error("NumPy could not be loaded: see the console");
  const { Planning } = python.pyimport("tpviz.views.plans.planning");
  return { planning: Planning(), dumps: python.pyimport("json").dumps, toPy: (told) => python.toPy(told) };
})();

const QUIET = 80; // ms without a question, after which there is time for the controls
let latest = 0; // number of the last question

function plain(shown, dumps) {
  try {
    return JSON.parse(dumps(shown));
  } finally {
    shown.destroy();
  }
}

const said = (error) => {
  console.error(error);
  return String(error.message).trim().split("\n").pop();
};

// First what formulas say, at once; what the knobs may now be takes longer, and can wait.
self.onmessage = async ({ data: { asked, number } }) => {
  latest = number;
  let python;
  try {
    python = await started;
  } catch (error) {
    self.postMessage({ failed: said(error), number });
    return;
  }
  const { planning, dumps, toPy } = python;
  try {
    const { opened, name, at } = asked;
    const scene = opened ? planning.open(toPy(opened)) : planning.turn(name, at);
    self.postMessage({ scene: plain(scene, dumps), number });
  } catch (error) {
    self.postMessage({ failed: said(error), number }); // the controls go back
  }
  if (!asked.opened) await new Promise((resolve) => setTimeout(resolve, QUIET));
  if (number === latest) self.postMessage({ controls: plain(planning.controls(), dumps), number });
};
