"""The tile view in a real JupyterLab."""

import pytest
from lab_page import lab_page, written

from tpviz.views.figures import tiles as figure

pytestmark = pytest.mark.browser

CELL = "import tpviz as tv\ntv.TileView((1024, 512, 512), 4)"


@pytest.mark.parametrize("lab", ["perCommTarget"], indirect=True)
def test_tile_view(chromium, lab):
    """A click tells a tile's story, by Python; it plays; knobs redraw, others give way."""
    with lab_page(chromium, lab.url, written(lab, "t3.ipynb", CELL)) as page:
        view = page.view(".tpv-tiles[data-ready]")
        box = page.locator(".jp-OutputArea-output", has=page.locator(".tpv-tiles")).first
        plays(view)
        looks(page, view)
        knobs(page, view, box)
        page.darken()
        page.screenshot("tiles-dark.png", view)


def plays(view):
    """Space plays, and pauses; parts are in other states then."""
    svg = view.locator("svg[role=application]")
    before = svg.inner_html()
    svg.press("Space")
    view.root.page.wait_for_function(
        "view => Number(view.dataset.step) > 30", arg=view.root.element_handle()
    )
    svg.press("Space")
    view.locator("button", has_text="Play").wait_for()
    assert svg.inner_html() != before


def looks(page, view):
    """A click on a tile, through the kernel."""
    svg = view.locator("svg[role=application]")
    grown = svg.bounding_box()["width"] / figure.VIEW
    cell = (figure.HIGH - figure.GPU) / 8  # px: the map is 8 tiles high
    x, y = figure.SIDE + 1.5 * cell, figure.HEAD + 2.5 * cell
    svg.click(position={"x": x * grown, "y": y * grown})
    view.locator(".tpv-live", has_text="tile (2, 1), chunk 1, 1st in its order").wait_for(
        state="attached"
    )
    svg.locator("[data-chosen]").wait_for()
    svg.press("ArrowDown")
    view.locator(".tpv-live", has_text="tile (2, 2), chunk 1").wait_for(state="attached")
    page.screenshot("tiles.png", view)
    svg.press("Escape")
    view.locator(".tpv-live", has_text="sequential, GPU 0: ").wait_for(state="attached")


def knobs(page, view, box):
    """A slider redraws, menus take all GPUs; what clashes gives way, and it is said."""
    before = view.generation()
    row = box.locator(".widget-inline-hbox:has(> .widget-label:text-is('k'))")
    row.locator(".noUi-handle").first.press("ArrowRight")
    view.wait_past(before)
    view.locator(".tpv-title", has_text="× 640 on 4 GPUs").wait_for()
    box.get_by_label("shown").select_option("all")
    view.locator("svg text", has_text="GPU 3").first.wait_for()
    page.screenshot("tiles-all.png", box)
    box.get_by_label("tile", exact=True).select_option("32")
    box.locator(".widget-html", has_text="use larger tiles").wait_for()
    page.screenshot("tiles-refused.png", box)
