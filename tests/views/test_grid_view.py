import json

import pytest

import tpviz as tv
from tpviz.views.figures.assets import module
from tpviz.views.widgets import GridView
from tpviz.views.widgets.base import View
from tpviz.views.widgets.blocks import BlockSteps
from tpviz.views.widgets.knobs import Several

W = tv.GPT(batch=16)


@pytest.fixture
def view():
    return GridView(tv.AxoNN(x=2, y=2, z=2), W, rank=5)


def lit(view):
    """The known schemes that are said."""
    return [note.split("same cut as ")[1] for note in view.picture.scene["notes"]]


def test_repr_and_words(view):
    assert tv.GridView is GridView
    assert repr(view) == (
        "<GridView AxoNN(x=2, y=2, z=2, data=1), rank 5, step 3 of 31, forward, "
        "qkv: multiply for QKV>"
    )
    view.step = 1
    assert "forward, qkv: all-gather of W over z" in repr(view)
    assert view.describe().startswith("One block of AxoNN(x=2, y=2, z=2, data=1), 16 x 32 tokens")
    assert "Rank 5 is at z 1, y 0, x 1. Shown: step 2 of 31" in view.describe()
    assert view.describe().endswith(
        "Now the prefetch of W of out is issued. Prefetched: the weights of out."
    )
    assert len(view.to_table()) == 32
    assert repr(GridView()) == repr(GridView(tv.AxoNN(), tv.GPT(), rank=0))


def test_it_shows_a_static_picture_of_the_step_where_no_kernel_runs(view):
    view.step = 2
    assert "step 3 of 31" in view.to_svg()
    assert view.to_svg(step=0, theme="dark") != view.to_svg(theme="dark")


def test_every_knob_that_shows_is_there_and_redraws(view):
    [row] = view.knobs.children
    shown = [name for name, box in view.knobs.controls.items() if box in row.children]
    assert shown == [
        "x",
        "y",
        "z",
        "data",
        "overlap",
        "order",
        "keep",
        "gather",
        "recompute",
        "accumulation",
    ]
    for name, value in {
        "x": 1,
        "y": 1,
        "data": 2,
        "order": "yxz",
        "keep": False,
        "y ": 2,
        "gather": "block",
        "recompute": "full",
        "accumulation": 2,
        "overlap": ("oar",),
    }.items():
        before, picture = view.picture.generation, view.picture.scene
        view.knobs.controls[name.strip()].value = value
        assert view.error == ""
        assert view.picture.generation > before
        assert getattr(view.strategy, name.strip()) == value
        assert view.picture.scene != picture or name == "order"  # of y = 1 without effect
    assert view.strategy == tv.AxoNN(
        x=1,
        y=2,
        z=2,
        data=2,
        order="yxz",
        keep=False,
        gather="block",
        recompute="full",
        accumulation=2,
        overlap=("oar",),
    )


def test_knobs_that_do_not_show_stay_as_they_were():
    view = GridView(tv.AxoNN(x=1, z=2, clip=1.0, tune=True), W)
    view.knobs.controls["z"].value = 4
    assert view.strategy == tv.AxoNN(x=1, z=4, clip=1.0, tune=True)


def test_overlaps_are_check_boxes(view):
    control = view.knobs.controls["overlap"]
    assert isinstance(control, Several)
    assert [box.value for box in control.boxes.values()] == [True, True, True]
    control.boxes["ors"].value = False
    assert (control.value, view.strategy.overlap) == (("oar", "oag"), ("oar", "oag"))
    control.value = ("ors",)
    assert [box.value for box in control.boxes.values()] == [False, True, False]
    assert view.strategy.overlap == ("ors",)


def test_knobs_reach_the_known_schemes(view):
    assert lit(view) == ["Colossal-AI 3D"]
    for knobs, names in (
        ({"x": 4, "y": 1, "z": 1}, ["Megatron-LM"]),
        ({"x": 1, "z": 4}, ["ZeRO-2-like"]),
        ({"keep": False}, ["FSDP (ZeRO-3)"]),
        ({"data": 2}, ["HSDP"]),
        ({"z": 1}, ["DDP"]),
        ({"data": 1}, ["one device"]),
    ):
        for name, value in knobs.items():
            view.knobs.controls[name].value = value
        assert (view.error, lit(view)) == ("", names)


def test_sizes_that_clash_are_said_and_the_last_picture_stays(view):
    scene = view.picture.scene
    view.knobs.controls["x"].value = 3
    assert view.error.startswith("heads=4 does not split evenly over x=3: use x=2 or 4")
    assert view.picture.scene == scene
    view.knobs.controls["x"].value = 8
    assert view.error == "mesh 2 x 2 x 8 has 32 ranks: this view shows at most 16"
    view.knobs.controls["x"].value = 4
    assert (view.error, view.strategy.x) == ("", 4)


def test_the_rank_follows_the_slider_the_click_and_the_grid(view):
    view.rank = 3
    assert (view.picture.rank, view._rank.value, view.picture.scene["rank"]) == (3, 3, 3)
    view.picture.publish(rank=6)  # as a click does
    assert (view._rank.value, view.picture.scene["rank"]) == (6, 6)
    view.knobs.controls["z"].value = 1
    assert (view.rank, view._rank.max) == (3, 3)
    with pytest.raises(ValueError, match="rank 4 is not in this mesh of 4: use 0 to 3"):
        view.rank = 4


def test_a_knob_keeps_the_place_in_the_block(view):
    frames = view.picture.subject.frames
    view.step = next(i for i, f in enumerate(frames) if f[:2] == ("backward", "up"))
    view.knobs.controls["keep"].value = False
    assert view.picture.subject.frames[view.step][:2] == ("backward", "up")


def test_an_unexpected_error_in_a_callback_is_shown(view, monkeypatch):
    monkeypatch.setattr("tpviz.views.widgets.grid.grid_frames", lambda *args: 1 / 0)
    view.knobs.controls["keep"].value = False
    assert view.error == "ZeroDivisionError: division by zero"


def test_bad_arguments():
    with pytest.raises(TypeError, match="GridView has no argument 'strateg'; did you mean"):
        GridView(strateg=tv.AxoNN())
    with pytest.raises(ValueError, match=r"GridView shows tv.AxoNN, not ATP"):
        GridView(tv.ATP())
    with pytest.raises(ValueError, match=r"GridView needs a workload such as tv.GPT\(\), not 3"):
        GridView(tv.AxoNN(), 3)
    with pytest.raises(ValueError, match="hidden=64 does not split evenly over y=3"):
        GridView(tv.AxoNN(y=3))
    with pytest.raises(ValueError, match="rank 4 is not in this mesh of 4"):
        GridView(rank=4)
    with pytest.raises(ValueError, match="step=99 is not in this view"):
        GridView().step = 99


def test_it_is_the_script_of_the_blocks_view():
    assert BlockSteps._esm == module("blocks")
    assert issubclass(BlockSteps, View)


def test_a_scene_is_small_enough_to_send_while_a_slider_moves():
    view = GridView(tv.AxoNN(x=2, y=2, z=2, data=2, recompute=True, keep=False), W)
    scene = view.picture.scene
    assert len(json.dumps(scene)) < 24_000 * len(scene["frames"])
