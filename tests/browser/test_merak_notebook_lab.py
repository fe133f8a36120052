"""The pictures of notebook 05 in a real JupyterLab, under Lab's default setting. Screenshots go to
out/screenshots, for a person to look at."""

import pytest
from lab_page import lab_page, without_ranks

pytestmark = pytest.mark.browser
MEASURES = ("run=", "measured", "tv.verify", "tv.check(")
PLOTS = {"schedules": "bubble", "memory": "budget", "halves": "level"}


@pytest.mark.parametrize("lab", ["perCommTarget"], indirect=True)
def test_merak(chromium, lab):
    copy = without_ranks(lab, "05_merak.ipynb", MEASURES)
    with lab_page(chromium, lab.url, copy, timeout_s=60) as page:
        theatre = page.view(".tpv-schedule[data-ready]")
        page.screenshot("merak-theatre.png", theatre)
        page.plots(PLOTS, "merak")
        report = page.locator(".jp-OutputArea-output", has_text="receives").last
        page.screenshot("merak-report.png", report)
