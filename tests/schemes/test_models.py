"""Models that people train: sizes, blocks by hand, and every scheme on each kind of block."""

import re
from dataclasses import replace
from itertools import cycle, product
from math import prod

import pytest
import torch
import torch.nn.functional as F
from tiny import TINY, assert_equal, captured

import tpviz as tv
from tpviz.schemes.gpt.heads import Heads, rotary_turns, turned
from tpviz.schemes.gpt.model import swiglu
from tpviz.schemes.operators import SplitNorm
from tpviz.schemes.ownership import local_shapes, num_local

PUBLISHED = {
    ("gpt3", "175B"): 174_604_259_328,
    ("llama", "7B"): 6_738_415_616,
    ("llama", "13B"): 13_015_864_320,
    ("llama", "65B"): 65_285_660_672,
    ("llama2", "70B"): 68_976_648_192,
    ("llama3", "1B"): 1_235_814_400,
    ("llama3", "8B"): 8_030_261_248,
    ("llama3", "405B"): 405_853_388_800,
    ("mistral", "7B"): 7_241_732_096,
    ("qwen", "7B"): 7_615_616_512 - 28 * (3584 + 2 * 512),  # the biases of q, k and v
    ("bloom", "176B"): 176_247_271_424 - 2 * 14336,  # the embedding's LayerNorm
    ("qwen3", "0.6B"): 596_049_920 - 28 * 2 * 128,  # the norms of queries and keys
    ("qwen3", "8B"): 8_190_735_360 - 36 * 2 * 128,
    ("qwen3", "32B"): 32_762_123_264 - 64 * 2 * 128,
    ("qwen3", "30B-A3B"): 30_532_122_624 - 48 * 2 * 128,
    ("qwen3", "235B-A22B"): 235_093_634_560 - 94 * 2 * 128,
    # biases of the router and of experts, and sinks
    ("gpt_oss", "20B"): 20_914_757_184 - 24 * (32 * (1 + 3 * 2880) + 64),
    ("gpt_oss", "120B"): 116_829_156_672 - 36 * (128 * (1 + 3 * 2880) + 64),
    ("mixtral", "8x7B"): 46_702_792_704,
    ("mixtral", "8x22B"): 140_620_634_112,
    ("dbrx", "132B"): 131_596_523_520,
    ("olmoe", "7B"): 6_919_161_856 - 16 * 2 * 2048,  # the norms of queries and keys
    ("deepseek_v2", "16B"): 15_706_484_224,
    ("deepseek_v2", "236B"): 235_741_434_880,  # recalled
    ("deepseek_v3", "671B"): 671_026_419_200 - 58 * 256,  # biases of routers, no parameters here
    ("kimi_k2", "1T"): 1_026_408_232_448 - 60 * 384,  # recalled; biases as well
}
"""Parameters of the released weights; of GPT-3 its 175 billion, as the sizes give them."""
BILLIONS = {
    ("qwen3", "30B-A3B"): (30.5, 3.3),
    ("qwen3", "235B-A22B"): (235, 22),
    ("gpt_oss", "20B"): (20.91, 3.61 + 0.58),  # the authors leave the embedding out
    ("gpt_oss", "120B"): (116.83, 5.13 + 0.58),
    ("mixtral", "8x7B"): (46.7, 12.9),
    ("mixtral", "8x22B"): (141, 39),
    ("dbrx", "132B"): (132, 36),
    ("grok1", "314B"): (314,),  # "25% of the weights active"
    ("olmoe", "7B"): (6.9, 1.3),
    ("deepseek_v2", "16B"): (15.7, 2.4 + 0.21),  # these authors leave the embedding out
    ("deepseek_v2", "236B"): (236, 21),
    ("deepseek_v3", "671B"): (671, 36.6 + 0.93),
    ("kimi_k2", "1T"): (1040, 32.6),
    ("llama4", "109B"): (109, 17),  # the first with what encodes images, about 0.9
    ("llama4", "400B"): (400, 17),
}
"""Parameters in all, and those that a token meets, as the authors round them."""
KINDS = {
    "ffn": {"ffn": 40},
    "head_dim": {"head_dim": 6},
    "llama with head_dim": {
        "head_dim": 6,
        "kv_heads": 4,
        "rotary": True,
        "gated": True,
        "norm": "rms",
        "bias": False,
    },
    "grouped": {"kv_heads": 4},
    "gated": {"gated": True},
    "rms": {"norm": "rms"},
    "rotary": {"rotary": True},
    "no bias": {"bias": False},
}
STRATEGIES = [
    tv.Megatron(tp=2, sp=True),
    tv.ATP(mesh=(2, 2), chunks=4, chunking="pipelined"),
    tv.ATP(mesh=(1, 2), norm="L2"),
    tv.AxoNN(x=1, y=2, z=2, gather="block", recompute=True),
    tv.Merak(pp=2, tp=2, subpipeline=2),
    tv.T3(tp=2, gather="consumer"),
    tv.DataParallel(dp=2, zero=3, bucket_mb=0.01),
    tv.Context(cp=2, ulysses=2),
    tv.Megatron(tp=2, sp=True) * tv.Context(cp=2) * tv.Pipeline(pp=2, microbatches=2),
]
TOGETHER = "ffn", "gated", "llama with head_dim"
"""Kinds in which each trait of the others is as well, beside others."""
ALONE = [kind for kind in KINDS if kind not in TOGETHER]


