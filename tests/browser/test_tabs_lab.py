"""What ranks print, in a tab for each, in a real JupyterLab: live, and in a saved notebook."""

import pytest
from lab_page import KERNEL_READY, RUN_ALL, lab_page, written

pytestmark = pytest.mark.browser

CELL = """
import time
import tpviz as tv

def speaks():
    import torch.distributed as dist
    for number in range(40):
        print("rank", dist.get_rank(), "says", number, flush=True)
        time.sleep(0.1)

tv.launch(speaks, world_size=2, rank_tabs=True)
"""
TABS = ".jp-OutputArea-output [role=tab]"


@pytest.mark.parametrize("lab", ["disabled"], indirect=True)
def test_a_tab_for_each_rank(chromium, lab):
    with lab_page(chromium, lab.url, written(lab, "tabs.ipynb", CELL), run=False) as page:
        page.page.wait_for_function(KERNEL_READY)
        page.page.evaluate(RUN_ALL)
        second = page.locator(TABS, has_text="rank 1")
        second.wait_for(timeout=45_000)
        second.click()
        page.locator(".jp-OutputArea-output pre:visible", has_text="rank 1 says 5").wait_for()
        page.screenshot("tabs-live.png")
        folds = page.locator(".jp-OutputArea-output details")
        folds.nth(1).wait_for(timeout=45_000)
        assert page.locator(TABS).count() == 0, "tabs give way to text"
        folds.nth(1).locator("summary").click()
        assert "rank 1 says 39" in folds.nth(1).inner_text()
        page.screenshot("tabs-kept.png")
