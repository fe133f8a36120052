"""What members of a group may say differently, and what is told where they may not."""

import pytest
from trace_samples import comm

import tpviz as tv
from tpviz.core.trace.agreement import MOST, Call, clash, disagreements


def of(*calls, seq=0, **more):
    """A trace in which each rank makes one call: (name, bytes) or (name, bytes, terms)."""
    members = ",".join(map(str, range(len(calls))))
    return [
        comm(rank, 0, 1, name, "world", members, seq, bytes=size, terms="".join(terms), **more)
        for rank, (name, size, *terms) in enumerate(calls)
    ]


AGREE = {
    "alike": [("all_reduce", 8, "sum of float32")] * 3,
    "terms that are not known": [("all_reduce", 8, "sum of float32"), ("all_reduce", 8)],
    "sizes that are not known": [("all_reduce", 8), ("all_reduce", -1)],
    "uneven parts": [("all_to_all", 8), ("all_to_all", 400)],
    "more room than the message takes": [("send", 8), ("recv", 16)],
    "messages in another order": [("send", 8, "float32 (tag 1)"), ("recv", 4, "float32 (tag 2)")],
    "received from anyone": [("recv", 8), ("recv", 4)],
}
CLASH = {
    "sizes": ([("broadcast", 400), ("broadcast", 800)], "broadcast #0: 400 bytes on rank 0, 800"),
    "the third": (
        [("all_gather", 8), ("all_gather", 8), ("all_gather", 9)],
        "all_gather #0: 8 bytes on rank 0, 9 on rank 2",
    ),
    "operations": (
        [("all_reduce", 8), ("barrier", 0)],
        "collective #0: all_reduce on rank 0, barrier on rank 1",
    ),
    "no room": ([("send", 16), ("recv", 8)], "message #0: 16 bytes on rank 0, 8 on rank 1"),
    "terms": (
        [("reduce", 8, "sum of float32 (root 0)"), ("reduce", 8, "sum of float32 (root 1)")],
        "reduce #0: sum of float32 (root 0) on rank 0, sum of float32 (root 1) on rank 1",
    ),
    "terms of all_to_all": (
        [("all_to_all", 8, "float32"), ("all_to_all", 4, "int8")],
        "all_to_all #0: float32 on rank 0, int8 on rank 1",
    ),
}


@pytest.mark.parametrize("case", AGREE)
def test_legal_differences_are_none(case):
    calls = AGREE[case]
    assert disagreements(tv.Trace.from_events(of(*calls))) == []
    one, other = Call(*calls[0]), Call(*calls[-1])
    assert clash(one, other) is None and clash(other, one) is None


@pytest.mark.parametrize("case", CLASH)
def test_what_cannot_be_the_same_is_told_with_both_ranks(case):
    calls, words = CLASH[case]
    [found] = disagreements(tv.Trace.from_events(of(*calls)))
    members = ",".join(map(str, range(len(calls))))
    assert found.startswith(words) and found.endswith(f"(axis world, ranks {members})")


def test_groups_numbers_and_turns_are_kept_apart():
    first, second = of(("all_reduce", 8), ("all_reduce", 8)), of(("all_reduce", 4), ("barrier", 0))
    other = [e._replace(axis="world (group 2)", bytes=4, name="all_reduce") for e in second]
    late = of(("all_reduce", 6), ("all_reduce", 6), seq=1)
    again = of(("all_reduce", 5), ("all_reduce", 5))  # of another run, after a restart
    assert disagreements(tv.Trace.from_events([*first, *other, *late, *again])) == []
    lone = tv.Trace.from_events([first[0], other[1], late[1]])  # a rank that recorded less
    assert disagreements(lone) == []


def test_a_merged_trace_warns_and_its_badge_says_it(tmp_path):
    parts = [
        tv.Trace.from_events(
            [e._replace(seq=seq) for seq in range(MOST + 50) for e in (event,)], {"badge": "here"}
        )
        for event in of(("broadcast", 400), ("broadcast", 800))
    ]
    with pytest.warns(UserWarning, match="ranks disagree about broadcast #0: 400 bytes on rank 0"):
        merged = tv.Trace.merge(parts)
    words = "broadcast #0: 400 bytes on rank 0, 800 on rank 1 (axis world, ranks 0,1)"
    assert merged.badge == f"here; ranks disagree: {words} and {MOST - 1} more"
    assert len(merged) == 2 * (MOST + 50) and len(merged.meta["disagree"]) == MOST
    assert merged.badge in tv.Timeline(merged).to_svg()
    read = tv.load_trace(merged.to_chrome(tmp_path / "t.json"))
    assert read.badge == merged.badge and read["terms"].tolist() == merged["terms"].tolist()
