from trace_samples import comm, compute, straggler, wait

from tpviz.trace import Trace


def names(trace):
    return [f"{e.rank}:{e.name}" for e in trace.critical_path()]


def test_the_path_goes_through_the_straggler():
    assert names(straggler()) == ["1:mm", "1:slow", "1:all_reduce", "0:after"]


def test_the_collective_on_the_path_is_that_of_its_last_member():
    collective = straggler().critical_path()[2]
    assert (collective.start, collective.end) == (4.0, 5.0)


def test_a_wait_for_what_was_done_already_holds_nobody_up():
    trace = Trace.from_events(
        [
            compute(0, 0, 1, "a"),
            comm(0, 1, 2),
            compute(0, 1, 3, "b"),
            wait(0, 3, 3.1, waits_for=1),
            compute(0, 3.1, 4, "c"),
            compute(1, 0, 0.5, "x"),
            comm(1, 0.5, 2),
        ]
    )
    assert names(trace) == ["0:a", "0:b", "0:c"]


def test_an_asynchronous_collective_leads_back_to_where_it_was_issued():
    trace = Trace.from_events(
        [
            compute(0, 0, 1, "a"),
            comm(0, 1, 6),
            compute(0, 1, 2, "b"),
            wait(0, 2, 6, waits_for=1),
            compute(0, 6, 7, "c"),
            compute(1, 0, 0.5, "x"),
            comm(1, 0.5, 6),
        ]
    )
    assert names(trace) == ["0:a", "0:all_reduce", "0:c"]


def test_a_recv_leads_to_its_sender():
    trace = Trace.from_events(
        [
            compute(0, 0, 3, "stage 0"),
            comm(0, 3, 4, "send", "pp"),
            comm(1, 0, 4, "recv", "pp"),
            wait(1, 0, 4, waits_for=2),
            compute(1, 4, 8, "stage 1"),
        ]
    )
    assert names(trace) == ["0:stage 0", "0:send", "1:stage 1"]


def test_the_path_changes_ranks_more_than_once():
    rows = []
    for i, slow in enumerate((1, 0, 1)):  # the rank that is late takes turns
        for rank in (0, 1):
            at = 10.0 * i
            issue = at + (8 if rank == slow else 2)
            rows += [
                compute(rank, at, issue, f"{'slow' if rank == slow else 'fast'} {i}"),
                comm(rank, issue, at + 10, seq=i),
                wait(rank, issue, at + 10, waits_for=len(rows) + 1),
            ]
    assert names(Trace.from_events(rows)) == [
        "1:slow 0",
        "1:all_reduce",
        "0:slow 1",
        "0:all_reduce",
        "1:slow 2",
        "1:all_reduce",
    ]


def test_without_waits_the_last_to_end_comes_before():
    trace = Trace.from_events(
        [
            compute(0, 0, 1, "a"),
            comm(0, 1, 3, members=""),
            compute(0, 1, 2, "b"),
            compute(0, 3, 4, "c"),
        ]
    )
    assert names(trace) == ["0:a", "0:all_reduce", "0:c"]


def test_a_wait_for_something_unknown_stays_on_the_path():
    trace = Trace.from_events(
        [compute(0, 0, 1, "a"), wait(0, 1, 2, waits_for=99), compute(0, 2, 3, "b")]
    )
    assert names(trace) == ["0:a", "0:wait all_reduce", "0:b"]


def test_clocks_that_contradict_each_other_end_the_walk():
    trace = Trace.from_events(
        [
            wait(0, 0, 5, waits_for=1),
            comm(0, 0, 5, seq=0),
            comm(0, 4, 9, seq=1),
            wait(1, 0, 9, waits_for=4),
            comm(1, 1, 9, seq=1),
            comm(1, 8, 9, seq=0),
        ]
    )
    assert len(trace.critical_path()) <= len(trace)
