"""The pictures of notebook 12 in a real JupyterLab, under Lab's default setting. Screenshots go to
out/screenshots, for a person to look at."""

import pytest
from lab_page import lab_page, only

pytestmark = pytest.mark.browser
SHOWN = (
    "tv.ScheduleView(",
    "measured = merak.schedules(",
    "display(study, halves)",
    "tv.PartitionView(",
)
PLOTS = {"schedules": "bubble", "memory": "budget", "halves": "level"}


@pytest.mark.parametrize("lab", ["perCommTarget"], indirect=True)
def test_merak(chromium, lab):
    copy = only(lab, "12_merak.ipynb", *SHOWN)
    with lab_page(chromium, lab.url, copy, timeout_s=60) as page:
        view = page.view(".tpv-schedule[data-ready]")
        page.screenshot("merak-view.png", view)
        page.charts(PLOTS, "merak")
        partition_is_cut_anew(page)


def partition_is_cut_anew(page):
    """A slider cuts the model again, a click looks at a stage, stages give way to coarser cuts."""
    view = page.view(".tpv-partition[data-ready]")
    box = page.locator(".jp-OutputArea-output", has=page.locator(".tpv-partition")).first
    svg, handle = view.locator("svg[role=application]"), box.locator(".noUi-handle").first
    svg.locator("[data-cut]").first.wait_for(state="attached")
    assert svg.locator("[data-cut]").count() == 1
    before = view.generation()
    handle.focus()
    handle.press("ArrowRight")
    view.wait_past(before)
    assert svg.locator("[data-cut]").count() == 2
    svg.locator("g[data-step='2'] text").first.click()
    view.locator(".tpv-live", has_text="stage 2 of 3").wait_for(state="attached")
    page.screenshot("merak-partition.png", box)
    box.get_by_label("finer cuts").check()
    handle.focus()
    handle.press("End")
    box.get_by_label("finer cuts").uncheck()
    box.get_by_text(
        "stages 16 \N{RIGHTWARDS ARROW} 9 (16 stages are too many for 9 shards"
    ).wait_for()
    assert view.locator(".tpv-error").is_hidden()
    page.darken()
    page.screenshot("merak-partition-dark.png", box)
