"""A timeline of a file: by its path, or dropped onto the view, whose page sends it in pieces."""

import json

import pytest
from synthetic import synthetic_trace

import tpviz as tv
from tpviz.core import limits
from tpviz.views.widgets import dropped


@pytest.fixture
def trace():
    return synthetic_trace(steps=1)


@pytest.fixture
def kineto():
    """The least of a file by torch.profiler."""
    common = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1}
    events = [{**common, "name": "aten::mm", "ts": 10 * i, "dur": 8} for i in range(3)]
    return {"schemaVersion": 1, "distributedInfo": {"rank": 0}, "traceEvents": events}


def drop(view, files, monkeypatch):
    """Do what the page does with {name: bytes}; the numbers of bytes that it was asked for."""
    asked, sent = [], []
    monkeypatch.setattr(view, "send", sent.append)
    view._dropped._send = sent.append
    contents = list(files.values())
    view._heard(view, {"dropped": [[name, len(data)] for name, data in files.items()]}, [])
    while sent:
        number, start, end = want = sent.pop()["want"]
        asked.append(end - start)
        view._heard(view, {"chunk": [number, start + 1, end]}, [b"of an earlier drop"])
        view._heard(view, {"chunk": want}, [memoryview(contents[number][start:end])])
    return asked


def test_a_path_is_opened(trace, kineto, tmp_path):
    path = trace.to_chrome(tmp_path / "run.json.gz")
    assert tv.Timeline(path).scene == tv.Timeline(trace).scene == tv.Timeline(str(path)).scene
    (tmp_path / "kineto.json").write_text(json.dumps(kineto))
    assert tv.Timeline(tmp_path / "kineto.json").scene["badge"] == "imported"
    with pytest.raises(FileNotFoundError, match=r"none.json.*next to it are kineto.json, run"):
        tv.Timeline(tmp_path / "none.json")
    (tmp_path / "cut.json").write_text('{"traceEvents": [')
    with pytest.raises(ValueError, match=r"cut.json: breaks at line 1.*cut off"):
        tv.Timeline(tmp_path / "cut.json")


def test_a_dropped_file_comes_in_pieces(trace, tmp_path, monkeypatch):
    data = trace.to_chrome(tmp_path / "run.json").read_bytes()
    monkeypatch.setattr(dropped, "CHUNK", 5000)
    view = tv.Timeline()
    asked = drop(view, {"run.json": data}, monkeypatch)
    assert len(asked) > 5 and max(asked) == 5000 and sum(asked) == len(data)
    assert view.scene == tv.Timeline(trace).scene


def test_files_of_several_ranks_are_one_trace(kineto, monkeypatch):
    files = {}
    for rank in range(2):
        kineto["distributedInfo"] = {"rank": rank}
        files[f"rank{rank}.json"] = json.dumps(kineto).encode()
    view = tv.Timeline()
    drop(view, files, monkeypatch)
    assert view.scene["ranks"] == [0, 1] and view.error == ""


def test_too_large_or_no_trace_is_said_and_the_picture_stays(trace, monkeypatch):
    view = tv.Timeline(trace)
    before = view.scene
    drop(view, {"odd.json": b'{"traceEvents": 3}'}, monkeypatch)
    assert view.error.startswith("ValueError: odd.json: JSON, but not a trace")
    monkeypatch.setattr(limits, "DROPPED_BYTES", 100)
    assert drop(view, {"big.json": b" " * 101}, monkeypatch) == []
    assert "opens files of any size" in view.error and "101, which is more than" in view.error
    assert "limit of 100: tpviz.limits.DROPPED_BYTES" in view.error
    assert view.scene == before