@pytest.mark.parametrize("family, size", PUBLISHED)
def test_presets_have_the_published_parameters(family, size):
    w = tv.models.presets()[family](size)
    assert w.num_parameters == PUBLISHED[family, size]


@pytest.mark.parametrize("family, size", BILLIONS)
def test_presets_with_experts_have_the_published_active_parameters(family, size):
    w, published = tv.models.presets()[family](size), BILLIONS[family, size]
    for number, billions in zip((w.num_parameters, w.num_active_parameters), published):
        assert number / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize("family", tv.models.presets())
def test_every_preset_makes_a_workload(family):
    made = tv.models.presets()[family]
    assert made.__doc__ and set(tv.models.SIZES) == set(tv.models.presets())
    for size in tv.models.SIZES[family]:
        w = made(size, batch=8, layers=4)
        assert (w.batch, w.layers, w.dtype) == (8, 4, "bfloat16")
        assert w.num_tensors == len(w.parameter_shapes())
        matrices = sum(w.like(block).active_matrices for block in range(4))
        scores = 4 * 2 * w.seq * (w.query_features + w.mixed_features)
        gemms = 2 * matrices + scores + 2 * w.hidden * w.vocab
        assert w.step_flops == 3 * w.batch * w.seq * gemms
        number, unit = re.match(r"([\d.x]+)([MBT])", size).groups()
        named = prod(map(float, number.split("x"))) * {"M": 1e6, "B": 1e9, "T": 1e12}[unit]
        assert made(size).num_parameters == pytest.approx(named, rel=0.35)
    with pytest.raises(ValueError, match=f"size='9B' is not possible: use '{size[0]}?"):
        made("9B")


WHOLE = tv.Megatron(tp=4, sp=True), tv.ATP(mesh=(2, 2)), tv.AxoNN(x=4, z=2), tv.T3(tp=4)


@pytest.mark.parametrize("family, strategy", [*zip(tv.models.presets(), cycle(WHOLE))])
def test_at_full_width_predicted_is_simulated(family, strategy):
    made = tv.models.presets()[family]
    w = made(layers=1 + made().first_dense, batch=4, seq=1024, vocab=512)
    strategy = tv.Megatron(tp=8 if w.experts > 128 else 4, sp=True) if w.experts else strategy
    program, box = captured(strategy, w), tv.clusters.nvswitch()
    assert program.ledger(0) == strategy.ledger(w)
    simulated = tv.simulate(strategy, w, box, capture=program, contention=False).step_time
    assert tv.predict(strategy, w, box).step_time == pytest.approx(simulated, rel=1e-9)


