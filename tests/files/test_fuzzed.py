"""Hostile files and calls: a sample of what bench/fuzz_files.py and fuzz_calls.py run in thousands,
and the single cases that a random change does not reach."""

import gzip
import json
import os
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from trace_samples import straggler

import tpviz as tv
from tpviz.core import limits
from tpviz.core.trace import Event, Trace
from tpviz.core.trace.members import members_list
from tpviz.files import files
from tpviz.views.figures.page import page

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import fuzz_calls
import fuzz_files
from fuzzing import Fuzz, raw_kind


@pytest.mark.parametrize(
    ("script", "calls"), [(fuzz_files, 40), (fuzz_calls, 120)], ids=["files", "calls"]
)
@pytest.mark.filterwarnings("ignore")
def test_a_sample_survives(script, calls, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fuzz = Fuzz()
    for _ in zip(range(calls), script.run(fuzz, seed=7)):
        pass
    assert fuzz.tried >= calls
    assert not fuzz.raw
    assert fuzz.outcomes["returned"] and fuzz.outcomes["refused in words"]


def test_the_fuzzers_tell_raw_errors_from_words():
    fuzz = Fuzz(seconds=1)
    fuzz.call("int", int, "x")  # Python's own words
    fuzz.call("loop", lambda: [None for _ in iter(int, 1)])
    fuzz.call("words", tv.GPT, layers=0)
    fuzz.call("signature", tv.GPT, depth=2)
    assert fuzz.failures == 2 and any("hang" in kind for kind in fuzz.raw)
    assert raw_kind(_caught(lambda: [][1])).startswith("IndexError")


def _caught(function):
    try:
        function()
    except Exception as error:
        return error


def _damaged(tmp_path, **changes):
    """A good file of ours with the first collective or the meta changed; its error."""
    path = straggler().to_chrome(tmp_path / "t.json")
    data = json.loads(path.read_text())
    data["tpviz"]["meta"] |= changes.pop("meta", {})
    event = next(e for e in data["traceEvents"] if e.get("cat") == "comm")
    for name, value in changes.items():
        (event if name in ("name", "pid", "cat") else event["args"])[name] = value
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"t\.json: ") as caught:
        tv.load_trace(path)
    return str(caught.value)


@pytest.mark.parametrize(("change", "says"), [
    ({"members": "0..1000000000000:1"}, "members is '0..1000000000000:1', not ranks such as"),
    ({"members": "0..5:0"}, "members is '0..5:0'"),
    ({"pid": 10**9}, "rank is 1000000000, not a whole number from 0 to 131071"),
    ({"pid": -5}, "rank is -5"),
    ({"start": float("nan")}, "start is nan"),
    ({"start": 5.0, "end": 1.0}, "end is 1.0, before its start, 5.0"),
    ({"start": 1e308}, "start is 1e+308"),
    ({"bytes": -5}, "bytes is -5"),
    ({"bytes": 10**30}, "bytes is a number of"),
    ({"cat": "zzz"}, "kind is 'zzz', not one of"),
    ({"meta": {"world_size": "x"}}, "world_size is 'x'"),
    ({"meta": {"mesh": {"axes": {"a": 10**6, "b": 10**6}}}}, "a mesh of at most 131072 ranks"),
    ({"meta": {"memory": {"0": {"time": [0, 1], "zz": [1]}}}}, "memory.0.zz is [1], not as long"),
    ({"meta": {"x": json.loads("[" * 80 + "]" * 80)}}, "at most 64 deep"),
], ids=str)  # fmt: skip
def test_what_a_file_may_not_ask_for(tmp_path, change, says):
    message = _damaged(tmp_path, **change)
    assert says in message
    assert "meta" in change or "event " in message


@pytest.mark.parametrize(
    ("name", "value"),
    [("FILE_BYTES", 1000), ("EVENTS", 3), ("TABLE_BYTES", 100), ("MEMBERS", 1), ("TEXT", 3)],
)
def test_a_limit_is_named_and_can_be_raised(tmp_path, monkeypatch, name, value):
    path = straggler().to_chrome(tmp_path / "t.json.gz")
    monkeypatch.setattr(limits, name, value)
    with pytest.raises(ValueError, match=f"tpviz.limits.{name}"):
        tv.load_trace(path)
    monkeypatch.undo()
    assert len(tv.load_trace(path)) == len(straggler())


