"""The view of notebook 15 in a real JupyterLab, under Lab's default setting, with all its cells
run. Screenshots go to out/screenshots, for a person to look at."""

import pytest
from lab_page import lab_page

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("lab", ["perCommTarget"], indirect=True)
def test_experts(chromium, lab):
    with lab_page(chromium, lab.url, "15_experts.ipynb", timeout_s=200) as page:
        view = page.view(".tpv-microscope[data-ready]")
        page.screenshot("experts-view.png", view)
        view.locator("svg[role=application]").press("ArrowRight")
        page.screenshot("experts-reveal.png", page.locator("text=n / k * max p").last)
        page.screenshot("experts-zoo.png", page.locator("text=experts added over ep:").last)
        page.darken()
        page.screenshot("experts-view-dark.png", view)
