"""Microbatches and recomputation in every scheme: one program, its ledger, its time, its memory."""

from dataclasses import replace

import pytest
from tiny import EXACT, assert_equal, named, peaks

import tpviz as tv


W = tv.GPT(layers=3, hidden=32, heads=4, seq=8, batch=16, vocab=64)
LLAMA = replace(W, tied=False, bias=False, heads=8, kv_heads=4, ffn=40, gated=True, norm="rms", rotary=True)
BOX = tv.clusters.nvlink_pairs(pairs=2).scale_model(hidden=64)
SLOW = replace(BOX, device=replace(BOX.device, launch=5e-6, pointwise="eager"))
FULL, SELECTIVE = {"recompute": "full"}, {"recompute": "selective"}


def around(zero, *inner, **knobs):
    outer = tv.DataParallel(dp=2, zero=zero, bucket_mb=0.02, **knobs)
    return inner[0] * outer if inner else outer


STRATEGIES = [
    tv.Megatron(tp=2, accumulation=4),
    tv.Megatron(tp=2, chunks=2, accumulation=2, **FULL),
    tv.Megatron(tp=4, sp=True, accumulation=2, **SELECTIVE),
    tv.Megatron(tp=2, sp=True, accumulation=2, **FULL),
    tv.ATP(mesh=(2, 2), accumulation=2, **FULL),
    tv.ATP(mesh=(2, 2), order="row", attention="A1", accumulation=4, **SELECTIVE),
    tv.ATP(mesh=(4, 1), chunks=2, chunking="pipelined", accumulation=2, **FULL),
    tv.ATP(mesh=(2, 2), norm="L2", sp=True, accumulation=2, **FULL),
    tv.T3(tp=2, accumulation=2, **FULL),
    tv.T3(tp=4, gather="consumer", mode="chunk", accumulation=4, **SELECTIVE),
    tv.T3(tp=2, gather="consumer", accumulation=2, **FULL),
    *(around(zero, accumulation=count, **FULL) for zero, count in ((0, 1), (1, 4), (2, 2), (3, 4))),
    *(around(zero, accumulation=2, **SELECTIVE) for zero in (0, 3)),
    around(3, accumulation=1, **FULL),
    *(around(zero, tv.Megatron(tp=2, sp=True, **FULL), accumulation=4) for zero in range(4)),
    around(3, tv.Megatron(tp=2, accumulation=2)),
    around(2, tv.ATP(mesh=(1, 2), **SELECTIVE), accumulation=2),
    around(3, tv.T3(tp=2, **FULL), accumulation=2),
    tv.AxoNN(x=2, z=2, accumulation=2, **SELECTIVE),
    tv.AxoNN(x=1, y=2, z=2, accumulation=4, keep=False, **SELECTIVE),
    *(
        tv.Merak(pp=2, tp=2, microbatches=4, subpipeline=level, schedule=order, **SELECTIVE)
        for level, order in ((0, "1f1b"), (2, "1f1b"), (1, "zb_h1"), (3, "zb_h1"))
    ),
    tv.Merak(pp=2, dp=2, microbatches=4, schedule="shifted_critical_path", **SELECTIVE),
]
MODELS = [(s, w) for s in STRATEGIES for w in (W, LLAMA)[: 1 + (type(s) is not tv.Merak)]]


@pytest.mark.parametrize("s, w", MODELS, ids=named)
def test_ledger_and_time_are_those_of_the_program(s, w):
    program = tv.capture(s, w)
    for rank in range(s.world_size):
        assert program.ledger(rank) == s.ledger_of(w, rank)
    for box in (BOX, SLOW):
        simulated = tv.simulate(s, w, box, capture=program, contention=False).step_time
        assert tv.predict(s, w, box).step_time == pytest.approx(simulated, rel=1e-9)


def model_of(s):
    """Selective recomputation drops most where queries are turned and share keys."""
    return LLAMA if "selective" in s.short else W


@pytest.mark.parametrize("s", STRATEGIES, ids=named)
def test_equals_one_process(s):
    assert_equal(s, model_of(s), among=[(s, model_of(s)) for s in STRATEGIES])


HELD = tv.GPT(layers=4, hidden=64, heads=4, seq=32, batch=8, vocab=256, tied=False)
HELD_LLAMA = replace(HELD, ffn=160, kv_heads=2, gated=True, norm="rms", rotary=True, bias=False)
TRACKED = [
    (strategy, w)
    for w in (HELD, HELD_LLAMA)
    for strategy in (
        tv.Megatron(tp=2, accumulation=4),
        *(tv.Megatron(tp=2, sp=sp, **knobs) for sp in (False, True) for knobs in (FULL, SELECTIVE)),
        tv.Megatron(tp=1, accumulation=2, **FULL),
        tv.ATP(mesh=(2, 1), accumulation=2, **FULL),
        tv.ATP(mesh=(2, 2), attention="A1", **SELECTIVE),
        tv.ATP(mesh=(1, 2), norm="L2", **FULL),
        tv.T3(tp=2, accumulation=2, **FULL),
        *(tv.DataParallel(dp=2, zero=zero, bucket_mb=0.07, accumulation=2) for zero in range(4)),
        tv.DataParallel(dp=2, zero=3, **FULL),
        tv.DataParallel(dp=2, zero=2, accumulation=2) * tv.Megatron(tp=2, sp=True),
        tv.AxoNN(x=2, z=1, accumulation=2, **SELECTIVE),
        tv.AxoNN(x=1, z=2, overlap=(), **SELECTIVE),
        tv.Merak(pp=2, microbatches=4, schedule="1f1b", **SELECTIVE),
    )
]


@pytest.mark.parametrize("s, w", TRACKED, ids=named)
def test_memory_is_what_is_tracked(s, w):
    found, tracked = s.memory(w), peaks(s, w, TRACKED)
    assert {k: found[k] for k in EXACT} == {k: tracked[k] for k in EXACT}
    assert found["activations"] == pytest.approx(tracked["activations"], rel=0.12)
