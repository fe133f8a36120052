"""Closed forms of collectives, against numbers worked by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpviz.cluster.collectives import ALGORITHMS, choose, cost
from tpviz.core.trace.ledger import wire_bytes

# 1200 bytes. 4 ranks: a share is 300, log2 is 2. 6 ranks: a share is 200, log2 rounds up to 3.
BY_HAND = [
    # a ring reduces in 3 hops of 300 and gathers in 3 more
    ("ring", "all_reduce", 4, 6, 6 * 300),
    ("ring", "all_reduce", 6, 10, 10 * 200),
    # up one tree of 2 levels and down again, each byte passing a port once each way
    ("tree", "all_reduce", 4, 4, 2 * 1200),
    ("tree", "all_reduce", 6, 6, 2 * 1200),
    # all of it is exchanged with the neighbour, then with the one two away
    ("recursive_doubling", "all_reduce", 4, 2, 2 * 1200),
    ("recursive_doubling", "all_reduce", 6, 3, 3 * 1200),
    ("ring", "all_gather", 4, 3, 900),
    ("ring", "reduce_scatter", 6, 5, 1000),
    # 300, then 600
    ("recursive_doubling", "all_gather", 4, 2, 900),
    ("tree", "reduce_scatter", 6, 3, 1000),
    ("ring", "broadcast", 4, 3, 1200),
    ("tree", "broadcast", 4, 2, 1200),
    ("recursive_doubling", "reduce", 4, 2, 2400),
    ("ring", "all_to_all", 4, 3, 900),
    ("tree", "gather", 6, 5, 1000),
    ("tree", "scatter", 4, 3, 900),
    ("ring", "barrier", 6, 6, 0),
    ("tree", "send", 2, 1, 1200),
    ("ring", "recv", 4, 1, 1200),
]


@pytest.mark.parametrize("algorithm, collective, size, hops, volume", BY_HAND)
def test_by_hand(algorithm, collective, size, hops, volume):
    assert cost(algorithm, collective, 1200, size) == (hops, volume)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "collective",
    [
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "reduce",
        "all_to_all",
        "gather",
        "scatter",
        "barrier",
    ],
)
def test_one_rank_moves_nothing(algorithm, collective):
    assert cost(algorithm, collective, 1200, 1) == (0, 0.0)


@given(
    st.integers(0, 10**9),
    st.integers(2, 64),
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]),
)
def test_a_ring_sends_what_the_ledger_calls_wire_bytes(payload, size, collective):
    volume = cost("ring", collective, payload, size)[1]
    assert volume == pytest.approx(wire_bytes(collective, payload, size), rel=1e-12)


@given(st.integers(1, 10**9), st.integers(2, 64))
def test_an_all_reduce_is_a_scatter_and_a_gather_on_a_ring(payload, size):
    halves = [cost("ring", half, payload, size) for half in ("reduce_scatter", "all_gather")]
    hops, volume = cost("ring", "all_reduce", payload, size)
    assert hops == sum(h for h, _ in halves)
    assert volume == pytest.approx(sum(v for _, v in halves), rel=1e-12)


def test_the_fastest_of_nccl_is_chosen_by_size():
    """8 ranks, 10 µs a hop, 1 GB/s: a tree for few bytes, a ring for many."""

    def chosen(payload, collective="all_reduce"):
        return choose("auto", collective, payload, 8, 10e-6, 1e9)

    # 50 kB: tree 60 + 100 = 160 µs; ring 140 + 87.5 = 227.5; doubling, which it has not, 180
    assert chosen(50_000) == (6, 100_000.0)
    # 1 kB: tree 62 µs, ring 142; doubling would be 33
    assert chosen(1000) == (6, 2000.0)
    # 1 MB: ring 140 + 1750 = 1890 µs; tree 2060, doubling 3030
    assert chosen(1_000_000) == (14, 1_750_000.0)
    assert chosen(800, "all_gather") == chosen(800, "reduce_scatter") == (7, 700.0)  # rings alone


def test_what_is_not_known_is_named():
    with pytest.raises(ValueError, match="algorithm='star' is not possible: use 'ring', 'tree'"):
        cost("star", "all_reduce", 8, 2)
    with pytest.raises(ValueError, match="collective 'shuffle' is not known"):
        cost("ring", "shuffle", 8, 2)
