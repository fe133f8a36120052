"""Every picture on a page of two widths: no text is small, cut off, or on top of another. A single
character may be small: the signs in small tiles repeat what their pattern says."""

import pytest
import torch
from synthetic import synthetic_trace

import tpviz as tv
from tpviz.figures.losses import losses_svg
from tpviz.figures.page import document, place
from tpviz.mesh import Mesh
from tpviz.partition import partition_of, shard, trace
from tpviz.schemes.ownership import ownership

SMALLEST = 11  # px
BOX = tv.clusters.nvlink_pairs(pairs=2)


def mesh():
    strategy = tv.Megatron(tp=4) * tv.DataParallel(dp=2)
    return tv.MeshView(Mesh(strategy.axes), ownership(strategy, tv.GPT()), "8 ranks")


def partition():
    layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(12)))
    graph = trace(layers, (torch.zeros(2, 4),))
    return tv.PartitionView(partition_of(graph, 3, shard(graph, "finest")))


def microscope():
    return tv.MicroscopeView(tv.microscope("all_reduce", "double_tree", world_size=4))


VIEWS = {
    "timeline": lambda: tv.Timeline(synthetic_trace()),
    "simulated timeline": lambda: tv.Timeline(
        tv.simulate(tv.Merak(pp=2, tp=2, microbatches=4), tv.GPT(layers=4, batch=8), BOX)
    ),
    "mesh": mesh,
    "microscope": microscope,
    "partition": partition,
    "blocks": lambda: tv.BlocksView(tv.ATP(mesh=(2, 4), chunks=2), tv.GPT(heads=8)),
    "row blocks": lambda: tv.BlocksView(tv.ATP(mesh=(2, 2), order="row")),
    "grid": lambda: tv.GridView(tv.AxoNN(x=2, y=2, z=2)),
    "schedule": lambda: tv.ScheduleView("shifted_critical_path", against="1f1b", p=4, m=8),
    "zero bubble": lambda: tv.ScheduleView("zb_h1", p=8, m=8),
    "tiles": lambda: tv.TileView(config="t3_mca", against="sequential"),
}
PICTURES = {
    "cluster": lambda: BOX.to_svg(),
    "matrix": lambda: tv.communication_matrix(BOX).to_svg(),
    "losses": lambda: losses_svg([3.0, 2.5, 2.2], [3.0, 2.5, 2.2]),
}
PROBLEMS = """([smallest]) => [...document.querySelectorAll("svg")].flatMap((svg) => {
  const frame = svg.getBoundingClientRect();
  const shown = (t) => t.textContent.trim() && t.checkVisibility();
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
    if (wide > 1.5 && high > 4) problems.push(`${wide.toFixed(0)} px of "${one}" on "${other}"`);
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
