"""Chrome traces of any program, folders of many layouts, and text that is not quite JSON."""

import json
import pickle

import pytest
from kineto_samples import complete

import tpviz as tv

US = 1e-6
KERNEL = complete("kernel", "gemm", 0, 10, stream=7)


def event(name, ts, dur, tid=0, pid=0, **more):
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, **more}


def named(what, name, pid, tid=0):
    return {"ph": "M", "pid": pid, "tid": tid, "name": f"{what}_name", "args": {"name": name}}


def load(tmp_path, data, name="t.json"):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    return tv.load_trace(path)


def rows(trace):
    """(rank, lane, name, start, end) of the events, in microseconds."""
    return [
        (e.rank, e.lane, e.name, round(e.start / US, 3), round(e.end / US, 3))
        for e in trace
        if e.kind != "step"
    ]


BEGIN_AND_END = [
    {"name": "allreduce", "ph": "B", "ts": 6, "pid": 0, "tid": 1},
    {"name": "allreduce", "ph": "E", "ts": 9, "pid": 0, "tid": 1},
]


def test_a_list_with_begins_and_ends(tmp_path):
    alone = {"name": "never ends", "ph": "B", "ts": 8, "pid": 0, "tid": 2}
    trace = load(tmp_path, [event("step", 0, 5), *BEGIN_AND_END, alone])
    assert rows(trace) == [(0, "compute", "step", 0, 5), (0, "comm/unknown", "all_reduce", 6, 9)]
    assert trace.exposed_communication() == pytest.approx(3 * US)
    assert "1 events that begin or end only: left out" in trace.meta["notes"]
    assert tv.Timeline(trace).to_svg()


def test_a_list_that_is_not_closed(tmp_path):
    text = json.dumps([event("a", 0, 5), event("b", 5, 5)])[:-1].encode() + b",\n"
    trace = load(tmp_path, text)
    assert len(trace) == 2
    assert "t.json: the list of events is not closed: the end may be missing" in trace.meta["notes"]


def test_a_profile_by_jax(tmp_path):
    nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    events = [
        named("process", "/device:GPU:0", 1),
        named("thread", "Stream #13(Compute)", 1, 13),
        named("thread", "XLA Modules", 1, 2),
        named("thread", "Steps", 1, 3),
        named("process", "/host:CPU", 7),
        event("loop_fusion", 0, 5, 13, 1, args={"hlo_op": "fusion.1"}),
        event(nccl, 5, 5, 14, 1),
        event("jit_step(12)", 0, 10, 2, 1),
        event("12", 0, 10, 3, 1),
        event("python", 0, 100, 1, 7),
    ]
    trace = load(tmp_path, {"displayTimeUnit": "ns", "traceEvents": events})
    assert rows(trace) == [
        (0, "compute", "loop_fusion", 0, 5),
        (0, "comm/unknown", "all_reduce", 5, 10),
    ]
    assert trace.steps == [12]
    assert trace.exposed_communication() == pytest.approx(5 * US)
    assert "processes taken as ranks: 0 is /device:GPU:0" in trace.meta["notes"]


def test_processes_are_ranks_and_a_thread_does_one_thing_at_a_time(tmp_path):
    events = [
        event("step", 0, 100, 1, 40),
        event("matmul", 10, 20, 1, 40),
        event("all_reduce", 40, 20, 1, 40),
        event("memcpy inside", 45, 5, 1, 40),
        event("step", 0, 50, 1, 30),
    ]
    trace = load(tmp_path, {"traceEvents": events})
    assert rows(trace) == [
        (0, "compute", "step", 0, 50),
        (1, "compute", "step", 0, 10),
        (1, "compute", "matmul", 10, 30),
        (1, "compute", "step", 30, 40),
        (1, "comm/unknown", "all_reduce", 40, 60),
        (1, "compute", "step", 60, 100),
    ]
    assert trace.exposed_communication(1) == pytest.approx(20 * US)  # "step" computes no longer


