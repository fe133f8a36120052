"""The schedule view in a real JupyterLab."""

import pytest
from lab_page import lab_page, written

from tpviz.views.figures import svg as figure
from tpviz.views.figures.schedule_lanes import LEFT, ROOM

pytestmark = pytest.mark.browser

CELL = "import tpviz as tv\ntv.ScheduleView(against='1f1b', p=4, m=6)"
VIEW = ".tpv-schedule[data-ready]"


@pytest.mark.parametrize("lab", ["perCommTarget"], indirect=True)
def test_schedule_view(chromium, lab):
    """Keys and clicks look at what ranks wait for; it plays; knobs redraw, or say why not."""
    with lab_page(chromium, lab.url, written(lab, "merak.ipynb", CELL)) as page:
        view = page.view(VIEW)
        box = page.locator(".jp-OutputArea-output", has=page.locator(".tpv-schedule")).first
        looks(page, view)
        plays(view)
        knobs(page, view, box)
        page.darken()
        page.screenshot("view-dark.png", view)


def says(view, words):
    """Until the view says so, for the eye and for screen readers."""
    view.locator(".tpv-live", has_text=words).wait_for(state="attached")
    assert words in view.locator(".tpv-summary").text_content()


def looks(page, view):
    """Down and Right reach the first wait of rank 1; a click an action of rank 2, by Python."""
    svg = view.locator("svg[role=application]")
    assert "1f1b is 6 longer than shifted critical path" in view.text_content()
    svg.focus()
    for key in ("Home", "ArrowDown", "ArrowDown", "ArrowRight"):
        svg.press(key)
    says(view, "rank 1 is idle for 1, from 0: F0 waits for the activation of F0 from rank 0.")
    assert svg.locator("[data-needed]").count() == 1
    bars, at = svg.bounding_box(), svg.locator("text", has_text="rank 2").first.bounding_box()
    wide = bars["width"] / figure.VIEW
    svg.click(position={"x": (LEFT + ROOM * 7 / 36) * wide, "y": at["y"] - bars["y"] + 5})
    says(view, "rank 2: B0, backward, 6 to 8: starts when R0 ends; the gradient of B0 from rank 3")
    assert view.root.get_attribute("data-row") == "2"
    svg.locator("[data-chosen]").wait_for()
    page.screenshot("view-look.png", view)


def plays(view):
    """Space plays, evenly in time, and pauses."""
    svg = view.locator("svg[role=application]")
    svg.press("Space")
    view.root.page.wait_for_function(
        "view => Number(view.dataset.step) > 8", arg=view.root.element_handle()
    )
    svg.press("Space")
    view.locator("button", has_text="Play").wait_for()


def knobs(page, view, box):
    """A slider redraws, a menu takes another schedule, sizes that are refused are said."""

    def handle(name):
        row = box.locator(f".widget-inline-hbox:has(> .widget-label:text-is('{name}'))")
        return row.locator(".noUi-handle").first

    before = view.generation()
    handle("p").focus()
    handle("p").press("ArrowLeft")
    view.wait_past(before)
    view.locator(".tpv-title[title*='p=3, m=6']").wait_for()
    box.get_by_label("against").select_option("zb_h1")
    view.locator(".tpv-title[title*='w=1']").wait_for()
    page.screenshot("view-zero-bubble.png", box)
    handle("m").focus()
    for _ in range(4):
        handle("m").press("ArrowLeft")
    box.locator(".widget-html", has_text="needs at least 4 microbatches, not").wait_for()
    page.screenshot("view-refused.png", box)
