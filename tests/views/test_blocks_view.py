from html import unescape

import pytest

import tpviz as tv
from tpviz.views.figures.assets import module
from tpviz.views.widgets import BlocksView
from tpviz.views.widgets.base import View
from tpviz.views.widgets.blocks import BlockSteps


@pytest.fixture
def view():
    return BlocksView(tv.ATP(mesh=(2, 2)), tv.GPT(), rank=1)


def test_repr_and_words(view):
    assert tv.BlocksView is BlocksView
    assert repr(view) == (
        "<BlocksView ATP(mesh=(2, 2)), rank 1, step 2 of 24, forward, qkv: multiply for QKV>"
    )
    assert repr(view) == repr(BlocksView(rank=1))
    view.step = 0
    assert "step 1 of 24, forward, norm1: all-reduce of sums of X over d2" in repr(view)
    assert view.describe().startswith("One block of ATP(mesh=(2, 2)), 4 x 32 tokens")
    assert len(view.to_table()) == 25


def test_it_shows_a_static_picture_of_the_step_where_no_kernel_runs(view):
    assert "step 2 of 24" in view.to_svg()
    view.step = 2
    assert "step 3 of 24" in view.to_svg()
    assert view.to_svg(step=0, theme="dark") != view.to_svg(theme="dark")


def shown(view):
    """The knobs that change the picture: microbatches are alike, and so is what is recomputed."""
    [row] = view.knobs.children
    return [name for name, box in view.knobs.controls.items() if box in row.children]


def test_every_knob_of_the_strategy_is_there_and_redraws(view):
    assert shown(view) == ["mesh", "order", "chunks", "chunking", "attention", "norm", "sp"]
    for name, value in {
        "mesh": (2, 1),
        "order": "row",
        "chunks": 2,
        "chunking": "tokens",
        "attention": "A1",
        "norm": "L2",
    }.items():
        before, frames = view.picture.generation, view.picture.scene["frames"]
        view.knobs.controls[name].value = value
        assert (view.error, view.picture.generation) == ("", before + 1)
        assert getattr(view.strategy, name) == value
        if name not in ("chunking", "attention"):  # without effect on what is shown of 2 x 1
            assert view.picture.scene["frames"] != frames
    view.knobs.controls["chunking"].value = "batch"
    view.knobs.controls["sp"].value = True
    assert view.strategy == tv.ATP(
        mesh=(2, 1), order="row", chunks=2, attention="A1", norm="L2", sp=True
    )


def test_where_sizes_clash_another_knob_gives_way_and_it_is_said(view):
    scene, before = view.picture.scene, view.picture.generation
    view.knobs.controls["mesh"].value = (2, 4)
    assert (view.error, view.strategy) == ("", tv.ATP(mesh=(2, 4), attention="A1"))
    assert view.gave == (
        "Changed so that all fits: attention A3 \N{RIGHTWARDS ARROW} A1 (heads=4 does not split "
        "evenly over d1*d2=8: use d1*d2=4, or heads=8; or attention='A1')."
    )
    assert view.gave in unescape(view._line.value)
    assert view.knobs.controls["attention"].value == "A1"
    assert view.picture.scene != scene and view.picture.generation == before + 1
    view.knobs.controls["mesh"].value = (2, 2)
    assert (view.gave, view.error) == ("", "")


def test_what_no_knob_can_mend_is_said_and_the_last_picture_stays():
    view = BlocksView(tv.Megatron(tp=2))
    scene, before = view.picture.scene, view.picture.generation
    view.knobs.controls["tp"].value = 8
    assert view.error == "heads=4 does not split evenly over tp=8: use tp=4, or heads=8"
    assert view.picture.scene == scene and view.picture.generation > before
    assert (view.gave, view.strategy) == ("", tv.Megatron(tp=2))


def test_the_rank_follows_the_slider_the_click_and_the_mesh(view):
    view.rank = 3
    assert (view.picture.rank, view._rank.value, view.picture.scene["rank"]) == (3, 3, 3)
    view.picture.publish(rank=2)  # as a click does
    assert (view._rank.value, view.picture.scene["rank"]) == (2, 2)
    view.knobs.controls["mesh"].value = (2, 1)
    assert (view.rank, view._rank.value, view._rank.max) == (1, 1, 1)
    view.picture.publish(rank=7)  # a late click on a mesh that is gone
    view.knobs.controls["order"].value = "row"
    assert (view.rank, view.error) == (1, "")
    with pytest.raises(ValueError, match="rank 2 is not in this mesh of 2: use 0 to 1"):
        view.rank = 2


def test_a_knob_keeps_the_place_in_the_block(view):
    view.step = 9  # up, its sum
    frame = view.picture.subject.frames[9]
    view.knobs.controls["chunks"].value = 2
    now = view.picture.subject.frames[view.step]
    assert view.step != 9
    assert now[:2] == frame[:2] == ("mlp", "up")


def test_megatron_is_the_mesh_of_one_axis():
    view = BlocksView(tv.Megatron(tp=4), rank=2)
    assert shown(view) == ["tp", "sp", "chunks"]
    assert "LN(X)[T, H] · W[H, 3H_tp] → QKV[T, 3H_tp]" in view.describe()
    view.knobs.controls["tp"].value = 2
    assert (view.error, view.rank) == ("", 1)


def test_an_unexpected_error_in_a_callback_is_shown(view, monkeypatch):
    monkeypatch.setattr("tpviz.views.widgets.blocks.block_frames", lambda *args: 1 / 0)
    view.knobs.controls["order"].value = "row"
    assert view.error == "ZeroDivisionError: division by zero"


def test_bad_arguments():
    with pytest.raises(TypeError, match="did you mean 'strategy'"):
        BlocksView(strateg=tv.ATP())
    with pytest.raises(ValueError, match=r"shows tv.ATP, or tv.Megatron"):
        BlocksView(tv.ATP() * tv.DataParallel(dp=2))
    with pytest.raises(ValueError, match=r"needs a workload such as tv.GPT\(\), not 3"):
        BlocksView(tv.ATP(), 3)
    with pytest.raises(ValueError, match="heads=4 does not split"):
        BlocksView(tv.ATP(mesh=(4, 2)))
    with pytest.raises(ValueError, match="rank 4 is not in this mesh of 4"):
        BlocksView(rank=4)
    with pytest.raises(ValueError, match="step=24 is not in this view"):
        BlocksView().step = 24


def test_the_module_stands_alone():
    text = module("blocks")
    assert "import " not in text
    assert text.count("export default") == 1
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert issubclass(BlockSteps, View)
