"""A notebook saved in JupyterLab, and opened again without its kernel: pictures stand where views
were, also where Lab does not trust the notebook."""

import nbformat
import pytest
from lab_page import lab_page, written
from pictures import check_pictures

pytestmark = pytest.mark.browser

VIEWS = """
import tpviz as tv
tv.ScheduleView("1f1b", p=2, m=2)
tv.MeshView(tv.Mesh({"dp": 2, "tp": 2}))
display(tv.BlocksView(tv.ATP(mesh=(2, 2))), tv.Guess("How long?"), tv.clusters.nvlink_pairs())
found = tv.search(tv.GPT(), tv.clusters.nvlink_pairs(pairs=1), strategies=[tv.Megatron])
""".strip().splitlines()
PICTURES = 4  # of three views, and the cluster, which is always one


@pytest.mark.parametrize("lab", ["perCommTarget"], indirect=True)
def test_saved_and_opened_without_kernel(chromium, lab):
    """Live, there is no picture beside a view; without kernel there is one for each view."""
    notebook = written(lab, "saved.ipynb", *VIEWS)
    with lab_page(chromium, lab.url, notebook) as page:
        check_pictures(page.page, 1, live=3)
        page.locator(".tpviz-guess input").fill("4")
        page.locator(".tpviz-guess button").click()
        page.locator(".tpv-still", has_text="(guess 4)").wait_for(state="attached")
        page.save()
    kept = nbformat.read(lab.folder / notebook, as_version=4)
    nbformat.write(kept, lab.folder / "sent.ipynb")  # Lab knows what it has written, and trusts it
    kept.cells.append(nbformat.v4.new_markdown_cell("changed elsewhere"))
    nbformat.write(kept, lab.folder / "changed.ipynb")
    for name in ("sent.ipynb", "changed.ipynb"):
        with lab_page(chromium, lab.url, name, run=False, kernel=False) as page:
            check_pictures(page.page, PICTURES)
            assert page.locator(".jp-OutputArea-output", has_text="(guess 4)").is_visible()
            page.screenshot(f"{name}-light.png")
            page.darken()
            check_pictures(page.page, PICTURES)
            page.screenshot(f"{name}-dark.png")
