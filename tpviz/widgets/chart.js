/** A chart that plotly draws, in the page's theme and width; the page has plotly in it, packed. */
import { unpacked } from "./pack.js";
import { make } from "./view.js";

const dark = matchMedia("(prefers-color-scheme: dark)");
let library;

async function load() {
  const text = await unpacked(document.getElementById("tpv-plotly").textContent).text();
  const script = document.createElement("script");
  script.src = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
  await new Promise((done, fail) => { Object.assign(script, { onload: done, onerror: fail }); document.head.append(script); });
  return window.Plotly;
}

export default {
  render({ model, el }) {
    const place = make("div", { class: "tpv-chart" }, el);
    async function draw() {
      const Plotly = await (library ??= load()), { themes } = model.get("scene");
      const { data, layout } = themes[dark.matches ? "dark" : "light"];
      const look = { ...layout, width: undefined, autosize: true };
      await Plotly.react(place, data, look, { responsive: true, displaylogo: false });
      place.dataset.ready = "true";
    }
    model.on("change:scene", draw);
    dark.addEventListener("change", draw);
    draw();
  },
};
