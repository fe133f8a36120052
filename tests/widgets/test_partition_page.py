"""The script of the partition explorer in a plain page: keys and clicks go from stage to stage."""

import json

import pytest
import torch

import tpviz as tv
from tpviz.figures.assets import FOLDER, module, stylesheet
from tpviz.schemes.merak.partition import partition_of, shard, trace

pytestmark = pytest.mark.browser
PAGE = """<!doctype html><meta charset=utf-8><link rel=icon href='data:,'><style>{style}</style>
<div class='tpv-place' data-view='partition'><script type='application/json'>{state}</script></div>
<script type='text/plain' id='tpv-module-partition'>{module}</script>
<script type='module'>{host}</script>"""


def test_keys_and_clicks_go_to_a_stage(chromium, tmp_path):
    layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(6)))
    graph = trace(layers, (torch.zeros(2, 4),))
    steps = tv.PartitionView(partition_of(graph, 3, shard(graph, "finest"))).picture
    state = {"scene": steps.scene, "step": 0, "error": "", "generation": 0, "autoplay": False}
    file = tmp_path / "page.html"
    file.write_text(PAGE.format(
        style=stylesheet(), state=json.dumps(state).replace("<", "\\u003c"),
        module=module("partition"), host=(FOLDER / "host.js").read_text()))
    context = chromium.new_context(offline=True)
    tab, problems = context.new_page(), []
    tab.on("console", lambda m: m.type in ("error", "warning") and problems.append(m.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.goto(file.as_uri())
    tab.wait_for_selector(".tpv-partition[data-step='0']")
    svg, live = tab.locator("svg[role=application]"), tab.locator(".tpv-live")
    assert "Stage 0: 0..1." in svg.text_content()
    svg.press("ArrowRight")
    tab.wait_for_selector(".tpv-partition[data-step='1']")
    assert live.text_content().startswith("stage 1 of 3; Stage 1: 2..3.")
    assert "Receives" in svg.text_content()
    svg.locator("[data-piece='5'] text").click()
    tab.wait_for_selector(".tpv-partition[data-step='2']")
    svg.locator("g[data-step='0'] text", has_text="stage 0").click()
    tab.wait_for_selector(".tpv-partition[data-step='0']")
    assert "url(#tpv-" not in svg.inner_html()
    context.close()
    assert problems == []
