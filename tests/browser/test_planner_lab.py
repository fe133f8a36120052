"""The planner in a real JupyterLab: drag, search, take a plan, run it in small.

Screenshots of both themes go to out/screenshots, for a person to look at.
"""

import pytest
from lab_page import lab_page, written
from test_explore_lab import DRAWN_ANEW

pytestmark = pytest.mark.browser

CELL = """
import tpviz as tv
workload = tv.GPT(layers=8, hidden=1024, heads=16, seq=512, batch=64, vocab=1024, dtype="bfloat16")
tv.explore(workload, gpus=16, framework="FSDP")
"""


@pytest.mark.parametrize("lab", ["disabled"], indirect=True)
def test_drag_search_take_run(chromium, lab):
    """A slider changes the numbers; a plan that is clicked sets the knobs; Run shows a run."""
    with lab_page(chromium, lab.url, written(lab, "planner.ipynb", CELL)) as page:
        box = page.locator(".jp-OutputArea-output", has=page.locator(".tpviz-predicted"))
        picture = box.locator(".tpviz-predicted").first
        picture.locator("svg").first.wait_for()
        assert "a step" in picture.inner_text() and "MFU" in picture.inner_text()
        drag(page, box, picture)
        take(page, box, picture)
        page.screenshot("planner.png", box)
        small(box)
        page.darken()
        page.screenshot("planner-dark.png", box)


def drag(page, box, picture):
    """An arrow key on the number of GPUs draws the numbers anew."""
    old = picture.inner_html()
    handle = box.locator(".noUi-handle").first
    handle.focus()
    handle.press("ArrowRight")
    page.page.wait_for_function(DRAWN_ANEW, arg=[picture.element_handle(), old])
    box.get_by_text("on 32 H100-SXM-80GB").wait_for()


def take(page, box, picture):
    """The list of plans fills; the second of them is put on the knobs."""
    box.get_by_role("button", name="Search the best plans").click()
    plans = box.locator(".tpviz-plans select")
    box.get_by_text("strategies ranked").wait_for(timeout=60_000)
    second = plans.locator("option").nth(1).inner_text().replace("\N{NO-BREAK SPACE}", " ")
    old = picture.inner_html()
    plans.select_option(index=1)
    page.page.wait_for_function(DRAWN_ANEW, arg=[picture.element_handle(), old])
    scheme, _, sizes = second.split(" | ")[3].partition("(")
    knobs = dict(knob.split("=") for knob in sizes.partition(")")[0].split(", "))
    words = (
        f"shard {knobs['shard']}"
        if "shard" in knobs
        else f"{scheme} {' '.join(*[*knobs.items()][:1])}"
    )
    box.locator("b", has_text=words).first.wait_for()


def small(box):
    """The plan runs on ranks here, and says that it is a scale model."""
    box.get_by_role("button", name="Run it here as a scale model").click()
    box.get_by_text("stand for 32 GPUs").wait_for()
    box.locator(".tpviz-comparison svg").wait_for(timeout=120_000)
