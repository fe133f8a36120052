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


def compared(rank, host, start, *moments, to="1f", **meta):
    trace = of(rank, host, start)
    names = ("time", "ahead", "error")
    offset = {"to": to, "moments": [dict(zip(names, moment)) for moment in moments]}
    return tv.Trace(trace.columns, {**trace.meta, "offsets": {rank: offset}, **meta})


def test_hosts_that_were_compared_have_one_time(tmp_path):
    memory = {2: {"time": [1005.0], "activations": [8]}}
    b = (990.0, 980.0, 2e-4), (1010.0, 980.2, 8e-4)
    parts = [of(0, A, 25.0), of(1, A, 24.0), compared(2, B, 1004.0, *b, memory=memory)]
    for part in parts:
        part.to_chrome(tmp_path / f"rank{part.ranks[0]}.json")
    for merged in (tv.Trace.merge(parts), tv.load_trace(tmp_path)):
        # a clock that runs 1 % fast: its 1004 is 23.86, its 1005 is 24.85
        assert merged.select(rank=2)["start"] == pytest.approx([0.0], abs=1e-9)
        assert merged.select(rank=2)["end"] == pytest.approx([0.99])
        assert merged.select(rank=0)["start"] == pytest.approx([1.14])
        assert merged.fact("memory")[2]["time"] == pytest.approx([0.99])
        assert merged.fact("clocks") == {"2e": 8e-4} and not merged.fact("offsets")
        assert merged.fact("hosts") == {0: A, 1: A, 2: ["b", "1f"]}
        assert merged.badge == "here; 2 hosts, clocks within 0.8 ms"


def test_what_a_line_does_not_know_is_in_the_bound():
    def badge(*moments, start=1000.0):
        return tv.Trace.merge([of(0, A), compared(1, B, start, *moments)]).badge

    bent = (1000.0, 900.0, 1e-4), (1005.0, 900.003, 5e-3), (1010.0, 900.0, 1e-4)
    assert badge(*bent).endswith("clocks within 3.1 ms")
    assert badge((1000.0, 900.0, 1e-4)).endswith("clocks within 1.1 ms")  # an end 1 s later
    assert badge((1000.0, 900.0, 1e-4), start=999.0).endswith("clocks within 1.1 ms")


def test_one_host_stays_on_its_own_clock():
    b = (990.0, 980.0, 2e-4), (1010.0, 980.2, 8e-4)
    merged = tv.Trace.merge([compared(2, B, 1004.0, *b), compared(3, B, 1005.0, *b)])
    assert merged["start"].tolist() == [0.0, 1.0] and merged.badge == "here"
    with pytest.raises(ValueError, match="whose offset nobody measured"):
        tv.Trace.merge([of(0, A), merged])  # it is known no more when it began


def test_hosts_that_were_compared_with_another_clock_are_refused():
    with pytest.raises(ValueError, match=r"ranks 0 \(a\) and 1 \(b\) are on 2 clocks"):
        tv.Trace.merge([of(0, A), compared(1, B, 10.0, (0.0, 1.0, 0.1), to="77")])


@pytest.mark.parametrize(
    ("moments", "words"),
    [
        ([], "the times of one moment or more, in order"),
        ([{"time": 2, "ahead": 0, "error": 0}, {"time": 1, "ahead": 0, "error": 0}], "in order"),
        ([{"time": 2, "ahead": 0}], "a field 'error'"),
    ],
)
def test_a_file_with_damaged_moments_is_refused(tmp_path, moments, words):
    part = compared(1, B, 10.0)
    part.meta["offsets"][1]["moments"] = moments
    path = part.to_chrome(tmp_path / "rank1.json")
    with pytest.raises(ValueError, match=words):
        tv.load_trace(path)
