"""Properties that hold for every trace, on traces that Hypothesis makes up."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_samples import differences, traces

import tpviz as tv
from tpviz.core.trace import Trace
from tpviz.core.trace.analyses import (
    breakdown,
    intersect,
    length,
    match_collectives,
    merge,
    overlaps,
)

intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12)


def _covered(pairs):
    """The unit cells that whole-numbered intervals cover: a second way to do the arithmetic."""
    return {cell for start, end in pairs for cell in range(start, end)}


def _merged(pairs):
    return merge([start for start, _ in pairs], [end for _, end in pairs])


@given(intervals, intervals)
def test_interval_arithmetic_agrees_with_counting_cells(a, b):
    assert length(_merged(a)) == len(_covered(a))
    both = intersect(_merged(a), _merged(b))
    assert length(both) == len(_covered(a) & _covered(b))
    assert _covered(zip(*(part.astype(int).tolist() for part in both))) == _covered(a) & _covered(b)
    start, end = _merged(a)
    assert (start[1:] > end[:-1]).all()


@given(traces)
@settings(deadline=None, max_examples=40)
def test_export_and_import_give_the_same_trace(trace):
    with tempfile.TemporaryDirectory() as folder:
        loaded = tv.load_trace(trace.to_chrome(Path(folder) / "t.json"))
    assert differences(loaded, trace) == []


@given(traces)
@settings(deadline=None, max_examples=40)
def test_fractions_are_fractions_and_parts_sum_to_the_span(trace):
    assert all(0 <= fraction <= 1 for fraction in [trace.overlap(), *overlaps(trace).values()])
    for rank, parts in breakdown(trace).items():
        assert sum(parts[1:5]) == pytest.approx(parts.span, abs=1e-9)
        assert -1e-9 <= parts.waiting <= parts.exposed + 1e-9
        assert min(parts) >= -1e-9
        assert -1e-9 <= trace.bubble()[rank] <= 1 + 1e-9


@given(traces)
@settings(deadline=None, max_examples=40)
def test_every_collective_is_in_one_group(trace):
    rows = [row for group in match_collectives(trace) for row in group.tolist()]
    assert sorted(rows) == [i for i, kind in enumerate(trace["kind"]) if kind == "comm"]


@given(traces)
@settings(deadline=None, max_examples=40)
def test_the_critical_path_is_made_of_events_in_order_each_once(trace):
    path = trace.critical_path()
    assert [e.start for e in path] == sorted(e.start for e in path)
    assert len(set(path)) == len(path)
    assert set(path) <= set(trace)
    assert (path != []) == any(kind != "step" for kind in trace["kind"])


@given(traces, traces)
@settings(deadline=None, max_examples=40)
@pytest.mark.filterwarnings("ignore:ranks disagree")  # what is drawn need not agree
def test_merging_keeps_every_event_and_who_waits_for_whom(a, b):
    merged = Trace.merge([a, b])
    assert len(merged) == len(a) + len(b)
    ids = merged["id"].tolist()
    assert len(set(ids)) == len(ids)
    shift = len(a)
    for mine, theirs in zip(list(merged)[shift:], b):
        assert mine.name == theirs.name
        assert mine.waits_for == (theirs.waits_for + shift if theirs.waits_for >= 0 else -1)
