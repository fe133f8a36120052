from trace_samples import comm, compute, straggler, wait

from tpviz.core.trace import Trace


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


def test_the_path_prints_as_a_table_whose_times_add_up():
    path = straggler().critical_path()
    assert path.to_table() == [
        ["at", "rank", "lane", "name", "phase", "layer", "time", "gap before"],
        ["0 s", "1", "compute", "mm", "", "", "2 s", "0 s"],
        ["2 s", "1", "compute", "slow", "", "", "2 s", "0 s"],
        ["4 s", "1", "comm/tp", "all_reduce", "", "", "1 s", "0 s"],
        ["5 s", "0", "compute", "after", "", "", "1 s", "0 s"],
    ]
    said, head, *lines = repr(path).splitlines()
    words = "computing 83.3 %, communication 16.7 %."
    assert said == path.describe() == f"Critical path of 4 events on ranks 0, 1 over 6 s: {words}"
    assert head.split()[:3] == ["at", "rank", "lane"] and len(lines) == 4
    assert path._repr_html_().count("<tr>") == 5
    assert isinstance(path, list) and path[0].name == "mm"


def test_gaps_and_overlaps_of_the_path_are_counted_once():
    rows = [compute(0, 1, 3, "a"), compute(0, 4, 6, "b"), comm(0, 5, 8), compute(0, 8, 9, "c")]
    path = Trace.from_events(rows).critical_path()
    assert [event.name for event in path] == ["a", "b", "all_reduce", "c"][-len(path) :]
    assert sum(map(sum, path.spent())) == path[-1].end - path[0].start
    assert "gaps" in path.describe()
    empty = Trace.from_events([]).critical_path()
    assert empty == [] and empty.describe() in repr(empty)


def test_a_long_path_prints_its_beginning_and_its_end():
    path = Trace.from_events([compute(0, i, i + 1, f"k{i}") for i in range(100)]).critical_path()
    assert len(path.to_table()) == 101
    lines = repr(path).splitlines()
    assert len(lines) == 43 and "... 60 more ..." in lines[22]
    assert ("k0" in lines[2], "k99" in lines[-1]) == (True, True)
