"""Every picture on a page of two widths: no text is small, cut off, or on top of another, and
nothing is wider than its view. A single character may be small: the signs in small tiles repeat
what their pattern says."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from synthetic import synthetic_trace
from test_axonn_charts import MAKERS as AXONN
from test_charts import MAKERS as ATP
from test_comparison_figure import RESIDUAL, SEGMENTS, Foreseen, Found, badged
from test_layouts import MAKERS as LAYOUTS
from test_merak_studies_charts import MAKERS as MERAK
from test_t3_charts import MAKERS as T3
from torch import nn

import tpviz as tv
from tpviz.core.mesh import Mesh
from tpviz.core.trace import Event, Trace
from tpviz.evidence.study import SOURCES
from tpviz.modules.partition import partition_of, shard, trace
from tpviz.schemes.ownership import ownership
from tpviz.views.figures.comparison import comparison_scene, comparison_svg
from tpviz.views.figures.losses import losses_svg
from tpviz.views.figures.page import document, place
from tpviz.views.figures.tokens import TYPE
from tpviz.views.plans.pictures import memory_svg, parts_svg

SMALLEST = 13  # px
WORDS = 120  # of a view, its controls among them; numbers are none
BOX = tv.clusters.nvlink_pairs(pairs=2)


def mesh():
    strategy = tv.Megatron(tp=4) * tv.DataParallel(dp=2)
    return tv.MeshView(Mesh(strategy.axes), ownership(strategy, tv.GPT()), "8 ranks")


def partition():
    """A small language model: its stages differ in parameters, work and what they keep."""
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(2048, 64), encoder, nn.Linear(64, 2048))
    graph = trace(model, (torch.zeros(4, 64, dtype=torch.long),))
    partition = partition_of(graph, 3, shard(graph, 9), "parameters")
    for size in ("flops", "activation_bytes"):
        sizes = [stage[size] for stage in partition.scene()["stages"]]
        assert max(sizes) > 2 * min(sizes)
    return tv.PartitionView(partition)


def microscope():
    return tv.MicroscopeView(tv.microscope("all_reduce", "double_tree", world_size=4))


def messages_at_once():
    comm = Event(kind="comm", axis="dp", start=0.0, end=1.0)
    names = "all_reduce", "all_gather", "all_to_all"
    events = [comm._replace(id=i, name=n, start=i / 50) for i, n in enumerate(names)]
    return tv.Timeline(Trace.from_events(events))


def microscope_at_its_end():
    view = tv.MicroscopeView(tv.microscope("all_reduce", "ring", world_size=4))
    view.step = len(view.scene["captions"]) - 1
    return view


def wide_ring():
    return tv.MicroscopeView(tv.microscope("all_reduce", "ring", world_size=8))


def comparison():
    made = Foreseen(SEGMENTS), badged("simulated", 0), badged("emulated", 1), Found(RESIDUAL)
    title = tv.Megatron(tp=2).title(tv.GPT())
    return comparison_svg(comparison_scene(*made, title=title, caption="two NVLink pairs"))


def microscope_still(algorithm):
    return tv.MicroscopeView(
        tv.microscope("all_reduce", algorithm, world_size=4, elements=2**18)
    ).to_svg()


@cache
def study():
    pairs = (tv.Megatron(tp=4), tv.Megatron(tp=2) * tv.DataParallel(dp=2), tv.AxoNN(x=2, z=2))
    found = tv.study(pairs, tv.GPT(batch=8), BOX, "predicted")
    rows = [replace(r, times=dict.fromkeys(SOURCES, r.times["predicted"])) for r in found.rows]
    return replace(found, rows=tuple(rows))


LABS = {"ATP": ATP, "AxoNN": AXONN, "Merak": MERAK, "T3": T3, "layouts": LAYOUTS}
CHARTS = {
    f"{lab}, {name}": make
    for lab, makers in LABS.items()
    for name, make in makers.items()
    if name != "modes"  # as others are, and slow to make
}
CHARTS |= {
    f"study, {kind}": lambda kind=kind: study().show(kind=kind)
    for kind in ("bars", "exposed", "curve")
}


def large_mesh():
    strategy = tv.Megatron(tp=8) * tv.DataParallel(dp=128)
    return tv.MeshView(Mesh(strategy.axes), ownership(strategy, tv.GPT(heads=8, batch=128)))


DROPPING = tv.GPT(batch=8, experts=16, capacity=0.75, routing=tv.Routing(1.0))
VIEWS = {
    "timeline": lambda: tv.Timeline(synthetic_trace({"dp": 4, "tp": 2})),
    "simulated timeline": lambda: tv.Timeline(
        tv.simulate(tv.Merak(pp=2, tp=2, microbatches=4), tv.GPT(layers=4, batch=8), BOX)
    ),
    "timeline of messages at once": messages_at_once,
    "mesh": mesh,
    "mesh of 1024 ranks": large_mesh,
    "microscope": microscope,
    "microscope of 8 ranks": wide_ring,
    "microscope at its end": microscope_at_its_end,
    "partition": partition,
    "blocks": lambda: tv.BlocksView(tv.ATP(mesh=(2, 4), chunks=2), tv.GPT(heads=8)),
    "row blocks": lambda: tv.BlocksView(tv.ATP(mesh=(2, 2), order="row")),
    "grid": lambda: tv.GridView(tv.AxoNN(x=2, y=2, z=2)),
    "context": lambda: tv.ContextView(),
    "context of 8 ranks": lambda: tv.ContextView(tv.Context(cp=8), against="ulysses"),
    "ring alone": lambda: tv.ContextView(tv.Context(cp=2, kind="ring"), against="none"),
    "experts": lambda: tv.ExpertsView(),
    "experts of 8 ranks, with drops": lambda: tv.ExpertsView(tv.Experts(ep=8), DROPPING),
    "schedule": lambda: tv.ScheduleView("shifted_critical_path", against="1f1b", p=4, m=8),
    "zero bubble": lambda: tv.ScheduleView("zb_h1", p=8, m=8),
    "long schedule": lambda: tv.ScheduleView("1f1b", p=16, m=64),
    "schedule of a strategy": lambda: tv.ScheduleView(
        tv.Merak(pp=4, microbatches=8), tv.GPT(layers=8, batch=8), BOX.scale_model(hidden=64)
    ),
    "tiles": lambda: tv.TileView(config="t3_mca", against="sequential"),
    **CHARTS,
}
STEP = tv.predict(tv.Megatron(tp=4), tv.GPT(), BOX)
PICTURES = {
    "prediction": lambda: parts_svg(STEP.parts, STEP.badge, 100),
    "memory of a rank": lambda: memory_svg(STEP.memory(), 3e6, BOX.device.name),
    "memory on a scale model": lambda: memory_svg(STEP.memory(), 3e6, BOX.device.name, scale=2**14),
    "cluster": lambda: BOX.to_svg(),
    "timeline, without scripts": lambda: tv.Timeline(synthetic_trace()).to_svg(),
    "comparison": comparison,
    "explore": lambda: tv.explore(tv.GPT(), BOX).to_svg(),
    "planner": lambda: tv.explore("llama2 70B", gpus=512).to_svg(),
    "planner, a small step": lambda: tv.explore(
        tv.GPT(batch=16), gpus=16, framework="nanotron"
    ).to_svg(),
    "matrix": lambda: tv.communication_matrix(BOX).to_svg(),
    "tree, without scripts": lambda: microscope_still("tree"),
    "losses": lambda: losses_svg([3.0, 2.5, 2.2]),
}
GROUNDS = """() => [
  getComputedStyle(document.querySelector(".tpv") ?? document.body).backgroundColor,
  ...[...document.querySelectorAll("svg > rect.f-bg")].map((r) => getComputedStyle(r).fill)]"""
WIDER = """() => [...document.querySelectorAll(".tpv, .tpv-picture, .tpv-scroll")]
  .filter((node) => node.scrollWidth > node.clientWidth + 1)
  .map((node) => `${node.className}: ${node.scrollWidth} px in ${node.clientWidth}`)"""
HIGHER = """() => [...document.querySelectorAll(".tpv-scroll")]
  .filter((node) => node.scrollHeight > node.clientHeight + 1)
  .map((node) => `${node.scrollHeight} px in ${node.clientHeight}`)"""
LOOKS = """() => {
  const frame = document.querySelector(".tpv").getBoundingClientRect(), sizes = new Set();
  const shown = (node) => node.checkVisibility({ visibilityProperty: true })
    && !node.closest("defs,option,.tpv-live,.tpv-tip");
  const walk = document.createTreeWalker(document.querySelector(".tpv"), NodeFilter.SHOW_TEXT);
  let words = 0, left = Infinity, right = 0, range = new Range();
  while (walk.nextNode()) {
    const node = walk.currentNode, within = node.parentElement, text = node.textContent;
    range.selectNodeContents(node);
    if (!text.trim() || !shown(within) || !range.getBoundingClientRect().width) continue;
    words += text.split(/\\s+/).filter((word) => /\\p{L}/u.test(word)).length;
    sizes.add(parseFloat(getComputedStyle(within).fontSize));
  }
  const drawn = ".tpv svg :is(path, rect:not(.f-bg), text), .tpv-rail *";
  for (const node of document.querySelectorAll(drawn)) {
    const box = node.getBoundingClientRect();
    if (!shown(node) || !(box.width || box.height)) continue;
    [left, right] = [Math.min(left, box.left), Math.max(right, box.right)];
  }
  const tall = [...document.querySelectorAll(".tpv-stage svg, .tpv-play")]
    .map((node) => node.getBoundingClientRect());
  return { words, sizes: [...sizes], ink: (right - left) / frame.width,
    span: Math.max(...tall.map((box) => box.bottom)) - Math.min(...tall.map((box) => box.top)) };
}"""
PROBLEMS = """([smallest]) => [...document.querySelectorAll("svg")].flatMap((svg) => {
  const frame = svg.getBoundingClientRect(), grown = Math.max(1, svg.getScreenCTM().a);
  const drawn = (t) => t.getBoundingClientRect().width; // not in a group that is not displayed
  const shown = (t) => t.textContent.trim() && t.checkVisibility() && drawn(t);
  const texts = [...svg.querySelectorAll("text")].filter(shown);
  const boxes = texts.map((t) => [t.textContent, t.getBoundingClientRect()]);
  const problems = texts.flatMap((t) => {
    const { a, b } = t.getScreenCTM(), sign = [...t.textContent].length === 1;
    const size = sign ? smallest : parseFloat(getComputedStyle(t).fontSize) * Math.hypot(a, b);
    return size < smallest - 0.01 ? [`${size.toFixed(1)} px: ${t.textContent}`] : [];
  });
  for (const [words, box] of boxes) {
    const wide = Math.max(frame.left - box.left, box.right - frame.right);
    const high = Math.max(frame.top - box.top, box.bottom - frame.bottom);
    if (Math.max(wide, high) > 1) problems.push(`cut off by ${wide}, ${high} px: ${words}`);
  }
  boxes.forEach(([one, a], i) => boxes.slice(0, i).forEach(([other, b]) => {
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1.5 * grown && high > 4 * grown)
      problems.push(`${wide.toFixed(0)} px of "${one}" on "${other}"`);
  }));
  return problems;
})"""


@pytest.mark.browser
@pytest.mark.parametrize("name", [*VIEWS, *PICTURES])
def test_texts(name, tab, tmp_path):
    if name in VIEWS:
        view = VIEWS[name]()
        view = getattr(view, "picture", view)
        path = view.to_html(tmp_path / "view.html")
    else:
        path = tmp_path / "view.html"
        scene = {"svg": PICTURES[name](), "captions": [""]}
        path.write_text(document(name, place("picture", {"scene": scene})))
    tab.goto(path.as_uri())
    tab.locator("[data-ready]").wait_for()
    for width in (1440, 900):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        assert "\n".join(tab.evaluate(PROBLEMS, [SMALLEST])) == "", width
        assert tab.evaluate(WIDER) == [], width
        assert tab.evaluate(HIGHER) == [], width  # the legend shows without scrolling
        looks = tab.evaluate(LOOKS)
        assert set(looks["sizes"]) <= {*TYPE.values()}
        assert looks["ink"] >= (0.85 if name in VIEWS else 0.75), width  # stills: narrow frames
        if name in VIEWS and name not in CHARTS:
            assert looks["words"] <= WORDS
            assert looks["span"] <= 900, width  # the picture and its controls, in one window


# As in a notebook, where the view shares a grid with knobs.
FRAMED = """() => {
    const column = document.querySelector(".tpv").parentElement;
    const frame = document.createElement("div");
    column.replaceWith(frame);
    frame.className = "tpv-column";
    frame.innerHTML = "<div class='tpv-framed'><div class='tpv-controls'>knobs</div></div>";
    column.classList.add("tpv-shared");
    frame.firstChild.prepend(column);
}"""
# Pairs of controls, and of sentences, of which one covers the other.
COVERED = """() => {
    const names = "button, select, input, .tpv-hint, .tpv-controls, .tpv-now, .tpv-more";
    const all = [...document.querySelectorAll(names)].filter((node) => node.checkVisibility());
    const boxes = all.map((node) => node.getBoundingClientRect());
    return all.flatMap((one, i) => all.slice(i + 1).filter((other, k) => {
        const [a, b] = [boxes[i], boxes[i + 1 + k]];
        return !one.contains(other) && Math.min(a.right, b.right) - Math.max(a.left, b.left) > 4
            && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
    }).map((other) => [one, other].map((node) => node.ariaLabel || node.textContent).join(" / ")));
}"""


PLAYING = ["context", "experts", "microscope", "blocks", "grid", "schedule", "tiles", "timeline"]


@pytest.mark.browser
@pytest.mark.parametrize("name", PLAYING)
def test_more_covers_nothing(name, tab, tmp_path):
    tab.goto(VIEWS[name]().to_html(tmp_path / "a.html").as_uri())
    tab.locator(".tpv[data-ready]").wait_for()
    for framed in (False, True):
        for width in (900, 1100, 1440):
            tab.set_viewport_size({"width": width, "height": 1000})
            for _ in "opened", "closed":
                tab.locator("button[aria-expanded]").click(timeout=5_000)
                assert tab.evaluate(COVERED) == [], (framed, width)
        if not framed:
            tab.evaluate(FRAMED)


@pytest.mark.browser
@pytest.mark.parametrize("name", ["blocks", "row blocks", "grid"])
def test_texts_of_every_step(name, tab):
    view = VIEWS[name]().picture
    for step in range(len(view.scene["frames"])):
        view.step = step
        tab.set_content(view.to_svg())
        assert "\n".join(tab.evaluate(PROBLEMS, [SMALLEST])) == "", step


@pytest.mark.browser
def test_charts_follow_the_page(tab, tmp_path):
    """Its own theme, light or dark, or that of JupyterLab around it; ids are unique."""
    path = study().show(kind="exposed").to_html(tmp_path / "a.html", {"kind": ["exposed", "bars"]})
    tab.goto(path.as_uri())
    tab.locator("[data-ready]").wait_for()
    path = tmp_path / "lab.html"
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme)
        frame, *pictures = tab.evaluate(GROUNDS)
        assert pictures == [frame]
    tab.emulate_media(color_scheme="light")
    tab.set_viewport_size({"width": 900, "height": 900})
    for light, ground in (("true", "rgb(250, 251, 252)"), ("false", "rgb(17, 34, 51)")):
        path.write_text(
            f"<body data-jp-theme-light='{light}' style='--jp-layout-color0: {ground};"
            f"background: {ground}'>{study()._in_page()}{study()._in_page(kind='exposed')}</body>"
        )
        tab.goto(path.as_uri())
        assert tab.evaluate(GROUNDS) == [ground] * 3
        assert tab.evaluate(PROBLEMS, [SMALLEST]) == []
        ids = tab.evaluate("() => [...document.querySelectorAll('[id]')].map(node => node.id)")
        assert len(ids) == len(set(ids)) > 0


@pytest.mark.browser
def test_sliders_change_a_chart(tab, tmp_path):
    path = study().to_html(tmp_path / "a.html", {"kind": ["bars", "exposed", "curve"]})
    assert path.stat().st_size < 100_000
    tab.goto(path.as_uri())
    assert tab.locator("details tr").count() == len(study().to_table())
    seen, heights = set(), set()
    for at, kind in enumerate(("bars", "exposed", "curve")):
        tab.get_by_label("kind").select_option(str(at))
        svg = tab.locator(".tpv-picture svg")
        assert svg.get_attribute("aria-label") == study().scene(kind=kind)["title"]
        seen.add(svg.inner_html())
        heights.add(tab.locator(".tpv-picture").bounding_box()["height"])
    assert len(seen) == 3 and max(heights) - min(heights) < 1  # nothing below moves


@pytest.mark.browser
def test_a_chart_is_a_tab_stop_only_where_it_has_shrunk(tab, tmp_path):
    """There a focus shows it in its own size; elsewhere it would do nothing."""
    tab.goto(study().to_html(tmp_path / "a.html").as_uri())
    picture, svg = tab.locator(".tpv-picture[data-ready]"), tab.locator(".tpv-picture > svg")
    own = float(svg.get_attribute("width"))
    for width, shrunk in ((1440, False), (400, True), (1200, False)):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.wait_for_function(
            "shrunk => document.querySelector('.tpv-picture').hasAttribute('tabindex') === shrunk",
            arg=shrunk,
        )
        picture.evaluate("node => node.focus()")
        assert picture.evaluate("node => node === document.activeElement") == shrunk
        wide = svg.bounding_box()["width"]
        assert wide == own if shrunk else wide >= own
        picture.evaluate("node => node.blur()")
        assert svg.bounding_box()["width"] < own or not shrunk
