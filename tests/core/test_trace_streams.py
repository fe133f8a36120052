"""Trace files are written and read piece by piece, and it makes no difference to what is read."""

import json
import tracemalloc

import pytest
from trace_samples import compute, differences, random_trace, straggler

import tpviz as tv
from tpviz.core.trace import Trace
from tpviz.files import chrome, files
from tpviz.files.files import TraceFile, as_texts, write_events


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
@pytest.mark.parametrize("indent", [None, 1])
def test_wherever_a_chunk_ends(tmp_path, monkeypatch, chunk, indent):
    trace = Trace(random_trace(3, 1e-3).columns, {"badge": "a }, { b", "n": 12})
    path = trace.to_chrome(tmp_path / "t.json")
    path.write_text(json.dumps(json.loads(path.read_text()), indent=indent), encoding="utf-8")
    monkeypatch.setattr(files, "CHUNK", chunk)
    monkeypatch.setattr(files, "BATCH", 7)
    monkeypatch.setattr(files, "read_json", None)  # the stream needs no second reading
    assert differences(tv.load_trace(path), trace) == []


def test_texts_like_boundaries_of_events_are_texts(tmp_path, monkeypatch):
    rows = [compute(0, i, i + 1, name="a}, {b" * 5) for i in range(200)]
    trace = Trace.from_events(rows)
    monkeypatch.setattr(files, "CHUNK", 512)
    assert differences(tv.load_trace(trace.to_chrome(tmp_path / "t.json.gz")), trace) == []


def test_the_header_may_come_last(tmp_path):
    trace = straggler()
    path = trace.to_chrome(tmp_path / "t.json")
    data = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(data.items()))))
    assert differences(tv.load_trace(path), trace) == []


def test_runs_are_short_and_numbered(tmp_path):
    events = [{"ph": "M", "n": i, "args": {"inside": [{}, {}]}} for i in range(50_000)]
    path = write_events(tmp_path / "t.json.gz", {"a": 1}, as_texts(events))
    read, seen = TraceFile(path), []
    for first, run in read.runs():
        assert first == len(seen)
        assert len(run) <= 2 * files.BATCH
        seen += run
    assert seen == events
    assert read.head == {"a": 1, "traceEvents": []}


def test_reading_and_writing_hold_few_events_at_a_time(tmp_path, monkeypatch):
    for module, name, value in (
        (chrome, "BATCH", 500),
        (files, "BATCH", 500),
        (files, "CHUNK", 1 << 16),
    ):
        monkeypatch.setattr(module, name, value)
    rows = [compute(0, i, i + 1 / 3, name=f"kernel {i % 9}") for i in range(6000)]
    trace, path = Trace.from_events(rows), tmp_path / "t.json"
    tracemalloc.start()
    trace.to_chrome(path)
    writing = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    loaded = tv.load_trace(path)
    reading = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    own = sum(column.nbytes for column in loaded.columns.values())
    # All events as objects take some ten times the size of the file.
    assert max(writing, reading - own) < 3 * path.stat().st_size


def test_nothing_stays_where_writing_fails(tmp_path):
    def texts():
        yield "{}"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_events(tmp_path / "t.json.gz", {}, texts())
    assert not list(tmp_path.iterdir())
    path = write_events(tmp_path / "old.json", {"old": 1}, ())
    with pytest.raises(KeyboardInterrupt):
        write_events(path, {}, texts())
    assert json.loads(path.read_text()) == {"old": 1, "traceEvents": []}
