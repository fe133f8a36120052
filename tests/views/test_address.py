"""A page's address holds what its views show, and "open in notebook" has the cell that makes it."""

import json

import pytest

import tpviz as tv
from tpviz.views.figures.page import document
from tpviz.views.gallery import section
from tpviz.views.widgets import Explore

WRITTEN = "() => location.hash && performance.now()"
SETTLED = 300  # ms, after which a page has written its address


@pytest.fixture
def page(tmp_path):
    """The address of a page of three views, two of which are alike."""
    meshes = {"mesh": [(1, 4), (2, 2), (4, 1)], "order": ["column", "row"]}
    views = [
        ("one", tv.BlocksView(tv.ATP(mesh=(2, 2)), tv.GPT(), autoplay=True).to_place(meshes)),
        ("two", tv.BlocksView(tv.ATP(mesh=(2, 2)), tv.GPT()).to_place({"mesh": [(1, 4), (2, 2)]})),
        ("three", tv.ScheduleView(p=4, m=8).to_place({"m": [4, 8, 12], "p": [2, 4]})),
    ]
    body = "".join(section(name, "", drawn, name) for name, drawn in views)
    path = tmp_path / "page.html"
    path.write_text(document("Views", body))
    return path.as_uri()


def opened(tab, address):
    """The page at an address, whose views are drawn and do not move by themselves."""
    tab.emulate_media(reduced_motion="reduce")
    tab.goto("about:blank")
    tab.goto(address)
    tab.wait_for_function(
        "() => [...document.querySelectorAll('.tpv-place')].every((one) => "
        "one.querySelector('[data-ready]'))"
    )
    tab.wait_for_timeout(SETTLED)
    return {place: state(tab.locator(f"#{place}")) for place in ("one", "two", "three")}


def state(place):
    """What a view shows: its knobs, its step and its picture's words."""
    return place.evaluate(
        """(el) => [
            ...[...el.querySelectorAll(".tpv-knobs :is(input, select)")].map((one) =>
                [one.ariaLabel, one.selectedOptions?.[0].text ?? one.nextSibling.textContent]),
            ["step", Number(el.querySelector("input[aria-label=step]").value)],
            ["row", el.querySelector("[data-row]")?.dataset.row ?? ""],
            ["said", el.querySelector("svg[role=application]").getAttribute("aria-label")]]"""
    )


@pytest.mark.browser
def test_a_link_opens_its_state_and_scrolls_there(tab, page):
    first = opened(tab, page)
    assert tab.evaluate("location.hash") == "", "a page that was only opened says nothing"
    shown = opened(
        tab, f"{page}#three&one.mesh=(4, 1)&one.order=row&one.step=3&three.m=12&three.row=1"
    )
    assert shown["one"][:3] == [["mesh", "(4, 1)"], ["order", "row"], ["step", 3]]
    assert shown["one"][4][1] != first["one"][4][1], "its picture is another"
    assert shown["two"] == first["two"]
    assert shown["three"][0] == ["m", "12"] and shown["three"][3] == ["row", "1"]
    assert abs(tab.locator("#three").bounding_box()["y"]) < 450


@pytest.mark.browser
@pytest.mark.parametrize(
    "said, expected",
    [
        ("one.mesh=(9, 9)&one.step=99&one.cat=1&nobody.x=2", {"mesh": "(2, 2)", "step": "last"}),
        ("one.step=-5", {"mesh": "(2, 2)", "step": 0}),
        ("three.m=11&three.row=77", {"m": "12", "row": "last"}),
        ("three.m=&three.p=NaN&three.step=x", {"m": "8", "p": "4"}),
        ("%E0%A4%A=1&one.mesh=%28&=&&one", {"mesh": "(2, 2)"}),
    ],
)
def test_what_does_not_fit_is_left_out_or_nearest(said, expected, tab, page):
    errors = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    shown = opened(tab, f"{page}#{said}")
    view = dict(shown["three" if "three" in said else "one"])
    last = int(tab.locator("#one input[aria-label=step]").get_attribute("max"))
    ends = {"step": last, "row": "3"}
    assert {name: view[name] for name in expected} == {
        name: ends[name] if value == "last" else value for name, value in expected.items()
    }
    assert not errors


