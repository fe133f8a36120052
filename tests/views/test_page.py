from html.parser import HTMLParser

import numpy as np
import pytest
from synthetic import synthetic_trace

from tpviz.core.mesh import Mesh
from tpviz.core.trace import Event, Trace
from tpviz.views.figures.page import page, write_page
from tpviz.views.figures.timeline import timeline_scene

OWNERSHIP = [
    {
        "name": "up.weight",
        "shape": [256, 64],
        "splits": [{"dim": 0, "axis": "tp"}],
        "notation": "W[F_tp, D]",
    },
    {"name": "norm.bias", "shape": [64], "splits": [], "notation": "b[D]"},
]
PICTURE = ".tpv-timeline svg[role='application']"
TIME, MEMORY = (f".tpv-timeline button:text-is('{name}')" for name in ("time", "memory"))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_page(
        tmp_path_factory.mktemp("page") / "new" / "run.html",
        synthetic_trace(),
        Mesh({"dp": 2, "tp": 2}),
        "Two by two",
        [("Losses", "<p id='mine'>5.5</p>")],
        OWNERSHIP,
    )


@pytest.fixture
def opened(tab, path):
    """The page in a tab."""
    tab.set_viewport_size({"width": 1200, "height": 900})
    tab.goto(path.as_uri())
    tab.wait_for_selector(".tpv-mesh[data-ready='true']")
    return tab


