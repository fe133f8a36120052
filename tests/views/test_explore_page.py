"""``explore`` as one file: without kernel and network, its sliders show what Python predicts."""

from itertools import product

import pytest

import tpviz as tv
from tpviz.views.figures.svg import seconds
from tpviz.views.widgets import Explore

PAIRS = tv.clusters.nvlink_pairs()
SWEEP = {"tp": [1, 2, 4], "dp": [1, 4], "hidden": [64, 128]}
LARGEST = 2_000_000


@pytest.mark.browser
def test_every_slider_shows_the_prediction(tab, tmp_path):
    view = Explore(tv.GPT(), PAIRS, strategy=tv.Megatron(tp=2))
    before = repr(view), view._fitting.values
    path = view.to_html(tmp_path / "explore.html", SWEEP, title="A title")
    assert (repr(view), view._fitting.values) == before
    assert path.stat().st_size < LARGEST
    model, halves = view.setting.hidden.value, view.setting.halves.value
    scaled = PAIRS.scale_model(hidden=model, dtype="bfloat16" if halves else "")
    tab.goto(path.as_uri())
    tab.locator(".tpv-picture[data-ready]").wait_for()
    picture, error = tab.locator(".tpv-picture"), tab.locator(".tpv-error")
    assert tab.locator("b", has_text="2").first.inner_text() == "2"  # where its knob stands
    for at in product(*SWEEP.values()):
        knobs = dict(zip(SWEEP, at))
        for name, value in knobs.items():
            tab.get_by_label(name, exact=True).fill(str(SWEEP[name].index(value)))
        strategy = tv.Megatron(tp=knobs["tp"])
        if knobs["dp"] > 1:
            strategy *= tv.DataParallel(dp=knobs["dp"])
        if strategy.world_size > PAIRS.size:
            assert "16 ranks do not fit the 8 devices" in error.inner_text()
            continue
        workload = tv.GPT(hidden=knobs["hidden"])
        step = tv.predict(strategy, workload, scaled).step_time
        words = picture.inner_text()
        assert strategy.caption in words and f"step time {seconds(step)}" in words
        assert f"{strategy.world_size} ranks" in words
        assert ("all_reduce" in words) == (strategy.world_size > 1)
        assert error.count() == 0


def test_of_this_machine_the_page_has_mesh_and_ledger(tmp_path):
    path = Explore(tv.GPT()).to_html(tmp_path / "explore.html", {"tp": [2, 4]})
    assert "Megatron on this machine</title>" in path.read_text()
    assert path.stat().st_size < LARGEST


def test_what_cannot_be_swept(tmp_path):
    view = Explore(tv.GPT(), PAIRS)
    with pytest.raises(
        ValueError, match="sweep='cat': give values of a knob of this view: layers,"
    ):
        view.to_html(tmp_path / "explore.html", {"cat": [1]})
    with pytest.raises(ValueError, match="heads=4 does not split evenly over tp=3"):
        view.to_html(tmp_path / "explore.html", {"tp": [3, 5]})
    with pytest.raises(ValueError, match="give each knob some values"):
        view.to_html(tmp_path / "explore.html", {"tp": []})