@pytest.mark.browser
def test_what_a_reader_moves_is_there_again_and_views_keep_apart(tab, page):
    opened(tab, page)
    visited = tab.evaluate("history.length")
    tab.locator("#one").get_by_label("mesh", exact=True).select_option(index=2)
    tab.locator("#one").get_by_label("step", exact=True).fill("2")
    tab.locator("#three").get_by_label("m", exact=True).fill("0")
    tab.locator("#two").get_by_label("mesh", exact=True).select_option(index=0)
    tab.wait_for_timeout(SETTLED)
    before = {place: state(tab.locator(f"#{place}")) for place in ("one", "two", "three")}
    address = tab.url
    assert address.startswith(f"{page}#two&") and tab.evaluate("history.length") == visited
    assert opened(tab, address) == before
    assert tab.url == address
    tab.locator("#three").get_by_label("m", exact=True).fill("1")  # as at first
    tab.wait_for_timeout(SETTLED)
    assert "three.m" not in tab.url and "one.mesh" in tab.url
    tab.evaluate("location.hash = '#two'")  # a link within the page
    tab.wait_for_timeout(SETTLED)
    assert state(tab.locator("#one")) == before["one"]
    assert tab.url.startswith(f"{page}#two&") and "one.mesh" in tab.url
    tab.evaluate("location.hash = '#one&one.mesh=(1, 4)'")  # a link that says a state
    tab.wait_for_timeout(SETTLED)
    assert dict(state(tab.locator("#one")))["mesh"] == "(1, 4)"
    assert dict(state(tab.locator("#two")))["mesh"] == "(2, 2)"


@pytest.mark.browser
def test_in_a_frame_of_another_page_addresses_stay(tab, page, tmp_path):
    frame = tmp_path / "frame.html"
    frame.write_text(f"<!doctype html><iframe width=1200 height=800 src='{page}#one&one.step=2'>")
    tab.goto(frame.as_uri())
    inside = tab.frame_locator("iframe")
    inside.locator("#three [data-ready]").wait_for()
    inside.locator("#one").get_by_label("order", exact=True).select_option(index=1)
    tab.wait_for_timeout(SETTLED)
    [_, of_frame] = tab.frames
    assert of_frame.url == f"{page}#one&one.step=2"


@pytest.mark.browser
def test_open_in_notebook_has_the_cell_that_makes_the_view(tab, page):
    opened(tab, f"{page}#one&one.mesh=(4, 1)&one.order=row&one.step=3&three.m=12&three.row=2")
    for place, kind in (("one", tv.BlocksView), ("three", tv.ScheduleView)):
        tab.locator(f"#{place} button", has_text="open in notebook").click()
        shown = tab.locator(f"#{place} .tpv-cell")
        assert shown.is_visible()
        code = shown.text_content()
        tab.keyboard.press("Escape")
        assert not shown.is_visible()
        made = {}
        exec(code, made)
        view = made["view"]
        assert code.endswith("\nview") and type(view) is kind
        words = tab.locator(f"#{place} svg[role=application]").get_attribute("aria-label")
        scene = view.picture.scene
        assert words == f"{scene['title']}, {scene['captions'][view.step]}"
    assert view.row == 2
    assert made["view"].controls["m"].value == 12


@pytest.mark.parametrize(
    "view",
    [
        tv.BlocksView(tv.Megatron(tp=2), tv.GPT(batch=8), rank=1),
        tv.GridView(tv.AxoNN(x=2, y=1, z=2)),
        tv.ContextView(tv.Context(cp=2, kind="ulysses"), against="none", phase="backward"),
        tv.ExpertsView(tv.Experts(ep=2)),
        tv.TileView((512, 512, 256), 4, tile=128, against="none"),
        tv.ScheduleView("zb_h1", p=2, m=4, against="1f1b"),
        tv.ScheduleView(tv.Merak(pp=2, microbatches=4), tv.GPT(), tv.clusters.laptop(2)),
    ],
    ids=lambda view: type(view).__name__,
)
def test_the_cell_of_a_view_makes_it_again(view):
    made = {}
    exec(view.cell(), made)
    assert made["view"].picture.scene == view.picture.scene


def test_a_view_of_what_has_no_code_has_no_cell():
    own = tv.ScheduleView("gpipe", p=2, m=2).picture.subject.panels[0].timeline.schedule
    with pytest.raises(ValueError, match="has no code of its own"):
        tv.ScheduleView(own).cell()
    assert '"cell"' not in json.dumps(tv.ScheduleView(own)._state_at())


def test_pages_of_plans_have_cells_too():
    explore = Explore(tv.GPT(), tv.clusters.nvlink_pairs(), strategy=tv.Megatron(tp=2))
    planner = tv.explore("llama2 7B", gpus=16)
    for view, kind in ((explore, Explore), (planner, type(planner))):
        made = {}
        exec(view._state_at(view._swept())["cell"], made)
        assert type(made["view"]) is kind
        assert made["view"].prediction.strategy == view.prediction.strategy
        assert made["view"].prediction.step_time == view.prediction.step_time
