"""AxoNN's cube, step by step, in a real JupyterLab.

Screenshots of both themes go to out/screenshots, for a person to look at.
"""

import pytest
from lab_page import lab_page, written

pytestmark = pytest.mark.browser

CUBE = "import tpviz as tv\ntv.GridView(tv.AxoNN(x=2, y=2, z=2), tv.GPT(batch=8), rank=5)"
VIEW = ".tpv-blocks[data-ready]"


@pytest.mark.parametrize("lab", ["perCommTarget"], indirect=True)
def test_cube(chromium, lab):
    """Keys step and play; a click looks from another rank; knobs redraw, or say why not."""
    with lab_page(chromium, lab.url, written(lab, "axonn.ipynb", CUBE)) as page:
        view = page.view(VIEW)
        box = page.locator(".jp-OutputArea-output", has=page.locator(".tpv-blocks")).first
        keys_step(page, view)
        view.look_from(2, "not on rank 2")
        view.click_step(18)
        view.plays(until=19, meanwhile=lambda: flowing(view))
        knobs(page, view, box)
        page.darken()
        page.screenshot("cube-dark.png", view)


def names(view, scheme):
    """Until the line under the picture names the known scheme."""
    view.root.get_by_text(f"The same cut as {scheme}", exact=True).wait_for()


def keys_step(page, view):
    """Arrows step to a gather: its four groups flow, the next weight is prefetched."""
    svg = view.locator("svg[role=application]")
    svg.focus()
    before = view.generation()
    svg.press("Home")
    before = view.wait_past(before)
    svg.press("ArrowRight")
    view.wait_past(before)
    assert view.root.get_attribute("data-step") == "1"
    assert svg.locator("[data-rank]").count() == 8
    assert svg.locator("[data-group='z']").count() == 4
    assert "all-gather of W over z" in view.locator(".tpv-live").text_content()
    assert "Prefetched: the weights of out." in view.root.text_content()
    names(view, "Colossal-AI 3D")
    page.screenshot("cube-gather.png", view)


def flowing(view):
    """What communicates flows."""
    line = view.locator(".tpv-flow").first
    assert line.evaluate("line => getComputedStyle(line).animationName") == "tpv-flow"


def knobs(page, view, box):
    """Sliders reach a grid that has a name, and one that does not fit; a check box redraws."""

    def slider(name):
        row = box.locator(f".widget-inline-hbox:has(> .widget-label:text-is('{name}'))")
        return row.locator(".noUi-handle").first

    before = view.generation()
    for name in ("x", "y"):
        slider(name).focus()
        slider(name).press("ArrowLeft")
        before = view.wait_past(before)
    names(view, "ZeRO-2-like")
    box.get_by_label("keep").uncheck()
    names(view, "FSDP (ZeRO-3)")
    box.get_by_label("oag").uncheck()
    view.locator(""".tpv-title[title*="overlap=('oar', 'ors')"]""").wait_for()
    page.screenshot("cube-fsdp.png", box)
    slider("z").focus()
    slider("z").press("ArrowRight")
    view.locator(".tpv-error").get_by_text("batch=8 does not split evenly").wait_for()
    page.screenshot("cube-refused.png", box)
