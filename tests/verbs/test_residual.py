"""The residual: parts that sum to the step, and faults that are named, from hand-made steps on."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tpviz as tv
from tpviz.cluster import Cluster, Device, Dimension, Level
from tpviz.cluster.clock.replay import replay
from tpviz.core.trace import Event, Trace
from tpviz.core.trace.members import members_list
from tpviz.core.trace.steps import median_step
from tpviz.verbs.imbalance import evened
from tpviz.verbs.residual import (
    PARTS,
    collective_times,
    find_slow_link,
    find_stragglers,
    residual,
    weighted_median,
    without_latency,
    without_links,
)

DEVICE = Device({"float32": 2e10}, 16e9, 1e10)
PAIRS = Cluster("pairs", DEVICE, (Level("in", 2, 4e8, 4e8, 1e-5), Level("out", 4, 1e8, 1e8, 1e-4)))
BOX = Cluster("box", DEVICE, (Level("bus", 8, 3e8, 3e8, 1e-5),))
TORUS = Cluster("torus", DEVICE, torus=(Dimension("x", 2, 2e8, 1e-6), Dimension("y", 4, 2e8, 1e-6)))


def step(kernels=2, groups=("0,1",), slow=(), links=None, number=0, at=0.0):
    """A step of 4 ranks: ``kernels`` of 1 s each (``slow`` ranks 2 s), then an all_reduce of each
    group (1 s, or as ``links`` says by members), queued behind the ranks' latest kernel."""
    events = []
    for rank in range(4):
        last = kernels * (2.0 if rank in slow else 1.0)
        for k in range(kernels):
            length = last / kernels
            events.append(Event(rank=rank, name="mm", start=k * length, end=(k + 1) * length))
        for axis, members in enumerate(groups):
            ranks = members_list(members)
            if rank in ranks:
                begin = kernels * (2.0 if set(slow) & set(ranks) else 1.0)
                events.append(
                    Event(
                        rank=rank,
                        kind="comm",
                        lane=f"comm/a{axis}",
                        axis=f"a{axis}",
                        members=members,
                        name="all_reduce",
                        seq=number,
                        start=last,
                        end=begin + (links or {}).get(members, 1.0),
                    )
                )
        end = max(event.end for event in events if event.rank == rank)
        events.append(Event(rank=rank, kind="step", lane="step", name="step", end=end))
    return [e._replace(step=number, start=e.start + at, end=e.end + at) for e in events]


def trace(**options):
    return Trace.from_events(step(**options), {"badge": "by hand"})


GRID = ("0,1", "2,3", "0,2", "1,3")  # two axes of two


def test_median_step_is_the_one_whose_duration_is_the_median():
    events = step(kernels=3) + step(kernels=9, number=1, at=20.0) + step(number=2, at=40.0)
    assert set(median_step(Trace.from_events(events))["step"].tolist()) == {0}
    assert median_step(Trace.from_events(events)).step_time == Trace.from_events(events).step_time
    unmarked = Trace.from_events([Event(end=1.0)])
    assert median_step(unmarked) is unmarked


def test_weighted_median_listens_to_long_events():
    assert weighted_median(np.array([9.0, 9.0, 1.0]), np.array([1.0, 1.0, 3.0])) == 1.0
    assert weighted_median(np.array([9.0, 9.0, 1.0]), np.array([1.0, 1.0, 1.0])) == 9.0


def test_a_straggler_is_named_with_its_factor():
    assert find_stragglers(trace(slow=[2]), trace()) == [(2, 2.0)]
    assert find_stragglers(trace(slow=[0, 2]), trace()) == [(0, 2.0), (2, 2.0)]
    assert find_stragglers(trace(slow=range(4)), trace()) == []  # all alike: none straggles
    assert find_stragglers(trace(), trace()) == []


