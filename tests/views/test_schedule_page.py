"""The script of the schedule view in a plain page: it plays evenly, and keeps still if asked."""

import pytest

from tpviz.core.schedules import Schedule
from tpviz.views.widgets import ScheduleView

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
    view.locator(".tpv-summary", has_text="at 24 of 24").wait_for()
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
    assert says.text_content().startswith(
        "at 24 of 24; Ranks are idle 33.3 % of the step, which takes 24."
    )


BARS = "[data-timed] path[data-key='forward']"


@pytest.fixture
def long(page_of):
    """The view of a long schedule in a page."""
    steps = ScheduleView("1f1b", p=16, m=64).picture
    tab = page_of("schedule", [steps.state()])
    return tab.locator(".tpv-schedule"), steps.scene


def widths(view):
    """px of the bars, of one ink, of all ranks."""
    d = view.locator(BARS).first.get_attribute("d")
    return [float(part.split("v")[0]) for part in d.split("h")[1::2]]


def test_one_zooms_until_names_fit_and_back(long):
    view, scene = long
    svg, names = view.locator("svg[role=application]"), view.locator("[data-names] text")
    whole, before = view.get_attribute("data-window"), widths(view)
    assert names.count() == 0 and max(before) < 3
    svg.focus()
    for _ in range(9):
        svg.press("+")
    view.page.wait_for_function(
        "view => view.querySelectorAll('[data-names] text').length && new Promise(done => "
        "requestAnimationFrame(() => requestAnimationFrame(() => done(true))))",
        arg=view.element_handle(),
    )
    low, high = map(float, view.get_attribute("data-window").split(","))
    zoomed = (scene["axis"]["right"] - scene["axis"]["left"]) / (high - low)
    assert zoomed == pytest.approx(0.6**-9)
    assert widths(view) == pytest.approx([before[0] * zoomed] * len(widths(view)), rel=0.01)
    assert 0 < len(widths(view)) < len(before) / 4  # what is outside is left out
    shown = names.all_text_contents()
    assert {"0", "9"} <= set(shown) and all(name.isdigit() for name in shown)
    ticks = view.locator("[data-axis] text").all_text_contents()
    scale = scene["axis"]["duration"] / (scene["axis"]["right"] - scene["axis"]["left"])
    left = scene["axis"]["left"]
    assert all(low <= left + float(t) / scale <= high for t in ticks) and len(ticks) > 4
    box = svg.bounding_box()
    view.page.mouse.move(box["x"] + 400, box["y"] + 200)
    view.page.mouse.down()
    view.page.mouse.move(box["x"] + 300, box["y"] + 200, steps=3)
    view.page.mouse.up()
    view.page.wait_for_selector(f".tpv-schedule:not([data-window='{low},{high}'])")
    moved = float(view.get_attribute("data-window").split(",")[0])
    grown = box["width"] / scene["width"]
    assert moved == pytest.approx(low + 100 / grown / zoomed, abs=0.1)
    assert view.get_attribute("data-row") == "-1"  # a drag is no click
    view.page.mouse.wheel(0, -100)
    view.page.wait_for_function(
        "([view, low]) => Number(view.dataset.window.split(',')[0]) > low",
        arg=[view.element_handle(), moved + 0.1],
    )
    svg.press("0")
    view.page.wait_for_selector(f".tpv-schedule[data-window='{whole}']")
    assert widths(view) == pytest.approx(before, abs=0.02) and names.count() == 0


def test_it_opens_filled_plays_from_the_start_at_the_chosen_speed_and_nothing_pales(long):
    view, scene = long
    svg = view.locator("svg[role=application]")
    assert int(view.get_attribute("data-step")) == scene["opens"] > 0
    speed = view.get_by_label("speed")
    assert speed.input_value() == "1"
    svg.press(">")
    svg.press(">")
    svg.press(">")
    assert speed.input_value() == "4"
    svg.press("<")
    assert speed.input_value() == "2"
    view.get_by_role("button", name="more controls").click()
    speed.select_option("0.25x")
    svg.press("Space")
    view.page.wait_for_function(
        "([view, opens]) => view.matches('.tpv-playing') && view.dataset.step < opens",
        arg=[view.element_handle(), scene["opens"]],
    )
    assert view.locator(".tpv-veil").count() == 0
    line = "path.s-fg.f-fg[transform][visibility={}]"
    view.page.wait_for_selector(line.format("visible"), state="attached")
    svg.press("Home")
    view.page.wait_for_selector(".tpv-schedule[data-step='0']:not(.tpv-playing)")
    view.page.wait_for_selector(line.format("hidden"), state="attached")  # there is nothing yet
    svg.press("ArrowRight")
    view.page.wait_for_selector(line.format("visible"), state="attached")


def test_controls_are_drawn_and_have_names(long):
    view, _ = long
    buttons = view.locator(".tpv-tools button")
    for button in buttons.all():
        assert button.get_attribute("aria-label")
        text = button.inner_text()
        assert text.isascii() or text == "−", text  # no character that may be drawn as an emoji
    assert view.locator(".tpv-tools .tpv-icon path").count() == 5


