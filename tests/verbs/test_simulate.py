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
    slow = tv.simulate(
        PRODUCT, W, BOX, capture=program, contention=False, faults=tv.Faults(slow_links={0: 3.0})
    )
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
        # a run may still hold something of the step before, for as long as it is garbage
        assert ours.peak == pytest.approx(theirs.peak, rel=0.05)
        assert (ours.time[1:] >= ours.time[:-1]).all()
        assert 0 <= ours.time[0] <= ours.time[-1] <= simulated.step_time


def test_steps_begin_together_and_keep_their_names():
    strategy = tv.DataParallel(dp=2)
    trace = tv.simulate(strategy, W, BOX, steps=3, faults=tv.Faults(stragglers={1: 2.0}))
    for step in trace.steps:
        assert len(set(trace.select(kind="step", step=step)["start"].tolist())) == 1
    names = [set(trace.select(kind="compute", step=step)["name"].tolist()) for step in trace.steps]
    assert names[0] == names[1] == names[2]


def test_a_capture_of_something_else(program):
    with pytest.raises(ValueError, match="the capture is of strategy DataParallel"):
        tv.simulate(tv.Megatron(tp=4), W, BOX, capture=program)
    with pytest.raises(ValueError, match="the capture is of detail kernels, not of all"):
        tv.simulate(PRODUCT, W, BOX, capture=program, detail="all")
    with pytest.raises(ValueError, match=r"use the result of tv\.capture"):
        tv.simulate(PRODUCT, W, BOX, capture=3)


@pytest.mark.parametrize("bad", ["Megatron", None, tv.Megatron])
def test_no_strategy(bad):
    with pytest.raises(ValueError, match="first comes a strategy"):
        tv.simulate(bad, W, BOX)


def test_more_memory_than_a_device_has():
    small = Cluster("small", Device({"float32": 1e9}, 1e5, 1e9), BOX.levels)
    for verb in (tv.simulate, tv.run):
        with pytest.raises(ValueError, match=r"needs .* on every rank and the device"):
            verb(PRODUCT, W, small)


def spans(groups, names):
    """Seconds of a collective on each group when all of them run at once, two nodes, one NIC."""
    nic = Cluster("nic", DEVICE, (Level("node", 2, 1e9, 1e9), Level("nic", 2, 1e6, 1e6)))
    from tpviz.cluster.clock.engine import Engine
    from tpviz.cluster.clock.replay import GroupQueues

    board = GroupQueues(tv.capture(PRODUCT, W), nic, tv.Faults())
    queues = [board._queue(name, group, False) for name, group in zip(names, groups)]
    programs = [
        [("issue", q, "all_reduce", 200_000) for q in queues if rank in q.members]
        for rank in range(4)
    ]
    times = Engine(nic, programs).run()
    return [end - start for rank in times for start, end in rank]


def test_groups_of_one_axis_that_are_no_mesh_share_what_they_cross():
    regular = spans([(0, 2), (1, 3)], ["dp", "dp"])
    crossed = spans([(0, 3), (1, 2)], ["dp", "dp"])
    assert regular == pytest.approx([0.4] * 4, rel=1e-3)
    assert crossed == pytest.approx(regular)
