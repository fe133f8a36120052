"""Microbatches in flight, counted in traces of real ranks: those of the schedules and of their
closed forms."""

from dataclasses import replace

import pytest
from together import together

import tpviz as tv
from tpviz.core.schedules import SCHEDULES, timeline
from tpviz.core.schedules.formulas import in_flight as by_formula
from tpviz.core.schedules.measured import in_flight, peaks_in_flight
from tpviz.core.trace import Event, Trace

W = tv.GPT(layers=8, hidden=16, heads=4, seq=8, batch=8, vocab=32)
STRATEGIES = [
    *(tv.Merak(microbatches=8, schedule=name, pp=4) for name in SCHEDULES),
    tv.Merak(microbatches=8, schedule="shifted_critical_path", pp=2, tp=2, subpipeline=2),
    tv.Merak(microbatches=8, schedule="zb_v", pp=2, tp=2, subpipeline=1, recompute="none"),
]


def workload(strategy):
    return replace(W, batch=8 * max(1, strategy.subpipeline))


@pytest.fixture(scope="module")
def traces():
    """{strategy: a recorded step}."""
    return together(
        lambda s: tv.run(s, workload(s), steps=1, warmup=0, memory=False, progress=False),
        STRATEGIES,
    )


@pytest.mark.parametrize("s", STRATEGIES, ids=lambda s: s.short)
def test_real_ranks_hold_as_many_as_the_schedule_says(s, traces):
    w, trace = workload(s), traces[s]

    def stage(layer):
        return s.stage_of(layer, w)

    assert peaks_in_flight(trace, stage) == timeline(s.schedule_of(w)).peak_in_flight
    assert peaks_in_flight(trace, stage) == by_formula(s.schedule, s.pp, 8)
    for rank in range(s.world_size):
        times, counts = zip(*in_flight(trace, rank, stage))
        assert list(times) == sorted(set(times)) and counts[-1] == 0 <= min(counts)


def events(*bars):
    """(start, end, phase, microbatch, layer) on rank 0."""
    return [
        Event(kind="compute", phase=phase, microbatch=m, layer=layer, start=start, end=end)
        for start, end, phase, m, layer in bars
    ]


def test_counted_by_hand():
    """A microbatch that ends when another begins, kernels in two, recomputation between."""
    trace = Trace.from_events(
        events(
            (0, 1, "forward", 0, "a"),
            (1, 2, "forward", 0, "a"),
            (2, 3, "forward", 1, "a"),
            (3, 4, "recompute", 0, "a"),
            (4, 5, "backward", 0, "a"),
            (5, 6, "forward", 2, "a"),
            (6, 7, "backward", 1, "a"),
            (7, 8, "backward", 2, "a"),
            (8, 9, "backward", 1, "a"),
        ),
        {"mesh": {"axes": {"pp": 1}}},
    )
    assert in_flight(trace) == [(0, 1), (2, 2), (5, 2), (8, 1), (9, 0)]
    assert peaks_in_flight(trace) == (2,)


def test_stages_of_one_rank_are_counted_each():
    both = Trace.from_events(
        events(
            (0, 1, "forward", 0, "x"),
            (1, 2, "forward", 0, "yy"),
            (2, 3, "backward", 0, "yy"),
            (3, 4, "backward", 0, "x"),
            (4, 9, "backward", 0, ""),
        )
    )
    assert in_flight(both, stage_of=len) == [(0, 1), (1, 2), (3, 1), (4, 0)]


@pytest.mark.parametrize(
    "bars, meta, message",
    [
        (
            [(0, 1, "forward", -1, "a")],
            {"pp": 1},
            "rank 0 .* no kernels labelled with a microbatch",
        ),
        ([(0, 1, "forward", 3, "a")], {"pp": 1}, "forward or backward alone of microbatch 3"),
        ([(0, 1, "forward", 3, "a")], {"tp": 1}, "no axis pp but tp"),
    ],
)
def test_what_cannot_be_counted(bars, meta, message):
    with pytest.raises(ValueError, match=message):
        peaks_in_flight(Trace.from_events(events(*bars), {"mesh": {"axes": meta}}))