WHERE = """view => [Number(view.querySelector("path.s-fg.f-fg[transform]").getAttribute("transform")
  .match(/[0-9.]+/)[0]), performance.now()]"""


def test_the_speed_is_the_chosen_one(page_of):
    tab = page_of("schedule", [ScheduleView("1f1b", p=2, m=4).picture.state()])
    view, runs = tab.locator(".tpv-schedule"), {}
    view.locator("svg[role=application]").press("Space")
    view.get_by_role("button", name="more controls").click()
    for speed in ("0.25x", "1x"):
        view.get_by_label("speed").select_option(speed)
        (a, t0), (b, t1) = (
            view.evaluate(WHERE),
            (tab.wait_for_timeout(600), view.evaluate(WHERE))[1],
        )
        runs[speed] = (b - a) / (t1 - t0)
    assert runs["1x"] > 2.5 * runs["0.25x"] > 0


GLIDES = "() => document.getAnimations().filter(({ effect }) => effect.getKeyframes()[0].d).length"


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_idle_slots_slide_into_one_block_and_back(page_of, motion):
    steps = ScheduleView("1f1b", p=2, m=4).picture
    tab = page_of("schedule", [steps.state()], motion)
    view, idle = tab.locator(".tpv-schedule"), "[data-timed] path[data-key='idle']"
    before, button = view.locator(idle).get_attribute("d"), tab.get_by_text("the bubble")
    assert view.locator("[data-gathered]").is_hidden()
    view.locator("svg[role=application]").press("b")
    assert (tab.evaluate(GLIDES) > 0) == (motion == "no-preference")
    to = [float(x) for x in view.locator(idle).get_attribute("data-to").split()]
    after = view.locator(idle).get_attribute("d")
    assert [float(part.split(",")[0]) for part in after.split("M")[1:]] == pytest.approx(
        to, abs=0.1
    )
    assert button.get_attribute("aria-pressed") == "true"
    assert "bubble 4" in view.locator("[data-gathered]").text_content()
    assert view.locator("[data-names]").is_hidden()
    button.click()
    assert view.locator(idle).get_attribute("d") == before


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_a_knob_lets_bars_glide_and_changes_no_height(tab, one_height, tmp_path, motion):
    view = ScheduleView("1f1b", p=4, m=8, against="gpipe")
    tab.emulate_media(reduced_motion=motion)
    tab.goto(view.to_html(tmp_path / "a.html", {"r": [0.5, 1.0, 2.5]}).as_uri())
    tab.locator("[data-ready]").wait_for()

    def glides():
        assert (tab.evaluate(GLIDES) > 0) == (motion == "no-preference")

    one_height("r", (2, 1, 0), glides)


def test_other_bars_do_not_glide(tab, tmp_path):
    view = ScheduleView("1f1b", p=2, m=4)
    tab.goto(view.to_html(tmp_path / "a.html", {"m": [4, 6]}).as_uri())
    tab.locator("[data-ready]").wait_for()
    tab.get_by_label("m", exact=True).fill("1")
    tab.evaluate("() => new Promise(done => requestAnimationFrame(done))")
    assert tab.locator(".tpv-summary").text_content() == "at 2 of 28\n"
    assert tab.evaluate(GLIDES) == 0


def test_the_critical_path_is_a_switch(page_of):
    tab = page_of("schedule", [ScheduleView("1f1b", p=2, m=4).picture.state()])
    path = tab.locator("[data-critical]")
    assert path.is_hidden()
    tab.get_by_text("critical path").click()
    assert path.is_visible()


def test_a_schedule_that_cannot_run_bears_every_button(page_of):
    mine = Schedule.parse("s0: F0 F1 B1 B0\ns1: F0 B0 F1 B1", name="mine")
    tab = page_of("schedule", [ScheduleView(mine).picture.state()])
    failed = []
    tab.on("pageerror", lambda error: failed.append(str(error)))
    tab.set_viewport_size({"width": 400, "height": 900})
    for button in tab.locator(".tpv-tools button").all():
        button.click()
        tab.evaluate("() => new Promise(done => requestAnimationFrame(done))")
    assert failed == []
    assert "stage 0 runs backward" in tab.locator(".tpv-summary").text_content()


def test_a_narrow_window_shows_all_of_it(page_of):
    tab = page_of("schedule", [ScheduleView("1f1b", p=2, m=4).picture.state()])
    tab.set_viewport_size({"width": 400, "height": 900})
    tab.wait_for_function(
        "() => { const node = document.querySelector('.tpv-scroll'); "
        "return node.scrollWidth <= node.clientWidth && node.clientWidth < 400; }"
    )
    bars = widths(tab.locator(".tpv-schedule"))
    assert len(bars) == 8 and min(bars) > 5
    last = tab.locator("[data-axis] text").last.bounding_box()
    assert last["x"] + last["width"] < 400
