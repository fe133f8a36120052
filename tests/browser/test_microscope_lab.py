"""The microscopes of notebooks 01 and 07 in a real JupyterLab, under Lab's default setting, where
they answer to keys."""

import pytest
from lab_page import lab_page, only

pytestmark = pytest.mark.browser
SHOWN = "tv.MicroscopeView(", "box.show("
MICROSCOPE = ".tpv-microscope[data-ready]"


@pytest.mark.parametrize("lab", ["perCommTarget"], indirect=True)
def test_ring(chromium, lab):
    notebook = only(lab, "01_ranks_meshes_collectives.ipynb", SHOWN[0])
    with lab_page(chromium, lab.url, notebook) as page:
        ring = page.view(MICROSCOPE)
        keys_step(ring)
        page.screenshot("microscope-ring.png", ring)
        plays_to_the_end(ring)


@pytest.mark.parametrize("lab", ["perCommTarget"], indirect=True)
def test_tree_and_cluster(chromium, lab):
    with lab_page(chromium, lab.url, only(lab, "07_cost_models.ipynb", *SHOWN)) as page:
        page.screenshot("microscope-tree.png", page.view(MICROSCOPE))
        picture = page.locator(".tpv-image[alt*='dp (2) gets 17 GB/s']")
        page.screenshot("microscope-described.png", picture)


def keys_step(view):
    """Arrows step; each step draws its messages, and numbers that have grown."""
    svg = view.locator("svg[role=application]")
    svg.focus()
    before = view.generation()
    svg.press("Home")
    before, seen = view.wait_past(before), view.locator("[data-rank='0']").text_content()
    svg.press("ArrowRight")
    before = view.wait_past(before)
    assert view.root.get_attribute("data-step") == "1"
    assert view.locator("[data-rank='0']").text_content() != seen
    assert view.locator("[data-message]").count() == 4
    svg.press("ArrowRight")
    view.wait_past(before)
    assert "step 3 of 6" in view.locator(".tpv-live").text_content()


def plays_to_the_end(view):
    """Space plays; at the end every slice of every rank is the sum of four numbers."""
    view.locator("svg[role=application]").press("Space")
    view.root.page.wait_for_selector(f"{MICROSCOPE}[data-step='6']", timeout=20_000)
    view.locator("button", has_text="Play").wait_for()
    ranks = [view.locator(f"[data-rank='{r}'] title").all_text_contents() for r in range(4)]
    assert ranks == [ranks[0]] * 4
    assert len(ranks[0]) == 4
    assert all(said.endswith("of ranks 0, 1, 2, 3") for said in ranks[0])
