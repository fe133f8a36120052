"""T3 on real ranks: the numbers of one process, the sums' bits, what is sent when, what is refused.

`bench/sweep_t3.py` goes over every combination.
"""

from dataclasses import replace

import pytest
import torch
from tiny import TINY, UNTIED, assert_equal

import tpviz as tv
from tpviz.schemes.t3.tiles import bands, cut, gathering_order, order, sizes
from tpviz.schemes.t3.tracker import Tracker

ODD = tv.GPT(layers=1, hidden=20, heads=4, seq=6, batch=3, vocab=34, mlp_ratio=3)


@pytest.mark.parametrize(
    "workload, knobs",
    [
        (TINY, {"tp": 2, "tile": 3}),
        (ODD, {"tp": 2, "tile": (2, 7), "gather": "consumer"}),
        (UNTIED, {"tp": 4, "tile": (3, 5)}),
        (TINY, {"tp": 4, "mode": "chunk"}),
        (UNTIED, {"tp": 4, "mode": "chunk", "gather": "consumer"}),
        (TINY, {"tp": 4, "mode": "sequential"}),
        (TINY, {"tp": 2, "mode": "sequential", "gather": "consumer"}),
        (TINY, {"tp": 8, "tile": 3, "gather": "consumer"}),
        (TINY, {"tp": 1, "gather": "consumer"}),
    ],
    ids=str,
)
def test_equals_one_process(workload, knobs):
    assert_equal(tv.T3(**knobs), workload)


def test_data_parallelism_around_it():
    assert_equal(tv.T3(tp=2, tile=3) * tv.DataParallel(dp=2, zero=2, bucket_mb=0.02), TINY)
    assert_equal(tv.T3(tp=2, mode="chunk", gather="consumer") * tv.DataParallel(dp=2), TINY)