def test_more_work_than_simulated_is_no_straggling():
    """A kernel of 12 s in place of 3 s is no slow one where it has more FLOPs."""

    def ran(flops, seconds):
        events = []
        for rank in range(3):
            work, lasts = (flops, seconds) if rank == 0 else (1, 1.0)
            events.append(Event(rank=rank, flops=1, end=1.0))
            events.append(Event(rank=rank, flops=work, start=3.0, end=3.0 + lasts))
        return Trace.from_events(events)

    assert find_stragglers(ran(2, 12.0), ran(1, 3.0)) == []
    assert find_stragglers(ran(1, 12.0), ran(1, 3.0)) == [(0, 4.0)]


def test_who_lost_less_than_the_measuring_overran_is_not_accused():
    assert find_stragglers(trace(slow=[2]), trace(), late=1.9) == [(2, 2.0)]
    assert find_stragglers(trace(slow=[2]), trace(), late=2.1) == []
    slow = trace(groups=GRID, links={"2,3": 4.0, "1,3": 4.0})
    assert find_slow_link(slow, trace(groups=GRID), late=2.9).ranks == (3,)
    assert find_slow_link(slow, trace(groups=GRID), late=3.1) is None


def test_collectives_are_timed_from_the_last_issue_and_the_one_before():
    assert collective_times(trace(slow=[0]))["a0", "0,1"].tolist() == [1.0]
    events = [
        Event(
            rank=r,
            kind="comm",
            axis="tp",
            members="0,1",
            name="all_reduce",
            seq=seq,
            start=seq + r,
            end=5.0 + 3 * seq,
        )
        for r in (0, 1)
        for seq in (0, 1)
    ]
    assert collective_times(Trace.from_events(events))["tp", "0,1"].tolist() == [4.0, 3.0]


def test_the_rank_that_all_slow_groups_share_is_named():
    link = find_slow_link(trace(groups=GRID, links={"2,3": 3.0, "1,3": 3.0}), trace(groups=GRID))
    assert (link.ranks, link.factor, link.placed) == ((3,), 3.0, True)
    assert "slow link at rank 3" in str(link)


def test_ranks_of_the_same_groups_cannot_be_told_apart_and_that_is_said():
    one = {"groups": ("0,1,2,3",)}
    link = find_slow_link(trace(**one, links={"0,1,2,3": 2.0}), trace(**one))
    assert (link.ranks, link.placed) == ((0, 1, 2, 3), True)
    assert "one of ranks 0, 1, 2, 3, whose groups are the same" in str(link)


def test_members_written_as_a_range_are_ranks_too():
    slow = trace(groups=("0..2:1",), links={"0..2:1": 2.0})
    assert find_slow_link(slow, trace(groups=("0..2:1",))).ranks == (0, 1, 2)


@pytest.mark.parametrize("slow", [GRID, GRID[:2], ("0,1",)], ids=["all", "an axis", "one group"])
def test_what_is_no_single_ranks_doing_is_blamed_on_none(slow):
    link = find_slow_link(trace(groups=GRID, links=dict.fromkeys(slow, 2.0)), trace(groups=GRID))
    assert not link.placed
    assert link.groups == tuple(sorted(slow))
    assert "no one rank behind it" in str(link)


def test_steps_of_two_programs_are_refused():
    with pytest.raises(ValueError, match="has 3 kernels on rank 0, the simulated one 2"):
        find_stragglers(trace(kernels=3), trace())
    with pytest.raises(ValueError, match="has 0 collectives of group a1 2,3, the simulated one 1"):
        find_slow_link(trace(), trace(groups=GRID))


# -- the ladder ------------------------------------------------------------------------------------
def rungs(cluster, contention=True, faults=None):
    """A fake replay that takes a known time on each rung; rank 2 has 2 s of kernels."""
    if cluster == without_links(PAIRS):
        span = 5.0
    elif cluster == without_latency(PAIRS):
        span = 7.0
    else:
        span = {False: 8.5, True: 9.5}[contention]
        span += 1.5 if faults and faults.stragglers else 0.0
        span += 3.5 if faults and faults.slow_links else 0.0
    assert contention is (cluster == PAIRS and span >= 9.5)
    end = max(e.end for e in step(groups=GRID))
    events = [e._replace(end=span) if e.kind == "step" else e for e in step(groups=GRID)]
    assert end <= span
    return Trace.from_events(events)


