"""The fast clock gives what the clock to read says: for every strategy, and for any step."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import tpviz as tv
from tpviz.cluster.clock.cost import rates
from tpviz.cluster.clock.fast import Clock
from tpviz.cluster.clock.queues import Transfer
from tpviz.cluster.clock.reference import ReferenceClock
from tpviz.core.step import (
    Chunks,
    Collective,
    Issue,
    Issues,
    Kernel,
    Overlapped,
    Part,
    Repeat,
    Wait,
    interned,
)
from tpviz.schemes.advice import fits
from tpviz.schemes.strategy import step_of

WORKLOAD = tv.GPT(layers=3, hidden=256, heads=8, seq=64, batch=16, vocab=512)
CLUSTERS = [tv.clusters.nvswitch(8), tv.clusters.nvlink_pairs(8)]


def same(fast, slow):
    """The segments of two clocks, but for rounding; an axis without seconds need not be named."""
    assert [(s.phase, s.layer, s.ready) for s in fast] == [
        (s.phase, s.layer, s.ready) for s in slow
    ]
    for one, other in zip(fast, slow):
        assert (one.phase, one.layer, one.ready) == (other.phase, other.layer, other.ready)
        assert one.compute == pytest.approx(other.compute, rel=1e-9, abs=1e-12)
        assert one.latency == pytest.approx(other.latency, rel=1e-9, abs=1e-12)
        for mine, its in ((one.exposed, other.exposed), (one.hidden, other.hidden)):
            for axis in {**mine, **its}:
                assert mine.get(axis, 0.0) == pytest.approx(its.get(axis, 0.0), rel=1e-7, abs=1e-12)


CUTS = [tv.Megatron, tv.ATP, tv.AxoNN, tv.T3]  # a pipeline's step is a schedule's, of such pieces
STRATEGIES = [
    *(s for cls in (*CUTS, tv.DataParallel) for s in cls.space(WORKLOAD, 8) if fits(s, WORKLOAD)),
    *(
        replace(around, inner=inside)
        for around in tv.DataParallel.space(WORKLOAD, 2)
        for cls in (tv.Megatron, tv.T3)
        for inside in cls.space(WORKLOAD, 4)
        if fits(replace(around, inner=inside), WORKLOAD)
    ),
]


@pytest.mark.parametrize("accumulation", [1, 4])
def test_of_every_strategy(accumulation):
    assert len(STRATEGIES) > 80
    for strategy in STRATEGIES:
        strategy = replace(strategy, accumulation=accumulation)
        for cluster in CLUSTERS if fits(strategy, WORKLOAD) else ():
            mesh = tv.Mesh(strategy.axes)
            given_ = rates(cluster, mesh, WORKLOAD.dtype, strategy.parent_axis)
            step = step_of(strategy, WORKLOAD)
            slow = ReferenceClock(*given_).run(step)
            assert slow
            same(Clock(*given_).run(step), slow)


AXES = some.sampled_from(["tp", "dp"])
TIMES = some.integers(0, 5)
MOVES = some.builds(Collective, AXES, some.just("all_reduce"), TIMES, some.just(()))
KERNELS = some.builds(Kernel, TIMES, some.just(0))
OPERATIONS = some.one_of(
    KERNELS,
    MOVES,
    some.builds(Issue, MOVES),
    some.builds(Issues, some.tuples(MOVES, MOVES)),
    some.builds(Wait, AXES, some.integers(0, 2)),
    some.builds(Overlapped, MOVES, KERNELS),
    some.builds(Chunks, KERNELS, MOVES, some.integers(1, 3)),
)
PARTS = some.builds(
    Part, some.just("forward"), some.just("up"), some.lists(OPERATIONS, max_size=4).map(tuple)
)
STEPS = some.lists(
    some.one_of(
        PARTS,
        some.builds(Repeat, some.lists(PARTS, min_size=1, max_size=3), some.integers(1, 40)),
        some.tuples(some.lists(PARTS, min_size=1, max_size=3), some.integers(11, 40)),
    ),
    max_size=5,
)


@settings(max_examples=100)
@given(STEPS, some.sampled_from([1.0, 0.75]))
def test_of_any_step(items, queued):
    step = []
    for item in items:  # blocks that repeat are written out, as those of a model are
        step += item[0] * item[1] if type(item) is tuple else [item]
    for one in (step, interned(step)):
        given_ = (
            lambda kernel: float(kernel.flops),
            lambda move: Transfer(move.axis, float(move.payload), 0.25 * move.payload, queued),
        )
        same(Clock(*given_).run(one), ReferenceClock(*given_).run(one))
