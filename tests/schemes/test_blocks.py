"""Models whose blocks are not all alike, dense ones among those with experts: what each block is,
every scheme that takes experts against one process, and formulas against captures."""

from contextlib import suppress
from dataclasses import replace
from itertools import combinations_with_replacement, pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import assert_as_captured, named
from together import together

import tpviz as tv
from tpviz.schemes.gpt.pointwise import gemms_of, passes
from tpviz.schemes.ownership import local_shapes, num_local
from tpviz.schemes.pipeline.split import balanced, balanced_unlike, ranges
from tpviz.verbs.space import cells
from tpviz.views.widgets.in_small import in_small

FIRST = tv.GPT(
    layers=4, hidden=32, heads=4, seq=16, batch=8, vocab=64, experts=4, moe_ffn=24, first_dense=1
)
EVERY = replace(
    FIRST, first_dense=0, moe_every=2, shared_experts=1, routing=tv.Routing(skew=1.0), ffn=40
)
BOTH = replace(FIRST, layers=6, moe_every=2, tied=False, gated=True, norm="rms", bias=False)
KINDS = {"first": FIRST, "every": EVERY, "both": BOTH}
TP, SP, TWO = tv.Megatron(tp=2), tv.Megatron(tp=2, sp=True), tv.Experts(ep=2)
PP = tv.Pipeline(pp=2, microbatches=2)
FAST = [
    (TWO, FIRST),
    (TP * TWO, BOTH),
    (SP * tv.Experts(ep=2, etp=2), EVERY),
    (TWO * tv.DataParallel(dp=2, zero=3), BOTH),
    (TWO * tv.Context(cp=2), FIRST),
    (TWO * replace(PP, layout="balanced"), BOTH),
]
STRATEGIES = [
    TWO,
    TP,
    SP,
    tv.Experts(ep=2, recompute="full"),
    tv.Experts(ep=2, accumulation=2, recompute="selective"),
    *(tensor * tv.Experts(ep=2, etp=etp) for tensor in (TP, SP) for etp in (1, 2)),
    *(TWO * tv.DataParallel(dp=2, zero=zero) for zero in range(4)),
    TWO * tv.Context(cp=2),
    TWO * PP,
    TP * PP,
    TP * tv.Pipeline(pp=2, microbatches=4, schedule="zb_h1"),
    TWO * tv.Pipeline(pp=2, microbatches=2, recompute="stage_aware", keep=0.5),
    TWO
    * tv.Pipeline(pp=2, microbatches=2, schedule="interleaved_1f1b")
    * tv.DataParallel(dp=2, zero=2),
    TWO * tv.Pipeline(pp=2, microbatches=2, recompute="full") * tv.DataParallel(dp=2, zero=3),
    TWO * tv.Pipeline(pp=2, microbatches=2, layout="balanced"),
]
BOX = tv.clusters.nvlink_pairs(pairs=4).scale_model(hidden=64)
UNHIDDEN = replace(BOX, device=replace(BOX.device, unhidden=0.4, startup=2e-6, pointwise="eager"))


def all_equal(cases):
    found = together(lambda case: tv.verify(*case, steps=2), cases)
    for (strategy, _), verdict in found.items():
        assert verdict.ok and verdict.max_error < 1e-10, f"{strategy.short}\n{verdict}"


# -- the model -------------------------------------------------------------------------------------
def test_which_blocks_have_experts():
    """The last of every two, as Llama 4 Maverick's, counted from the model's first."""
    assert [FIRST.has_experts(i) for i in range(4)] == [False, True, True, True]
    assert [EVERY.has_experts(i) for i in range(4)] == [False, True, False, True]
    three = replace(BOTH, first_dense=3)
    assert [three.has_experts(i) for i in range(6)] == [False, False, False, True, False, True]
    assert not any(tv.GPT(layers=3).has_experts(i) for i in range(3))


