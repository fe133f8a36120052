"""The view of notebook 14 in a real JupyterLab, under Lab's default setting, with all its cells
run. Screenshots go to out/screenshots, for a person to look at."""

import pytest
from lab_page import lab_page

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("lab", ["perCommTarget"], indirect=True)
def test_context(chromium, lab):
    with lab_page(chromium, lab.url, "14_context.ipynb", timeout_s=200) as page:
        view = page.view(".tpv-microscope[data-ready]")
        page.screenshot("context-view.png", view)
        view.locator("svg[role=application]").press("ArrowRight")
        page.screenshot("context-reveal.png", page.locator("text=(2n - 1) / n").last)
        page.screenshot("context-zoo.png", page.locator("text=last hop sent in vain:").last)
        page.darken()
        page.screenshot("context-view-dark.png", view)