def test_control_characters_and_other_encodings_are_read_and_said(tmp_path):
    text = json.dumps({"traceEvents": [{**KERNEL, "name": "a?b"}]}).encode()
    trace = load(tmp_path, text.replace(b"?", b"\x01"))
    assert trace["name"].tolist() == ["a\ufffdb"]
    assert "t.json: 1 control characters in texts replaced" in trace.meta["notes"]
    trace = load(tmp_path, text.replace(b"?", b"\xb5"))
    assert trace["name"].tolist() == ["a\ufffdb"]
    assert "1 bytes that are not UTF-8 replaced (the first is" in trace.meta["notes"][0]
    trace = load(tmp_path, text.decode().encode("utf-16"))
    assert (trace["name"].tolist(), trace.meta["notes"]) == (["a?b"], [])


def test_a_flight_recorders_dump_is_named(tmp_path):
    entries = [{"profiling_name": "nccl:all_reduce", "collective_seq_id": 3}]
    dump = {"version": "2.9", "pg_config": {}, "entries": entries}
    with pytest.raises(ValueError, match=r"t\.json: a dump of PyTorch's Flight Recorder.*1 entr"):
        load(tmp_path, dump)
    with pytest.raises(ValueError, match=r"Flight Recorder .*, pickled, and not a trace"):
        load(tmp_path, pickle.dumps(dump))
    with pytest.raises(ValueError, match="a pickle, such as PyTorch's snapshots of memory"):
        load(tmp_path, pickle.dumps({"segments": []}))


def test_folders_of_tensorboard(tmp_path):
    for worker, end in ((9, 20), (100, 30)):
        data = {"traceEvents": [{**KERNEL, "dur": end}]}
        load(tmp_path, data, f"log/host-a_{worker}.1694128201.pt.trace.json")
    trace = tv.load_trace(tmp_path)
    assert [(e.rank, round(e.end / US)) for e in trace] == [(0, 20), (1, 30)]
    assert trace.meta["notes"] == [
        "ranks by the order of the files' names: 0 is host-a_9, 1 is host-a_100"
    ]
    load(tmp_path, {"traceEvents": [KERNEL]}, "log/host-a_9.1694128999.pt.trace.json")
    with pytest.raises(ValueError, match="2 profiles of host-a_9; a folder is one run"):
        tv.load_trace(tmp_path)


def test_ranks_in_the_names_of_folders_and_by_a_pattern(tmp_path):
    for rank in (0, 1):
        load(tmp_path, {"traceEvents": [KERNEL]}, f"a/rank_{rank}/trace.json")
        load(tmp_path, {"traceEvents": [KERNEL]}, f"b/worker{rank}-of2.json")
    assert tv.load_trace(tmp_path / "a").ranks == [0, 1]
    assert tv.load_trace(tmp_path / "b", rank=r"worker(\d+)").ranks == [0, 1]
    for pattern, says in (
        (None, r"names no rank.*load_trace\(path, rank=r'worker"),
        (r"node(\d+)", "'node.*' is not found in 'worker0-of2.json'"),
        (r"worker\d+", "no regular expression with a group for the rank"),
        ("(", "no regular expression with a group"),
        (r"worker\d-(of)", "rank=.*: it is 'of', not a whole number"),
    ):
        with pytest.raises(ValueError, match=says):
            tv.load_trace(tmp_path / "b", rank=pattern)
    with pytest.raises(ValueError, match="both hold rank 2"):
        tv.load_trace(tmp_path / "b", rank=r"of(\d+)")


def test_kinds_of_files_do_not_mix(tmp_path):
    load(tmp_path, {"traceEvents": [KERNEL]}, "rank0.json")
    load(tmp_path, [event("a", 0, 1)], "rank1.json")
    with pytest.raises(ValueError, match=r"rank0\.json is a profile.*rank1\.json is another"):
        tv.load_trace(tmp_path)
