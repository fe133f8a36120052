"""Microbatches and recomputation in every scheme: one program, its ledger, its time, its memory."""

from dataclasses import replace

import pytest
import torch
from tiny import EXACT, assert_equal, named, peaks
from torch import nn

import tpviz as tv
from tpviz.core.step import Kernel, flat
from tpviz.schemes.gpt.memory import core_kept
from tpviz.schemes.knobs import RECOMPUTE
from tpviz.schemes.strategy import step_of

W = tv.GPT(layers=3, hidden=32, heads=4, seq=8, batch=16, vocab=64)
LLAMA = replace(
    W, tied=False, bias=False, heads=8, kv_heads=4, ffn=40, gated=True, norm="rms", rotary=True
)
BOX = tv.clusters.nvlink_pairs(pairs=2).scale_model(hidden=64)
SLOW = replace(BOX, device=replace(BOX.device, launch=5e-6, pointwise="eager"))
FULL, SELECTIVE = {"recompute": "full"}, {"recompute": "selective"}


def around(zero, *inner, **knobs):
    outer = tv.DataParallel(dp=2, zero=zero, bucket_mb=0.07, **knobs)
    return inner[0] * outer if inner else outer


# Each knob with each scheme's ways once; bench/sweep_models.py has them all.
STRATEGIES = [
    tv.Megatron(tp=2, accumulation=4),
    tv.Megatron(tp=2, chunks=2, accumulation=2, **FULL),
    tv.Megatron(tp=4, sp=True, accumulation=2, **SELECTIVE),
    tv.ATP(mesh=(2, 2), order="row", attention="A1", accumulation=4, **SELECTIVE),
    tv.ATP(mesh=(4, 1), chunks=2, chunking="pipelined", accumulation=2, **FULL),
    tv.ATP(mesh=(2, 2), norm="L2", sp=True, accumulation=2, **FULL),
    tv.T3(tp=4, gather="consumer", mode="chunk", accumulation=4, **SELECTIVE),
    tv.T3(tp=2, gather="consumer", accumulation=2, **FULL),
    *(around(zero, accumulation=count, **FULL) for zero, count in ((0, 1), (1, 4), (2, 2), (3, 4))),
    *(around(zero, accumulation=2, **SELECTIVE) for zero in (0, 3)),
    around(3, tv.Megatron(tp=2, sp=True, **FULL), accumulation=4),
    around(2, tv.ATP(mesh=(1, 2), **SELECTIVE), accumulation=2),
    tv.AxoNN(x=1, y=2, z=2, accumulation=4, keep=False, **SELECTIVE),
    tv.Merak(pp=2, tp=2, microbatches=4, subpipeline=2, schedule="1f1b", **SELECTIVE),
    tv.Merak(pp=2, tp=2, microbatches=4, subpipeline=1, schedule="zb_h1", **SELECTIVE),
    tv.Merak(pp=2, dp=2, microbatches=4, schedule="shifted_critical_path", **SELECTIVE),
]


def model_of(s):
    """Selective recomputation drops most where queries are turned and share keys."""
    return LLAMA if "selective" in s.short else W


MODELS = [(s, model_of(s)) for s in STRATEGIES]


@pytest.mark.parametrize("s, w", MODELS, ids=named)
def test_ledger_and_time_are_those_of_the_program(s, w):
    program = tv.capture(s, w)
    for rank in range(s.world_size):
        assert program.ledger(rank) == s.ledger_of(w, rank)
    for box in (BOX, SLOW):
        simulated = tv.simulate(s, w, box, capture=program, contention=False).step_time
        assert tv.predict(s, w, box).step_time == pytest.approx(simulated, rel=1e-9)


@pytest.mark.parametrize("s", STRATEGIES, ids=named)
def test_equals_one_process(s):
    assert_equal(s, model_of(s), among=[(s, model_of(s)) for s in STRATEGIES])


HELD = tv.GPT(layers=4, hidden=64, heads=4, seq=32, batch=8, vocab=256, tied=False)
HELD_LLAMA = replace(HELD, ffn=160, kv_heads=2, gated=True, norm="rms", rotary=True, bias=False)
TRACKED = [
    (tv.Megatron(tp=2, accumulation=4), HELD),
    (tv.Megatron(tp=2, sp=True, **FULL), HELD),
    (tv.Megatron(tp=2, **SELECTIVE), HELD_LLAMA),
    (tv.Megatron(tp=2, sp=True, **SELECTIVE), HELD_LLAMA),
    (tv.ATP(mesh=(2, 1), accumulation=2, **FULL), HELD_LLAMA),
    (tv.ATP(mesh=(2, 2), attention="A1", **SELECTIVE), HELD),
    (tv.ATP(mesh=(1, 2), norm="L2", **FULL), HELD),
    (tv.T3(tp=2, accumulation=2, **FULL), HELD),
    *((around(zero, accumulation=2), HELD) for zero in range(4)),
    (around(3, **FULL), HELD_LLAMA),
    (around(2, tv.Megatron(tp=2, sp=True), accumulation=2), HELD_LLAMA),
    (tv.AxoNN(x=2, z=1, accumulation=2, **SELECTIVE), HELD),
    (tv.AxoNN(x=1, z=2, overlap=(), **SELECTIVE), HELD_LLAMA),
    (tv.Merak(pp=2, microbatches=4, schedule="1f1b", **SELECTIVE), HELD),
]


