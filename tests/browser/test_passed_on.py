"""Notebooks passed on: exported by nbconvert, opened without kernel, scripts' servers and network,
and opened in a JupyterLab that does not trust them, without kernel.

Of each view and chart a picture with a text alternative is seen, and no error, nor a gap."""

import re
from copy import deepcopy
from pathlib import Path

import nbformat
import pytest
from executed import executed, run
from lab_page import lab_page
from nbconvert import HTMLExporter
from pictures import check_pictures

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
WIDGET = "application/vnd.jupyter.widget-view+json"
SETUP = """
import torch
import tpviz as tv
from tpviz.modules.partition import partition_of, shard, trace
gpt, box = tv.GPT(), tv.clusters.nvlink_pairs(pairs=2)
ring = tv.microscope("all_reduce", world_size=2)
layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
graph = trace(layers, (torch.zeros(2, 4),))
guess = tv.Guess("How long is a step?", "ms")
"""
PICTURES = """
tv.Timeline(tv.simulate(tv.Megatron(tp=2), gpt, box))
tv.MeshView(tv.Mesh({"dp": 2, "tp": 2}))
tv.MicroscopeView(ring)
tv.PartitionView(partition_of(graph, 2, shard(graph, "finest")))
tv.BlocksView(tv.ATP(mesh=(2, 2)))
tv.GridView(tv.AxoNN(x=2, y=2))
tv.ScheduleView("1f1b", p=2, m=2)
tv.TileView()
tv.LayoutView("gpt-182B", gpus=384)
tv.explore(gpt, box)
ring
box
tv.communication_matrix(box)
tv.compare(tv.Megatron(tp=2), gpt, box, run=False)
tv.search(gpt, box, strategies=[tv.Megatron])
display(box, tv.MeshView(tv.Mesh({"tp": 2})), box)
""".strip().splitlines()
WORDS = """
guess
tv.Timeline()
tv.run(tv.Megatron(tp=2), gpt, steps=1)
""".strip().splitlines()


def exported(page, notebook, path, count):
    """Its HTML, with widgets' state, of which ``--execute`` keeps a copy, and without. Of what
    nbconvert's template misses, the browser's console tells: it is not heard."""
    for name, theme in (("state", "dark"), ("none", "light")):
        copy = deepcopy(notebook)
        if name == "none":
            copy.metadata.pop("widgets")
        file = path / f"{name}.html"
        file.write_text(HTMLExporter(theme=theme).from_notebook_node(copy)[0])
        page.goto(file.as_uri())
        text = check_pictures(page, count)
        assert re.findall(r"<(?:\w+View|Timeline|Explore|Guess)\b.*", text) == []


def test_every_kind_of_view(bare_tab, tmp_path):
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(text) for text in (SETUP, *PICTURES, *WORDS)]
    made = run(notebook, tmp_path)
    exported(bare_tab, made, tmp_path, len(PICTURES) + 2)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("lab", ["perCommTarget"], indirect=True)
@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[pytest.mark.slow] * (p != NOTEBOOKS[0])) for p in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_the_notebooks(path, bare_tab, lab, chromium, tmp_path, tmp_path_factory):
    made = executed(path, tmp_path_factory)
    outputs = [output for cell in made.cells for output in cell.get("outputs", ())]
    shown = [output.data for output in outputs if "data" in output]
    views = [data for data in shown if WIDGET in data and "<Guess" not in data["text/plain"]]
    assert not any("application/vnd.plotly.v1+json" in data for data in shown)
    html = [data["text/html"] for data in shown if "text/html" in data]
    charts = [text for text in html if re.search("<(svg|img) ", text) and "tpv-still" not in text]
    exported(bare_tab, made, tmp_path, len(views) + len(charts))
    name = f"{path.stem}_sent.ipynb"
    nbformat.write(made, lab.folder / name)
    with lab_page(chromium, lab.url, name, run=False, kernel=False) as opened:
        check_pictures(opened.page, len(views) + len(charts))
