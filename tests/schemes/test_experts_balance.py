"""Experts in groups, and biases that balance loads: by hand, and over ranks and steps equal to one
process, with exact bytes."""

import re
from dataclasses import replace
from itertools import product

import pytest
import torch
from tiny import assert_equal, captured
from together import each

import tpviz as tv
from tpviz.core.mesh import Mesh
from tpviz.schemes.gpt.experts import LoadBias, Router
from tpviz.schemes.gpt.program import batch_of, reference_program

W = tv.GPT(
    layers=4, hidden=16, heads=4, seq=8, batch=16, vocab=32, experts=8, top_k=2, moe_ffn=24,
    router="sigmoid", gated=True, norm="rms", bias=False, tied=False,
)  # fmt: skip
GROUPED = replace(W, groups=4, top_groups=2, bias_balance=0.05, routed_scale=2.5)
BIASED = replace(W, bias_balance=0.05, router="softmax", norm_top_k=False)
SP = tv.Megatron(tp=2, sp=True)
FAST = [
    tv.Experts(ep=4),
    SP * tv.Experts(ep=2, etp=2),
    tv.Experts(ep=2) * tv.Pipeline(pp=2, microbatches=4, recompute="full"),
]
MORE = [
    tv.DataParallel(dp=2),
    tv.Megatron(tp=2),
    tv.Experts(ep=1),
    tv.Experts(ep=2, accumulation=2, recompute="full"),
    tv.Experts(ep=2, recompute="selective") * tv.Context(cp=2),
    tv.Megatron(tp=2) * tv.Experts(ep=2),
    SP * tv.Experts(ep=2) * tv.DataParallel(dp=2, zero=1),
    tv.Experts(ep=2) * tv.DataParallel(dp=4, zero=3, shard=2),
    tv.Experts(ep=2) * tv.DataParallel(dp=4, within=2),
    tv.Experts(ep=2)
    * tv.Pipeline(pp=2, microbatches=4, schedule="last_no_recompute", recompute="full")
    * tv.DataParallel(dp=2, zero=2),
    tv.Experts(ep=2) * tv.Pipeline(pp=2, microbatches=4, recompute="stage_aware"),
]
AMONG, ALL = (tuple(product(some, (GROUPED, BIASED))) for some in (FAST, MORE))


@pytest.mark.parametrize("w", [GROUPED, BIASED], ids=["grouped", "biased"])
@pytest.mark.parametrize("strategy", FAST, ids=lambda s: s.short)
def test_four_steps_equal_one_process(strategy, w):
    assert_equal(strategy, w, 4, AMONG)


@pytest.mark.parametrize("w", [GROUPED, BIASED], ids=["grouped", "biased"])
@pytest.mark.parametrize("strategy", MORE, ids=lambda s: s.short)
def test_every_way_equals_one_process(strategy, w):
    assert_equal(strategy, w, 4, ALL)


def offsets(strategy, w, steps):
    """The biases of a rank's routers after so many steps."""
    program = strategy.build(w, Mesh(strategy.axes).device_mesh(), torch.float64)
    return trained(program, w, steps)


def trained(program, w, steps):
    for step in range(steps):
        program.step(batch_of(w, step))
        program.optimizer_step()
    found = [m.offset for part in program.parts for m in part.modules() if isinstance(m, Router)]
    return torch.stack(found)


def test_biases_are_those_of_one_process_on_every_rank():
    w = replace(GROUPED, dtype="float64", layers=2, bias_balance=0.01)
    cases = [(strategy, w, 4) for strategy in (SP * tv.Experts(ep=2), FAST[0])]
    expected = trained(reference_program(w), w, 4)
    assert len(expected.unique()) > 3  # they do not all go to and fro
    for found in each(offsets, cases).values():
        for of_rank in found:
            assert torch.equal(of_rank, expected)


def counted(strategy, w):
    """By router of a rank, the choices that it has counted in a step."""
    program = strategy.build(w, Mesh(strategy.axes).device_mesh(), torch.float64)
    program.step(batch_of(w, 0))
    routers = [m for part in program.parts for m in part.modules() if isinstance(m, Router)]
    return [int(router.loads.sum()) for router in routers]


def test_what_is_recomputed_counts_once():
    two = tv.Experts(ep=2)
    cases = [
        (two * tv.DataParallel(dp=2, recompute="full"), GROUPED),
        (two * tv.Pipeline(pp=2, microbatches=2, recompute="full"), GROUPED),
    ]
    for (strategy, w), found in each(counted, cases).items():
        share = w.batch * w.seq * w.top_k // (4 if strategy is cases[0][0] else 2)
        assert {number for of_rank in found for number in of_rank} == {share}, strategy


