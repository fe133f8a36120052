"""The layout view: sliders stop at measured layouts, a commit uncovers them and stays."""

import pytest

import tpviz as tv
from tpviz.views.widgets import LayoutView


@pytest.fixture
def view():
    return LayoutView("llama-3B", gpus=32)


def test_it_opens_covered_at_a_measured_layout(view):
    assert tv.LayoutView is LayoutView
    assert view.turn.covered and view.committed is None and view.error == ""
    assert view.turn.points[0] in view.group.points
    assert "place" not in view.describe() and "measured" not in view.picture.scene["title"]
    assert list(view.controls) == list(view.group.knobs)


def test_every_stop_of_every_slider_is_a_measured_layout(view):
    for name, box in view.controls.items():
        for _, value in box.options:
            box.value = value
            values = {name: box.value for name, box in view.controls.items()}
            assert values[name] == value and view.error == ""
            assert list(view.turn.points) == view.group.at(**values)
            assert not view.gave or view.gave.startswith("Changed so that all fits: ")
            assert view.turn.layout in view.picture.scene["title"]


def test_the_first_commit_stays(view):
    first, generation = view.turn.points, view.picture.generation
    view._button.click()
    assert view.committed == first and not view.turn.covered
    assert view.picture.generation > generation and view._button.disabled
    view.controls["tp"].value = next(v for _, v in view.controls["tp"].options if v != 1)
    view.commit()
    assert view.committed == first and view.reveal().points == first
    assert view.turn.points != first and view.turn.verdict in view.picture.scene["title"]


def test_reveal_commits_where_nobody_did(view):
    turn = view.reveal()
    assert view.committed == turn.points and not turn.covered
    assert turn.verdict in view.describe() and view.to_table() == turn.to_table()


def test_it_opens_where_it_is_told():
    view = LayoutView("llama-3B", gpus=32, tp=2, pp=1)
    assert (view.turn.points[0].row.tp, view.turn.points[0].row.pp) == (2, 1)


def test_bad_arguments():
    with pytest.raises(TypeError, match="LayoutView has no argument 'tpp'; did you mean 'tp'"):
        LayoutView("llama-3B", gpus=32, tpp=2)
    with pytest.raises(ValueError, match="recompute='full': layouts differ in tp, pp"):
        LayoutView("llama-3B", gpus=32, recompute="full")
    with pytest.raises(ValueError, match="no measured row has n_gpus=7"):
        LayoutView("llama-3B", gpus=7)


def test_as_a_page_it_says_what_was_not_measured(view, tmp_path):
    before = {name: box.value for name, box in view.controls.items()}
    page = view.to_html(tmp_path / "a.html", {"tp": [1, 2], "pp": [1, 2]}, title="Mine")
    assert "<h1>Mine</h1>" in page.read_text()
    assert {name: box.value for name, box in view.controls.items()} == before
    values = [{"tp": tp, "pp": pp} for tp in (1, 2, 32) for pp in (1, 16)]
    ran = [(p.row.tp, p.row.pp) for p in view.group.points]
    for knobs in values:
        state = view._state_at(**knobs)
        assert ("scene" in state) == (tuple(knobs.values()) in ran)
        assert "scene" in state or "the nearest is tp=" in state["error"]
    with pytest.raises(ValueError, match="no layout with"):
        view.to_html(tmp_path / "b.html", {"tp": [32], "pp": [16]})


def test_it_is_small(view):
    view.commit()
    assert len(view.picture.scene["svg"]) < 120_000


@pytest.mark.browser
def test_sliders_of_a_page_show_what_python_draws(view, tab, tmp_path):
    view.commit()
    sweep = {"tp": [1, 2, 32], "pp": [1, 16]}
    tab.goto(view.to_html(tmp_path / "view.html", sweep).as_uri())
    tab.locator(".tpv-picture[data-ready]").wait_for()
    title, error = tab.locator("svg text").first, tab.locator(".tpv-error")
    for number, tp in enumerate(sweep["tp"]):
        tab.get_by_label("tp", exact=True).fill(str(number))
        tab.evaluate("() => new Promise(done => requestAnimationFrame(() => done()))")
        state = view._state_at(tp=tp, pp=1)
        layout = state["scene"]["title"].split(":")[0]
        assert not error.is_visible() and title.text_content().startswith(layout)
    tab.get_by_label("pp", exact=True).fill("1")
    error.filter(has_text="no layout with tp=32, pp=16 was measured").wait_for()