@pytest.mark.parametrize("s, w", TRACKED, ids=named)
def test_memory_is_what_is_tracked(s, w):
    found, tracked = s.memory(w), peaks(s, w, TRACKED)
    assert {k: found[k] for k in EXACT} == {k: tracked[k] for k in EXACT}
    assert found["activations"] == pytest.approx(tracked["activations"], rel=0.12)


def counts(s, w=W):
    return {(r.axis, r.collective, r.phase): r.count for r in s.ledger(w)}


def test_what_is_sent_for_every_microbatch_and_what_once():
    """Two blocks or more of buckets; sequence parallelism's gradients are summed once a step."""
    for zero in range(4):
        one, four = (counts(around(zero, accumulation=n)) for n in (1, 4))
        for (axis, collective, phase), count in one.items():
            often = 4 if zero >= 2 and phase != "optimizer" else 1
            assert four[axis, collective, phase] == often * count, (zero, collective, phase)
        assert four.keys() == one.keys()
    one, four = (counts(tv.Megatron(tp=2, sp=True, accumulation=n)) for n in (1, 4))
    assert four == {key: count * (1 if key[2] == "sync" else 4) for key, count in one.items()}


@pytest.mark.parametrize("kind", [tv.Megatron, tv.T3])
def test_full_recomputation_sends_forward_once_more(kind):
    plain, full = (counts(kind(tp=2, recompute=what)) for what in ("none", "full"))
    again = {key: n for key, n in full.items() if key[2] == "recompute"}
    assert again and {key: n for key, n in full.items() if key not in again} == plain
    blocks = counts(kind(tp=2), replace(W, layers=2 * W.layers))  # twice the blocks, the ends once
    for (axis, collective, _), count in again.items():
        key = axis, collective, "forward"
        assert count == blocks[key] - plain[key]
    assert counts(kind(tp=2, **SELECTIVE)) == plain


def test_what_is_computed_again():
    """Attention's core is half of 2 products of S x S x D a head, matrices 12 h^2 of a block."""
    tokens, h, seq, layers = W.batch * W.seq, W.hidden, W.seq, W.layers
    core = layers * 2 * tokens * seq * h
    flops = {"none": 0, "selective": core, "full": core + layers * 2 * tokens * 12 * h * h}
    for what, expected in flops.items():
        s = tv.Megatron(tp=2, accumulation=4, recompute=what)
        parts = [(p, n) for p, n in flat(step_of(s, W)) if p.phase == "recompute"]
        found = sum(n * o.flops for p, n in parts for o in p.operations if isinstance(o, Kernel))
        assert found == expected // 2


def test_what_selective_recomputation_frees():
    """Fused attention has no scores to drop: a log-sum-exp a row and head, and copies."""
    tokens = W.batch * W.seq
    assert core_kept(W) == tokens * W.heads * 4
    assert core_kept(LLAMA, 2) == tokens * (32 + 16 + 8) * 4 // 2  # queries, keys, 8 heads
    packed = replace(W, documents=(W.seq // 2, W.seq // 2))
    assert core_kept(packed, 2) == tokens * (W.hidden + W.heads) * 4 // 2  # outputs put together
    held = [tv.Megatron(tp=2, recompute=r).memory(W)["activations"] for r in RECOMPUTE]
    assert held[0] - held[1] == W.layers * core_kept(W, 2) and held[2] < held[1]


def test_a_knob_of_two_strategies_is_one():
    inner, outer = tv.Megatron(tp=2, accumulation=4), tv.DataParallel(dp=2)
    both = inner * outer
    assert (both.accumulation, both.inner.accumulation) == (4, 1)
    assert both == tv.DataParallel(dp=2, accumulation=4) * tv.Megatron(tp=2)
    full = tv.Megatron(tp=2) * tv.DataParallel(dp=2, **FULL)
    assert (full.recompute, full.inner.recompute) == ("none", "full")
    assert eval(f"tv.{full.short.replace('* ', '* tv.')}") == full
    with pytest.raises(ValueError, match="accumulation=2 around accumulation=4 is not possible"):
        inner * tv.DataParallel(dp=2, accumulation=2)
    assert [tv.AxoNN(recompute=r).recompute for r in (False, True)] == ["none", "full"]


@pytest.mark.parametrize(
    "s, message",
    [
        (tv.Megatron(tp=2, accumulation=3), "over accumulation=3: use accumulation=2 or 4, or bat"),
        (tv.ATP(accumulation=32), "over accumulation=32: use accumulation=16, or batch=32"),
        (tv.T3(tp=2, accumulation=5), "batch=16 does not split evenly over accumulation=5"),
        (around(0, accumulation=6), "over dp.accumulation=12: use dp.accumulation=8 or 16, or ba"),
        (tv.Megatron(tp=2, chunks=4, accumulation=8), "batch=2 does not split evenly over chunks"),
        (
            around(1, tv.Megatron(tp=2, chunks=4), accumulation=4),
            "over dp.accumulation=8 leaves 2, which .* chunks=4: use chunks=2, or batch=32",
        ),
    ],
    ids=str,
)
def test_batches_that_do_not_split(s, message):
    with pytest.raises(ValueError, match=message):
        s.check(W)


def test_foreign_models_have_their_own():
    for knobs in ({"accumulation": 2}, FULL):
        with pytest.raises(ValueError, match=r"is not possible here: (run|recompute)"):
            tv.parallelize(nn.Linear(4, 4), tv.Megatron(tp=1, **knobs), torch.ones(1, 4))
