"""Bad input: every error names the file, where it breaks, and what to do."""

import json
import re

import pytest
from trace_samples import straggler

import tpviz as tv
from tpviz.core.trace import Trace


@pytest.fixture
def good(tmp_path):
    return straggler().to_chrome(tmp_path / "good.json")


def _write(tmp_path, text, name="bad.json"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def _message(path, kind=ValueError):
    with pytest.raises(kind, match=re.escape(str(path))) as caught:
        tv.load_trace(path)
    return str(caught.value)


def test_a_truncated_file(tmp_path, good):
    text = good.read_text()
    message = _message(_write(tmp_path, text[: len(text) // 2]))
    assert re.search(r"line 1, column \d+ \(byte \d+\) of \d+ bytes", message)
    assert "cut off" in message
    assert "export it again" in message


@pytest.mark.parametrize("drop", [1, 2, 7, 40])
def test_every_cut_is_called_one(tmp_path, good, drop):
    assert "cut off" in _message(_write(tmp_path, good.read_text()[:-drop]))


def test_a_truncated_or_damaged_gzip_file(tmp_path):
    data = straggler().to_chrome(tmp_path / "good.json.gz").read_bytes()
    assert f"within its {len(data) // 2} bytes" in _message(
        _write(tmp_path, data[: len(data) // 2], "b.json.gz")
    )
    damaged = data[:40] + bytes(8) + data[48:]
    assert "damaged" in _message(_write(tmp_path, damaged, "c.json.gz"))


def test_gzip_is_told_by_its_bytes_not_by_its_name(tmp_path):
    data = straggler().to_chrome(tmp_path / "good.json.gz").read_bytes()
    assert len(tv.load_trace(_write(tmp_path, data, "renamed.json"))) == len(straggler())


def test_wrong_json_in_the_middle(tmp_path):
    message = _message(_write(tmp_path, '{"traceEvents": [\n {"ph": X}\n]}'))
    assert "line 2, column 9 (byte 26)" in message
    assert "the JSON is wrong there" in message


def test_not_json(tmp_path):
    assert "not JSON, it breaks at line 1, column 1" in _message(
        _write(tmp_path, "rank,lane\n0,compute\n")
    )
    assert "byte 3 is not UTF-8" in _message(_write(tmp_path, b"PK\x03\xff\xfe"))
    assert "is empty" in _message(_write(tmp_path, ""))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[1, 2]", "a list"),
        ("3", "a int"),
        ('{"cells": [], "nbformat": 4}', "['cells', 'nbformat']"),
        ('{"traceEvents": 3}', "['traceEvents']"),
    ],
)
def test_json_that_is_no_trace(tmp_path, text, found):
    message = _message(_write(tmp_path, text))
    assert found in message or "not JSON" in message
    assert "trace" in message


def test_a_chrome_trace_without_any_event_that_lasts(tmp_path):
    other = {"traceEvents": [{"ph": "i", "name": "Paint", "ts": 1, "pid": 1, "tid": 1}]}
    assert "no event that lasts" in _message(_write(tmp_path, json.dumps(other)))


def test_another_format_version(tmp_path, good):
    data = json.loads(good.read_text())
    data["tpviz"]["format"] = 99
    message = _message(_write(tmp_path, json.dumps(data)))
    assert "format 99" in message
    assert "reads format 1" in message


def test_a_damaged_event_is_named(tmp_path, good):
    data = json.loads(good.read_text())
    number = next(i for i, e in enumerate(data["traceEvents"]) if e["ph"] == "X")
    del data["traceEvents"][number]["args"]
    assert f"event {number} of traceEvents" in _message(_write(tmp_path, json.dumps(data)))
    data["traceEvents"][number]["args"] = {"start": "soon"}
    message = _message(_write(tmp_path, json.dumps(data)))
    assert f"event {number} of traceEvents is damaged: start is 'soon', not a finite" in message


def test_a_damaged_profile_event_is_named(tmp_path):
    data = {"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1}]}
    assert "event 0 of traceEvents is damaged: it has no 'dur'" in _message(
        _write(tmp_path, json.dumps(data))
    )


def test_a_missing_file_names_its_neighbours(good):
    assert "next to it are good.json" in _message(good.parent / "god.json", FileNotFoundError)


def test_an_empty_folder(tmp_path):
    assert "holds a *.json or *.json.gz file" in _message(tmp_path)


def test_ranks_that_clash(tmp_path, good):
    straggler().to_chrome(good.parent / "again.json")
    assert "again.json and good.json both hold rank 0" in _message(tmp_path)


def test_ranks_of_profiles_that_clash_or_are_missing(tmp_path):
    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm",
        "ts": 1,
        "dur": 1,
        "pid": 0,
        "tid": 7,
        "args": {"stream": 7},
    }
    for name in ("a.json", "b.json"):
        _write(
            tmp_path, json.dumps({"distributedInfo": {"rank": 3}, "traceEvents": [kernel]}), name
        )
    assert "a.json and b.json both hold rank 3" in _message(tmp_path)
    for name in ("a.json", "b.json"):
        _write(tmp_path, json.dumps({"traceEvents": [kernel]}), name)
    with pytest.raises(ValueError, match=r"a.json: names no rank.* name the files"):
        tv.load_trace(tmp_path)


def test_ours_and_a_profile_do_not_mix(tmp_path, good):
    _write(good.parent, '{"traceEvents": []}', "other.json")
    assert "their clocks differ" in _message(tmp_path)


def test_an_empty_trace_round_trips(tmp_path):
    assert len(tv.load_trace(Trace.from_events([]).to_chrome(tmp_path / "t.json"))) == 0


def test_a_byte_order_mark_is_no_damage(tmp_path, good):
    assert len(tv.load_trace(_write(tmp_path, b"\xef\xbb\xbf" + good.read_bytes(), "bom.json")))


@pytest.mark.parametrize(
    "meta", [3, {"memory": 3}, {"memory": {"x": {}}}, {"memory": {"0": 1}}], ids=str
)
def test_damaged_meta(tmp_path, good, meta):
    data = json.loads(good.read_text())
    data["tpviz"]["meta"] = meta
    assert "the meta of the trace is damaged" in _message(_write(tmp_path, json.dumps(data)))


def test_lists_without_end(tmp_path):
    assert "deeper than any trace" in _message(_write(tmp_path, "[" * 100_000))


def test_a_profile_with_times_that_are_none(tmp_path):
    text = '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": NaN, "dur": 1}]}'
    assert "event 0 of traceEvents is damaged" in _message(_write(tmp_path, text))
