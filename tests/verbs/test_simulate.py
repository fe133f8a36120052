"""Simulated traces: ledgers, times where these follow from a formula, faults, errors."""

import pytest

import tpviz as tv
from tpviz.cluster import Cluster, Device, Level

W = tv.GPT()
DEVICE = Device({"float32": 1e9}, 1e9, 1e12)
BOX = Cluster("box", DEVICE, (Level("fast", 2, 4e8, 4e8, 1e-4), Level("slow", 4, 1e8, 2e8, 1e-4)))
PRODUCT = tv.Megatron(tp=2) * tv.DataParallel(dp=2, zero=1)


@pytest.fixture(scope="module")
def program():
    return tv.capture(PRODUCT, W)


def test_the_ledger_of_every_rank_is_the_formula(program):
    trace = tv.simulate(PRODUCT, W, BOX, capture=program)
    assert all(trace.ledger(rank=rank) == PRODUCT.ledger(W) for rank in range(4))
    assert trace.meta["badge"] == "simulated"


def test_tensor_parallel_step_is_kernels_plus_what_is_exposed():
    strategy = tv.Megatron(tp=2)
    trace = tv.simulate(strategy, W, BOX)
    rank = trace.select(rank=0)
    compute, waits = rank.select(kind="compute"), rank.select(kind="wait")
    total = (compute["end"] - compute["start"]).sum() + (waits["end"] - waits["start"]).sum()
    assert trace.step_time == pytest.approx(total)
    comm = rank.select(kind="comm")
    link = BOX.link((0, 1), 2)
    for event in comm:
        least = BOX.collective_time(event.name, event.bytes, 2, link)
        assert event.end - event.start >= least * (1 - 1e-12)


def test_steps_follow_each_other(program):
    one = tv.simulate(PRODUCT, W, BOX, capture=program)
    three = tv.simulate(PRODUCT, W, BOX, steps=3, capture=program)
    assert three.steps == [0, 1, 2]
    assert three.step_time == pytest.approx(one.step_time)
    assert three.ledger() == one.ledger()
    assert three["end"].max() == pytest.approx(3 * one.step_time)


def test_contention_only_ever_costs(program):
    shared = tv.simulate(PRODUCT, W, BOX, capture=program)
    alone = tv.simulate(PRODUCT, W, BOX, capture=program, contention=False)
    assert shared.step_time >= alone.step_time


def test_a_straggler_holds_up_everybody(program):
    plain = tv.simulate(PRODUCT, W, BOX, capture=program)
    slow = tv.simulate(PRODUCT, W, BOX, capture=program, faults=tv.Faults(stragglers={3: 2.0}))
    kernels = [t.select(kind="compute", rank=3) for t in (plain, slow)]
    lengths = [(k["end"] - k["start"]).sum() for k in kernels]
    assert lengths[1] == pytest.approx(2 * lengths[0])
    assert slow.step_time > plain.step_time
    assert slow.bubble()[0] > slow.bubble()[3]


def test_a_slow_link_makes_its_groups_slow(program):
    plain = tv.simulate(PRODUCT, W, BOX, capture=program, contention=False)
    slow = tv.simulate(PRODUCT, W, BOX, capture=program, contention=False,
                       faults=tv.Faults(slow_links={0: 3.0}))
    first = [t.select(kind="comm", rank=0, axis="tp") for t in (plain, slow)]
    spans = [float(c["end"][0] - c["start"][0]) for c in first]
    assert spans[1] == pytest.approx(3 * spans[0])


def test_more_ranks_than_devices():
    with pytest.raises(ValueError, match="16 ranks do not fit the 8 devices of box"):
        tv.simulate(tv.Megatron(tp=2) * tv.DataParallel(dp=8), tv.GPT(batch=8), BOX)


@pytest.mark.parametrize("bad", [None, "perlmutter", 3])
def test_no_cluster(bad):
    with pytest.raises(ValueError, match="third comes a cluster"):
        tv.simulate(PRODUCT, W, bad)


def test_every_operator_takes_time_where_all_count():
    strategy = tv.Megatron(tp=2)
    few, all_of_them = (tv.simulate(strategy, W, BOX, detail=d) for d in ("kernels", "all"))
    assert all_of_them.step_time > few.step_time
    assert "native_layer_norm" in all_of_them["name"]


@pytest.mark.parametrize("strategy", [tv.Megatron(tp=2), tv.DataParallel(dp=2, zero=3)], ids=repr)
def test_memory_is_that_of_a_run(strategy):
    simulated = tv.simulate(strategy, W, BOX)
    measured = tv.run(strategy, W, steps=1)
    for rank in (0, 1):
        ours, theirs = simulated.memory(rank), measured.memory(rank)
        assert ours.peaks["parameters"] == theirs.peaks["parameters"]
        assert ours.peaks["optimizer"] == theirs.peaks["optimizer"]
        assert ours.peak == pytest.approx(theirs.peak, rel=0.01)
        assert (ours.time[1:] >= ours.time[:-1]).all()
        assert 0 <= ours.time[0] <= ours.time[-1] <= simulated.step_time
