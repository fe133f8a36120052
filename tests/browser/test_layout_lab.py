"""The layout view of notebook 08 in a real JupyterLab."""

import pytest
from lab_page import lab_page, written

pytestmark = pytest.mark.browser

CELL = 'import tpviz as tv\ntv.LayoutView("llama-3B", gpus=32, tp=1, pp=1)'


@pytest.mark.parametrize("lab", ["perCommTarget"], indirect=True)
def test_layout_view(chromium, lab):
    """A slider takes another measured layout, and the others follow; a commit uncovers it."""
    with lab_page(chromium, lab.url, written(lab, "layouts.ipynb", CELL)) as page:
        view = page.view(".tpv-picture[data-ready]")
        box = page.locator(".jp-OutputArea-output", has=page.locator(".tpv-picture")).first
        texts = view.locator("svg text")
        texts.filter(has_text="then commit it").first.wait_for()
        assert texts.filter(has_text="slower than").count() == 0
        page.screenshot("layouts-covered.png", box)
        before = view.generation()
        row = box.locator(".widget-inline-hbox:has(> .widget-label:text-is('tp'))")
        row.locator(".noUi-handle").first.press("ArrowRight")
        view.wait_past(before)
        texts.filter(has_text="tp 2, ").first.wait_for()
        box.get_by_role("button", name="Commit").click()
        texts.filter(has_text="slower").first.wait_for()
        texts.filter(has_text="where the step goes").first.wait_for()
        page.screenshot("layouts.png", box)
        page.darken()
        page.screenshot("layouts-dark.png", box)
