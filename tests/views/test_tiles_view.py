import json

import pytest

import tpviz as tv
from tpviz.evidence.t3_hardware import Gemm, Machine, simulate
from tpviz.evidence.t3_hardware.small_gpu import SMALL_GPU
from tpviz.views.widgets import TileView
from tpviz.views.widgets.tiles import TileSizes


@pytest.fixture
def view():
    return TileView(gemm=(1024, 512, 512), ranks=4)


def set_knobs(view, **values):
    for name, value in values.items():
        view.knobs.controls[name].value = value


def test_repr_words_and_table(view):
    assert tv.TileView is TileView
    assert repr(view).startswith(
        "<TileView T3-MCA against sequential: GEMM 1024 × 512 × 512 on 4 "
        "GPUs, link 15 GB/s, tiles of 128 × 128, at 36.2 µs of "
    )
    assert repr(view) == repr(TileView(gemm=Gemm(1024, 512, 512, wavefronts=1), ranks=4))
    assert "simulated" in view.describe()
    assert view.describe().endswith(
        "T3-MCA, GPU 0: 16 computing, 2 computed, 7 stored, 1 updated twice, 1 on the link, 5 sent."
        "\nsequential, GPU 0: 16 computing, 16 stored."
    )
    view.part, view.step = 9, 60
    assert "T3-MCA, GPU 0, tile (2, 1), chunk 1, 1st in its order: computed 0 s to" in (
        view.describe()
    )
    view.part = 1
    assert "; the sum so far comes at " in view.describe() and " from GPU 1; " in view.describe()
    one, two = view.runs
    assert (one.config, two.config) == ("t3_mca", "sequential")
    assert f"{two.seconds / one.seconds:.3f} times as fast as sequential" in view.describe()
    assert view.to_table()[0] == ["what (simulated)", "T3-MCA", "sequential"]


def test_it_shows_a_static_picture_of_the_step_where_no_kernel_runs(view):
    start = view.to_svg()
    view.step = 50
    assert view.to_svg() != start == view.to_svg(step=view.picture.scene["opens"])
    assert "data-chosen" not in start and "data-chosen" in view.to_svg(part=3)
    assert view.to_svg(theme="dark") != view.to_svg(theme="light")


def test_what_runs_is_what_the_knobs_say(view):
    set_knobs(
        view,
        k=256,
        link=7.5,
        policy="round_robin",
        config="t3",
        tracker_sets=2,
        tile=64,
        wavefronts=2,
        mode="full",
    )
    assert view.error == ""
    [one, two] = view.runs
    assert (one.gemm, one.ranks, one.mode) == (
        Gemm(1024, 512, 256, tile=(64, 64), wavefronts=2),
        4,
        "full",
    )
    assert (one.machine.link, one.machine.policy, one.machine.tracker_sets) == (
        7.5e9,
        "round_robin",
        2,
    )
    assert one.machine.dram == SMALL_GPU.dram
    assert one.seconds == simulate(one.gemm, 4, one.machine, "t3", mode="full").seconds
    assert two.seconds == simulate(one.gemm, 4, one.machine, "sequential", mode="full").seconds


def test_every_knob_redraws(view):
    for name, value in {
        "ranks": 8,
        "m": 2048,
        "n": 256,
        "k": 1024,
        "tile": 64,
        "wavefronts": 2,
        "link": 30.0,
        "config": "t3",
        "policy": "fifo",
        "tracker_sets": 1,
        "mode": "full",
        "against": "t3_mca",
        "shown": "all",
    }.items():
        before, picture = view.picture.generation, view.picture.scene
        set_knobs(view, **{name: value})
        if name == "shown":  # too much, and said
            assert "use larger tiles, fewer wavefronts, a smaller output, or shown='one'" in (
                view.gave
            )
        assert view.error == ""
        assert view.picture.generation > before
        assert view.picture.scene != picture, name
    set_knobs(view, tile=128, wavefronts=1)
    assert view.error == ""
    at = {name: box.value for name, box in view.controls.items()}
    tiles = at["m"] // at["tile"] * (at["n"] // at["tile"])
    assert len(view.picture.scene["tiles"]) == 2 * at["ranks"] * tiles


