"""Ranks that share the cores of a host: small replays worked out by hand; whole strategies."""

from dataclasses import replace

import pytest

import tpviz as tv
from tpviz.cluster import Cluster, Device, Level
from tpviz.cluster.clock.cores import Cores
from tpviz.cluster.clock.engine import Engine, GroupQueue

FLAT = Cluster("flat", Device({"float32": 1e9}, 1e9, 1e9), (Level("link", 4, 100.0, 100.0, 0.25),))
W = tv.GPT(layers=2, hidden=64, heads=4, seq=16, batch=8)
HOST = replace(
    FLAT,
    device=replace(FLAT.device, pointwise="eager", startup=1e-5, unhidden=0.3),
    levels=(Level("gloo", 4, 1e9, 1e9, 1e-4),),
    cores=4,
)
SAME = [
    tv.Megatron(tp=4),
    tv.Megatron(tp=2) * tv.DataParallel(dp=2),
    tv.ATP(mesh=(2, 2)),
    tv.AxoNN(x=2, z=2, overlap=()),
]


def ends(programs, count, share=0.0, contention=True):
    times = Engine(FLAT, programs, contention, cores=Cores(count, share, FLAT.per_host)).run()
    return [[end for _, end in own] for own in times]


@pytest.mark.parametrize("ranks, slower", [(1, 1.0), (2, 1.0), (3, 1.5), (4, 2.0)])
def test_ranks_that_are_more_than_cores_take_turns(ranks, slower):
    assert ends([[("kernel", 1.0), ("kernel", 2.0)]] * ranks, 2) == [[slower, 3 * slower]] * ranks


def test_a_rank_that_waits_leaves_its_core_to_others():
    # 2 s on two cores for three ranks: 3 s; then one has both, and 1 s of its 3 left
    assert ends([[("kernel", 2.0)]] * 2 + [[("kernel", 3.0)]], 2) == [[3.0], [3.0], [4.0]]


@pytest.mark.parametrize("contention", [True, False])
def test_moving_bytes_takes_cores_from_kernels_and_kernels_from_it(contention):
    # a ring all-reduce of 100 bytes over 2: 1.5 s, hops and bytes, which takes half a core for each
    # of two ranks, while both compute: 3 cores' worth of work
    for count, moved, computed in ((2, 1.5 * 3 / 2, 3 + 0.75), (4, 1.5, 3.0)):
        queue = GroupQueue("tp", (0, 1), "tp", FLAT.link((0, 1), 4), 1.0)
        program = [("issue", queue, "all_reduce", 100), ("kernel", 3.0), ("wait", 0)]
        found = ends([program] * 2, count, 0.5, contention)
        assert found == [pytest.approx([moved, computed, computed])] * 2


def test_hosts_with_enough_cores_share_none():
    assert Cores.of(FLAT, 4) is None and Cores.of(replace(FLAT, cores=2), 2) is None
    shared = Cores.of(replace(FLAT, cores=2, core_share=0.5), 2)
    assert shared and (shared.count, shared.share) == (2, 0.5)


@pytest.mark.parametrize("strategy", SAME, ids=lambda s: s.short)
def test_four_ranks_on_two_cores_compute_twice_as_long(strategy):
    program, half = tv.capture(strategy, W), replace(HOST, cores=2)
    for contention in (True, False):
        whole, shared = (
            tv.simulate(strategy, W, c, capture=program, contention=contention)
            for c in (HOST, half)
        )
        compute = tv.predict(strategy, W, HOST).parts["compute"]
        assert shared.step_time == pytest.approx(whole.step_time + compute)
        assert len(shared) == len(whole) and shared.ledger() == whole.ledger()
    predicted = tv.predict(strategy, W, half)
    assert predicted.step_time == pytest.approx(shared.step_time)  # without contention
    assert predicted.parts["compute"] == pytest.approx(2 * compute)