def measured(**options):
    events = [e._replace(end=17.0) if e.kind == "step" else e for e in step(groups=GRID, **options)]
    return Trace.from_events(events, {"badge": "emulated", "late": {"seconds": 0.25}})


def test_each_part_is_the_difference_of_two_rungs():
    found = residual(measured(slow=[1], links={"0,1": 3.0, "0,2": 3.0}), PAIRS, rungs)
    even = [part for part in PARTS if part != "imbalance"]
    assert list(found.parts) == even
    assert found.parts == {
        "compute": 2.0,
        "bandwidth wait": 2.0,
        "latency wait": 1.5,
        "bubble": 3.0,
        "contention": 1.0,
        "straggler": 1.5,
        "slow link": 3.5,
        "unexplained": 2.5,
    }
    assert (found.measured, found.simulated, found.late) == (17.0, 9.5, 0.25)
    assert found.verdict.startswith("Rank 1 is a straggler: its kernels take 2.00 times as long; ")
    assert "slow link at rank 0" in found.verdict
    assert "1.5 s of the step (8.8 %) and 3.5 s of the step (20.6 %)" in found.verdict
    assert [row[0] for row in found.to_table()] == [
        "part",
        *even,
        "step, emulated",
        "step, simulated",
        "of unexplained, overrun of the emulation",
    ]


def test_without_a_fault_the_verdict_says_what_dominates():
    found = residual(measured(), PAIRS, rungs, rungs(PAIRS))
    assert (found.stragglers, found.slow_links) == ((), ())
    assert found.verdict == "No rank and no link is slow. Most of the step is unexplained: 44.1 %."
    assert found.verdict in found.describe()


def test_ideal_clusters_keep_all_but_the_links():
    table = replace(PAIRS, table={(1, 4): 1e7}, latencies={(1, 4): 1.0})
    for cluster in (table, BOX, TORUS):
        ideal = without_links(cluster)
        mesh = tv.Mesh({"dp": 2, "tp": 4})
        for axis in mesh.names:
            assert ideal.collective_time("all_reduce", 1e9, 4, ideal.axis_link(mesh, axis)) == 0.0
            bare, link = without_latency(cluster), cluster.axis_link(mesh, axis)
            assert bare.axis_link(mesh, axis) == link._replace(latency=0.0)
        assert ideal.device == cluster.device


# -- with the real simulator -----------------------------------------------------------------------
@pytest.fixture(scope="module")
def programs():
    """Captured once: two axes on 8 ranks, and on 4."""
    workload = tv.GPT(layers=1, hidden=32, heads=4, seq=16, batch=8, vocab=64)
    grids = [(2, 4), (4, 2), (2, 2)]
    strategies = [tv.Megatron(tp=t) * tv.DataParallel(dp=d, bucket_mb=0.02) for t, d in grids]
    return [tv.capture(strategy, workload) for strategy in strategies]


def explain(program, cluster, faults, steps=3):
    """(residual, measured trace) of a simulated "measurement" with faults."""
    again = partial(_replay, program, steps)
    seen = again(cluster, faults=faults)
    return residual(seen, cluster, again), seen


def _replay(program, steps, cluster, contention=True, faults=None):
    return replay(program, cluster, steps, faults or tv.Faults(), contention)


some = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
clusters = st.sampled_from([PAIRS, BOX, TORUS])
factors = st.floats(1.35, 5.0)


@some
@given(
    which=st.integers(0, 2),
    cluster=clusters,
    jitter=st.floats(0, 0.1),
    seed=st.integers(0, 99),
    steps=st.integers(1, 4),
)
def test_no_fault_names_nobody(programs, which, cluster, jitter, seed, steps):
    found, seen = explain(programs[which], cluster, tv.Faults(jitter=jitter, seed=seed), steps)
    assert (found.stragglers, found.slow_links) == ((), ())
    assert sum(found.parts.values()) == pytest.approx(seen.step_time, rel=1e-9)
    if not jitter:
        assert found.parts["unexplained"] == 0.0