@pytest.mark.parametrize("dtype, close", [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_other_dtypes_train_alike(dtype, close):
    w = replace(TINY, dtype=dtype)
    trace = tv.run(tv.T3(tp=4, tile=3), w, steps=2, memory=False, progress=False)
    from tpviz.verbs.run import train_reference

    expected = train_reference(replace(w, dtype="float64"), 3)
    assert trace.meta["losses"] == pytest.approx(expected, rel=close)


# -- bits ------------------------------------------------------------------------------------------
def factors(rank, size, rows, dtype):
    """The (tokens, k) and (k, h) of a rank."""
    generator = torch.Generator().manual_seed(rank)
    a, b = torch.randn(size * rows, 9, generator=generator), torch.randn(9, 11, generator=generator)
    return a.to(dtype), b.to(dtype)


def fused(rows, tiles, dtype, delay):
    """On a rank: its part of the sum, and what it gathers of the parts of all."""
    from time import sleep

    from tpviz.schemes.t3.program import ring_of

    strategy = tv.T3(tp=torch.distributed.get_world_size(), **tiles)
    ring = ring_of(strategy, tv.Mesh(strategy.axes).device_mesh())
    a, b = factors(ring.rank, ring.size, rows, dtype)
    sleep(delay * ring.rank)
    own = ring.reduce_scatter(a, b)
    whole = torch.full((ring.size * rows, 11), float("nan"), dtype=dtype)
    for place, piece in ring.gathered(own):
        whole[place] = piece
    return own, whole


def in_ring_order(rows, tiles, size, dtype, turn=lambda chunk, size: chunk):
    """The same in one process: partial products by tile, summed from rank c-1 down to rank c."""
    parts, found = [factors(rank, size, rows, dtype) for rank in range(size)], []
    for chunk in range(size):
        out = torch.empty(rows, 11, dtype=dtype)
        for down, across in tv.T3(tp=size, **tiles).tiles(rows, 11):
            total = None
            for step in range(size):
                a, b = parts[(turn(chunk, size) - 1 - step) % size]
                product = a[chunk * rows : (chunk + 1) * rows][down] @ b[:, across]
                total = product if total is None else total + product
            out[down, across] = total
        found.append(out)
    return torch.cat(found)


@pytest.mark.parametrize(
    "size, dtype, tiles",
    [
        (4, torch.float32, {"tile": 3}),
        (4, torch.bfloat16, {"tile": (3, 4)}),
        (2, torch.float64, {"mode": "chunk"}),
        (8, torch.float32, {"mode": "chunk"}),
    ],
    ids=str,
)
def test_the_sum_has_the_bits_of_the_ring_s_order(size, dtype, tiles):
    rows = 7
    ranks = tv.launch(
        fused, rows, tiles, dtype, 0.02 * (size == 4), world_size=size, progress=False
    )
    expected = in_ring_order(rows, tiles, size, dtype)
    assert torch.equal(torch.cat([own for own, _ in ranks]), expected)
    assert all(torch.equal(whole, expected) for _, whole in ranks)
    if size > 2:  # and only that order's
        assert not torch.equal(
            in_ring_order(rows, tiles, size, dtype, lambda chunk, n: chunk + 1), expected
        )


def held(rows, tiles):
    """On a rank: the most pieces of a gather that are in memory when one of them is given."""
    from weakref import ref

    from tpviz.schemes.t3.program import ring_of

    strategy = tv.T3(tp=torch.distributed.get_world_size(), **tiles)
    ring, given, most = ring_of(strategy, tv.Mesh(strategy.axes).device_mesh()), [], 0
    for _, piece in ring.gathered(torch.ones(rows, 11)):
        given.append(ref(piece))
        most = max(most, sum(known() is not None for known in given))
    return len(given), most


def test_a_gather_holds_no_more_than_it_sends():
    """Three pieces a chunk, eight ranks; of what was given only what is on its way is kept. (gloo
    may hold a tensor a moment longer.)"""
    for pieces, most in tv.launch(held, 6, {"tile": 2}, world_size=8, progress=False):
        assert pieces == 24 and most <= 2 * 3


# -- order and tracker -----------------------------------------------------------------------------
@pytest.mark.parametrize("size", range(1, 9))
def test_what_a_rank_receives_it_computes_next(size):
    for rank in range(size):
        mine, above = order(rank, size), order((rank + 1) % size, size)
        assert mine[1:] == above[:-1] and mine[-1] == rank
        assert sorted(mine) == list(range(size))
        gathered, above = gathering_order(rank, size), gathering_order((rank + 1) % size, size)
        assert gathered[1:] == above[:-1] and gathered[0] == rank


def test_tiles_cover_a_chunk_once():
    tiles = cut(10, 7, 4, 3)
    seen = torch.zeros(10, 7, dtype=torch.int)
    for tile in tiles:
        seen[tile] += 1
    assert (seen == 1).all() and sizes(tiles)[-1] == (2, 1) and len(tiles) == 9
    assert bands(tiles) == [slice(0, 4), slice(4, 8), slice(8, 10)]
    assert tv.T3(tile=50).tiles(10, 7) == cut(10, 7, 10) == tv.T3(mode="chunk").tiles(10, 7)
    assert sizes(tv.T3().tiles(10, 7)) == [(3, 7)] * 3 + [(1, 7)]


def test_the_tracker_counts_and_fires_once():
    for first, second in ((1.0, 2.0), (2.0, 1.0)):
        tracker, fired = Tracker(), []
        tracker.map_tile("a", 2, fired.append)
        tracker.map_tile("b", 1, fired.append)
        tracker.update("a", torch.tensor(first))
        assert len(tracker) == 1 and not fired
        tracker.update("b", torch.tensor(5.0))
        with pytest.raises(RuntimeError, match="never had all of their updates: \\['a'\\]"):
            tracker.finish()
        tracker.update("a", torch.tensor(second))
        assert fired == [5.0, 3.0] and len(tracker) == 0
        tracker.finish()
        for tile in "ac":
            with pytest.raises(RuntimeError, match=f"tile '{tile}' is not mapped"):
                tracker.update(tile, torch.tensor(1.0))


# -- what a rank sends -----------------------------------------------------------------------------
W = tv.GPT(layers=2, hidden=64, heads=4, seq=32, batch=4, vocab=256)
ACTIVATION = 4 * 32 * 64 * 4


def test_ledger_by_hand():
    found = tv.T3(tp=4, tile=12).ledger(W)  # chunks of 32 rows: 12, 12 and 8
    assert found.total(collective="send", phase="forward") == (
        4 * 3 * 3,
        4 * 3 * ACTIVATION // 4,
        4 * 3 * ACTIVATION // 4,
    )
    assert found.total(collective="recv", phase="backward")[:2] == (
        5 * 3 * 3,
        5 * 3 * ACTIVATION // 4,
    )
    assert found.total(collective="all_gather", phase="backward")[:2] == (5, 5 * ACTIVATION)
    assert found.total(collective="all_reduce")[:2] == (1, ACTIVATION)  # the embedding
    # a reduce-scatter and an all-gather send what an all-reduce sends, in all modes
    wire = tv.Megatron(tp=4).ledger(W).total()[2]
    for mode in ("tile", "chunk", "sequential"):
        assert tv.T3(tp=4, mode=mode).ledger(W).total()[2] == wire
        assert (
            tv.T3(tp=4, mode=mode, gather="consumer").ledger(W).total()[2]
            == (tv.Megatron(tp=4, sp=True).ledger(W).total()[2])
        )


def test_one_rank_sends_nothing():
    assert len(tv.T3(tp=1).ledger(TINY)) == len(tv.T3(tp=1, gather="consumer").ledger(TINY)) == 0


def test_tiles_are_computed_awaited_and_sent_on_in_turn():
    strategy = tv.T3(tp=4, tile=16)
    program = tv.capture(strategy, W)
    for rank in (0, 2):
        trace = program.trace(rank).select(layer="blocks.0.mlp.down", phase="forward")
        gemms = trace.select(kind="compute")
        assert gemms["chunk"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        sent, got = trace.select(name="send"), trace.select(name="recv")
        assert sent["chunk"].tolist() == got["chunk"].tolist() == [0, 0, 1, 1, 2, 2]
        assert set(sent["members"]) == {f"{rank},{(rank - 1) % 4}"}
        assert set(got["members"]) == {f"{(rank + 1) % 4},{rank}"}
        # the GEMM of a tile comes before the wait for its partial sum, the trigger after it
        # and what was sent a chunk before is then waited for
        names = [e.name for e in sorted(trace, key=lambda e: e.start) if e.name != "recv"]
        tile = ["mm", "wait recv"]
        assert names == ["mm", "send"] * 2 + (tile + ["send", "wait send"]) * 4 + tile * 2 + (
            ["wait send"] * 2 + ["all_gather", "wait all_gather"]
        )


# -- bad input -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "strategy, change, message",
    [
        (tv.T3(tp=3), {}, "heads=8 does not split evenly over tp=3: use tp=2 or 4"),
        (
            tv.T3(tp=8),
            {"batch": 3, "seq": 9},
            "batch*seq=27 does not split evenly over tp=8: use tp=1, or batch*seq=24 or 48",
        ),
        (
            tv.T3(tp=8, gather="consumer"),
            {"seq": 12},
            "seq=12 does not split evenly over tp=8: use tp=4, or seq=8 or 16",
        ),
        (
            tv.T3(tp=4),
            {"vocab": 30},
            "vocab=30 does not split evenly over tp=4: use tp=2, or vocab=28 or 32",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_named(strategy, change, message):
    workload = replace(TINY, **change)
    for ask in (strategy.check, strategy.ledger, lambda w: tv.run(strategy, w)):
        with pytest.raises(ValueError) as error:
            ask(workload)
        assert str(error.value) == message


@pytest.mark.parametrize(
    "knobs, message",
    [
        ({"mode": "tiles"}, "mode='tiles' is not possible: use 'tile', 'chunk' or 'sequential'"),
        ({"gather": "before"}, "gather='before' is not possible: use 'after' or 'consumer'"),
        ({"tile": -1}, "tile=-1 is too small: the least that works is 0"),
        ({"tile": (4, -2)}, "columns of tile=-2 is too small: the least that works is 0"),
        ({"tile": (4,)}, "tile=(4,) must be rows, or (rows, columns), as in 32 or (32, 64)"),
        ({"tile": 2.5}, "tile must be a whole number, not 2.5"),
        ({"tp": 0}, "tp=0 is too small: the least that works is 1"),
    ],
)
def test_knobs_that_cannot_be_are_named(knobs, message):
    with pytest.raises(ValueError) as error:
        tv.T3(**knobs)
    assert str(error.value) == message


def test_tiles_are_part_of_its_name():
    assert tv.T3(tp=2, tile=[4, 8]).short == "T3(tp=2, tile=(4, 8))"
    assert hash(tv.T3(tile=(4, 8))) == hash(tv.T3(tile=[4, 8]))
    with pytest.raises(ValueError, match="T3"):
        tv.parallelize(torch.nn.Linear(4, 4), tv.T3(tp=2), torch.zeros(2, 4))
