"""Tensor parallelism equals one process in float64, sends exactly what the formula says, and
refuses what cannot be."""

from dataclasses import replace

import pytest
from tiny import TINY, UNTIED, assert_equal, named

import tpviz as tv

ODD = tv.GPT(layers=1, hidden=10, heads=2, seq=6, batch=3, vocab=34, mlp_ratio=3)
# All sizes of up to 8 ranks: bench/sweep_megatron.py.
CASES = [
    (tv.Megatron(tp=1), TINY),
    *(
        (tv.Megatron(tp=tp, sp=sp), (TINY, UNTIED)[(tp == 4) ^ sp])
        for tp in (2, 4)
        for sp in (False, True)
    ),
    (tv.Megatron(tp=8, sp=True), UNTIED),
    (tv.Megatron(tp=2, sp=True), ODD),
    (tv.Megatron(tp=2, chunks=2), TINY),
    (tv.Megatron(tp=4, chunks=4), UNTIED),
    (tv.Megatron(tp=2, chunks=4) * tv.DataParallel(dp=2, zero=2, bucket_mb=0.02), TINY),
]


@pytest.mark.parametrize("strategy, workload", CASES, ids=named)
def test_equals_one_process(strategy, workload):
    assert_equal(strategy, workload, among=CASES)


def test_chunks_are_counted_and_labelled():
    w = tv.GPT(layers=2, hidden=64, heads=4, seq=32, batch=4, vocab=256)
    plain, cut = tv.Megatron(tp=4).ledger(w), tv.Megatron(tp=4, chunks=4).ledger(w)
    # four sums in four parts each, the embedding's in one
    assert cut.total(collective="all_reduce", phase="forward")[0] == 17
    assert plain.total()[1:] == cut.total()[1:]
    assert plain.total(phase="backward") == cut.total(phase="backward")
    trace = tv.capture(tv.Megatron(tp=4, chunks=4), w).trace(0)
    down = trace.select(kind="comm", layer="blocks.0.mlp.down", phase="forward")
    assert down["chunk"].tolist() == [0, 1, 2, 3]
    assert down["bytes"].tolist() == [32 * 64 * 4] * 4


def test_ledger_by_hand():
    w = tv.GPT(layers=2, hidden=64, heads=4, seq=32, batch=4, vocab=256)
    plain, sp = tv.Megatron(tp=4).ledger(w), tv.Megatron(tp=4, sp=True).ledger(w)
    activation = 4 * 32 * 64 * 4
    assert activation == 32768
    # attention and MLP of two blocks, and the embedding or the head: five each way
    assert plain.total(collective="all_reduce", phase="forward")[:2] == (5, 5 * activation)
    assert plain.total(collective="all_reduce", phase="backward")[:2] == (5, 5 * activation)
    # the loss: 2 numbers of 4 bytes, 128 tokens, 4 ranks
    assert plain.total(collective="all_gather") == (1, 4096, 3072)
    assert plain.total() == (11, 331776, 494592)
    # a reduce-scatter and an all-gather send what an all-reduce sends; backward gathers once more
    rings = sp.total(phase="forward")[2] - 3072
    assert rings == plain.total(phase="forward")[2] - 3072
    more = sp.total(phase="backward")[2] - plain.total(phase="backward")[2]
    assert more == 5 * activation * 3 / 4
    assert sp.total(phase="sync")[:2] == (1, (32 + 6 * 2 + 2) * 64 * 4)


def test_one_rank_sends_nothing():
    assert len(tv.Megatron(tp=1, sp=True).ledger(TINY)) == 0


@pytest.mark.parametrize(
    "strategy, change, message",
    [
        (tv.Megatron(tp=3), {}, "heads=8 does not split evenly over tp=3: use tp=2 or 4"),
        (tv.Megatron(tp=16), {}, "heads=8 does not split evenly over tp=16: use tp=8, or heads=16"),
        (
            tv.Megatron(tp=4),
            {"vocab": 30},
            "vocab=30 does not split evenly over tp=4: use tp=2, or vocab=28 or 32",
        ),
        (
            tv.Megatron(tp=8, sp=True),
            {"seq": 12},
            "seq=12 does not split evenly over tp=8: use tp=4, or seq=8 or 16",
        ),
        (
            tv.Megatron(tp=2, chunks=3),
            {},
            "batch=8 does not split evenly over chunks=3: use chunks=2 or 4, or batch=6 or 9",
        ),
        (
            tv.Megatron(tp=2, chunks=2, sp=True),
            {},
            "sp=True and chunks=2 are not possible together: use chunks=1, or sp=False",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_named(strategy, change, message):
    workload = replace(TINY, **change)
    for ask in (
        strategy.check,
        strategy.ledger,
        lambda w: tv.run(strategy, w),
        lambda w: tv.verify(strategy, w),
    ):
        with pytest.raises(ValueError) as error:
            ask(workload)
        assert str(error.value) == message


def test_ownership_names_what_a_rank_holds():
    from tpviz.schemes.ownership import local_shapes, ownership

    rows = {row["name"]: row for row in ownership(tv.Megatron(tp=4), TINY)}
    assert {n: tuple(r["shape"]) for n, r in rows.items()} == TINY.parameter_shapes()
    assert rows["blocks.0.mlp.down.weight"]["splits"] == [{"dim": 1, "axis": "tp"}]
    notation = {n.removeprefix("blocks.1."): r["notation"] for n, r in rows.items()}
    assert notation["mlp.down.weight"] == "W[D, F_tp]" and notation["mlp.up.weight"] == "W[F_tp, D]"
    assert notation["attention.qkv.bias"] == "b[3D_tp]" and notation["norm1.weight"] == "b[D]"
    assert notation["embed.token.weight"] == "W[V_tp, D]"
    assert notation["embed.position.weight"] == "W[S, D]"
    held = local_shapes(tv.Megatron(tp=4), TINY)
    assert held["blocks.0.attention.qkv.weight"] == (12, 16)
    assert held["blocks.0.attention.out.weight"] == (16, 4)
    assert held["embed.token.weight"] == (8, 16) and held["norm.bias"] == (16,)
