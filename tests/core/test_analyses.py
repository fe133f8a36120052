import numpy as np
import pytest
from trace_samples import comm, compute, straggler, wait

from tpviz.core.trace import Event, Trace
from tpviz.core.trace.analyses import (
    breakdown,
    idle_spans,
    intersect,
    length,
    match_collectives,
    merge,
    overlaps,
)


def test_merge_joins_what_touches_and_drops_what_is_empty():
    start, end = merge([5, 0, 1, 3, 9, 2], [6, 2, 3, 4, 9, 2.5])
    assert start.tolist() == [0, 5]
    assert end.tolist() == [4, 6]


def test_intersection_of_interlocking_sets():
    a, b = merge([0, 4, 10], [3, 8, 11]), merge([1, 7, 10], [5, 9, 11])
    assert [part.tolist() for part in intersect(a, b)] == [[1, 4, 7, 10], [3, 5, 8, 11]]
    assert length(intersect(a, b)) == 5
    nothing = merge([], [])
    assert length(intersect(a, nothing)) == length(intersect(nothing, a)) == 0


def test_overlap_is_on_merged_intervals_of_one_rank():
    trace = Trace.from_events(
        [
            compute(0, 0, 2),
            compute(0, 1, 3),  # 0-3 once merged
            comm(0, 2, 4),
            comm(0, 3.5, 6, axis="dp"),  # 2-6 once merged: 1 of 4 covered
            compute(1, 0, 10),
            comm(1, 1, 2),
        ]
    )  # all of 1 covered
    assert trace.overlap(0) == 0.25
    assert trace.overlap(1) == 1.0
    assert trace.overlap() == 2 / 5  # seconds are summed, fractions are not averaged
    assert overlaps(trace) == {0: 0.25, 1: 1.0}
    assert trace.exposed_communication(0) == 3.0
    assert trace.exposed_communication() == 3.0  # of the worst rank


def test_waiting_is_not_computing():
    trace = Trace.from_events([comm(0, 0, 1), wait(0, 0, 1, waits_for=0)])
    assert trace.overlap() == 0.0
    assert trace.exposed_communication() == 1.0


def test_no_communication_and_no_events():
    alone = Trace.from_events([compute(0, 0, 1)])
    assert (alone.overlap(), alone.exposed_communication(), alone.bubble()) == (0.0, 0.0, {0: 0.0})
    empty = Trace.from_events([])
    assert (empty.overlap(), empty.exposed_communication(), empty.bubble()) == (0.0, 0.0, {})
    assert empty.critical_path() == []
    instant = Trace.from_events([compute(0, 1, 1)])
    assert instant.bubble() == {0: 0.0}


def test_unknown_rank_names_those_there_are():
    with pytest.raises(ValueError, match=r"no rank 7; it has \[0, 1\]"):
        straggler().overlap(7)


def test_breakdown_and_bubble_of_a_straggler():
    parts = breakdown(straggler())
    assert parts[0] == (
        6.0,
        2.0,
        0.0,
        4.0,
        0.0,
        3.0,
        0.0,
    )  # 3 of its 4 s of communication wait for rank 1
    assert parts[1] == (6.0, 4.5, 0.0, 1.0, 0.5, 0.0, 0.0)  # the last has nobody to wait for
    assert straggler().bubble() == {0: 3 / 6, 1: 0.5 / 6}


def copying(start, end):
    """A trace of a kernel before and after a copy of host to device, and 1 s of nothing."""
    copy = Event(kind="copy", lane="copy", start=start, end=end)
    return Trace.from_events([compute(0, 0, 1), copy, comm(0, 8.5, 9), compute(0, 9, 10)])


