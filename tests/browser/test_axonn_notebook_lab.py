"""The pictures of notebook 11 in a real JupyterLab, under Lab's default setting. Screenshots go to
out/screenshots, for a person to look at."""

import pytest
from lab_page import lab_page, only

pytestmark = pytest.mark.browser
SHOWN = (
    "tv.GridView(",
    "grids = axonn.validation(",
    "display(hidden, report)",
    "display(study, claims)",
    'axonn_special")',
)
PLOTS = {"validation": "communication", "overlaps": "oag", "scaling": "devices"}


@pytest.mark.parametrize("lab", ["perCommTarget"], indirect=True)
def test_axonn(chromium, lab):
    with lab_page(chromium, lab.url, only(lab, "11_axonn.ipynb", *SHOWN), timeout_s=60) as page:
        cube = page.view(".tpv-blocks[data-ready]")
        assert cube.locator("[data-rank]").count() == 8
        page.screenshot("axonn-cube.png", cube)
        page.screenshot("axonn-table.png", page.locator(".jp-MarkdownCell table").first)
        page.charts(PLOTS, "axonn")
        task = page.locator(".jp-OutputArea-output", has_text="Which grid is which scheme?").first
        page.screenshot("axonn-task.png", task)
