"""Data parallelism at every ZeRO stage, alone and around tensor parallelism, equals one process;
exact ledgers."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from tiny import TINY, UNTIED, assert_as_captured, assert_equal, named
from together import together

import tpviz as tv
from tpviz.schemes.replicas import Replicas
from tpviz.schemes.zero.buckets import fill_buckets

SEVERAL_BUCKETS = 0.02  # megabytes: some 8 buckets of the tiny model in float64


def data(dp, zero):
    return tv.DataParallel(dp=dp, zero=zero, bucket_mb=SEVERAL_BUCKETS)


# All sizes of up to 8 ranks: bench/sweep_megatron.py.
ALONE = [
    (data(dp, zero), (TINY, UNTIED)[zero % 2])
    for dp, zero in ((1, 1), (2, 0), (2, 1), (2, 2), (2, 3), (4, 0), (4, 3), (8, 2))
]
AROUND = [  # tensor parallelism
    *(
        (tv.Megatron(tp=2, sp=zero > 1) * data(2, zero), (UNTIED, TINY)[zero % 2])
        for zero in range(4)
    ),
    (tv.Megatron(tp=2, sp=True) * data(2, 0), TINY),
    (tv.Megatron(tp=4, sp=True) * data(2, 3), TINY),
    (tv.Megatron(tp=2) * data(4, 1), TINY),
]


HYBRID = [  # states shared in groups of ranks, alone and in products
    *((replace(data(4, zero), shard=2), (TINY, UNTIED)[zero % 2]) for zero in (1, 2, 3)),
    *((replace(data(4, zero), shard=2, accumulation=2), TINY) for zero in (1, 2, 3)),
    *((replace(data(8, 3), shard=shard, recompute="full"), TINY) for shard in (2, 4)),
    (tv.Megatron(tp=2, sp=True) * replace(data(4, 2), shard=2), UNTIED),
    (tv.ATP(mesh=(1, 2)) * replace(data(4, 3), shard=2, accumulation=2), TINY),
    (tv.Context(cp=2) * replace(data(4, 3), shard=2), TINY),
    *(
        (tv.Pipeline(pp=2, microbatches=2) * tv.DataParallel(dp=4, zero=zero, shard=2), TINY)
        for zero in (1, 2, 3)
    ),
    ((tv.Megatron(tp=2) * replace(data(4, 1), shard=2)).with_order("shard-tp-replicate"), TINY),
]
D = partial(tv.DataParallel, zero=3)
KEPT = [  # parameters that stay after forward, all or a part
    *((D(4, reshard_after_forward=kept), (TINY, UNTIED)[kept > 0]) for kept in (False, 2)),
    (D(4, reshard_after_forward=False, accumulation=2, recompute="full"), UNTIED),
    (D(4, reshard_after_forward=2, accumulation=2, recompute="selective"), TINY),
    (D(8, reshard_after_forward=4), TINY),
    (D(8, shard=4, reshard_after_forward=2), TINY),
    (D(4, shard=2, reshard_after_forward=False), TINY),
    (tv.Megatron(tp=2, sp=True) * D(4, reshard_after_forward=2), UNTIED),
    (tv.Context(cp=2) * D(4, reshard_after_forward=2), TINY),
    (tv.ATP(mesh=(1, 2)) * D(4, reshard_after_forward=False), TINY),
    ((tv.Megatron(tp=2) * D(4, reshard_after_forward=2)).with_order("dp-tp"), TINY),
]
ALL = ALONE + AROUND + HYBRID + KEPT


@pytest.mark.parametrize("strategy, workload", ALL, ids=named)
def test_equals_one_process(strategy, workload):
    assert_equal(strategy, workload, among=ALL)


@pytest.mark.parametrize("strategy, w", HYBRID + KEPT, ids=named)
def test_program_is_that_of_the_formulas(strategy, w):
    assert_as_captured(strategy, w)


def test_hybrid_ledger_by_hand():
    """Inside a group of n ranks as over so many alone; across groups 1/n of the gradients, once."""
    for zero, n, count in ((1, 2, 1), (2, 4, 2), (3, 4, 2)):
        w = tv.GPT(layers=2, hidden=64, heads=4, seq=32, batch=16, vocab=256)
        hybrid = tv.DataParallel(dp=8, zero=zero, shard=n, accumulation=count)
        alone = tv.DataParallel(dp=n, zero=zero, accumulation=count).ledger(w)
        found, size = hybrid.ledger(w), w.num_parameters * 4
        inside = [row._replace(axis="dp") for row in found if row.axis == "shard"]
        assert inside == list(alone)
        across = found.total(axis="replicate")
        assert across == (3, size / n, size / n * 2 * (8 / n - 1) / (8 / n))
        assert {row.axis for row in found} == {"shard", "replicate"}
        assert hybrid.axes == {"replicate": 8 // n, "shard": n}


def test_what_stays_after_forward_is_not_gathered_again():
    w = tv.GPT(layers=3, hidden=64, heads=4, seq=32, batch=8, vocab=256)
    blocks = 3 * (12 * 64 * 64 + 13 * 64) * 4
    usual, whole, half = (D(8, reshard_after_forward=kept).ledger(w) for kept in (True, False, 2))
    backward = [row for row in usual if row.phase == "backward"]
    assert [row for row in usual if row not in backward] == list(whole)
    assert half.total(axis="reshard") == (3, blocks, blocks / 2) and backward[0].count == 3
    assert half.total(axis="shard*reshard") == whole.total()
    # with hybrid sharding the parts lie inside of a group
    hybrid = D(8, shard=4, reshard_after_forward=2)
    assert hybrid.axes == {"replicate": 2, "shard": 2, "reshard": 2}
    assert hybrid.ledger(w).total(axis="reshard") == (3, blocks, blocks / 2)


def test_what_stays_after_forward_by_hand():
    """Of six equal blocks: whole ones at once two, or all; halves of those before the second."""
    w = tv.GPT(layers=6, hidden=16, heads=4, seq=8, batch=8, vocab=32)
    block, root = (12 * 256 + 13 * 16) * 4, (32 * 16 + 8 * 16 + 2 * 16) * 4
    rest = (6 * block + root) / 8 + root
    found = {n: D(8, reshard_after_forward=n).memory(w) for n in (True, False, 2, 4)}
    whole = {n: (m["parameters"] - rest) / block for n, m in found.items()}
    assert whole == {True: 2, False: 6, 2: 2 + 5 / 2, 4: 2 + 5 / 4}
    assert len({m["gradients"] for m in found.values()}) == 1


def test_a_group_of_all_ranks_is_the_usual_one():
    assert tv.DataParallel(dp=4, zero=3, shard=4) == tv.DataParallel(dp=4, zero=3)
    hybrid = tv.DataParallel(dp=4, zero=1, shard=2)
    assert hybrid.short == "DataParallel(dp=4, zero=1, shard=2)"
    assert hybrid.caption == "DataParallel replicate 2 shard 2"
    product = (tv.Megatron(tp=2) * tv.Pipeline(pp=2) * hybrid).with_order("dp-tp-pp")
    assert list(product.axes) == ["pp", "tp", "replicate", "shard"]


@pytest.mark.parametrize(
    "knobs, message",
    [
        ({"shard": 3}, "dp=8 does not split evenly over shard=3: use shard=2 or 4, or dp=6 or 9"),
        ({"shard": 16}, "dp=8 does not split evenly over shard=16: use shard=8, or dp=16"),
        ({"shard": 2, "zero": 0}, "shard=2 with zero=0 has no states to share: use zero=1, 2 or 3"),
        ({"shard": 1}, "shard=1 leaves all states whole, as zero=0 does: use zero=0 and shard=0"),
        ({"shard": 2.0}, "shard must be a whole number, not 2.0"),
        (
            {"reshard_after_forward": False, "zero": 2},
            "reshard_after_forward=False with zero=2, where parameters stay whole: use zero=3",
        ),
        (
            {"reshard_after_forward": 3},
            "dp=8 does not split evenly over reshard_after_forward=3: "
            "use reshard_after_forward=2 or 4, or dp=6 or 9",
        ),
        (
            {"reshard_after_forward": 4, "shard": 4},
            "reshard_after_forward=4 is shard=4, all that share states: use True or 2",
        ),
        ({"reshard_after_forward": 1}, "reshard_after_forward=1 is too small"),
        ({"reshard_after_forward": "no"}, "reshard_after_forward must be a whole number, not 'no'"),
    ],
)
def test_knobs_that_clash(knobs, message):
    with pytest.raises(ValueError, match=message):
        tv.DataParallel(**{"dp": 8, "zero": 3} | knobs)


def test_from_stage_two_on_backward_waits_for_the_bucket_before():
    """Where a bucket's collective takes about as long as the kernels until the next is full."""
    device = tv.Device({"float32": 1e10}, memory=1e9, memory_bandwidth=1e12)
    box = tv.Cluster("box", device, (tv.Level("link", 4, 3e8, latency=1e-7),))
    times = []
    for zero in (1, 2):
        times.append(tv.predict(data(4, zero), tv.GPT(), box).step_time)
        simulated = tv.simulate(data(4, zero), tv.GPT(), box, contention=False).step_time
        assert times[-1] == pytest.approx(simulated, rel=1e-9)
    assert times[1] > 1.01 * times[0]


