"""The pictures of notebook 04 in a real JupyterLab, under Lab's default setting: all its cells but
those that start ranks, which run where all notebooks do. Screenshots go to out/screenshots, for a
person to look at."""

import nbformat
import pytest
from lab_page import lab_page

pytestmark = pytest.mark.browser
STARTS_RANKS = ("run=", "tv.run(", "tv.verify", "tv.check(")
PLOTS = {"validation": "communication", "overlaps": "oag", "scaling": "devices"}


@pytest.mark.parametrize("lab", ["perCommTarget"], indirect=True)
def test_axonn(chromium, lab):
    notebook = nbformat.read(lab.folder / "04_axonn.ipynb", as_version=4)
    notebook.cells = [cell for cell in notebook.cells if cell.cell_type != "code"
                      or not any(word in cell.source for word in STARTS_RANKS)]
    nbformat.write(notebook, lab.folder / "04_pictures.ipynb")
    with lab_page(chromium, lab.url, "04_pictures.ipynb", timeout_s=60) as page:
        cube = page.view(".tpv-blocks[data-ready]")
        assert cube.locator("[data-rank]").count() == 8
        page.screenshot("axonn-cube.png", cube)
        page.screenshot("axonn-table.png", page.locator(".jp-MarkdownCell table").first)
        plots = page.locator(".js-plotly-plot")
        assert plots.count() == len(PLOTS)
        for number, (name, word) in enumerate(PLOTS.items()):
            plot = plots.nth(number)
            assert plot.locator(".main-svg").first.is_visible()
            assert word in plot.text_content()
            page.screenshot(f"axonn-{name}.png", plot)
        task = page.locator(".jp-OutputArea-output", has_text="Which grid is which scheme?").first
        page.screenshot("axonn-task.png", task)