def test_predict_counts_what_moving_bytes_takes_of_the_cores():
    strategy = tv.DataParallel(dp=4)
    cluster = replace(HOST, levels=(Level("gloo", 4, 2e7, 2e7),), cores=4, core_share=1.0)
    alone = tv.predict(strategy, W, replace(cluster, core_share=0.0))
    busy = tv.predict(strategy, W, cluster)
    moving = sum(alone.exposed.values()) + sum(alone.hidden.values())
    assert alone.overlap > 0.1
    assert busy.step_time == pytest.approx(alone.parts["compute"] + moving)  # 4 ranks, 4 cores
    simulated = tv.simulate(strategy, W, cluster).step_time
    assert alone.step_time < simulated == pytest.approx(busy.step_time, rel=0.02)


def test_a_pipeline_leaves_cores_free_in_its_bubbles():
    strategy = tv.Merak(pp=2, tp=2, microbatches=4)
    whole, half = (tv.simulate(strategy, W, replace(HOST, cores=n)).step_time for n in (4, 2))
    assert 1.02 * whole < half < 1.9 * whole


@pytest.mark.parametrize("strategy", SAME, ids=lambda s: s.short)
def test_every_collective_takes_the_overhead_of_a_host(strategy):
    host = replace(HOST, cores=0)
    program, slower = tv.capture(strategy, W), replace(host, overhead=3e-3)
    times = [
        (
            tv.predict(strategy, W, c).step_time,
            tv.simulate(strategy, W, c, capture=program, contention=False).step_time,
        )
        for c in (host, slower, slower.scale_model(slow_motion=10))
    ]
    for predicted, simulated in times:
        assert predicted == pytest.approx(simulated, rel=1e-9)
    count = sum(row.count for row in program.ledger(0))
    if not isinstance(strategy, tv.DataParallel) and "dp" not in strategy.axes:  # few are hidden
        assert 0.8 * count * 3e-3 < times[1][0] - times[0][0] <= count * 3.001e-3
    assert times[2][0] == pytest.approx(10 * times[1][0])


def test_a_collective_behind_another_takes_less_where_the_library_moves_several():
    # all-reduces of 100 bytes over 2 ranks, 1.5 s alone: two at once, a third after both
    cluster = replace(FLAT, queued=0.4)
    queue = GroupQueue("tp", (0, 1), "tp", FLAT.link((0, 1), 4), 1.0)
    issue = "issue", queue, "all_reduce", 100
    program = [issue, issue, ("wait", 1), issue, ("wait", 2)]
    found = [end for _, end in Engine(cluster, [program] * 2).run()[0]]
    assert found == pytest.approx([1.5, 1.5 + 0.4 * 1.5, 2.1, 3.6, 3.6])


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_buckets_behind_one_another_take_less_in_predict_and_simulate_alike(zero):
    strategy, host = tv.DataParallel(dp=4, zero=zero), replace(HOST, cores=0)
    program = tv.capture(strategy, W)
    steps = []
    for c in (host, replace(host, queued=0.4)):
        steps.append(tv.predict(strategy, W, c).step_time)
        simulated = tv.simulate(strategy, W, c, capture=program, contention=False).step_time
        assert steps[-1] == pytest.approx(simulated, rel=1e-9)
    assert steps[1] < steps[0]


def test_cores_that_cannot_be():
    for wrong in (
        {"cores": -1},
        {"cores": 1.5},
        {"core_share": -0.1},
        {"overhead": -1.0},
        {"queued": 0.0},
        {"factors": {"gossip": (1, 2)}},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong)).rstrip("s") + "|gossip"):
            replace(FLAT, **wrong)
    with pytest.raises(ValueError, match="factors=5 must be"):
        replace(FLAT, factors=5)
    known = replace(FLAT, cores=2, core_share=0.5, factors={"reduce_scatter": (3.0, 2.0)})
    known = replace(known, queued=0.5)
    assert Cluster.from_json(known.to_json()) == known
    link = FLAT.link((0, 1), 4)
    parts = [c.collective_parts("reduce_scatter", 100, 2, link) for c in (known, FLAT)]
    assert parts[0] == pytest.approx((3 * parts[1][0], 2 * parts[1][1]))
    assert known.collective_cost("all_gather", 100, 2, link) == (1, 50.0)
