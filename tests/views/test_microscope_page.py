"""The microscope's JavaScript in a plain page: what it draws and does is what Python says."""

import pytest

import tpviz as tv
from tpviz.views.figures.microscope import frames, microscope_scene

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def microscope():
    return tv.microscope("all_reduce", "double_tree", world_size=3)


@pytest.fixture(scope="module")
def scene(microscope):
    return microscope_scene(microscope)


@pytest.fixture(params=["no-preference", "reduce"])
def opened(request, page_of, scene):
    """(root, reduced motion?) of a view that shall play by itself."""
    tab = page_of(
        "microscope", [{"scene": scene, "step": 0, "rank": 0, "autoplay": True}], request.param
    )
    return tab.locator(".tpv-microscope"), request.param == "reduce"


def shows(view, step):
    view.page.wait_for_selector(f".tpv-microscope[data-step='{step}']")


def test_it_plays_unless_motion_is_to_be_reduced(opened, scene):
    view, reduced = opened
    view.locator("button", has_text="Play" if reduced else "Pause").wait_for()
    if reduced:
        view.locator("svg[role=application]").press("Space")
    shows(view, 1)
    view.locator("svg[role=application]").press("Space")
    view.locator("button", has_text="Play").wait_for()


@pytest.mark.parametrize("opened", ["no-preference"], indirect=True)
def test_each_step_shows_its_messages_and_its_numbers(opened, microscope, scene):
    view, _ = opened
    svg = view.locator("svg[role=application]")
    svg.press("Home")
    for number, frame in enumerate(frames(microscope)):
        shows(view, number)
        messages = scene["steps"][number] if number < len(scene["steps"]) else []
        tokens = view.locator("[data-message]")
        drawn = tokens.evaluate_all("all => all.map(token => token.dataset.message)")
        assert drawn == [f"{m['sender']}-{m['receiver']}-{m['chunk']}" for m in messages]
        for rank, cells in enumerate(frame):
            numbers = view.locator(
                f"[data-rank='{rank}'] text[text-anchor='middle'][font-weight]"
            ).all_text_contents()
            assert numbers == [cell["value"] for cell in cells if cell]
        svg.press("ArrowRight")
    shows(view, len(scene["steps"]))
    assert "the end" in view.locator(".tpv-live").text_content()


@pytest.mark.parametrize("opened", ["no-preference"], indirect=True)
def test_slider_and_buttons(opened, scene):
    view, _ = opened
    view.get_by_label("step", exact=True).fill("2")
    shows(view, 2)
    view.get_by_label("previous step (Left)").click()
    shows(view, 1)
    view.get_by_label("the end (End)").click()
    shows(view, len(scene["steps"]))
    said = view.locator(".tpv-summary").text_content()
    assert said.startswith(f"the end, after {len(scene['steps'])} steps")
    assert int(view.get_attribute("data-generation")) >= 3