@pytest.mark.parametrize("w", KINDS.values(), ids=KINDS)
def test_parameters_are_those_of_each_block(w):
    shapes = w.parameter_shapes()
    assert w.num_parameters == sum(map(prod, shapes.values())) and w.num_tensors == len(shapes)
    for block in range(w.layers):
        own = {n.split(".", 2)[2] for n in shapes if n.startswith(f"blocks.{block}.")}
        assert own == set(w.block_shapes(block))
        assert ("mlp.router.weight" in own) == w.has_experts(block)
    unmet = (w.experts - w.top_k) * w.hidden * w.moe_ffn * (3 if w.gated else 2)
    mixtures = sum(w.has_experts(block) for block in range(w.layers))
    assert w.num_active_parameters == w.num_parameters - mixtures * unmet


def test_flops_by_hand():
    w = EVERY
    attention = 4 * w.hidden * w.hidden
    dense, experts = 2 * w.hidden * 40, w.hidden * (4 + (2 + 1) * 2 * 24)
    matrices = 4 * attention + 2 * dense + 2 * experts + w.hidden * w.vocab
    scores = 4 * 4 * w.seq * w.hidden
    assert w.step_flops == 3 * w.batch * w.seq * (2 * matrices + scores)


def test_a_block_alone_is_one_of_a_model_of_such_blocks():
    dense, mixture = (kind for kind, _ in EVERY.kinds())
    assert not dense.experts and dense.alike and mixture.alike and mixture.experts == 4
    assert EVERY.like(0) is dense and [n for _, n in EVERY.kinds([1, 2, 3])] == [2, 1]
    assert [n for _, n in FIRST.runs()] == [1, 3] and [n for _, n in EVERY.runs()] == [1] * 4
    plain = tv.GPT(experts=4)
    assert plain.like(1) is plain and plain.kinds() == ((plain, 2),) == plain.runs()


@pytest.mark.parametrize(
    "sizes, said",
    [
        ({"first_dense": 2}, "first_dense=2 is about experts: give experts=8"),
        ({"moe_every": 2}, "moe_every=2 is about experts: give experts=8"),
        ({"experts": 4, "moe_every": 0}, "moe_every=0 is too small: the least that works is 1"),
        ({"experts": 4, "first_dense": 3}, "use first_dense=1 or less, layers=4, or experts=0"),
        ({"experts": 4, "moe_every": 4}, "use moe_every=2, layers=4, or experts=0"),
    ],
)
def test_models_without_a_block_of_experts_are_refused(sizes, said):
    with pytest.raises(ValueError, match=said):
        tv.GPT(**sizes)
    assert any(tv.GPT(layers=4, experts=4, first_dense=3).has_experts(i) for i in range(4))


# -- stages of unequal cost ------------------------------------------------------------------------
@given(st.randoms(use_true_random=False))
def test_balanced_stages_are_as_fast_as_can_be(rnd):
    """One stage a rank: no other stages have a faster slowest rank. Several: no worse than those
    that count blocks."""
    pp, deep = rnd.choice((2, 3)), rnd.choice((1, 1, 2))
    rank_of, layers = tuple(range(pp)) * deep, rnd.randrange(pp * deep, 9)
    slower = [1 + rnd.random() / 3 for _ in range(pp)]
    costs = [rnd.choice((1.0, 0.3, 2.5)) for _ in range(layers)]
    blocks, head = tuple(tuple(c * f for f in slower) for c in costs), rnd.choice((0.0, 0.5, 2.0))

    def slowest(counts):
        ranks = [0.0] * pp
        for rank, own in zip(rank_of, ranges(counts)):
            ranks[rank] += sum(blocks[block][rank] for block in own)
        ranks[-1] += head
        return max(ranks)

    found, stages = balanced_unlike(blocks, rank_of, head), pp * deep
    assert sum(found) == layers and all(found[1:-1])
    others = [
        counts
        for ends in combinations_with_replacement(range(layers + 1), stages - 1)
        if all((counts := [len(own) for own in cut((0, *ends, layers))])[1:-1])
    ]
    least = min(map(slowest, others))
    assert slowest(found) <= (least if deep == 1 else 1.5 * least) * (1 + 1e-12)


def cut(ends):
    return [range(a, b) for a, b in pairwise(ends)]


