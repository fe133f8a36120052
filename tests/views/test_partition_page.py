"""The script of the partition explorer in a plain page: keys and clicks go from stage to stage."""

import pytest
import torch

import tpviz as tv
from tpviz.modules.partition import partition_of, shard, trace

pytestmark = pytest.mark.browser


def test_keys_and_clicks_go_to_a_stage(page_of):
    layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(6)))
    graph = trace(layers, (torch.zeros(2, 4),))
    steps = tv.PartitionView(partition_of(graph, 3, shard(graph, "finest"))).picture
    tab = page_of("partition", [{"scene": steps.scene, "step": 0}])
    tab.wait_for_selector(".tpv-partition[data-step='0']")
    svg, live = tab.locator("svg[role=application]"), tab.locator(".tpv-live")
    rail = tab.locator(".tpv-summary")
    assert "Stage 0: 0..1." in rail.text_content()
    svg.press("ArrowRight")
    tab.wait_for_selector(".tpv-partition[data-step='1']")
    assert live.text_content().startswith("stage 1 of 3; Stage 1: 2..3.")
    assert "Receives" in rail.text_content()
    svg.locator("[data-piece='5'] text").click()
    tab.wait_for_selector(".tpv-partition[data-step='2']")
    svg.locator("g[data-step='0'] text", has_text="stage 0").click()
    tab.wait_for_selector(".tpv-partition[data-step='0']")
    assert "url(#tpv-" not in svg.inner_html()