def test_knobs_without_effect_are_disabled(view):
    def played():
        return [(one.seconds, one.dram, one.tracker.stalls) for one in view.runs]

    for config, against, used in (
        ("t3_mca", "sequential", ["tracker_sets"]),
        ("sequential", "t3", ["policy", "tracker_sets"]),
        ("sequential", "none", []),
    ):
        set_knobs(view, config=config, against=against)
        for name, other in (("policy", "fifo"), ("tracker_sets", 1)):
            box, before = view.knobs.controls[name], played()
            value, box.value = box.value, other
            assert (played() != before, box.disabled) == (name in used, name not in used), name
            box.value = value
            assert "no effect unless config or against is t3" in box.tooltip


def test_chunks_that_differ_are_simulated_in_full_and_in_mirror_not_shown(view):
    assert {one.mode for one in view.runs} == {"mirror"}
    set_knobs(view, ranks=3)
    assert [one.mode for one in view.runs] == ["full", "mirror"]  # sequential is always mirrored
    set_knobs(view, mode="mirror")
    assert "make no 3 chunks that are alike" in view.gave and "use mode='full'" in view.gave
    assert (view.error, view.controls["ranks"].value) == ("", 2)
    set_knobs(view, ranks=4)
    assert (view.error, view.gave) == ("", "")
    set_knobs(view, tile=256, m=256, ranks=5)
    assert view.error == "" and "too few for ranks=5: use ranks=" in view.gave


def test_the_play_head_and_the_part_stay_where_they_are(view):
    view.step, view.part = 33, 30
    set_knobs(view, k=768)
    assert (view.step, view.part, view.picture.detail["part"]) == (33, 30, 30)
    assert f"of {len(view.runs)}" not in view.error
    set_knobs(view, against="none", tile=256)  # 8 parts are left
    assert (view.part, view.picture.detail["words"]) == (-1, "")


def test_a_part_chosen_in_the_picture_is_looked_at(view):
    before = view.picture.generation
    view.picture.set_state({"part": 40, "generation": before})  # as the browser does
    assert view.picture.detail["part"] == 40
    assert view.picture.detail["words"].startswith("sequential, GPU 0, tile (2, 0), chunk 1, 2nd")
    assert view.picture.generation > before
    view.picture.set_state({"part": 4000})
    assert "part=4000 is not in this view: use 0 to 63" in view.error


def test_a_machine_and_a_gemm_of_ones_own():
    machine = Machine(cus=4, link=2e10, policy="mca", tracker_sets=3)
    view = TileView(Gemm(512, 512, 128, tile=(64, 64), wavefronts=2), 2, machine, config="t3")
    [one, _] = view.runs
    assert (one.machine.cus, one.machine.link, one.machine.tracker_sets) == (4, 2e10, 3)
    assert one.machine.policy == TileSizes().policy  # MCA is a configuration
    assert one.gemm.tile == (64, 64)


def test_bad_arguments(view):
    for error, match, options in (
        (TypeError, "TileView has no argument 'chunks'; it takes against, aut", {"chunks": 2}),
        (TypeError, "no argument 'shows'; did you mean 'shown'", {"shows": "all"}),
        (ValueError, r"gemm=3 must be a Gemm, or \(m, n, k\)", {"gemm": 3}),
        (ValueError, "m is the gemm's own, 1: give it once", {"gemm": (1, 2, 3), "m": 4}),
        (ValueError, "square tiles of 2-byte", {"gemm": Gemm(512, 512, 64, tile=(64, 128))}),
        (ValueError, "config='ideal' is not possible: use 'seq", {"config": "ideal"}),
        (ValueError, "ranks=9 is too large: the most that works is 8", {"ranks": 9}),
        (ValueError, "TileView runs on a Machine, not 'A100'", {"machine": "A100"}),
        (ValueError, "link=0 is not between 0.001", {"link": 0}),
        (ValueError, "too few for ranks=8: use ranks=2", {"gemm": (256, 128, 64)}),
    ):
        with pytest.raises(error, match=match):
            TileView(**options)
    with pytest.raises(ValueError, match="step=121 is not in this view"):
        view.step = 121
    with pytest.raises(ValueError, match="part=64 is not in this view: use 0 to 63, or -1"):
        view.part = 64


def test_an_unexpected_error_in_a_callback_is_shown(view, monkeypatch):
    monkeypatch.setattr("tpviz.views.widgets.tiles.simulate", lambda *args, **more: 1 / 0)
    set_knobs(view, k=640)
    assert view.error == "ZeroDivisionError: division by zero"


def test_a_scene_is_small_enough_to_send_while_a_slider_moves():
    assert len(json.dumps(TileView().picture.scene)) < 80_000
    assert len(json.dumps(TileView(shown="all").picture.scene)) < 250_000
