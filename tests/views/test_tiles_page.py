"""The script of the tile view in a plain page: parts change as the play-head passes."""

import re

import pytest

from tpviz.views.figures.tiles_states import state_at
from tpviz.views.widgets import TileView

pytestmark = pytest.mark.browser
FAR = "([view, opens]) => Number(view.dataset.step) >= 6 && Number(view.dataset.step) < opens"


@pytest.fixture(params=["no-preference", "reduce"])
def opened(request, page_of):
    """(the view, reduced motion?) of a page without Python, with part 9 looked at, playing."""
    tiles = TileView((512, 512, 256), 4, tile=128).picture
    tiles.part = 9
    state = {name: getattr(tiles, name) for name in ("scene", "detail", "part", "step")}
    tab = page_of("tiles", [{**state, "autoplay": True}], request.param)
    return tab.locator(".tpv-tiles"), request.param == "reduce", tiles.scene


def test_it_plays_unless_motion_is_to_be_reduced(opened):
    view, reduced, scene = opened
    svg = view.locator("svg[role=application]")
    view.locator("button", has_text="Play" if reduced else "Pause").wait_for()
    if not reduced:
        view.page.wait_for_function(FAR, arg=[view.element_handle(), scene["opens"]])
        svg.press("Space")
    view.locator("button", has_text="Play").wait_for()
    step = int(view.get_attribute("data-step"))
    assert (step == scene["opens"]) == reduced
    drawn_at(view, scene, step)


@pytest.mark.parametrize("opened", ["no-preference"], indirect=True)
def test_keys_and_clicks(opened):
    view, _, scene = opened
    svg, says = view.locator("svg[role=application]"), view.locator(".tpv-live")
    for key, step in (("Home", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("End", 120)):
        svg.press(key)
        view.page.wait_for_selector(f".tpv-tiles[data-step='{step}']")
        drawn_at(view, scene, step)
    assert "tile (2, 1), chunk 2, 2nd in its order: computed" in says.text_content()
    assert svg.locator("[data-chosen]").count() == 1
    assert "url(#tpv-" not in svg.inner_html()
    for key, part in (
        ("ArrowDown", 10),
        ("ArrowUp", 9),
        ("PageUp", 9),  # there is none
        ("PageDown", 25),
        ("PageDown", 25),
        ("ArrowUp", 24),
    ):
        svg.press(key)
        view.page.wait_for_selector(f".tpv-tiles[data-part='{part}']")
        assert view.get_attribute("data-step") == "120"
    assert svg.locator("[data-chosen]").count() == 0  # nobody there who could look at another part
    assert says.text_content().endswith("sequential, GPU 0: 16 done.")
    x, y, *_ = scene["tiles"][9]
    grown = svg.bounding_box()["width"] / scene["width"]
    svg.click(position={"x": (x + 4) * grown, "y": (y + 4) * grown})
    view.page.wait_for_selector(".tpv-tiles[data-part='9']")
    assert svg.locator("[data-chosen]").count() == 1
    svg.press("Escape")
    view.page.wait_for_selector(".tpv-tiles[data-part='-1']")
    for key in ("ArrowDown", "ArrowUp"):  # none is before the first
        svg.press(key)
        view.page.wait_for_selector(".tpv-tiles[data-part='0']")


def test_a_knob_changes_no_height_and_is_seen_with_its_picture(tab, one_height, tmp_path):
    view = TileView((1024, 512, 256), 4, tile=128)
    tab.goto(view.to_html(tmp_path / "a.html", {"link": [5.0, 15.0, 60.0]}).as_uri())
    tab.locator("[data-ready]").wait_for()
    one_height("link", (0, 1, 2))
    titles = tab.locator(".tpv-stage svg title").all_text_contents()
    assert len(titles) == 2 * 4 and "chunk 1, 1st: stored on GPU r - 1" in titles


@pytest.mark.parametrize("shown", ["one", "all"])
def test_in_a_narrow_window_all_tiles_are_seen(page_of, shown):
    """The time axis gets shorter; a row of GPUs shrinks, and scrolls once it is clicked."""
    tiles = TileView((512, 512, 256), 4, tile=128, shown=shown).picture
    tab = page_of("tiles", [tiles.state()])
    tab.set_viewport_size({"width": 400, "height": 900})
    tab.evaluate(
        "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )
    wide = tab.locator(".tpv-tiles svg[role=application]").evaluate(
        "svg => svg.viewBox.baseVal.width"
    )
    assert max(x + tiles.scene["size"][0] for x, *_ in tiles.scene["tiles"]) < wide
    scrolls = "node => node.scrollWidth > node.clientWidth + 1"
    assert not tab.locator(".tpv-scroll").evaluate(scrolls)
    tab.locator(".tpv-tiles svg[role=application]").focus()
    assert tab.locator(".tpv-scroll").evaluate(scrolls) == (shown == "all")


def drawn_at(view, scene, step):
    """Every part is drawn once, in the state of that step."""
    found = {}
    for d, key in view.locator("[data-state]").evaluate_all(
        "nodes => nodes.map(node => [node.getAttribute('d'), node.dataset.state])"
    ):
        for place in re.findall(r"M([\d.]+),([\d.]+)h", d):
            assert found.setdefault(tuple(map(float, place)), key) is key
    x = scene["stops"][step]
    told = {(left, top): state_at(at, keys, x) for left, top, at, keys in scene["tiles"]}
    assert found == told
