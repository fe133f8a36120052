"""Events of two clocks are not put on one time line."""

import pytest
from trace_samples import compute

import tpviz as tv


def of(rank, host, start=0.0):
    meta = {"badge": "here", **({"hosts": {rank: host}} if host else {})}
    return tv.Trace.from_events([compute(rank, start, start + 1)], meta)


A, B, ALSO_A, IN_A = ["a", "1f"], ["b", "2e"], ["pod on a", "1f"], ["a", "3d"]


def test_ranks_of_two_hosts_are_refused_by_name(tmp_path):
    words = r"ranks 0,1 \(a\) and 2 \(b\) are on 2 clocks, .* merge the ranks of each host alone"
    parts = [of(0, A), of(1, A), of(2, B, 1000.0)]
    with pytest.raises(ValueError, match=words):
        tv.Trace.merge(parts)
    for part in parts:
        part.to_chrome(tmp_path / f"rank{part.ranks[0]}.json")
    with pytest.raises(ValueError, match=words):
        tv.load_trace(tmp_path)
    with pytest.raises(ValueError, match=words):  # also those that were merged before
        tv.Trace.merge([tv.Trace.merge(parts[:2]), parts[2]])


def test_a_time_namespace_is_a_clock_and_a_container_is_none():
    with pytest.raises(ValueError, match=r"ranks 0 \(a, clock 1f\) and 1 \(a, clock 3d\) are on 2"):
        tv.Trace.merge([of(0, A), of(1, IN_A)])
    merged = tv.Trace.merge([of(0, A), of(1, ALSO_A)])
    assert merged.badge == "here" and merged.fact("hosts") == {0: A, 1: ALSO_A}


def test_hosts_that_are_not_known_are_said_where_others_are():
    assert tv.Trace.merge([of(0, None), of(1, None)]).badge == "here"
    assert tv.Trace.merge([of(0, A), of(1, None)]).badge == "here; host unknown of ranks 1"
