"""A timeline of 5,000 events: its scene and SVG in Python, its drawing in Chromium beside plotly's.

A drawing is over at the second animation frame after it was asked for: laid out and painted once.
Plotly draws the same bars the fast way, one horizontal bar trace a colour. Our view draws bars
closer than a fraction of a pixel as one.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from harness import interleaved, ratio, report, row, seconds, timing
from plotly.offline import get_plotlyjs

import tpviz as tv
from tpviz.views.figures.assets import module
from tpviz.views.figures.page import page as page_of
from tpviz.views.figures.timeline import timeline_scene, timeline_svg

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from chromium import CHROMIUM, CHROMIUM_FLAGS

EVENTS, RANKS = 5000, 8
REPEATS = 15
TWO_FRAMES = "await new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)));"
DRAW_OURS = """async () => {
  const place = document.createElement("div");
  document.body.replaceChildren(place);
  const none = () => {}, get = (name) => window.state[name];
  const model = { get, set: none, on: none, off: none, save_changes: none };
  const start = performance.now();
  window.view.default.render({ model, el: place });
  %s
  const taken = performance.now() - start;
  if (!place.querySelector("path, rect")) throw new Error("nothing was drawn");
  return taken;
}""".replace("%s", TWO_FRAMES)
PREPARE = """async ([scene, source]) => {
  window.state = { scene, rank: scene.ranks[0], selected: -1, generation: 0, error: "" };
  window.view = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
}"""
DRAW_PLOTLY = """async () => {
  const place = document.createElement("div");
  document.body.replaceChildren(place);
  const start = performance.now();
  await Plotly.newPlot(place, window.figure.data, window.figure.layout);
  %s
  return performance.now() - start;
}""".replace("%s", TWO_FRAMES)


def made_up_trace():
    """8 ranks that compute, an all-reduce behind every fourth kernel; 5,000 events in all."""
    rng, events = np.random.default_rng(0), []
    members = ",".join(map(str, range(RANKS)))
    for rank in range(RANKS):
        now = 0.0
        for i in range(EVENTS // RANKS):
            taken, phase = rng.uniform(20e-6, 200e-6), "forward" if i < 300 else "backward"
            if i % 5 == 4:
                events.append(
                    tv.Event(
                        rank=rank,
                        lane="comm/tp",
                        kind="comm",
                        name="all_reduce",
                        phase=phase,
                        start=now,
                        end=now + taken,
                        bytes=65536,
                        axis="tp",
                        members=members,
                        seq=i // 5,
                    )
                )
            else:
                events.append(
                    tv.Event(
                        rank=rank, name="mm", phase=phase, start=now, end=now + taken, flops=10**6
                    )
                )
                now += taken
    return tv.Trace.from_events(events, {"badge": "this machine, gloo"})


def plotly_figure(trace):
    """The same bars with plotly: one trace a phase or lane."""
    figure = go.Figure(layout={"barmode": "overlay", "height": 500})
    for phase in ("forward", "backward"):
        for kind in ("compute", "comm"):
            part = trace.select(phase=phase, kind=kind)
            figure.add_bar(
                base=part["start"],
                x=part["end"] - part["start"],
                y=[f"{r} {lane}" for r, lane in zip(part["rank"], part["lane"])],
                orientation="h",
                name=f"{phase} {kind}",
            )
    return figure


def in_browser(trace):
    """{name: seconds of each drawing} in Chromium."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "page.html"
        path.write_text(page_of(trace))
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=CHROMIUM_FLAGS)
        page = chromium.new_page(viewport={"width": 1200, "height": 900})
        page.goto(path.as_uri())
        page.evaluate(PREPARE, [timeline_scene(trace), module("timeline")])
        page.add_script_tag(content=get_plotlyjs())
        page.evaluate(f"window.figure = {plotly_figure(trace).to_json()}")
        times = {"tpviz": [], "plotly": []}
        for turn in range(-2, REPEATS):
            for name in ("tpviz", "plotly") if turn % 2 else ("plotly", "tpviz"):
                taken = page.evaluate(DRAW_OURS if name == "tpviz" else DRAW_PLOTLY) / 1e3
                if turn >= 0:
                    times[name].append(taken)
        chromium.close()
    return times


def main():
    trace = made_up_trace()
    scene = timeline_scene(trace)
    python = interleaved(
        {
            "scene": lambda: timeline_scene(trace),
            "svg": lambda: timeline_svg(scene),
            "plotly": lambda: plotly_figure(trace).to_json(),
        },
        REPEATS,
    )
    rows = [
        row("events", len(trace)),
        timing("scene in Python", python["scene"]),
        timing("SVG from the scene in Python", python["svg"]),
        timing("plotly's figure and JSON in Python", python["plotly"]),
        row("page in Python, data and scripts", 1e3 * seconds(lambda: page_of(trace)), "ms"),
        row("size of the page", len(page_of(trace)) / 1e3, "kB"),
    ]
    browser = {}
    if CHROMIUM.exists():
        browser = in_browser(trace)
        rows += [
            timing("drawn in Chromium", browser["tpviz"]),
            timing("plotly drawn in Chromium", browser["plotly"]),
            row("tpviz / plotly", ratio(browser, "tpviz", "plotly"), "x"),
        ]
    else:
        print(f"no {CHROMIUM}: drawing is not measured")
    report("timeline", f"Timeline of {len(trace)} events", rows, python_s=python, browser_s=browser)


if __name__ == "__main__":
    sys.exit(main())
