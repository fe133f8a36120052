"""ATP's block, step by step, and ``explore`` with ATP, in a real JupyterLab.

Screenshots of both themes go to out/screenshots, for a person to look at.
"""

import pytest
from lab_page import DRAWN_ANEW, lab_page, written

pytestmark = pytest.mark.browser

BLOCKS = "import tpviz as tv\ntv.BlocksView(tv.ATP(mesh=(2, 2)), tv.GPT(), rank=1)"
EXPLORE = """
view = tv.explore(tv.GPT(), tv.clusters.nvlink_pairs(), strategy=tv.ATP(mesh=(2, 2)))
view
"""
VIEW = ".tpv-blocks[data-ready]"


@pytest.mark.parametrize("lab", ["perCommTarget"], indirect=True)
def test_block_and_explore(chromium, lab):
    """Keys step and play; knobs redraw or say why not; a click looks from another rank."""
    with lab_page(chromium, lab.url, written(lab, "atp.ipynb", BLOCKS, EXPLORE)) as page:
        block = page.view(VIEW)
        box = page.locator(".jp-OutputArea-output", has=page.locator(".tpv-blocks")).first
        keys_step(page, block)
        block.look_from(2, "not on rank 2")
        block.click_step(8)
        block.plays(until=10)
        knobs(page, block, box)
        explore(page)
        page.darken()
        page.screenshot("blocks-dark.png", block)
        page.screenshot("blocks-dark-knobs.png", box)


def knob(box, name):
    """The menu or slider of a knob."""
    row = box.locator(f".widget-inline-hbox:has(> .widget-label:text-is('{name}'))")
    return row.locator("select, .noUi-handle").first


def keys_step(page, block):
    """Arrows step: product, sum; the picture and what is said change."""
    svg = block.locator("svg[role=application]")
    svg.focus()
    before = block.generation()
    svg.press("Home")
    before, seen = block.wait_past(before), svg.inner_html()
    svg.press("ArrowRight")
    before = block.wait_past(before)
    assert block.root.get_attribute("data-step") == "1"
    assert svg.inner_html() != seen
    assert svg.locator("[data-rank]").count() == 4
    assert svg.locator(".tpv-flow").count() == 0
    page.screenshot("blocks-product.png", block)
    svg.press("ArrowRight")
    block.wait_past(before)
    assert svg.locator(".tpv-flow").count() == 2  # the groups of d2
    assert "reduce-scatter of QKV over d2" in block.locator(".tpv-live").text_content()
    page.screenshot("blocks-sum.png", block)


def knobs(page, block, box):
    """Another mesh, one to which another knob gives way, and chunks that the slider drags."""
    before = block.generation()
    knob(box, "mesh").select_option(label="4 x 1, 4 ranks")
    before = block.wait_past(before)
    assert block.locator(".tpv-title").inner_text() == "ATP: one block on 4 x 1 ranks"
    knob(box, "mesh").select_option(label="4 x 2, 8 ranks")
    before = block.wait_past(before)
    box.get_by_text("Changed so that all fits: attention A3").wait_for()
    page.screenshot("blocks-mended.png", box)
    knob(box, "mesh").select_option(label="2 x 2, 4 ranks")
    before = block.wait_past(before)
    assert block.locator(".tpv-error").is_hidden()
    knob(box, "chunks").focus()
    knob(box, "chunks").press("ArrowRight")
    block.wait_past(before)
    assert "chunks=2" in block.locator(".tpv-title").get_attribute("title")
    layer = block.locator("g[data-step]").nth(2)
    step = layer.get_attribute("data-step")
    layer.click()
    page.page.wait_for_selector(f"{VIEW}[data-step='{step}']")
    page.screenshot("blocks-chunks.png", block)


def explore(page):
    """The mesh's menu and the slider of chunks predict anew; the slider stops at what divides."""
    box = page.locator(".jp-OutputArea-output", has=page.locator(".tpviz-predicted"))
    picture = box.locator(".tpviz-predicted")
    picture.locator("svg").first.wait_for()
    mesh = page.view(".tpv-mesh[data-ready]", box)
    for change in (
        lambda: knob(box, "mesh").select_option(label="4 x 1, 4 ranks"),
        lambda: knob(box, "chunks").press("ArrowRight"),
    ):
        old = picture.inner_html()
        change()
        page.page.wait_for_function(DRAWN_ANEW, arg=[picture.element_handle(), old])
    old = picture.inner_html()
    knob(box, "chunks").press("ArrowRight")  # from 2: 3 does not divide the batch
    page.page.wait_for_function(DRAWN_ANEW, arg=[picture.element_handle(), old])
    assert mesh.locator("[data-rank]").count() == 4
    page.screenshot("explore-atp.png", picture)