class References(HTMLParser):
    """Collects every address that a page would load."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found += [v for k, v in attrs if k in ("src", "href") and not v.startswith("data:")]


def test_page_loads_nothing_and_shows_all_parts(path):
    text = path.read_text()
    assert References(text).found == []
    for part in (
        "<noscript><svg",
        "this machine, gloo",
        "<th>payload_bytes</th>",
        "<p id='mine'>5.5</p>",
    ):
        assert part in text


def test_texts_of_the_trace_cannot_break_out():
    trace = synthetic_trace()
    trace.meta["strategy"] = "</script><b>oops"
    text = page(trace, title="<i>")
    assert "<b>oops" not in text
    assert "<i>" not in text


def test_mesh_comes_from_the_trace_when_not_given():
    assert "data-view='mesh'" in page(synthetic_trace())
    bare = synthetic_trace()
    del bare.meta["mesh"]
    assert "data-view='mesh'" not in page(bare)


@pytest.mark.browser
def test_a_large_mesh_is_collapsed_and_its_ranks_are_chosen(tab, tmp_path):
    mesh = Mesh({"dp": 16, "pp": 8, "tp": 8})
    path = write_page(tmp_path / "page.html", synthetic_trace(), mesh, ownership=[])
    tab.goto(path.as_uri())
    view = tab.locator(".tpv-mesh[data-ready]")
    view.wait_for()
    squares, chosen = view.locator("[role=option]"), view.locator("[aria-selected=true]")
    assert squares.count() == 128 + 8
    assert "1,024 ranks in 128 squares" in view.text_content().replace("\n", " ")

    def chooses(key, rank):
        view.locator("svg[role=listbox]").press(key)
        group = ", ".join(map(str, mesh.group(rank, "pp")))
        tab.wait_for_function(
            "([view, words]) => view.querySelector('.tpv-now').textContent.startsWith(words)",
            arg=[view.element_handle(), f"Rank {rank} is at "],
        )
        assert f"pp: ranks {group}" in view.locator(".tpv-legend").text_content()
        block = rank - rank % 8
        names = chosen.evaluate_all("all => all.map(node => node.dataset.rank)")
        assert names == [str(block), str(rank)]

    chooses("ArrowRight", 8)
    chooses("Shift+ArrowRight", 9)
    chooses("ArrowDown", 73)
    chooses("End", 1023)
    squares.nth(2).click()
    chooses("Shift+ArrowLeft", 22)


# The page hides the view, as Lab hides its panels for a moment when its theme changes; the view
# draws, and is shown again before any observer of sizes looks.
DRAWN_HIDDEN = """async ([svg, place]) => {
    const next = (act) => new Promise((done) => requestAnimationFrame(() => { act(); done(); }));
    const hidden = next(() => { place.style.display = "none"; });
    svg.dispatchEvent(new KeyboardEvent("keydown", { key: "+", bubbles: true }));
    await Promise.all([hidden, next(() => { place.style.display = ""; })]);
    const drawn = svg.getAttribute("width");
    for (let i = 0; i < 3; i++) await next(() => {});
    return [Number(drawn), Number(svg.getAttribute("width"))];
}"""


@pytest.mark.browser
def test_a_view_drawn_while_it_was_hidden_is_drawn_again(opened):
    """Else it stays as narrow as a view without any width is drawn."""
    picture = opened.locator(PICTURE).first
    before = float(picture.get_attribute("width"))
    place = opened.locator(".tpv-place").first
    handles = [picture.element_handle(), place.element_handle()]
    assert before > 600
    assert opened.evaluate(DRAWN_HIDDEN, handles) == [300, before]


@pytest.mark.browser
def test_zoom_and_keyboard(opened):
    tab = opened
    assert tab.locator(".tpv-badge").first.text_content() == "this machine, gloo"
    assert tab.locator(f"{PICTURE} .tpv-exposed").count() == 4 + 1  # of each rank, and of the step
    before = tab.locator(f"{PICTURE} path[data-key='forward']").first.get_attribute("d")
    tab.focus(PICTURE)
    tab.keyboard.press("+")
    tab.wait_for_function(
        "([s, d]) => document.querySelector(`${s} [data-key='forward']`)?.getAttribute('d') !== d",
        arg=[PICTURE, before],
    )
    tab.keyboard.press("0")
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowRight")
    spoken = tab.locator(".tpv-timeline .tpv-live").text_content()
    assert spoken.startswith("wait all_reduce, forward · block.0 · rank 0 · compute")
    assert "waits for all_reduce on tp" in spoken
    assert tab.locator(".tpv-timeline .tpv-tip b").text_content() == "wait all_reduce"
    tab.keyboard.press("ArrowDown")
    assert "axis tp, ranks 0,1" in tab.locator(".tpv-timeline .tpv-live").text_content()
    tab.keyboard.press("End")
    last = tab.locator(".tpv-timeline .tpv-live").text_content()
    tab.keyboard.press("ArrowRight")
    assert tab.locator(".tpv-timeline .tpv-live").text_content() == last


@pytest.mark.browser
def test_play_moves_the_head_and_pauses(opened):
    tab = opened
    now = "document.querySelector('.tpv-timeline .tpv-summary').textContent"
    assert tab.evaluate(now).startswith("step 1 of 2, 0 s of")
    tab.focus(PICTURE)
    tab.keyboard.press("Space")
    tab.wait_for_function(f"!{now}.includes(' 0 s of')")
    tab.keyboard.press("Space")
    stopped = tab.evaluate(now)
    assert tab.locator("button[aria-label='Play']").count() == 1
    tab.evaluate("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
    assert tab.evaluate(now) == stopped


COVERED = """() => {
  const picture = document.querySelector(".tpv-timeline svg[role='application']");
  const axis = picture.querySelector("clipPath rect"), left = Number(axis.getAttribute("x"));
  const box = picture.querySelector("[data-memory='parameters']").getBBox();
  const right = left + Number(axis.getAttribute("width"));
  return (Math.min(box.x + box.width, right) - Math.max(box.x, left)) / (right - left);
}"""


@pytest.mark.browser
def test_one_step_is_shown_and_memory_is_below_all_of_it(tab, tmp_path):
    """At first, after zooming, and where *step* goes to another: it was followed in a step more."""
    trace, kinds = synthetic_trace(steps=3), ["parameters", "gradients", "optimizer", "activations"]
    times = (trace["end"].max() + np.linspace(1, 2, 50)).tolist()
    trace.meta["memory"] = {r: {"time": times, **dict.fromkeys(kinds, [9] * 50)} for r in range(4)}
    tab.goto(write_page(tmp_path / "run.html", trace).as_uri())
    tab.wait_for_selector(".tpv-timeline[data-ready='true']")
    tab.click(MEMORY)
    tab.wait_for_selector(f"{PICTURE} [data-memory]")
    low, high = timeline_scene(trace)["first"]
    times = tab.locator(f"{PICTURE} > text.f-muted").all_text_contents()
    shown = [float(words[:-3]) / 1e3 for words in times if words.endswith(" ms")]
    assert len(shown) > 2 and low <= min(shown) and max(shown) <= high
    assert tab.evaluate(COVERED) > 0.98
    tab.focus(PICTURE)
    for key in ("+", "+", "End", "s"):
        tab.keyboard.press(key)
        tab.evaluate("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
        assert tab.evaluate(COVERED) > 0.98, key
    assert "step 3 of 3" in tab.locator(".tpv-timeline .tpv-summary").text_content()


@pytest.mark.browser
def test_selecting_a_rank_draws_both_views_anew(opened):
    tab = opened
    tab.click(MEMORY)
    tab.wait_for_selector(f"{PICTURE} [data-memory]")
    generation = {
        view: int(tab.get_attribute(f".tpv-{view}", "data-generation"))
        for view in ("mesh", "timeline")
    }
    tab.click(".tpv-mesh [data-rank='3']")
    for view, number in generation.items():
        tab.wait_for_selector(f".tpv-{view}[data-generation='{number + 1}']")
    assert tab.get_attribute(".tpv-mesh [data-rank='3']", "aria-selected") == "true"
    assert "rank 3 owns\n50 %" in tab.locator(".tpv-mesh").inner_text()
    assert "memory of rank 3" in tab.locator(PICTURE).text_content()
    tab.keyboard.press("ArrowUp")
    tab.wait_for_selector(".tpv-mesh [data-rank='1'][aria-selected='true']")
    tab.select_option(".tpv-mesh select", "norm.bias")
    tab.wait_for_function(
        "document.querySelector('.tpv-mesh .tpv-metrics').textContent.includes('rank 1 owns100 %')"
    )


@pytest.mark.browser
def test_hover_tells_the_facts_and_the_dark_theme_holds(opened):
    tab = opened
    first = f"{PICTURE} g g:last-child > path[data-key='forward']"  # rank 0 is drawn last
    box = tab.locator(first).first.bounding_box()
    tab.mouse.move(box["x"] + 4, box["y"] + 8)
    tip = tab.locator(".tpv-timeline .tpv-tip")
    tip.wait_for(state="visible")
    assert "forward · block.0 · rank 0 · compute" in tip.inner_text()
    assert "FLOP" in tip.inner_text()
    colors = []
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme)
        colors.append(
            tab.evaluate(
                "getComputedStyle(document.querySelector('.tpv-timeline')).backgroundColor"
            )
        )
    assert colors == ["rgb(255, 255, 255)", "rgb(23, 26, 32)"]


@pytest.mark.browser
def test_time_and_memory_have_one_place(opened):
    """Where the step went, each part named and as wide as its share; memory in its place, with the
    very same height; and neither without memory."""
    tab, view = opened, opened.locator(".tpv-timeline")
    scene = timeline_scene(synthetic_trace())
    said = [part["label"] for part in scene["spent"]["parts"] if part["label"]]
    assert view.locator(".tpv-parts > span").all_text_contents() == said
    shares = {part["key"]: part["share"] for part in scene["spent"]["parts"]}
    for ink, kind in (
        ("exposed", ".tpv-exposed"),
        ("idle", ".tpv-idle"),
        ("recompute", "[data-key]"),
    ):
        box = tab.locator(f"{PICTURE} > path.f-{ink}{kind}").bounding_box()
        axis = view.locator("clipPath rect").first
        assert box["width"] == pytest.approx(
            shares[ink] * float(axis.get_attribute("width")), abs=1
        )
    before = view.bounding_box()["height"]
    tab.click(MEMORY)
    tab.wait_for_selector(f"{PICTURE} [data-memory]")
    kinds = ["parameters", "gradients", "optimizer state", "activations"]
    assert view.locator(".tpv-parts > span").all_text_contents() == kinds
    assert view.bounding_box()["height"] == before
    assert tab.locator(f"{PICTURE} > path.f-idle").count() == 0
    tab.click(TIME)
    tab.wait_for_selector(f"{PICTURE} > path.f-idle")
    assert tab.locator(f"{PICTURE} [data-memory]").count() == 0


POINTED = """([svg, x, y]) => {
  const { left, top } = svg.getBoundingClientRect();
  svg.dispatchEvent(new PointerEvent("pointermove", { clientX: left + x, clientY: top + y }));
  const tip = svg.closest(".tpv-timeline").querySelector(".tpv-tip");
  return tip.hidden ? "" : tip.textContent;
}"""


@pytest.mark.browser
def test_the_strip_and_what_is_above_it_are_told_apart(tab, tmp_path):
    """The pointer finds computation, the strip of an axis, and what communicates where all of the
    lane is red; in lanes of axes, each its own."""
    rows = [Event(name="mm", phase="forward", end=2.0)]
    rows += [
        Event(lane=f"comm/{axis}", kind="comm", name=name, axis=axis, start=start, end=end)
        for axis, name, start, end in (("tp", "reduce", 1.0, 4.0), ("dp", "gather", 1.0, 1.5))
    ]
    rows += [Event(name="mm", phase="backward", start=5.0, end=6.0)]
    scene = timeline_scene(Trace.from_events(rows))
    tab.goto(write_page(tmp_path / "run.html", Trace.from_events(rows)).as_uri())
    tab.wait_for_selector(".tpv-timeline[data-ready='true']")
    svg = tab.locator(PICTURE).element_handle()
    axis = tab.locator(f"{PICTURE} clipPath rect")
    left, wide = (float(axis.get_attribute(name)) for name in ("x", "width"))

    def at(time, lane, form=0):
        y, height = next(one["at"][form] for one in scene["lanes"] if one["name"] == lane)
        return tab.evaluate(POINTED, [svg, left + wide * time / 6, 24 + y + height / 2])

    assert at(1.2, "compute").startswith("mm")
    assert at(1.2, "tp").startswith("reduce") and at(1.2, "dp").startswith("gather")
    assert at(3.0, "compute").startswith("reduce")  # exposed
    assert at(3.0, "dp").startswith("reduce")
    assert at(4.5, "compute") == at(4.5, "tp") == "idlerank 0\n1 s, from 4 s to 5 s"
    assert tab.locator(".tpv-timeline button:text-is('axes')[aria-pressed=false]").count() == 1
    tab.click(".tpv-timeline button:text-is('more')")
    tab.click(".tpv-timeline button:text-is('axes')")
    tab.wait_for_selector(f"{PICTURE} > text:text-is('dp')")
    left, wide = (float(axis.get_attribute(name)) for name in ("x", "width"))
    assert at(1.2, "tp", 1).startswith("reduce") and at(1.2, "dp", 1).startswith("gather")
    assert at(3.0, "compute", 1) == at(3.0, "dp", 1) == ""
    assert tab.locator(".tpv-timeline button:text-is('axes')[aria-pressed=true]").count() == 1
    assert not tab.locator(MEMORY).is_visible()


@pytest.mark.browser
def test_a_narrow_window_shows_all_of_a_timeline(opened):
    """400 px wide, nothing scrolls sideways: not the picture, nor its page."""
    tab = opened
    tab.set_viewport_size({"width": 400, "height": 900})
    tab.wait_for_function(f"document.querySelector(`{PICTURE}`).clientWidth < 400")
    wider = "nodes => nodes.map(node => node.scrollWidth - node.clientWidth)"
    assert tab.locator(".tpv-timeline, .tpv-timeline .tpv-scroll").evaluate_all(wider) == [0, 0]
    axis = tab.locator(f"{PICTURE} clipPath rect").get_attribute("width")
    assert float(axis) > 200