def test_padding_where_nothing_divides():
    odd = tv.GPT(layers=1, hidden=10, heads=2, seq=5, batch=3, vocab=33, tied=False)
    assert any(
        sum(part[2] for part in b.parts) < b.numel
        for b in tv.DataParallel(dp=3, zero=1).buckets(odd)
    )
    cases = [(tv.DataParallel(dp=3, zero=zero, bucket_mb=0.005), odd) for zero in (0, 1, 3)]
    for strategy, workload in cases:
        assert_equal(strategy, workload, among=cases)


def test_ledger_by_hand():
    w = tv.GPT(layers=2, hidden=64, heads=4, seq=32, batch=8, vocab=256)
    size = w.num_parameters * 4
    block = (12 * 64 * 64 + 13 * 64) * 4
    stage = [tv.DataParallel(dp=4, zero=z).ledger(w) for z in range(4)]
    assert stage[0].total() == (3, size, size * 1.5)  # block (0.2 MB), block, embedding
    assert [row[:3] for row in stage[1]] == [
        ("dp", "all_gather", "optimizer"),
        ("dp", "reduce_scatter", "sync"),
    ]
    assert stage[1] == stage[2]
    assert stage[1].total()[2] == stage[0].total()[2]  # the halves of an all-reduce
    assert stage[3].total(phase="forward")[:2] == (3, size)
    assert stage[3].total(phase="backward")[:2] == (2, 2 * block)
    assert stage[3].total(phase="sync")[:2] == (3, size)


