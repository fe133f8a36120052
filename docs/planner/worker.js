// Python in a worker: the page stays alive while formulas are evaluated.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const started = (async () => {
  const python = await loadPyodide({
    indexURL: new URL("./pyodide/", import.meta.url).href,
    packages: ["tpviz"], // of our own lock file, which has their hashes
  });
  const { Planning } = python.pyimport("tpviz.views.plans.planning");
  return { planning: Planning(), dumps: python.pyimport("json").dumps };
})();

function answer(python, asked) {
  const { planning, dumps } = python;
  const shown = asked ? planning.turn(asked.name, asked.at) : planning.scene();
  try {
    return JSON.parse(dumps(shown));
  } finally {
    shown.destroy();
  }
}

self.onmessage = async ({ data }) => {
  try {
    self.postMessage({ scene: answer(await started, data.asked), number: data.number });
  } catch (error) {
    self.postMessage({ failed: String(error), number: data.number });
  }
};