@some
@given(
    which=st.integers(0, 2),
    cluster=clusters,
    rank=st.integers(0, 7),
    factor=factors,
    jitter=st.floats(0, 0.05),
)
def test_a_seeded_straggler_is_named(programs, which, cluster, rank, factor, jitter):
    rank %= programs[which].world_size
    faults = tv.Faults(stragglers={rank: factor}, jitter=jitter)
    found, seen = explain(programs[which], cluster, faults)
    [straggler] = found.stragglers
    assert straggler.rank == rank
    assert straggler.factor == pytest.approx(factor, rel=0.05)
    assert found.slow_links == ()
    assert f"Rank {rank} is a straggler" in found.verdict
    assert sum(found.parts.values()) == pytest.approx(seen.step_time, rel=1e-9)
    assert abs(found.parts["unexplained"]) < 0.1 * seen.step_time


@some
@given(which=st.integers(0, 2), cluster=clusters, rank=st.integers(0, 7), factor=factors)
def test_a_seeded_slow_link_is_named(programs, which, cluster, rank, factor):
    rank %= programs[which].world_size
    found, seen = explain(programs[which], cluster, tv.Faults(slow_links={rank: factor}))
    [link] = found.slow_links
    assert (link.ranks, link.placed) == ((rank,), True)
    assert link.factor == pytest.approx(factor, rel=0.05)
    assert found.stragglers == ()
    assert f"slow link at rank {rank}" in found.verdict
    assert sum(found.parts.values()) == pytest.approx(seen.step_time, rel=1e-9)
    assert abs(found.parts["unexplained"]) < 0.05 * seen.step_time


def test_a_straggler_and_a_slow_link_at_once(programs):
    faults = tv.Faults(stragglers={3: 1.6}, slow_links={6: 2.5})
    found, _ = explain(programs[0], PAIRS, faults)
    assert [straggler.rank for straggler in found.stragglers] == [3]
    assert [link.ranks for link in found.slow_links] == [(6,)]
    assert found.parts["unexplained"] == pytest.approx(0.0, abs=0.01 * found.measured)


def test_two_slow_links_are_both_named(programs):
    found, _ = explain(programs[0], BOX, tv.Faults(slow_links={1: 3.0, 6: 1.8}))
    assert {link.ranks for link in found.slow_links} == {(1,), (6,)}


def test_a_slow_links_factor_is_right_where_axes_share_a_bus():
    """There a slow collective meets the other axis for longer: 3.9 looks like 4.6 at first."""
    workload = tv.GPT(layers=2, hidden=64, heads=4, seq=32, batch=8)
    program = tv.capture(tv.Megatron(tp=2) * tv.DataParallel(dp=2, bucket_mb=0.05), workload)
    bus = Cluster("bus", DEVICE, (Level("bus", 4, 3.2e8, 3.2e8),))
    found, _ = explain(program, bus, tv.Faults(slow_links={2: 3.86}))
    assert [(link.ranks, round(link.factor, 1)) for link in found.slow_links] == [((2,), 3.9)]
    assert abs(found.parts["unexplained"]) < 0.02 * found.measured


# -- hot experts -----------------------------------------------------------------------------------
HOT = tv.GPT(hidden=32, heads=4, seq=32, batch=8, vocab=64, layers=2, experts=8)
PRODUCTS = [
    tv.Experts(ep=4),
    tv.Megatron(tp=2) * tv.Experts(ep=2),
    tv.Experts(ep=2) * tv.Pipeline(pp=2, microbatches=2) * tv.DataParallel(dp=2),
    tv.Experts(ep=4) * tv.Context(cp=2),
]


def hot(strategy, seed, faults=None, skew=1.5):
    """The residual of a simulated "measurement" of hot experts, and the rows of each of them."""
    w = replace(HOT, routing=tv.Routing(skew, seed))
    made = tv.compare(strategy, w, PAIRS, run=False)
    made.measured = made.replay(faults=faults)
    return made.residual, w.routing.counts(8, 2, 32)


def experts_of(strategy, rank):
    """The experts of a rank."""
    index, each = tv.Mesh(strategy.axes).coords(rank)["ep"], 8 // strategy.axes["ep"]
    return slice(index * each, (index + 1) * each)


