"""Address maps of T3: those that exist, those that people write, and what is wrong with them."""

import inspect
import sys

import numpy as np
import pytest

from tpviz.evidence.t3_hardware import (
    COLLECTIVES,
    Dma,
    Gemm,
    Local,
    Machine,
    Remote,
    check,
    maps,
    simulate,
)
from tpviz.evidence.t3_hardware.maps import OPS
from tpviz.evidence.t3_hardware.tiling import Tiling

GEMM = Gemm(48, 40, 16, itemsize=8, tile=(8, 8), wavefronts=2)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_known_maps_have_no_faults(collective, ranks):
    assert check(maps(collective, ranks), collective) == []


def test_the_ring_s_map_on_rank_2_of_4():
    assert maps("ring_rs", 4)[2] == [
        (3, Remote(1, "update")),
        (0, Dma(1, "update", 2)),
        (1, Dma(1, "update", 2)),
        (2, Local(2)),
    ]


def changed(rank, position, rule=None, chunk=None):
    """The ring's map of 4 ranks with one entry changed."""
    mine = maps("ring_rs", 4)
    before = mine[rank][position]
    mine[rank][position] = (before[0] if chunk is None else chunk, rule or before[1])
    return mine


@pytest.mark.parametrize(
    "mine, lines",
    [
        (
            changed(0, 1, Dma(3, "update", 3)),
            [
                "rank 0 waits for 3 updates of each element of chunk 2, but 2 come: "
                "it never completes"
            ],
        ),
        (
            changed(0, 3, Local(1)),
            [
                "rank 0 calls complete chunk 0 after 1 update of each element, but 2 come: "
                "too early, 1 "
                "would be left behind"
            ],
        ),
        (
            changed(2, 1, Dma(1, "store", 2)),
            ["rank 2 stores chunk 0 at rank 1, over what else comes there: use op='update'"],
        ),
        (changed(1, 0, Remote(1, "update")), ["rank 1, chunk 2: it is sent to rank 1 itself"]),
        (
            changed(1, 0, Remote(4, "update")),
            ["rank 1, chunk 2: there is no rank 4, they are 0 to 3"],
        ),
        (
            changed(3, 1, chunk=0),
            ["rank 3 has no rule for chunk 1", "rank 3 has 2 rules for chunk 0: give one"],
        ),
        (changed(0, 1, "send"), ["rank 0, chunk 2: 'send' is no rule: use Remote, Dma or Local"]),
        (
            changed(0, 1, Dma(3, "add", 2)),
            ["rank 0, chunk 2: op='add' is neither 'update' nor 'store'"],
        ),
        (
            changed(0, 1, Dma(3, "update", 0)),
            ["rank 0, chunk 2: updates=0 must be a whole number from 1"],
        ),
    ],
)
def test_faults_are_named(mine, lines):
    assert check(mine) == lines


def test_faults_of_the_flow():
    def has(mine, *words):
        assert any(all(w in line for w in words) for line in check(mine)), check(mine)

    has(changed(0, 1, Remote(3)), "rank 0 keeps nothing of chunk 2", "what rank 1 sends")
    has(changed(1, 2, Dma(2, "update", 2)), "chunk 0: ranks 1, 2 wait for each other", "deadlock")
    has(changed(1, 3, Dma(0, "update", 2)), "rank 1 sends chunk 1 away")
    stopped = changed(0, 2, Local(2))
    has(stopped, "chunk 3 ends at rank 0: its owner is rank 3")
    has(stopped, "rank 3, chunk 3: the part of ranks 0, 1, 2 never gets there")
    detour = maps("direct_rs", 4)  # rank 2's part of chunk 1 by way of rank 0: as good
    detour[0][0], detour[2][2] = (1, Dma(1, "update", 2)), (1, Remote(0, "update"))
    detour[1][3] = 1, Local(3)
    assert detour[2] == [(3, Remote(3)), (0, Remote(0)), (1, Remote(0)), (2, Local(4))]
    assert check(detour) == []
    everywhere = [[(c, Local(1)) for c in range(3)] for _ in range(3)]
    has(everywhere, "chunk 0 ends at rank 1")
    has(everywhere, "rank 0, chunk 0: the part of ranks 1, 2 never gets there")


def test_parts_summed_twice_and_sums_where_none_are_meant():
    gather = maps("ring_ag", 3)
    gather[0][0] = 0, Dma(2, "update", 1)
    assert check(gather, "ring_ag") == [
        "rank 0 adds chunk 0 to what is at rank 2: nothing is summed here, use op='store'"
    ]
    crossed = maps("all_to_all", 3)
    crossed[0][0] = 1, Remote(2, "store")
    found = check(crossed, "all_to_all")
    assert "rank 1, chunk 1: the part of rank 0 never gets there" in found
    assert any("rank 2 keeps nothing of chunk 1" in line for line in found)


def tree_maps(ranks, rng):
    """A reduce-scatter along a random tree for each chunk, computed in any order: also right."""
    rows = [[] for _ in range(ranks)]
    for chunk in range(ranks):
        order = [chunk] + [r for r in rng.permutation(ranks).tolist() if r != chunk]
        parent = {r: order[rng.integers(place)] for place, r in enumerate(order) if place}
        children = [sum(p == r for p in parent.values()) for r in range(ranks)]
        for r in range(ranks):
            rule = (
                Local(1 + children[r])
                if r == chunk
                else (
                    Dma(parent[r], "update", 1 + children[r]) if children[r] else Remote(parent[r])
                )
            )
            rows[r].append((chunk, rule))
    return [[row[i] for i in rng.permutation(ranks)] for row in rows]