# -- by hand ---------------------------------------------------------------------------------------
def test_a_bias_grows_where_few_have_chosen_and_shrinks_where_many():
    w = tv.GPT(layers=1, hidden=8, heads=2, experts=4, top_k=1, bias_balance=0.25)
    router = Router(w)
    router.loads.copy_(torch.tensor([5, 1, 4, 6]))  # 4 in the mean
    LoadBias(w, [router]).update()
    assert router.offset.tolist() == [-0.25, 0.25, 0, -0.25]
    assert not router.loads.any()


def test_a_bias_is_for_the_choice_alone():
    w = tv.GPT(layers=1, hidden=8, heads=2, experts=4, bias_balance=0.1, routed_scale=2.0)
    router, scores = Router(w), torch.tensor([[[0.4, 0.3, 0.2, 0.1]]])
    router.offset.copy_(torch.tensor([-1.0, 0, 0, 1.0]))
    experts, weights, _ = router.choose(scores)
    assert experts.tolist() == [[[3, 1]]]
    torch.testing.assert_close(weights, torch.tensor([[[0.5, 1.5]]]))  # 2 of 0.1 and 0.3
    assert router.loads.tolist() == [0, 1, 0, 1]
    plain = Router(replace(w, bias_balance=0.0, norm_top_k=False, routed_scale=1.0))
    assert plain.offset is None and plain.loads is None
    assert plain.choose(scores)[1].tolist() == scores[..., :2].tolist()


def test_experts_are_from_the_groups_whose_best_two_add_up_to_most():
    w = tv.GPT(layers=1, hidden=8, heads=2, experts=12, top_k=3, groups=4, top_groups=2)
    scores = torch.rand(3, 5, 12, generator=torch.Generator().manual_seed(0))
    found, _, _ = Router(w).choose(scores)
    for token, chosen in zip(scores.flatten(0, 1).tolist(), found.flatten(0, 1).tolist()):
        of_group = [sum(sorted(token[3 * g : 3 * g + 3])[1:]) for g in range(4)]
        best = sorted(range(4), key=of_group.__getitem__)[2:]
        inside = sorted((e for e in range(12) if e // 3 in best), key=token.__getitem__)
        assert sorted(chosen) == sorted(inside[-3:])


# -- bytes and time --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "strategy, axis, layers",
    [
        (tv.Megatron(tp=2), "", 4),  # both choose for the same tokens
        (SP * tv.Experts(ep=2, etp=2), "ep", 4),
        (SP * tv.Experts(ep=2), "ep*tp", 4),
        (tv.Experts(ep=2) * tv.Context(cp=2) * tv.DataParallel(dp=2, zero=1), "dp*cp*ep", 4),
        (tv.Experts(ep=2) * tv.Pipeline(pp=2, microbatches=2), "ep", 2),
    ],
    ids=lambda value: getattr(value, "short", value),
)
def test_loads_are_added_up_where_tokens_differ(strategy, axis, layers):
    more = [row for row in strategy.ledger(GROUPED).rows if row.phase == "optimizer"]
    before = strategy.ledger(replace(GROUPED, bias_balance=0.0)).rows
    new = [row for row in more if row not in before]
    assert [(r.axis, r.collective, r.payload_bytes) for r in new] == [
        (axis, "all_reduce", 8 * layers * W.experts) for _ in new
    ]
    assert len(new) == bool(axis)
    program, box = captured(strategy, GROUPED), tv.clusters.nvswitch()
    assert program.ledger(0) == strategy.ledger(GROUPED)
    simulated = tv.simulate(strategy, GROUPED, box, capture=program, contention=False).step_time
    assert tv.predict(strategy, GROUPED, box).step_time == pytest.approx(simulated, rel=1e-9)


def test_workers_that_train_apart_have_no_biases():
    w = replace(W, routing=tv.Routing(1.0), bias_balance=0.1)
    with pytest.raises(ValueError, match="asks for loads of all tokens after each step"):
        tv.DiLoCo(workers=2, sync_every=2).check(w)


@pytest.mark.parametrize(
    "sizes, message",
    [
        ({"groups": 3}, "experts=8 does not split evenly over groups=3: use groups=2 or 4"),
        ({"groups": 2, "top_groups": 3}, "top_groups=3 is more than groups=2: use top_groups=2"),
        ({"groups": 8, "top_groups": 1}, "top_k=2 is more than the 1 experts of top_groups=1"),
        ({"bias_balance": 2}, "bias_balance=2 is not between 0 and 1: the nearest that works is 1"),
        ({"routed_scale": 0}, "routed_scale=0 is not between"),
        ({"experts": 0, "norm_top_k": False}, "norm_top_k=False is about experts: give experts=8"),
    ],
)
def test_what_does_not_belong_together(sizes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(W, **({"moe_ffn": None} if "experts" in sizes else {}), **sizes)
