"""The script of the blocks view in a plain page: it shows Python's pictures, and keeps still."""

import pytest

import tpviz as tv
from tpviz.views.widgets.blocks import BlockSteps, story

pytestmark = pytest.mark.browser
FLOWS = "ring => getComputedStyle(ring).animationName"
PLACES = "all => all.map(token => token.getAttribute('transform'))"


@pytest.fixture(params=["no-preference", "reduce"])
def opened(request, page_of):
    """(two views of which the first is hidden, reduced motion?); they shall play by themselves."""
    view = BlockSteps()
    view.show(story(tv.ATP(), tv.GPT()), 0)
    state = {"scene": view.scene, "step": 0, "rank": 0, "autoplay": True}
    tab = page_of("blocks", [state, state], request.param)
    tab.add_style_tag(content=".tpv-place:first-of-type { display: none }")
    return tab.locator(".tpv-blocks:visible"), request.param == "reduce"


def test_it_plays_unless_motion_is_to_be_reduced(opened):
    view, reduced = opened
    svg, ring = view.locator("svg[role=application]"), view.locator(".tpv-flow").first
    view.locator("button", has_text="Play" if reduced else "Pause").wait_for()
    assert ring.evaluate(FLOWS) == ("none" if reduced else "tpv-flow")
    if reduced:
        svg.press("Space")
        view.locator("button", has_text="Pause").wait_for()
        assert ring.evaluate(FLOWS) == "none"
    svg.press("Space")
    view.locator("button", has_text="Play").wait_for()
    assert ring.evaluate(FLOWS) == "none"


@pytest.mark.parametrize("opened", ["no-preference"], indirect=True)
def test_keys_and_clicks_step_and_patterns_are_the_views_own(opened):
    view, _ = opened
    svg = view.locator("svg[role=application]")
    svg.press("End")
    assert view.get_attribute("data-step") in ("23", "0")  # drawn with the next frame
    view.page.wait_for_selector(".tpv-blocks:visible[data-step='23']")
    view.locator("[data-step='1']").first.click()
    view.page.wait_for_selector(".tpv-blocks:visible[data-step='1']")
    assert "QKV[T, 3H_d1] partial over d2" in view.locator(".tpv-live").text_content()
    drawn, both = svg.inner_html(), view.page.locator(".tpv-blocks svg[role=application]")
    own = {
        html.split('id="')[1].split("-")[0]
        for html in both.evaluate_all("all => all.map(svg => svg.innerHTML)")
    }
    assert len(own) == 2  # a hidden view's patterns are not drawn: each has its own
    assert "url(#tpv-" not in drawn


@pytest.mark.parametrize("opened", ["no-preference"], indirect=True)
def test_parts_travel_from_rank_to_rank_while_it_plays(opened):
    view, _ = opened
    svg, tokens = view.locator("svg[role=application]"), view.locator(".tpv-token")
    svg.press("Home")  # an all-reduce of norm1, over d2
    view.page.wait_for_selector(".tpv-blocks:visible[data-step='0']")
    assert tokens.count() == 4 and not tokens.first.is_visible()
    rest = tokens.evaluate_all(PLACES)
    svg.press("Space")
    view.page.wait_for_function(
        "([view, rest]) => view.dataset.step === '0' && view.matches('.tpv-playing')"
        " && [...view.querySelectorAll('.tpv-token')].every((token, i) =>"
        " getComputedStyle(token).visibility === 'visible'"
        " && token.getAttribute('transform') !== rest[i])",
        arg=[view.element_handle(), rest],
    )


def test_the_sentence_comes_first_then_numbers_and_controls(tab, tmp_path):
    """Beside the picture and, where it is narrow, below it; what one looks up comes last."""
    view = tv.BlocksView(tv.ATP(mesh=(2, 2)))
    tab.goto(view.to_html(tmp_path / "view.html", {"order": ["column", "row"]}).as_uri())
    tab.locator("[data-ready]").wait_for()
    parts = "head", "now", "summary", "tools", "knobs"
    for width in (1440, 900, 400):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.evaluate("() => new Promise(done => requestAnimationFrame(() => done()))")
        shown = parts if width == 1440 else ("head", "stage svg", *parts[1:], "below")
        tops = [tab.locator(f".tpv-{part}").first.bounding_box()["y"] for part in shown]
        assert tops == sorted(set(tops)), width
        tops = {part: top for part, top in zip(shown, tops)}
        metrics = tab.locator(".tpv-metrics").bounding_box()["y"]
        assert tops["now"] < metrics < tops["tools"]
    said = tab.locator("input[aria-label=step]").get_attribute("aria-valuetext")
    assert said == view.picture.scene["captions"][view.step]