def test_a_copy_is_busy_not_idle():
    trace = copying(1, 8)
    (parts,) = trace.breakdown().values()
    assert parts == (10.0, 2.0, 0.0, 0.5, 0.5, 0.0, 7.0)
    assert trace.idle() == trace.idle(0) == 0.5
    assert trace.bubble() == {0: 0.05}
    beside = copying(0.5, 8.8)  # what a kernel or a collective covers is theirs
    assert beside.breakdown()[0] == (10.0, 2.0, 0.0, 0.5, 0.0, 0.0, 7.5)


def test_the_parts_of_a_step_sum_to_it_and_bubble_shares_the_waiting_with_exposed():
    trace = straggler()
    for rank, parts in trace.breakdown().items():
        assert sum(parts.parts.values()) == pytest.approx(parts.span)
        lost = trace.bubble()[rank] * parts.span
        assert lost == parts.idle + parts.waiting
        assert trace.exposed_communication(rank) == parts.exposed >= parts.waiting
        apart = parts.compute + parts.overlapped + parts.exposed - parts.waiting + lost
        assert apart == pytest.approx(parts.span)  # the wait is counted once
    assert trace.idle() == (0.0 + 0.5) / 2
    assert (trace.idle(0), trace.idle(1)) == (0.0, 0.5)
    with pytest.raises(ValueError, match=r"no rank 7; it has \[0, 1\]"):
        trace.idle(7)
    assert Trace.from_events([]).idle() == 0.0


def test_idle_spans_are_what_idle_counts():
    steps = [
        Event(rank=r, lane="step", kind="step", step=s, start=10 * s, end=10 * s + 4)
        for r in (0, 1)
        for s in (0, 1)
    ]
    trace = Trace.from_events([*steps, compute(0, 1, 3), compute(0, 3.5, 12), comm(1, 0, 1)])
    spans = {rank: list(zip(*map(list, s))) for rank, s in idle_spans(trace).items()}
    assert spans == {0: [(0, 1), (3, 3.5), (12, 14)], 1: [(1, 4), (10, 14)]}
    assert [trace.idle(rank) for rank in (0, 1)] == [3.5, 7.0]
    assert trace.idle() == 5.25


def test_a_breakdown_is_a_table_and_its_words_put_the_largest_part_first():
    found = straggler().breakdown()
    assert found.to_table() == [
        ["rank", "span", "computing", "exposed communication", "of it waiting", "copying",
         "idle", "idle, %"],
        ["0", "6 s", "2 s", "4 s", "3 s", "0 s", "0 s", "0.0"],
        ["1", "6 s", "4.5 s", "1 s", "0 s", "0 s", "500 ms", "8.3"],
        ["mean", "6 s", "3.25 s", "2.5 s", "1.5 s", "0 s", "250 ms", "4.2"],
    ]  # fmt: skip
    assert len(repr(found).splitlines()) == 4
    assert found._repr_html_().count("<tr>") == 4
    assert found[0].describe() == (
        "exposed communication 66.7 % (50.0 % waiting for peers), computing 33.3 %"
    )
    assert found[1].describe() == "computing 75.0 %, exposed communication 16.7 %, idle 8.3 %"
    assert Trace.from_events([]).breakdown().mean.describe() == "no time"


def test_a_pipeline_stage_that_waits_for_its_sender_is_a_bubble():
    trace = Trace.from_events(
        [
            compute(0, 0, 3),
            comm(0, 3, 4, "send", "pp"),
            comm(1, 0, 4, "recv", "pp"),
            wait(1, 0, 4, waits_for=2),
            compute(1, 4, 8),
        ]
    )
    assert trace.bubble() == {0: 4 / 8, 1: 3 / 8}  # 3-4 the message moves


def test_overlapped_waiting_is_no_bubble():
    trace = Trace.from_events([comm(0, 0, 4), compute(0, 1, 3), compute(1, 0, 2), comm(1, 2, 4)])
    assert breakdown(trace)[0].waiting == 1.0  # 0-1; 1-2 is covered by compute