def test_composed_ledger_is_the_sum_on_the_local_batch():
    tp = tv.Megatron(tp=2)
    both = tp * tv.DataParallel(dp=4)
    found = both.ledger(TINY)
    assert [r for r in found if r.axis == "tp"] == list(tp.ledger(replace(TINY, batch=2)))
    split = (
        "qkv.weight",
        "qkv.bias",
        "out.weight",
        "up.weight",
        "up.bias",
        "down.weight",
        "token.weight",
    )
    held = sum(
        _numel(shape) // (2 if name.endswith(split) else 1)
        for name, shape in TINY.parameter_shapes().items()
    )
    assert found.total(axis="dp")[1] == held * 4


def _numel(shape):
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def test_buckets_keep_order_limit_and_whole_parameters():
    shapes = {"a": (10,), "b": (30,), "blocks.0.c": (5, 4), "d": (3,)}
    two, four = Replicas("dp", 2), Replicas("dp", 4)
    buckets = fill_buckets(shapes, four, 1, limit=40 * 4, itemsize=4)
    assert [[p[0] for p in b.parts] for b in buckets] == [["d", "blocks.0.c"], ["b", "a"]]
    assert buckets[0].parts == (("d", 0, 3), ("blocks.0.c", 3, 20)) and buckets[0].numel == 24
    late = fill_buckets(shapes, two, 0, limit=1, itemsize=4, partial=("d",))
    assert [[p[0] for p in b.parts] for b in late] == [["blocks.0.c"], ["b"], ["a"], ["d"]]
    assert [b.late for b in late] == [False, False, False, True]
    units = fill_buckets(shapes, two, 3, limit=1, itemsize=4)
    assert [(b.block, [p[0] for p in b.parts]) for b in units] == [
        (0, ["blocks.0.c"]),
        (-1, ["d", "b", "a"]),
    ]