def test_balanced_stages_weigh_experts():
    """Blocks with wide experts behind are fewer on their stage; where all are alike, as before."""
    w = replace(FIRST, layers=8, first_dense=4, moe_ffn=400, ffn=16)
    plan = TWO * replace(PP, layout="balanced")
    (first, second), even = plan.blocks(w), (TWO * PP).blocks(w)
    assert len(first) > len(even[0]) > len(second)
    steps = [
        tv.predict(TWO * replace(PP, layout=x), w, BOX).step_time for x in ("even", "balanced")
    ]
    assert steps[1] < steps[0]
    plain = replace(w, first_dense=0)
    assert balanced_unlike(((1.0, 1.0),) * 8, (0, 1), 0.5) == balanced(8, (0, 1), (1.0, 1.0), 0.5)
    assert [len(own) for own in plan.blocks(plain)] == [4, 4]


def test_bounds_are_never_above_the_prediction():
    seen = 0
    for w in KINDS.values():
        for cell in fitting(w):
            bound = cell.strategy.bounds(w, BOX)
            for choice in cell.choices[len(cell.choices) % 9 :: 9]:
                with suppress(ValueError):
                    strategy = cell.made(choice)
                    step = tv.predict(strategy, w, BOX).step_time * (1 + 1e-9)
                    assert max(bound(choice, closely) for closely in (False, True)) <= step
                    assert 0 < cell.strategy.least_of_all(w, BOX) <= step
                    assert strategy.least_memory(w).total <= strategy.memory(w).total
                    seen += 1
    assert seen > 100, seen


def fitting(w):
    for cell in cells(w, 4, tv.Experts):
        with suppress(ValueError):
            cell.strategy.check(w)
            yield cell


@pytest.mark.parametrize("w", KINDS.values(), ids=KINDS)
def test_kernels_are_those_of_each_block(w):
    """FLOPs, and bytes of memory-bound kernels: of the ends, and of every block as it is."""

    def of(w):
        held = tv.Experts(ep=2, accumulation=2).held(w)
        others = sum(n * size for n, size in passes(UNHIDDEN.device, held))
        return np.array([sum(n * flops for n, flops, _ in gemms_of(held)), others])

    kinds = [w.like(block) for block in range(w.layers)]
    block = {kind: of(replace(kind, layers=2)) - of(replace(kind, layers=1)) for kind in kinds}
    ends = of(replace(kinds[0], layers=1)) - block[kinds[0]]
    assert of(w) == pytest.approx(ends + sum(block[kind] for kind in kinds), rel=1e-12)
    assert len({tuple(numbers) for numbers in block.values()}) == 2


# -- what else shows a model -----------------------------------------------------------------------
def test_loads_are_those_of_blocks_with_experts():
    loads = tv.expert_loads(tv.simulate(TWO, EVERY, BOX), EVERY)
    assert loads.layers == ("blocks.1.mlp", "blocks.3.mlp")
    assert (loads.rows.sum(-1) == EVERY.batch * EVERY.seq * EVERY.top_k).all()


def test_in_small_dense_blocks_stay():
    w, box = tv.models.llama4("400B", batch=8), tv.clusters.nvswitch_nodes()
    small = in_small(tv.DataParallel(dp=8), replace(w, first_dense=3), box, 4).workload
    assert not small.has_experts(0) and small.has_experts(small.layers - 1)
    assert (small.ffn, small.moe_ffn) == (416, 208)


# -- every scheme ----------------------------------------------------------------------------------
def test_equal_one_process():
    all_equal(FAST)


@pytest.mark.parametrize("w", KINDS.values(), ids=KINDS)
def test_every_product_equals_one_process(w):
    all_equal([(strategy, w) for strategy in STRATEGIES])


@pytest.mark.parametrize("strategy, w", FAST, ids=named)
def test_time_and_ledgers_are_those_of_the_program(strategy, w):
    assert_as_captured(strategy, w, BOX, UNHIDDEN)


@pytest.mark.parametrize("w", KINDS.values(), ids=KINDS)
def test_every_product_is_predicted_as_captured(w):
    for strategy in STRATEGIES:
        assert_as_captured(strategy, w, BOX, UNHIDDEN)


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if not s.axes.get("pp")], ids=named)
def test_parameters_of_a_rank(strategy):
    for w in KINDS.values():
        size = num_local(local_shapes(strategy, w)) * w.itemsize
        whole = not getattr(strategy, "zero", 0)
        assert not whole or strategy.memory(w)["parameters"] == size