def test_breakdown_looks_at_the_marked_steps_only():
    steps = [
        Event(rank=r, lane="step", kind="step", step=s, start=10 * s + r, end=10 * s + 4 + r)
        for r in (0, 1)
        for s in (0, 1)
    ]
    trace = Trace.from_events([*steps, compute(0, 1, 3), compute(0, 6, 9), compute(0, 12, 20)])
    assert breakdown(trace)[0].span == 10.0  # 0-5 and 10-15, the same for both ranks
    assert breakdown(trace)[0].compute == 5.0
    assert breakdown(trace)[1].idle == 10.0


def _sets(trace):
    return {frozenset(rows.tolist()) for rows in match_collectives(trace)}


def test_collectives_match_by_members_seq_and_name():
    trace = Trace.from_events(
        [
            comm(0, 0, 1, seq=0),
            comm(1, 0, 1, seq=0),
            comm(0, 1, 2, seq=1),
            comm(1, 1, 2, seq=1),
            comm(2, 0, 1, members="2,3", seq=0),
            comm(3, 0, 1, members="2,3", seq=0),
            comm(0, 2, 3, seq=2),
            comm(1, 2, 3, "broadcast", seq=2),
        ]
    )
    assert _sets(trace) == {frozenset(s) for s in ((0, 1), (2, 3), (4, 5), (6,), (7,))}


def test_repeated_and_unnumbered_collectives():
    trace = Trace.from_events(
        [
            comm(0, 0, 1),
            comm(1, 0, 1),
            comm(0, 5, 6),
            comm(1, 5, 6),  # seq starts anew: n-th with n-th
            comm(0, 7, 8, seq=-1),
            comm(1, 7, 8, seq=-1),
            comm(0, 8, 9, members=""),
            comm(1, 8, 9, members=""),
        ]
    )
    assert _sets(trace) == {frozenset(s) for s in ((0, 1), (2, 3), (4,), (5,), (6,), (7,))}


def test_messages_pair_a_send_with_a_recv():
    trace = Trace.from_events(
        [
            comm(0, 0, 1, "send"),
            comm(1, 0, 1, "recv"),
            comm(1, 0, 1, "send", members="1,0"),
            comm(0, 0, 1, "recv", members="1,0"),
            comm(0, 2, 3, "send", seq=1),
            comm(1, 2, 3, "send", seq=1),
        ]
    )  # two senders are no message
    assert _sets(trace) == {frozenset(s) for s in ((0, 1), (2, 3), (4,), (5,))}


MEMORY = {
    "time": [0.0, 1.0, 2.0],
    "parameters": [8, 8, 8],
    "gradients": [0, 4, 8],
    "optimizer": [0, 0, 16],
    "activations": [0, 32, 2],
}


def test_memory_peaks_of_kinds_and_of_the_sum():
    trace = Trace.from_events([compute(0, 0, 1)], {"memory": {0: MEMORY}})
    use = trace.memory()
    assert use.peaks == {"parameters": 8, "gradients": 8, "optimizer": 16, "activations": 32}
    assert (use.peak, use.peak_time) == (44, 1.0)  # less than the sum of the peaks
    assert use.total.tolist() == [8, 44, 34]
    np.testing.assert_array_equal(use.series["gradients"], [0, 4, 8])
    assert repr(use) == (
        "<MemoryUse rank 0: peak 44 bytes at 1.000000 s "
        "(parameters 8, gradients 8, optimizer 16, activations 32)>"
    )


def test_memory_of_the_fullest_rank_and_of_one():
    more = {**MEMORY, "parameters": [100, 100, 100]}
    trace = Trace.from_events([], {"memory": {"0": MEMORY, "1": more}})  # keys as JSON leaves them
    assert trace.memory().rank == 1
    assert trace.memory(0).peak == 44
    with pytest.raises(ValueError, match=r"of rank 3; there are samples of \[0, 1\]"):
        trace.memory(3)
    with pytest.raises(ValueError, match="memory=True"):
        Trace.from_events([]).memory()