@pytest.mark.parametrize(
    "strategy, message",
    [
        (
            tv.DataParallel(dp=3),
            "batch=8 does not split evenly over dp=3: use dp=2 or 4, or batch=6 or 9",
        ),
        (tv.DataParallel(dp=16), "batch=8 does not split evenly over dp=16: use dp=8, or batch=16"),
        (tv.DataParallel(dp=2, inner=tv.Megatron(tp=3)), "heads=8 does not split evenly over tp=3"),
    ],
)
def test_sizes_that_do_not_fit_are_named(strategy, message):
    for ask in (
        strategy.check,
        strategy.ledger,
        lambda w: tv.run(strategy, w),
        lambda w: tv.verify(strategy, w),
    ):
        with pytest.raises(ValueError) as error:
            ask(TINY)
        assert message in str(error.value)


def test_flat_ownership_covers_every_element_once():
    from tpviz.schemes.ownership import local_shapes, ownership

    strategy = tv.DataParallel(dp=4, zero=3) * tv.Megatron(tp=2)
    held = local_shapes(strategy.inner, TINY)
    for row in ownership(strategy, TINY):
        ranges = row["flat"]["ranges"]
        assert row["flat"]["axis"] == "dp" and len(ranges) == 4
        assert ranges[0][0] == 0 and ranges[-1][1] == _numel(held[row["name"]])
        assert all(a[1] == b[0] for a, b in pairwise(ranges))
        assert row["notation"].startswith("flat(") and row["notation"].endswith(")_dp")
    assert not any("flat" in row for row in ownership(tv.DataParallel(dp=4, zero=2), TINY))
    groups = ownership(tv.DataParallel(dp=4, zero=3, shard=2), TINY)
    assert {(row["flat"]["axis"], len(row["flat"]["ranges"])) for row in groups} == {("shard", 2)}


def test_memory_falls_stage_by_stage():
    w = tv.GPT(layers=4, hidden=32, heads=4, seq=8, batch=4, vocab=64)
    size = w.num_parameters * 4
    stages = [tv.DataParallel(dp=4, zero=z, bucket_mb=0.03) for z in range(4)]
    runs = together(lambda s: tv.run(s, w, steps=1, progress=False), stages)
    peak = [_peaks(run.meta["memory"][0]) for run in runs.values()]
    assert peak[0]["parameters"] == peak[0]["gradients"] == size
    assert _close(peak[0]["optimizer"], 2 * size)
    for stage in (1, 2, 3):
        assert _close(peak[stage]["optimizer"], 2 * size / 4)
    assert size < peak[1]["gradients"] < 1.3 * size  # the whole, and the reduced share
    assert peak[2]["gradients"] < 0.7 * size and _close(peak[2]["parameters"], size)
    assert peak[3]["parameters"] < 0.9 * size  # a share, the root, two blocks


def _peaks(memory):
    return {kind: max(values) for kind, values in memory.items() if kind != "time"}


def _close(value, expected):
    """Up to padding and AdamW's step counters."""
    return abs(value - expected) < 0.02 * expected
