"""The script of the schedule view in a plain page: it plays evenly, and keeps still if asked."""

import pytest

from tpviz.widgets import ScheduleView

pytestmark = pytest.mark.browser


@pytest.fixture(params=["no-preference", "reduce"])
def opened(request, page_of):
    """(the view, reduced motion?) of a page without Python, with row 1 looked at; it shall play."""
    steps = ScheduleView("1f1b", p=2, m=4, latency=1.0).picture
    steps.row = 1
    state = {name: getattr(steps, name) for name in ("scene", "detail", "row", "step")}
    tab = page_of("schedule", [{**state, "autoplay": True}], request.param)
    return tab.locator(".tpv-schedule"), request.param == "reduce"


def test_it_plays_unless_motion_is_to_be_reduced(opened):
    view, reduced = opened
    svg = view.locator("svg[role=application]")
    view.locator("button", has_text="Play" if reduced else "Pause").wait_for()
    if reduced:
        svg.press("Space")
    view.page.wait_for_selector(".tpv-schedule[data-step='2']")
    svg.press("Space")
    view.locator("button", has_text="Play").wait_for()


@pytest.mark.parametrize("opened", ["no-preference"], indirect=True)
def test_keys_go_from_end_to_end_and_say_what_the_rank_does(opened):
    view, _ = opened
    svg, says = view.locator("svg[role=application]"), view.locator(".tpv-live")
    svg.press("Home")
    for step in (1, 2):
        svg.press("ArrowRight")
        view.page.wait_for_selector(f".tpv-schedule[data-step='{step}']")
    assert says.text_content().startswith(
        "at 2 of 24; rank 1 is idle for 2, from 0: F0 waits for the activation of F0 from rank 0."
    )
    assert svg.locator("[data-chosen]").count() == 0
    assert svg.locator("[data-needed]").count() == 1
    svg.press("ArrowRight")
    view.page.wait_for_selector(".tpv-schedule[data-step='3']")
    assert "rank 1: F0, forward, 2 to 3: starts when" in says.text_content()
    assert svg.locator("[data-chosen]").count() == 1
    svg.press("End")
    view.page.wait_for_selector(".tpv-schedule[data-row='1']")
    view.locator(".tpv-now", has_text="at 24 of 24").wait_for()
    last = view.get_attribute("data-step")
    for key in ("ArrowLeft", "Space"):  # it plays to the end, and stays there
        svg.press(key)
        view.page.wait_for_selector(f".tpv-schedule:not([data-step='{last}'])")
    view.page.wait_for_selector(f".tpv-schedule[data-step='{last}']:not(.tpv-playing)")
    assert "url(#tpv-" not in svg.inner_html()
    svg.press("ArrowUp")  # nobody there who could look at another row
    view.page.wait_for_selector(".tpv-schedule[data-row='0']")
    assert svg.locator("[data-chosen], [data-needed]").count() == 0
    svg.press("ArrowDown")
    view.page.wait_for_selector(".tpv-schedule[data-row='1']")
    svg.press("ArrowDown")  # there is no further row
    for row in (0, -1):
        svg.press("ArrowUp")
        view.page.wait_for_selector(f".tpv-schedule[data-row='{row}']")
    assert says.text_content().startswith("at 24 of 24; 1f1b takes 24; ranks are idle")
