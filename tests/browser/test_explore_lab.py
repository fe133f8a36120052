"""``explore`` on an emulated cluster in a real JupyterLab: drag, guess, run, compare.

Screenshots of both themes go to out/screenshots, for a person to look at.
"""

import pytest
from lab_page import lab_page, written

pytestmark = pytest.mark.browser

CELL = """
import tpviz as tv
view = tv.explore(tv.GPT(), tv.clusters.nvlink_pairs())
view.steps.value = 1
view
"""
DRAWN_ANEW = "([picture, old]) => picture.innerHTML !== old"
THEME = "name => window.jupyterapp.commands.execute('apputils:change-theme', {theme: name})"


@pytest.mark.parametrize("lab", ["disabled"], indirect=True)  # test_lab.py has the other setting
def test_drag_guess_run_compare(chromium, lab):
    """A slider changes the prediction; the guess opens Run; all results stand together."""
    with lab_page(chromium, lab.url, written(lab, "explore.ipynb", CELL)) as page:
        box = page.locator(".jp-OutputArea-output", has=page.locator(".tpviz-predicted"))
        drag(page, box)
        page.screenshot(f"explore-model-{lab.comms}.png", box.locator(".tpviz-predicted"))
        guess(box)
        run(page, box)
        page.screenshot(f"explore-compared-{lab.comms}.png", box.locator(".tpviz-revealed"))
        in_the_dark(page, box, lab)


def drag(page, box):
    """Arrow keys on the first slider stop at what divides and redraw the picture; a plan that is
    pinned stands beside the next."""
    picture = box.locator(".tpviz-predicted")
    picture.locator("svg").first.wait_for()
    old = picture.inner_html()
    box.get_by_role("button", name="Pin this plan").click()
    tp = box.locator(".noUi-handle").first
    tp.focus()
    tp.press("ArrowLeft")  # from 4: 3 does not divide the heads
    page.page.wait_for_function(DRAWN_ANEW, arg=[picture.element_handle(), old])
    assert "predicted" in picture.inner_text()
    pins = box.locator(".tpviz-pins table")
    pins.wait_for()
    assert pins.locator("tr", has_text="strategy").inner_text().split() == [
        *("strategy", "Megatron(tp=4)", "Megatron(tp=2)")
    ]


def guess(box):
    """Run is closed until a guess is committed."""
    start = box.get_by_role("button", name="Run")
    assert start.is_disabled()
    form = box.locator(".tpviz-guess").first
    form.locator("input").fill("200")
    form.locator("button").click()
    form.get_by_text("committed").wait_for()
    box.locator("button:enabled", has_text="Run").wait_for()


def run(page, box):
    """Guess, formula, simulated and measured in one table; the comparison; the switch."""
    box.get_by_role("button", name="Run").click()
    table = box.locator(".tpviz-revealed table")
    table.wait_for(timeout=90_000)
    heads = table.locator("th").all_inner_texts()
    assert heads == ["", "your guess", "formula", "simulated", "measured"]
    assert table.locator("td").nth(1).inner_text() == "200 ms"
    box.locator(".tpviz-comparison svg").wait_for()
    timeline = page.view(".tpv-timeline[data-ready]", box)
    assert timeline.locator(".tpv-badge").inner_text().split(",")[0] == "emulated"
    before = timeline.generation()
    box.get_by_role("button", name="simulated").click()
    timeline.wait_past(before)
    assert timeline.locator(".tpv-badge").inner_text() == "simulated"


def in_the_dark(page, box, lab):
    page.page.evaluate(THEME, "JupyterLab Dark")
    page.page.wait_for_selector("body[data-jp-theme-light='false']", state="attached")
    page.page.wait_for_selector("#jupyterlab-splash", state="detached")
    page.screenshot(f"explore-dark-{lab.comms}.png", box.locator(".tpviz-predicted"))
    page.screenshot(f"explore-dark-compared-{lab.comms}.png", box.locator(".tpviz-revealed"))
