"""``explore`` with ATP: a mesh is a menu, every knob redraws, sizes that clash are said."""

import pytest

import tpviz as tv
from tpviz.views.widgets import Explore

CLUSTER = tv.clusters.nvlink_pairs


@pytest.fixture
def view():
    return Explore(tv.GPT(), CLUSTER(), strategy=tv.ATP(mesh=(2, 2), chunks=2))


def test_it_starts_with_the_strategy_given(view):
    assert view.strategy == tv.ATP(mesh=(2, 2), chunks=2)
    assert view.menu.value == "ATP"
    menu = view._inner.controls["mesh"]
    assert {a * b for _, (a, b) in menu.options} == {1, 2, 4, 8}
    assert (8, 1) not in {shape for _, shape in menu.options}  # 4 heads
    assert repr(view.mesh) == "<MeshView d1 2 x d2 2, 4 ranks, rank 0>"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mesh", (4, 1)),
        ("mesh", (1, 2)),
        ("order", "row"),
        ("chunks", 4),
        ("chunking", "pipelined"),
        ("attention", "A1"),
        ("norm", "L2"),
        ("sp", True),
    ],
)
def test_every_knob_predicts_anew(view, name, value):
    before = view.prediction.step_time
    view._inner.controls[name].value = value
    assert view.error == ""
    assert getattr(view.strategy, name) == value
    assert view.prediction.strategy == view.strategy
    same = name == "order"  # on two by two the orders differ in the links alone
    assert same or view.prediction.step_time != before


def test_chunks_stop_where_they_divide_the_batch(view):
    chunks, batch = view._inner.controls["chunks"], view._sizes.controls["batch"]
    assert [n for _, n in chunks.options][:4] == [1, 2, 4, 8]
    chunks.value = 8  # of the batch's 4 sequences there are no 8 chunks, of its tokens there are
    assert (view.error, view.strategy.chunking) == ("", "tokens")
    assert "chunking batch \N{RIGHTWARDS ARROW} tokens" in view.gave.value
    batch.value = 6
    assert [n for _, n in chunks.options][:5] == [1, 2, 3, 4, 6]


def test_data_parallelism_around_it():
    both = tv.ATP(mesh=(2, 1), order="row") * tv.DataParallel(dp=2, zero=2)
    view = Explore(tv.GPT(), CLUSTER(), strategy=both)
    assert view.strategy == both
    assert repr(view.mesh) == "<MeshView dp 2 x d1 2 x d2 1, 4 ranks, rank 0>"
    assert [row[0] for row in view.to_table()[1:]].count("dp") >= 1
    view._outer.controls["dp"].value = 1
    assert view.strategy == tv.ATP(mesh=(2, 1), order="row")
    view.menu.value = "Megatron"  # another strategy starts from its own defaults
    assert view.strategy == tv.Megatron()


def test_a_large_mesh_given_is_in_the_menu_too():
    view = Explore(tv.GPT(heads=16), strategy=tv.ATP(mesh=(4, 4)))
    assert view.strategy.mesh == (4, 4)


def test_what_is_no_strategy():
    with pytest.raises(ValueError, match=r"strategy='ATP' is no strategy: give one such as tv.ATP"):
        Explore(strategy="ATP")