@pytest.mark.parametrize("strategy", STRATEGIES[:2], ids=lambda s: s.short)
def test_heads_of_another_size_are_counted_on_a_rank(strategy):
    w = replace(TINY, head_dim=6)
    assert strategy.memory(w)["parameters"] == num_local(local_shapes(strategy, w)) * w.itemsize


def equal(strategy, kind, kinds):
    among = ((s, replace(TINY, **KINDS[k])) for s, k in product(STRATEGIES, kinds))
    assert_equal(strategy, replace(TINY, **KINDS[kind]), among=among)


@pytest.mark.parametrize("kind", TOGETHER)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.short)
def test_each_kind_of_block_equals_one_process(strategy, kind):
    equal(strategy, kind, TOGETHER)


@pytest.mark.parametrize("kind", ALONE)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.short)
def test_each_trait_alone_equals_one_process(strategy, kind):
    equal(strategy, kind, ALONE)


# -- blocks by hand --------------------------------------------------------------------------------
def test_rms_norm_is_torchs():
    x, y = (torch.randn(3, 8, dtype=torch.float64).requires_grad_() for _ in range(2))
    y.data.copy_(x.data)
    weight = torch.randn(8, dtype=torch.float64, requires_grad=True)
    other, grad = weight.detach().clone().requires_grad_(), torch.randn(3, 8, dtype=torch.float64)
    SplitNorm.apply(x, weight, None, 1e-5, None, True).backward(grad)
    F.rms_norm(y, (8,), other, 1e-5).backward(grad)
    torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(weight.grad, other.grad)


def test_layer_norm_without_a_group_is_torchs():
    x = torch.randn(3, 8, dtype=torch.float64) + 5
    weight, bias = torch.randn(2, 8, dtype=torch.float64)
    found = SplitNorm.apply(x, weight, bias, 1e-5, None)
    torch.testing.assert_close(found, F.layer_norm(x, (8,), weight, bias, 1e-5))


def test_rotary_turns_pairs_by_position():
    """A score depends on the distance alone, and pair i turns by base^(-2i/D) a position."""
    w = tv.GPT(hidden=32, heads=4, seq=16, rotary=True)
    turns = rotary_turns(w, torch.float64, "cpu")
    assert turns.shape == (16, 4) and turns[:, 0].angle()[1] == pytest.approx(1.0)
    assert turns[1].angle().tolist() == pytest.approx([10_000 ** (-i / 4) for i in range(4)])
    q, k = torch.randn(2, 1, 8, dtype=torch.float64)
    scores = turned(q.expand(16, 8), turns) @ turned(k.expand(16, 8), turns).T
    for distance in range(1, 16):
        torch.testing.assert_close(
            scores.diagonal(distance), scores[0, distance].expand(16 - distance)
        )
    torch.testing.assert_close(scores[3, 3], (q * k).sum())


def test_grouped_queries_are_those_of_repeated_keys():
    """Rows of qkv: of each group its queries, a key, a value."""
    w = tv.GPT(hidden=32, heads=4, kv_heads=2, seq=6)
    x = torch.randn(2, 6, w.qkv_features, dtype=torch.float64)
    q1, k1, v1, q2, k2, v2 = x.split([16, 8, 8] * 2, -1)
    heads = [
        (q1[..., :8], k1, v1),
        (q1[..., 8:], k1, v1),
        (q2[..., :8], k2, v2),
        (q2[..., 8:], k2, v2),
    ]
    by_hand = [F.scaled_dot_product_attention(*head, is_causal=True) for head in heads]
    attend = Heads(w, torch.float64, "cpu")
    torch.testing.assert_close(attend(x), torch.cat(by_hand, -1))
    torch.testing.assert_close(attend(x.transpose(0, 1), True).transpose(0, 1), attend(x))


