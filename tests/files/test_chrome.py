"""What the Chrome export says to a viewer, and that reading it back gives the same trace."""

import gzip
import json
import math

import numpy as np
import pytest
from trace_samples import comm, compute, differences, random_trace, straggler, wait

import tpviz as tv
from tpviz.core.trace import Event, Trace

META = {
    "badge": "this machine, gloo",
    "world_size": 2,
    "mesh": {"axes": {"dp": 1, "tp": 2}},
    "losses": [0.1 + 0.2, float("inf")],
    "overhead": 1e-7,
    "memory": {
        0: {"time": [0.0, 1.0], "parameters": [8, 8], "activations": [0, 16]},
        1: {"time": [0.5], "parameters": [8], "activations": [4]},
    },
}


def _written(trace, tmp_path, name="trace.json"):
    return json.loads(trace.to_chrome(tmp_path / name).read_text())["traceEvents"]


def _of(events, phase, **equal):
    return [e for e in events if e["ph"] == phase and all(e.get(k) == v for k, v in equal.items())]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_round_trip(tmp_path, name):
    trace = Trace(straggler().columns, META)
    assert differences(tv.load_trace(trace.to_chrome(tmp_path / name)), trace) == []


def test_floats_and_order_survive(tmp_path):
    rows = [
        Event(
            id=7, rank=3, lane="step", kind="step", name="step 0", step=0, start=1 / 3, end=1e9 / 7
        ),
        comm(
            1,
            0.1,
            0.1 + 0.2,
            phase="sync",
            layer="block.0",
            microbatch=1,
            chunk=2,
            step=3,
            bytes=2**55 + 1,
            wire_bytes=1e15 / 3,
        ),
        compute(0, 5e-324, 1e-300, 'näme "quoted"\n', flops=2**60),
    ]
    trace = Trace.from_events(rows, {"float": 1, "memory": {}})
    assert differences(tv.load_trace(trace.to_chrome(tmp_path / "t.json")), trace) == []


def test_numpy_in_meta_and_nan(tmp_path):
    trace = Trace.from_events(
        [],
        {
            "losses": np.array([1.5, 2.5]),
            "n": np.int64(3),
            "axes": ("dp", "tp"),
            "worst": float("nan"),
        },
    )
    meta = tv.load_trace(trace.to_chrome(tmp_path / "t.json")).meta
    assert math.isnan(meta.pop("worst"))
    assert meta == {"losses": [1.5, 2.5], "n": 3, "axes": ["dp", "tp"]}


def test_the_json_is_strict_and_equal_for_equal_traces(tmp_path):
    trace = Trace(straggler().columns, META)

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    a, b = (trace.to_chrome(tmp_path / name) for name in ("a.json.gz", "b.json.gz"))
    json.loads(gzip.decompress(a.read_bytes()), parse_constant=refuse)
    assert a.read_bytes() == b.read_bytes()


def test_processes_are_ranks_and_threads_are_lanes(tmp_path):
    rows = [*straggler(), Event(id=50, lane="step", kind="step", name="step 0", end=6.0)]
    events = _written(Trace.from_events(rows), tmp_path)
    assert [e["args"]["name"] for e in _of(events, "M", name="process_name")] == [
        "rank 0",
        "rank 1",
    ]
    threads = {e["tid"]: e["args"]["name"] for e in _of(events, "M", name="thread_name", pid=0)}
    assert threads == {0: "step", 1: "compute", 2: "comm/tp"}
    order = {
        e["tid"]: e["args"]["sort_index"] for e in _of(events, "M", name="thread_sort_index", pid=0)
    }
    assert order == {0: 0, 1: 1, 2: 2}
    (collective,) = _of(events, "X", name="all_reduce", pid=1)
    assert (collective["ts"], collective["dur"], collective["tid"]) == (4e6, 1e6, 2)
    assert collective["args"]["members"] == "0,1"


