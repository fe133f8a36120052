"""Knobs that bind each other: whatever is moved, all fit, and what was moved keeps its value."""

import random
from dataclasses import replace

import pytest

import tpviz as tv
from tpviz.schemes import strategies
from tpviz.views.plans.factors import offered
from tpviz.views.plans.fitting import Fitting
from tpviz.views.widgets import Explore

ODD = tv.GPT(layers=3, heads=6, hidden=96, batch=6)
LLAMA = tv.GPT(heads=8, kv_heads=4, ffn=96, gated=True, norm="rms", rotary=True, bias=False)


def fitting(name, workload):
    cls = strategies()[name]
    workload = replace(workload, experts=8) if name == "Experts" else workload
    alone = name == "DataParallel" or cls.shares_batch
    return Fitting(workload, cls(), None if alone else tv.DataParallel(dp=1), ranks=8)


@pytest.mark.parametrize("workload", [tv.GPT(), ODD, LLAMA], ids=["even", "odd", "llama"])
@pytest.mark.parametrize("name", strategies())
def test_every_stop_of_every_knob_fits(name, workload):
    """From wherever knobs are after the moves before."""
    made, moves = fitting(name, workload), random.Random(0)
    for _ in range(30):
        knob = moves.choice(sorted(made.stops))
        value = moves.choice(made.stops[knob])
        before = made.values
        gave = made.move({knob: value})
        assert made.values[knob] == value
        assert {n for n, v in made.values.items() if v != before[n]} <= {knob, *gave}
        made.strategy.check(made.workload)
        assert made.strategy.world_size <= 8


def test_what_no_size_divides_is_no_stop():
    made = fitting("Megatron", tv.GPT())
    assert made.stops["tp"] == [1, 2, 4]
    made.move({"heads": 8})
    assert made.stops["tp"] == [1, 2, 4, 8]
    assert made.stops["heads"] == [1, 2, 4, 8, 16, 32]  # of a hidden size of 64


def test_the_nearest_values_give_way_the_last_moved_last():
    made = fitting("Megatron", tv.GPT(heads=8, batch=8))
    made.move({"dp": 2})
    assert made.move({"chunks": 4}) == {}
    assert made.move({"dp": 8}) == {"tp": (4, 1), "chunks": (4, 1)}
    assert made.move({"hidden": 48}) == {}
    assert made.move({"hidden": 8, "heads": 8}) == {}
    assert made.move({"hidden": 24, "tp": 2}) == {"dp": (8, 4)}
    assert made.move({"heads": 3}) == {"tp": (2, 1)}


def test_a_strategy_that_does_not_fit_at_first_gives_way():
    made = fitting("Megatron", ODD)
    assert (made.strategy, made.workload) == (tv.Megatron(tp=2), ODD)


@pytest.mark.parametrize("name", offered())
def test_there_is_one_data_parallelism(name):
    """AxoNN and Merak have their own, and none around them."""
    view = Explore(tv.GPT(batch=8), tv.clusters.nvlink_pairs(), strategy=strategies()[name]())
    names = [name for knobs in view._all_knobs for name in knobs.controls]
    assert len({"dp", "data"} & {*names}) == 1
    assert len({*names}) == len(names)
    own = view._inner.cls.shares_batch or "dp"
    controls = (view._outer or view._inner).controls
    controls[own].value = 2
    assert view.error == ""
    axis = "data" if "data" in view.strategy.axes else "dp"
    assert view.strategy.axes[axis] == 2


@pytest.mark.parametrize("name", ["Megatron", "AxoNN", "Merak"])
def test_each_knob_is_drawn_at_its_last_stop(name):
    view = Explore(tv.GPT(), tv.clusters.nvlink_pairs(), strategy=strategies()[name]())
    for knobs in (view._sizes, view._inner):
        for knob in knobs.controls.keys() & view._fitting.stops.keys():
            knobs.controls[knob].value = view._fitting.stops[knob][-1]
            assert view.error == ""


def test_sizes_of_the_model_are_knobs():
    view = Explore(tv.GPT(), tv.clusters.nvlink_pairs())
    step = lambda: view.prediction.step_time / view.prediction.cluster.slow_motion
    before, mesh = step(), view.mesh.generation
    for name, value in {"layers": 4, "hidden": 128, "heads": 8, "seq": 64, "batch": 8}.items():
        view._sizes.controls[name].value = value
        assert step() > before or name == "heads"
        before = step()
    assert view.choice.workload == tv.GPT(layers=4, hidden=128, heads=8, seq=64, batch=8)
    assert view.mesh.generation > mesh
    assert view._expected == view.strategy.ledger(view.choice.workload)
    view.menu.value = "ATP"
    assert view.choice.workload.layers == 4  # another strategy of the same model


def test_a_product_of_merak_is_shown_as_that_and_others_say_what_shows_them():
    made = tv.Megatron(tp=2) * tv.Pipeline(pp=2)
    view = Explore(tv.GPT(batch=8), tv.clusters.nvlink_pairs(), strategy=made)
    assert view.strategy == tv.Merak(pp=2, tp=2, schedule="1f1b", recompute="none")
    with pytest.raises(ValueError, match="is in no menu and has no knobs to turn"):
        Explore(
            tv.GPT(batch=8),
            tv.clusters.nvlink_pairs(pairs=4),
            strategy=tv.ATP() * tv.Pipeline(pp=2),
        )