def test_a_gate_is_the_neighbour_of_its_feature():
    x = torch.randn(3, 8)
    assert torch.equal(swiglu(x), F.silu(x[:, 1::2]) * x[:, ::2])
    assert torch.equal(swiglu(x)[:, 2:], swiglu(x[:, 4:]))  # a rank's part


def test_shapes_and_counts_of_a_llama_by_hand():
    w = tv.GPT(
        layers=1, hidden=32, heads=4, kv_heads=2, ffn=40, gated=True, norm="rms", rotary=True,
        bias=False, vocab=64, tied=False,
    )  # fmt: skip
    assert w.parameter_shapes() == {
        "embed.token.weight": (64, 32),
        "blocks.0.norm1.weight": (32,),
        "blocks.0.attention.qkv.weight": (64, 32),
        "blocks.0.attention.out.weight": (32, 32),
        "blocks.0.norm2.weight": (32,),
        "blocks.0.mlp.up.weight": (80, 32),
        "blocks.0.mlp.down.weight": (32, 40),
        "norm.weight": (32,),
        "head.weight": (64, 32),
    }


# -- what is refused -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "sizes, message",
    [
        ({"kv_heads": 3}, "heads=4 does not split evenly over kv_heads=3: use kv_heads=2 or 4"),
        ({"kv_heads": 0}, "kv_heads=0 is too small: the least that works is 1"),
        ({"ffn": 2.5}, "ffn must be a whole number, not 2.5"),
        ({"norm": "batch"}, "norm='batch' is not possible: use 'layer' or 'rms'"),
        ({"gated": 1}, "gated=1 is not possible: use True or False"),
        ({"head_dim": 5, "rotary": True}, "head_dim=5 is odd, and rotary positions turn pairs"),
        ({"head_dim": 5, "rotary": True}, "use head_dim=6, or rotary=False"),
        ({"hidden": 36, "rotary": True}, "hidden=36 does not split evenly over 2 * heads=8"),
    ],
)
def test_bad_workloads(sizes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        tv.GPT(**sizes)


GROUPED, SPLIT = replace(TINY, kv_heads=2), " does not split evenly over "


@pytest.mark.parametrize(
    "strategy, workload, message",
    [
        (tv.Megatron(tp=4), GROUPED, "kv_heads=2 / tp=4: use tp=2, or kv_heads=4"),
        (tv.T3(tp=4), GROUPED, "kv_heads=2 / tp=4: use tp=2, or kv_heads=4"),
        (tv.Merak(pp=2, tp=4), GROUPED, "kv_heads=2 / tp=4: use tp=2, or kv_heads=4"),
        (tv.AxoNN(x=4), GROUPED, "kv_heads=2 / x=4: use x=2, or kv_heads=4"),
        (
            tv.ATP(mesh=(2, 2)),
            GROUPED,
            "kv_heads=2 / d1*d2=4: use d1*d2=2, or kv_heads=4; or attention='A1'",
        ),
        (tv.ATP(mesh=(4, 1), attention="A1"), GROUPED, "kv_heads=2 / d1=4: use d1=2"),
        (tv.DataParallel(dp=2) * tv.Megatron(tp=4), GROUPED, "kv_heads=2 / tp=4: use tp=2"),
        (
            tv.ATP(mesh=(2, 1)),
            replace(TINY, experts=4),
            "does not split experts=4: use Megatron(tp=2)",
        ),
        (tv.AxoNN(x=2, y=2, z=1), replace(TINY, experts=4), "experts=4: use Megatron(tp=4), which"),
        (tv.T3(tp=4), replace(TINY, experts=4), "experts=4: use Megatron(tp=4), which does"),
        (tv.Megatron(tp=4), replace(TINY, ffn=42), "ffn=42 / tp=4: use tp=2, or ffn=40 or 44"),
    ],
)
def test_what_does_not_split_is_refused_with_what_does(strategy, workload, message):
    with pytest.raises(ValueError, match=re.escape(message.replace(" / ", SPLIT))):
        strategy.check(workload)
