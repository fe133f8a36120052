"""The table itself: building, merging, choosing rows, and what it refuses."""

import numpy as np
import pytest

import tpviz as tv
from tpviz.core.trace.columns import COLUMNS


def two_ranks():
    def part(rank):
        series = {"time": [5.0, 6.0], "parameters": [1, 2]}
        events = [
            tv.Event(rank=rank, kind="step", lane="step", step=0, start=5.0, end=6.0 + rank),
            tv.Event(rank=rank, kind="comm", lane="comm/tp", name="all_reduce", start=5.0, end=5.5),
            tv.Event(rank=rank, kind="wait", start=5.2, end=5.5, waits_for=1),
        ]
        return tv.Trace.from_events(events, {"memory": {rank: series}, "overhead": 0.1 * rank})

    return [part(0), part(1)]


def test_merging_starts_the_clock_at_zero_and_keeps_waits_pointing_at_their_collective():
    merged = tv.Trace.merge(two_ranks(), badge="simulated")
    by_id = {e.id: e for e in merged}
    assert len(by_id) == len(merged) == 6
    assert merged["start"].min() == 0
    for wait in merged.select(kind="wait"):
        assert by_id[wait.waits_for].kind == "comm"
        assert by_id[wait.waits_for].rank == wait.rank
    assert merged.meta["memory"][1]["time"] == [0.0, 1.0]
    assert merged.meta["overhead"] == pytest.approx(0.1)
    assert repr(merged) == "<Trace 2 ranks, 6 events, simulated>"


def test_step_time_is_from_the_first_start_to_the_last_end():
    merged = tv.Trace.merge(two_ranks())
    assert merged.steps == [0]
    assert merged.step_time == pytest.approx(2.0)
    assert merged.lanes == ["compute", "comm/tp"]


def test_merging_nothing_is_an_empty_trace():
    empty = tv.Trace.merge([])
    assert len(empty) == 0
    assert empty.step_time == 0
    assert len(empty.ledger()) == 0


def test_select_takes_one_value_or_several():
    merged = tv.Trace.merge(two_ranks())
    assert len(merged.select(rank=0, kind=["comm", "wait"])) == 2
    assert len(merged.where(merged["start"] > 0.1)) == 2


def test_columns_must_be_complete_and_of_one_length():
    columns = {name: np.zeros(1, kind) for name, kind in COLUMNS.items()}
    with pytest.raises(ValueError, match="missing \\['rank'\\]"):
        tv.Trace({n: c for n, c in columns.items() if n != "rank"})
    with pytest.raises(ValueError, match="lengths \\[1, 2\\]"):
        tv.Trace({**columns, "rank": np.zeros(2, int)})


def test_a_trace_merged_from_two_origins_names_both():
    measured, imported = (
        tv.Trace.from_events([tv.Event(rank=r)], {"badge": b} if b else {})
        for r, b in ((0, "this machine, gloo"), (1, None))
    )
    merged = tv.Trace.merge([measured, imported])
    assert merged.meta["badge"] == "this machine, gloo; origin unknown"
    assert tv.Trace.merge([measured, measured]).meta["badge"] == "this machine, gloo"


def test_the_ledger_of_a_rank_or_step_that_is_not_there():
    merged = tv.Trace.merge(two_ranks())
    with pytest.raises(ValueError, match="the trace has no rank 7; it has \\[0, 1\\]"):
        merged.ledger(rank=7)
    with pytest.raises(ValueError, match="the trace has no step 7; it has \\[-1, 0\\]"):
        merged.ledger(step=7)


def test_equal_traffic_is_an_equal_ledger_however_it_is_counted():
    one_by_one = tv.Ledger.of([("dp", "all_reduce", "sync", 1, 10, 6)] * 6)
    assert one_by_one == tv.Ledger.of([("dp", "all_reduce", "sync", 6, 10, 6)])  # 16.66... each
    assert one_by_one.total() == (6, 60, 100)
    other_size = tv.Ledger.of([("dp", "all_reduce", "sync", 6, 10, 2)])
    assert one_by_one.diff(other_size) == [
        "dp/all_reduce/sync: this has 6 x, 60 payload bytes, 100 on the wire, "
        "other has 6 x, 60 payload bytes, 60 on the wire"
    ]