@pytest.mark.parametrize("seed, strategy", [*enumerate([*PRODUCTS, PRODUCTS[0]])])
def test_a_hot_expert_is_named_and_is_no_straggler(seed, strategy):
    found, counts = hot(strategy, seed)
    loads = [counts[experts_of(strategy, rank)] for rank in range(strategy.world_size)]
    sums = [own.sum() for own in loads]
    assert found.hot.ranks == tuple(r for r, own in enumerate(sums) if own == max(sums))
    expert = experts_of(strategy, found.hot.ranks[0]).start + loads[found.hot.ranks[0]].argmax()
    assert (found.hot.expert, found.hot.share) == (expert, counts[expert] / 32)
    assert found.hot.times == pytest.approx(max(sums) / np.mean(sums))
    assert not found.stragglers and not found.slow_links
    assert found.parts["imbalance"] > 0.02 * found.measured
    assert abs(found.parts["unexplained"]) < 1e-9
    assert sum(found.parts.values()) == pytest.approx(found.measured, rel=1e-9)
    assert f"expert {expert}, which {100 * counts[expert] / 32:.0f} % of the" in found.verdict


def test_a_straggler_beside_a_hot_expert_is_told_apart():
    strategy, seed = PRODUCTS[0], 1
    quiet, _ = hot(strategy, seed)
    slow = next(rank for rank in range(4) if rank not in quiet.hot.ranks)
    for rank in (slow, *quiet.hot.ranks):
        found, _ = hot(strategy, seed, tv.Faults(stragglers={rank: 1.7}))
        [straggler] = found.stragglers
        assert (straggler.rank, round(straggler.factor, 2)) == (rank, 1.7)
        assert found.hot == quiet.hot and found.parts["straggler"] > 0
        assert found.parts["imbalance"] == pytest.approx(quiet.parts["imbalance"])
        assert f"Rank {quiet.hot.ranks[0]} has expert" in found.verdict
        assert f"Rank {rank} is a straggler" in found.verdict


@pytest.mark.parametrize("strategy", PRODUCTS[:3], ids=lambda s: s.short)
def test_loads_that_a_router_chose_are_read_from_the_measured_step(strategy):
    """The program captured has even loads; what the measured one had is as if it had been given."""
    told, _ = hot(strategy, 1)
    w = replace(HOT, routing=tv.Routing(1.5, 1))
    program, made = tv.capture(strategy, w), tv.compare(strategy, HOT, PAIRS, run=False)
    made.measured = tv.simulate(strategy, w, PAIRS, capture=program)
    parts = {r: program.traces[own].meta["parts"][own] for r, own in program.model.items()}
    made.measured.meta["parts"] = parts
    found = made.residual
    assert found.hot == told.hot._replace(times=found.hot.times, ranks=found.hot.ranks)
    assert {*found.hot.ranks} <= {*told.hot.ranks} and not found.stragglers
    assert found.parts["imbalance"] == pytest.approx(told.parts["imbalance"], rel=0.02)
    assert abs(found.parts["unexplained"]) < 1e-9 * found.measured
    assert sum(found.parts.values()) == pytest.approx(found.measured, rel=1e-9)


def test_mean_loads_are_the_same_work():
    """Of all ranks together, FLOPs and bytes are those of the program; and even ones have none."""
    w = replace(HOT, routing=tv.Routing(2.0, 3))
    for strategy in PRODUCTS[:3]:
        program = tv.capture(strategy, w)
        even = evened(program, strategy, w)
        for column in ("flops", "bytes"):
            totals = [sum(t[column].sum() for t in p.traces.values()) for p in (program, even)]
            assert totals[0] == pytest.approx(totals[1], rel=1e-3)
        busy = {t["flops"].sum() for t in even.traces.values()}
        assert "pp" in strategy.axes or max(busy) == pytest.approx(min(busy))
        assert evened(program, strategy, replace(w, routing=None)) is None
    found, _ = hot(PRODUCTS[0], 1, skew=0.0)
    assert "imbalance" not in found.parts and found.hot is None
