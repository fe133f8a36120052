"""Latent attention: by hand, and over ranks equal to one process with exact bytes."""

import re
from dataclasses import replace
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from tiny import EXACT, UNTIED, assert_equal, captured, named, peaks

import tpviz as tv
from tpviz.schemes.gpt.heads import rotary_turns, turned
from tpviz.schemes.gpt.program import reference_program
from tpviz.schemes.ownership import local_shapes, num_local
from tpviz.views.widgets.in_small import in_small

LATENT = {"kv_lora": 12, "rope_dim": 4, "head_dim": 6, "v_dim": 5, "rotary": True, "norm": "rms"}
LATENT |= {"bias": False, "gated": True}
W = replace(UNTIED, **LATENT, q_lora=10)
KINDS = {
    "two latents": W,
    "queries of the stream": replace(W, q_lora=None, bias=True),
    "values as wide as keys": replace(W, v_dim=10, documents=(5, 3)),
}
TP, SP = tv.Megatron(tp=2), tv.Megatron(tp=2, sp=True)
FAST = [
    SP * tv.DataParallel(dp=2, zero=3, bucket_mb=0.002),
    SP * tv.Context(cp=2, kind="ulysses"),
    TP * tv.Pipeline(pp=2, microbatches=2, schedule="zb_h1"),
]
MORE = [
    tv.DataParallel(dp=2, zero=1, bucket_mb=0.002),
    tv.Megatron(tp=4, recompute="selective"),
    tv.Megatron(tp=4, sp=True, recompute="full"),
    tv.Megatron(tp=2, chunks=2, accumulation=2),
    tv.Context(cp=4),
    TP * tv.Context(cp=2, kind="all_gather"),
    SP * tv.Context(cp=2, recompute="selective"),
    SP * tv.Pipeline(pp=2, microbatches=2) * tv.DataParallel(dp=2, zero=2),
    tv.Merak(pp=2, tp=2),
]
AMONG = tuple(product(FAST, KINDS.values()))
ALL = tuple(product(MORE, KINDS.values()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", FAST, ids=lambda s: s.short)
def test_equals_one_process(strategy, kind):
    assert_equal(strategy, KINDS[kind], among=AMONG)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", MORE, ids=lambda s: s.short)
def test_every_way_equals_one_process(strategy, kind):
    assert_equal(strategy, KINDS[kind], among=ALL)


# -- by hand ---------------------------------------------------------------------------------------
def test_attention_is_the_papers():
    """Equations 9 to 19 of arXiv 2405.04434, head by head."""
    w = replace(W, layers=1, dtype="float64")
    module = reference_program(w).module.blocks[0].attention
    p = {name: tensor.detach() for name, tensor in module.named_parameters()}
    x = torch.randn(2, w.seq, w.hidden, dtype=torch.float64)
    rms = lambda c, name: F.rms_norm(c, c.shape[-1:], p[f"{name}.weight"], 1e-5)
    turns = rotary_turns(w, torch.float64, "cpu")
    assert turns.shape == (w.seq, 2)
    c_q = rms(x @ p["q_down.weight"].T, "q_norm")
    down = x @ p["kv_down.weight"].T
    c_kv, key = rms(down[..., :12], "kv_norm"), turned(down[..., 12:], turns)
    mixed = []
    for head in range(w.heads):
        of_q = c_q @ p["q_up.weight"][head * 10 : head * 10 + 10].T
        of_kv = c_kv @ p["kv_up.weight"][head * 11 : head * 11 + 11].T
        q = torch.cat([of_q[..., :6], turned(of_q[..., 6:], turns)], -1)
        k = torch.cat([of_kv[..., :6], key], -1)
        scores = q @ k.mT / 10**0.5
        scores = scores.masked_fill(torch.ones(w.seq, w.seq).triu(1).bool(), float("-inf"))
        mixed.append(scores.softmax(-1) @ of_kv[..., 6:])
    torch.testing.assert_close(module(x), torch.cat(mixed, -1) @ p["out.weight"].T)


def test_shapes_and_counts_by_hand():
    w = replace(W, layers=1)
    shapes = w.block_shapes()
    assert {n.removeprefix("attention."): s for n, s in shapes.items() if "attention" in n} == {
        "q_down.weight": (10, 16),
        "q_norm.weight": (10,),
        "q_up.weight": (80, 10),
        "kv_down.weight": (16, 16),
        "kv_norm.weight": (12,),
        "kv_up.weight": (88, 12),
        "out.weight": (16, 40),
    }
    matrices = 10 * 16 + 80 * 10 + 16 * 16 + 88 * 12 + 16 * 40 + 16 * 3 * 64
    assert w.active_matrices == matrices
    assert w.num_parameters == matrices + 10 + 12 + 3 * 16 + 2 * 32 * 16
    scores = 2 * w.seq * 8 * (10 + 5)
    assert w.step_flops == 3 * w.batch * w.seq * (2 * matrices + scores + 2 * 16 * 32)


# -- time and memory -------------------------------------------------------------------------------
@pytest.mark.parametrize("strategy", [TP, SP, tv.Context(cp=2) * SP], ids=lambda s: s.short)
def test_predicted_is_simulated(strategy):
    box = tv.clusters.nvswitch()
    for w in KINDS.values():
        program = captured(strategy, w)
        simulated = tv.simulate(strategy, w, box, capture=program, contention=False).step_time
        assert tv.predict(strategy, w, box).step_time == pytest.approx(simulated, rel=1e-9)


LARGE = tv.GPT(
    layers=3, hidden=64, heads=4, seq=32, batch=4, vocab=512, tied=False, rotary=True, norm="rms",
    bias=False, gated=True, ffn=160, head_dim=16, rope_dim=8, kv_lora=32, q_lora=48,
)  # fmt: skip
TRACKED = [
    *((s, LARGE) for s in (tv.Megatron(tp=1), TP, SP, tv.Context(cp=2))),
    *((tv.Megatron(tp=2, sp=sp, recompute="selective"), LARGE) for sp in (False, True)),
    *((s, replace(LARGE, v_dim=24, q_lora=None)) for s in (SP, tv.Context(cp=2, kind="ulysses"))),
    (SP, replace(LARGE, v_dim=24, documents=(16, 8, 8))),
]


@pytest.mark.parametrize("strategy, w", TRACKED, ids=named)
def test_memory_equals_what_is_tracked(strategy, w):
    found, tracked = strategy.memory(w), peaks(strategy, w, TRACKED)
    assert {k: found[k] for k in EXACT} == {k: tracked[k] for k in EXACT}
    assert found["activations"] == pytest.approx(tracked["activations"], rel=0.08)


@pytest.mark.parametrize("strategy", [TP, SP], ids=lambda s: s.short)
def test_parameters_of_a_rank(strategy):
    for w in KINDS.values():
        size = num_local(local_shapes(strategy, w)) * w.itemsize
        assert strategy.memory(w)["parameters"] == size


# -- what is refused -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "changes, message",
    [
        ({"kv_lora": None, "rope_dim": None}, "q_lora=10 is about latent attention: give kv_lora"),
        ({"rotary": False}, "kv_lora=12 has its positions in a rotary key: use rotary=True"),
        ({"kv_heads": 4}, "kv_heads=4 with kv_lora=12: from a latent every head has keys"),
        ({"rope_dim": 3}, "rotary positions turn pairs of its features; use rope_dim=4"),
        ({"rope_dim": None}, "use rope_dim=2"),
        ({"v_dim": 11}, "head_dim + rope_dim=6 + 4: use v_dim=10, or rope_dim=5"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_belong_together(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(W, **changes)


@pytest.mark.parametrize(
    "strategy, message",
    [
        (tv.ATP(mesh=(2, 2)), "ATP() does not split latent attention (kv_lora=12): use Megatron("),
        (tv.AxoNN(x=2, y=1, z=2), "kv_lora=12): use Megatron(tp=2), which does"),
        (tv.T3(tp=2), "kv_lora=12): use Megatron(tp=2), which does"),
        (tv.DataParallel(dp=2) * tv.T3(tp=2), "kv_lora=12): use Megatron(tp=2), which does"),
        (tv.Merak(pp=2, tp=2, subpipeline=2), "kv_lora=12 has others: use subpipeline=0"),
        (tv.Megatron(tp=3), "heads=8 does not split evenly over tp=3: use tp=2 or 4"),
    ],
)  # fmt: skip
def test_schemes_that_cannot_say_what_can(strategy, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        strategy.check(W)
    tv.Megatron(tp=2).check(W), tv.Megatron(tp=4).check(W)


def test_a_block_of_latents_is_not_drawn_as_pairs():
    with pytest.raises(ValueError, match="without experts and kv_lora"):
        tv.BlocksView(tv.Megatron(tp=2), W)


def test_in_small_it_is_latent_too():
    w = replace(LARGE, hidden=1024, heads=8, kv_lora=256, q_lora=384, head_dim=64, rope_dim=32)
    small = in_small(SP, w, tv.clusters.nvswitch(), 2).workload
    assert (small.hidden, small.kv_lora, small.q_lora, small.rope_dim) == (128, 32, 48, 8)


def test_deepseek_v3_in_small_has_experts_and_latents():
    w, box = tv.models.deepseek_v3(batch=8), tv.clusters.nvswitch()
    small = in_small(SP * tv.Experts(ep=2) * tv.DataParallel(dp=2), w, box, 8).workload
    assert small.experts and small.kv_lora and small.first_dense == 1 and small.bias_balance