def test_overlapping_events_of_a_lane_get_threads_of_their_own(tmp_path):
    trace = Trace.from_events([comm(0, 0, 2), comm(0, 1, 3, seq=1), comm(0, 2, 4, seq=2)])
    events = _written(trace, tmp_path)
    assert {e["tid"]: e["args"]["name"] for e in _of(events, "M", name="thread_name")} == {
        1: "compute",
        2: "comm/tp",
        3: "comm/tp (2)",
    }
    assert [e["tid"] for e in _of(events, "X")] == [2, 3, 2]


def _nests(slices):
    """Whether slices of one thread lie in each other or apart, as viewers require."""
    open_ends = []
    for start, end in sorted(slices, key=lambda s: (s[0], -s[1])):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if open_ends and open_ends[-1] < end:
            return False
        open_ends.append(end)
    return True


def test_slices_nest_on_every_thread(tmp_path):
    rows = list(random_trace(1, 1e-5))
    ids = [e.id for e in rows if e.kind == "comm" and e.rank == 0][:20]
    late = max(e.end for e in rows)
    rows += [wait(0, late + i, late + i + 0.5, waits_for=source) for i, source in enumerate(ids)]
    rows = [
        e if i < len(rows) - len(ids) else e._replace(id=10_000 + i) for i, e in enumerate(rows)
    ]
    threads = {}
    for e in _of(_written(Trace.from_events(rows), tmp_path), "X"):
        start = round(e["ts"] * 1000)
        threads.setdefault((e["pid"], e["tid"]), []).append((start, start + round(e["dur"] * 1000)))
    assert len(threads) > 3
    assert all(_nests(slices) for slices in threads.values())


def test_arrows_run_from_the_issue_to_the_wait(tmp_path):
    events = _written(straggler(), tmp_path)
    starts, ends = _of(events, "s"), _of(events, "f")
    assert [e["id"] for e in starts] == [e["id"] for e in ends] == [1, 2]
    assert [(e["pid"], e["tid"], e["ts"]) for e in starts] == [(0, 1, 1e6), (1, 1, 4e6)]
    for arrow, collective in zip(ends, ((1e6, 5e6), (4e6, 5e6))):
        assert arrow["bp"] == "e"
        assert arrow["tid"] == 1
        assert collective[0] < arrow["ts"] < collective[1]
    # a viewer needs a slice around each start
    for arrow, issue in zip(starts, _of(events, "X", cat="issue")):
        assert issue["ts"] <= arrow["ts"] < issue["ts"] + issue["dur"]


def test_memory_is_a_counter(tmp_path):
    events = _written(Trace(straggler().columns, META), tmp_path)
    samples = [(e["pid"], e["ts"], e["args"]) for e in _of(events, "C")]
    assert samples == [
        (0, 0.0, {"parameters": 8, "activations": 0}),
        (0, 1e6, {"parameters": 8, "activations": 16}),
        (1, 5e5, {"parameters": 8, "activations": 4}),
    ]


def test_a_folder_of_rank_files_is_one_trace(tmp_path):
    whole = Trace(straggler().columns, META)
    for rank in (0, 1):
        part = Trace(
            whole.select(rank=rank).columns, {**META, "memory": {rank: META["memory"][rank]}}
        )
        part.to_chrome(tmp_path / f"rank{rank}.json.gz")
    loaded = tv.load_trace(tmp_path)
    assert loaded.ranks == [0, 1]
    assert loaded.meta["memory"] == META["memory"]
    assert loaded.bubble() == whole.bubble()


def test_what_cannot_be_written(tmp_path):
    with pytest.raises(ValueError, match=r"named \*.json or \*.json.gz"):
        straggler().to_chrome(tmp_path / "trace.txt")
    with pytest.raises(ValueError, match="not finite"):
        Trace({**straggler().columns, "end": np.full(9, np.nan)}).to_chrome(tmp_path / "t.json")
    with pytest.raises(ValueError, match="holds a set"):
        Trace.from_events([], {"x": {1, 2}}).to_chrome(tmp_path / "t.json")
    assert not list(tmp_path.iterdir())
