"""Notebook 03 in a real JupyterLab, under Lab's default setting: all cells run, every picture is
drawn. Screenshots go to out/screenshots, for a person to look at."""

import pytest
from lab_page import lab_page

pytestmark = pytest.mark.browser
PLOTS = {"heat map": "gain", "chunks": "chunks", "scaling": "ranks"}


@pytest.mark.parametrize("lab", ["perCommTarget"], indirect=True)
def test_atp(chromium, lab):
    with lab_page(chromium, lab.url, "03_atp.ipynb", timeout_s=150) as page:
        block = page.view(".tpv-blocks[data-ready]")
        assert block.locator("[data-rank]").count() == 4
        page.screenshot("atp-blocks.png", block)
        matrix = page.locator(".jp-OutputArea-output svg", has_text="derived").first
        page.screenshot("atp-matrix.png", matrix)
        plots = page.locator(".js-plotly-plot")
        assert plots.count() == len(PLOTS)
        for number, (name, word) in enumerate(PLOTS.items()):
            plot = plots.nth(number)
            assert plot.locator(".main-svg").first.is_visible()
            assert word in plot.text_content()
            page.screenshot(f"atp-{name.replace(' ', '-')}.png", plot)
        report = page.locator(".jp-OutputArea-output", has_text="stays whole").last
        page.screenshot("atp-report.png", report)
