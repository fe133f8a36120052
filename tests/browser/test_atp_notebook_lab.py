"""The pictures of notebook 10 in a real JupyterLab, under Lab's default setting. Screenshots go to
out/screenshots, for a person to look at."""

import pytest
from lab_page import lab_page, only

pytestmark = pytest.mark.browser
SHOWN = (
    "tv.BlocksView(",
    "matrix.show(",
    "predicted = atp.winners(",
    "atp.scaling(",
    "x).report",
)


@pytest.mark.parametrize("lab", ["perCommTarget"], indirect=True)
def test_atp(chromium, lab):
    with lab_page(chromium, lab.url, only(lab, "10_atp.ipynb", *SHOWN)) as page:
        block = page.view(".tpv-blocks[data-ready]")
        assert block.locator("[data-rank]").count() == 4
        page.screenshot("atp-blocks.png", block)
        matrix = page.locator(".tpv-image[alt^='Communication matrix']")
        page.screenshot("atp-matrix.png", matrix)
        page.charts({"heat map": "gain", "scaling": "ranks"}, "atp")
        report = page.locator(".jp-OutputArea-output", has_text="stays whole").last
        page.screenshot("atp-report.png", report)