@pytest.mark.parametrize("seed", range(5))
def test_any_tree_is_a_reduce_scatter(seed):
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(2, 6))
    mine = tree_maps(ranks, rng)
    assert check(mine) == []
    values = rng.integers(-9, 9, (ranks, GEMM.m, GEMM.n)).astype(float)  # sums of these are exact
    done = simulate(GEMM, ranks, Machine(cus=3), mode="full", values=values, maps=mine)
    assert (done.values == values.sum(0)).all()


def mutant(mine, rng):
    """The same with one thing changed."""
    rank, place = rng.integers(len(mine)), rng.integers(len(mine))
    chunk = mine[rank][place][0]
    to, updates, op = int(rng.integers(len(mine))), int(rng.integers(1, 4)), OPS[rng.integers(2)]
    mine[rank][place] = (
        chunk,
        [Remote(to, op), Dma(to, op, updates), Local(updates)][rng.integers(3)],
    )
    return mine


def right(collective, values):
    """What a collective of m x n arrays leaves, in the order of ranks where there are several."""
    if collective == "all_to_all":
        return values
    if collective != "ring_ag":
        return values.sum(0)
    whole, grid = np.empty_like(values[0]), Tiling(GEMM, len(values))
    for tile, chunk in enumerate(grid.chunk_of):
        for place in grid.parts(tile):
            whole[place] = values[chunk][place]
    return np.stack([whole] * len(values))


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_is_let_through_is_right(collective):
    """Of maps with one rule changed those without faults end, with the right numbers; they are few:
    parts of a sum that go by way of memory where the store could go at once."""
    rng, accepted = np.random.default_rng(2), set()
    values = rng.integers(-9, 9, (4, GEMM.m, GEMM.n)).astype(float)
    for _ in range(300):
        before = maps(collective, 4)
        mine = mutant(maps(collective, 4), rng)
        if check(mine, collective):
            with pytest.raises(ValueError, match=f"no {collective}"):
                simulate(GEMM, 4, collective=collective, maps=mine)
            continue
        new = {
            (rank, place, rule)
            for rank, row in enumerate(mine)
            for place, (_, rule) in enumerate(row)
            if rule != before[rank][place][1]
        }
        assert all(type(rule) is Dma and rule.updates == 1 for *_, rule in new)
        if new - accepted:
            accepted |= new
            done = simulate(GEMM, 4, Machine(cus=3), "t3", collective, "full", values, mine)
            assert (done.values == right(collective, values)).all()
    assert (0 < len(accepted) < 8) == COLLECTIVES[collective].sums


def test_all_to_all_awaits_nothing():
    """A part by way of memory is waited for by nobody: as many updates as a buffer has sources
    never come."""
    mine = maps("all_to_all", 3)
    mine[0][0] = 1, Dma(1, "store", 1)
    assert check(mine, "all_to_all") == [
        "rank 0 sends chunk 1 by DMA: nothing is awaited here, parts stay apart: use Remote"
    ]


@pytest.mark.parametrize(
    "mine, line",
    [
        (5, "maps=5 is no list with a map for each rank"),
        ([5, 5], "the map of rank 0 is 5, not a list of (chunk, rule)"),
        ([[(0, Local(2)), 7], []], "rank 0: 7 is not (chunk, rule)"),
        (
            [[(1, Remote(1), 3)], []],
            "rank 0: (1, Remote(to=1, op='update'), 3) is not (chunk, rule)",
        ),
        ([[(1.0, Remote(1))], []], "rank 0: there is no chunk 1.0, they are 0 to 1"),
        ([[([1], Remote(1))], []], "rank 0: there is no chunk [1], they are 0 to 1"),
        ([[(1, Remote(True))], []], "rank 0, chunk 1: there is no rank True, they are 0 to 1"),
        (
            [[(1, Dma(1, "update", True))], []],
            "rank 0, chunk 1: updates=True must be a whole number",
        ),
    ],
)
def test_what_is_no_map(mine, line):
    assert any(found.startswith(line) for found in check(mine)), check(mine)
    with pytest.raises(ValueError, match="these maps are no ring_rs"):
        simulate(GEMM, 2, maps=mine)


def test_numbers_of_numpy_are_numbers():
    mine = [[(np.int64(c), rule) for c, rule in row] for row in maps("ring_rs", 4)]
    assert check(mine) == []


def test_many_ranks_are_no_deep_recursion():
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 40)
    try:
        assert check(maps("ring_rs", 100)) == []
    finally:
        sys.setrecursionlimit(limit)


def test_maps_that_play_refuses():
    with pytest.raises(ValueError, match="maps of 3 ranks for ranks=4"):
        simulate(GEMM, 4, maps=maps("ring_rs", 3))
    turned = [[((3 - c) % 4, rule) for c, rule in row] for row in maps("direct_rs", 4)]
    assert check(turned)
    mixed = tree_maps(4, np.random.default_rng(2))
    with pytest.raises(ValueError, match="differ from rank to rank"):
        simulate(Gemm(64, 32, 16, tile=(8, 8)), 4, maps=mixed)