def test_a_file_read_in_runs_is_checked_as_a_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BATCH", 2)
    path = straggler().to_chrome(tmp_path / "t.json")
    text, data = path.read_text(), json.loads(path.read_text())
    trace, events = tv.load_trace(path), data["traceEvents"]
    assert len(trace) > 2 * files.BATCH

    texts = [column for column in trace.columns.values() if column.dtype.kind == "U"]
    room = 4 * len(trace) * sum(max(map(len, column.tolist())) for column in texts)
    members = {text: len(members_list(text)) for text in trace["members"].tolist()}
    for name, most in {
        "EVENTS": len(events),
        "FILE_BYTES": len(text),
        "TABLE_BYTES": room,
        "MEMBERS": sum(members.values()),
    }.items():
        monkeypatch.setattr(limits, name, most)
        assert len(tv.load_trace(path)) == len(trace)
        monkeypatch.setattr(limits, name, most - 1)
        with pytest.raises(ValueError, match=f"tpviz.limits.{name}"):
            tv.load_trace(path)
        monkeypatch.setattr(limits, name, most)

    twice = json.dumps(events)
    path.write_text(f'{text[:-1]}, "traceEvents": {twice}}}')  # of equal keys the last one counts
    monkeypatch.undo()
    assert len(tv.load_trace(path)) == len(trace)
    last = max(n for n, event in enumerate(events) if event.get("cat") == "comm")
    events[last]["args"]["bytes"] = -5
    path.write_text(json.dumps(data))
    monkeypatch.setattr(files, "BATCH", 2)
    with pytest.raises(ValueError, match=f"event {last} of traceEvents is damaged: bytes is -5"):
        tv.load_trace(path)


def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "FILE_BYTES", 1 << 20)
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b" " * (4 << 20)))
    with pytest.raises(ValueError, match="more than 1048576 bytes, once decompressed"):
        tv.load_trace(bomb)


def test_a_pipe_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "t.json")
    with pytest.raises(ValueError, match="neither a file nor a folder"):
        tv.load_trace(tmp_path / "t.json")


@pytest.mark.parametrize(
    "value", [None, 3, "x", [1], {"a": 1}, {0: {"time": 3}}, [[]], [{}]], ids=str
)
def test_meta_of_another_shape_never_raises_in_a_view(value, tmp_path):
    meta = dict.fromkeys(
        (
            "badge",
            "world_size",
            "strategy",
            "workload",
            "mesh",
            "ownership",
            "memory",
            "late",
            "losses",
            "overhead",
        ),
        value,
    )
    trace = Trace.from_events(list(straggler()), meta)
    for made in (trace, trace.rebased(), Trace.merge([trace, trace])):
        ElementTree.fromstring(tv.Timeline(made).to_svg())
        assert "<html" in page(made)
        assert repr(made) and made.to_hta(tmp_path / "hta")


def test_ownership_of_another_mesh_is_left_out_of_the_page():
    row = {"name": "w", "shape": [4], "notation": "b[D]", "splits": [{"dim": 0, "axis": "pp"}]}
    meta = {"mesh": {"axes": {"tp": 2}}, "ownership": [row]}
    assert "data-view='mesh'" in page(Trace.from_events(list(straggler()), meta))
    with pytest.raises(ValueError, match="split over 'pp', but the mesh has tp"):
        tv.MeshView(tv.Mesh({"tp": 2}), ownership=[row])


def test_surrogates_and_control_characters_leave_valid_pictures_and_files(tmp_path):
    odd = "a\ud800b\x00\x1b<&'\""
    trace = Trace.from_events(
        [Event(name=odd, phase=odd, layer=odd, end=1.0)],
        {"badge": odd, "strategy": odd, "mesh": {"axes": {"tp": 1}}},
    )
    ElementTree.fromstring(tv.Timeline(trace).to_svg())
    ElementTree.fromstring(tv.MeshView(tv.Mesh({"tp": 2}), title=odd, badge=odd).to_svg())
    cluster = tv.Cluster(odd, tv.clusters.A100_SXM, tv.clusters.nvswitch().levels)
    ElementTree.fromstring(cluster.to_svg())
    page(trace, title=odd).encode()
    text = trace.to_chrome(tmp_path / "t.json").read_text(encoding="utf-8")
    json.dumps(json.loads(text), ensure_ascii=False).encode()
    assert tv.load_trace(tmp_path / "t.json")["name"].tolist() == trace["name"].tolist()


@pytest.mark.parametrize("call", [
    lambda: tv.clusters.nvlink_pairs(10**18), lambda: tv.clusters.frontier(10**15),
    lambda: tv.Mesh({"tp": 10**18}), lambda: tv.GPT(layers=10**40), lambda: tv.GPT(seq=10**5000),
    lambda: tv.Mesh({"tp": 2}).group(0, []), lambda: tv.load_trace("\0"),
    lambda: tv.load_trace("x" * 10000), lambda: Trace.merge("xy"), lambda: Trace({}, 3),
    lambda: Trace.from_events([3]), lambda: straggler().select(x=3),
    lambda: tv.predict(tv.Megatron(tp=3), tv.GPT(seq=10**9, hidden=10**6, heads=10**6),
                       tv.clusters.nvswitch())])  # fmt: skip
def test_calls_beyond_reason_are_refused_in_words(call):
    fuzz = Fuzz(seconds=5)
    fuzz.call("call", call)
    assert not fuzz.raw and fuzz.outcomes["refused in words"] == 1
