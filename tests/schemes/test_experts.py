"""Experts over ranks, on real processes: equal to one process that computes every expert, with the
bytes of every rank by formula, whether the router chooses or a `tpviz.Routing`."""

import math
from dataclasses import replace

import pytest
import torch
from products import drawn

import tpviz as tv
from tpviz.schemes.gpt.experts import Balance, Router
from tpviz.schemes.gpt.program import reference_program

GIVEN = tv.GPT(
    hidden=16, heads=4, seq=8, batch=16, vocab=32, experts=8, routing=tv.Routing(skew=1.0)
)
CHOSEN = replace(GIVEN, routing=None, gated=True, norm="rms", bias=False, moe_ffn=24, tied=False)
TP, SP = tv.Megatron(tp=2), tv.Megatron(tp=2, sp=True)
PP = tv.Pipeline(pp=2, microbatches=2)

DROPPING = replace(CHOSEN, capacity=0.75, aux_loss=0.3, shared_experts=1, router="sigmoid")
BALANCED = replace(DROPPING, capacity=None)
DRAWN, MORE = drawn(30, experts=True)


def equal(strategy, w):
    found = tv.verify(strategy, w, steps=2)
    assert found.ok and found.max_error < 1e-10, str(found)


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("w", [GIVEN, CHOSEN], ids=["given", "chosen"])
@pytest.mark.parametrize(
    "strategy",
    [
        TP,
        SP,
        tv.DataParallel(dp=2),
        tv.Experts(ep=1),
        tv.Experts(ep=2, accumulation=2, recompute="full"),
        tv.Experts(ep=4),
        *(tensor * tv.Experts(ep=2, etp=etp) for tensor in (TP, SP) for etp in (1, 2)),
    ],
    ids=lambda strategy: strategy.short,
)
def test_equals_one_process(strategy, w, top_k):
    equal(strategy, replace(w, top_k=top_k))


@pytest.mark.parametrize("strategy, w", DRAWN, ids=range(len(DRAWN)))
def test_drawn_at_random(strategy, w):
    found = tv.verify(strategy, w, steps=1)
    assert found.ok and found.max_error < 1e-10, f"{strategy.short}\n{w.short}\n{found}"


@pytest.mark.parametrize("strategy, w", MORE, ids=range(len(MORE)))
def test_more_drawn_at_random(strategy, w):
    test_drawn_at_random(strategy, w)


@pytest.mark.parametrize("w", [DROPPING, BALANCED], ids=["dropping", "balanced"])
@pytest.mark.parametrize(
    "strategy",
    [
        tv.Experts(ep=4),
        TP * tv.Experts(ep=2, etp=2),
        SP * tv.Experts(ep=2, etp=2),
        tv.Experts(ep=2) * PP,
        tv.Experts(ep=2) * tv.DataParallel(dp=2, zero=1, accumulation=2),
    ],
    ids=lambda strategy: strategy.short,
)
def test_capacity_and_balance_equal_one_process(strategy, w):
    equal(strategy, w)


@pytest.mark.parametrize(
    "strategy",
    [SP * tv.Experts(ep=2), TP * tv.Experts(ep=2), tv.Experts(ep=2) * tv.Context(cp=2)],
    ids=lambda strategy: strategy.short,
)
def test_balance_of_sequences_that_ranks_share(strategy):
    equal(strategy, BALANCED)


@pytest.mark.parametrize("w", [GIVEN, CHOSEN], ids=["given", "chosen"])
@pytest.mark.parametrize(
    "strategy",
    [
        *(tv.Experts(ep=2) * tv.DataParallel(dp=2, zero=zero) for zero in (0, 1, 2, 3)),
        tv.Experts(ep=2) * tv.Context(cp=2),
        tv.Experts(ep=2) * PP,
        tv.Experts(ep=2) * tv.Pipeline(pp=2, microbatches=2, recompute="full"),
        tv.Megatron(tp=2) * PP,
    ],
    ids=lambda strategy: strategy.short,
)
def test_products_of_four_ranks_equal_one_process(strategy, w):
    equal(strategy, w)


@pytest.mark.parametrize("w", [GIVEN, CHOSEN], ids=["given", "chosen"])
@pytest.mark.parametrize(
    "strategy",
    [
        *(tv.Experts(ep=4) * tv.DataParallel(dp=1, zero=zero) for zero in (0, 1)),
        tv.Experts(ep=4) * tv.DataParallel(dp=1, zero=2, accumulation=2),
        tv.Experts(ep=4) * tv.DataParallel(dp=1, zero=3, accumulation=2, recompute="full"),
        TP * tv.Experts(ep=2) * tv.DataParallel(dp=1, zero=3),
        tv.Experts(ep=2) * tv.Context(cp=2) * tv.DataParallel(dp=1, zero=3),
        *(tv.Experts(ep=2) * PP * tv.DataParallel(dp=1, zero=zero) for zero in (1, 2, 3)),
    ],
    ids=lambda strategy: strategy.short,
)
def test_replicas_along_ep_alone_equal_one_process(strategy, w):
    equal(strategy, w)


@pytest.mark.parametrize("w", [GIVEN, CHOSEN], ids=["given", "chosen"])
@pytest.mark.parametrize(
    "strategy",
    [
        tv.Experts(ep=8),
        TP * tv.Experts(ep=4),
        SP * tv.Experts(ep=2) * tv.Context(cp=2),
        TP * tv.Experts(ep=2, etp=2) * PP,
        *(SP * tv.Experts(ep=2) * tv.DataParallel(dp=2, zero=zero) for zero in (1, 3)),
        tv.Experts(ep=2) * tv.Context(cp=2) * tv.DataParallel(dp=2, zero=2, accumulation=2),
        tv.Experts(ep=2) * tv.DataParallel(dp=4, zero=2, shard=2),
        tv.Experts(ep=2) * tv.DataParallel(dp=4, zero=3, reshard_after_forward=2),
        *(tv.Experts(ep=2) * PP * tv.DataParallel(dp=2, zero=zero) for zero in (0, 1, 2, 3)),
        *(SP * tv.Experts(ep=2) * PP * tv.DataParallel(dp=1, zero=zero) for zero in (1, 3)),
        tv.Experts(ep=2) * tv.Context(cp=2) * PP * tv.DataParallel(dp=1, zero=2),
        tv.Experts(ep=2) * tv.Pipeline(pp=1, microbatches=2) * tv.DataParallel(4, 3, shard=2),
    ],
    ids=lambda strategy: strategy.short,
)
def test_products_of_eight_ranks_equal_one_process(strategy, w):
    equal(strategy, w)


def test_each_class_of_parameters_has_one_group():
    """By hand, at each stage: experts over dp (and cp), the rest over ep too, each once."""
    w = replace(GIVEN, tied=False)
    numel = {n: math.prod(shape) for n, shape in w.parameter_shapes().items()}
    experts = sum(numel[n] for n in numel if n.endswith((".mlp.up.weight", ".mlp.down.weight")))
    rest = sum(numel.values()) - experts
    two = tv.Experts(ep=2)
    for inside, axis, ranks in ((two, "dp", 2), (two * tv.Context(cp=2), "dp*cp", 4)):
        plans = [inside * tv.DataParallel(dp=2, zero=zero) for zero in range(4)]
        sizes = {axis: experts // 2 * 4, f"{axis}*ep": rest * 4}
        for zero, plan in enumerate(plans):
            ledger, kind = plan.ledger(w), "reduce_scatter" if zero else "all_reduce"
            found = {
                r.axis: r.payload_bytes for r in ledger if (r.phase, r.collective) == ("sync", kind)
            }
            assert found == sizes
            states = plan.memory(w)["optimizer"]
            if zero:
                shared = 2 * (sizes[axis] // ranks + sizes[f"{axis}*ep"] // (2 * ranks))
                assert states == shared + 4 * len(plan.buckets(w))


def test_the_balance_loss_is_the_papers():
    """Its gradient through backward is that of alpha E / k sum_e f_e P_e, by autograd."""
    scores = torch.rand(3, 5, 4, dtype=torch.float64, requires_grad=True)
    chosen = scores.detach().topk(2, -1).indices
    w = tv.GPT(experts=4, top_k=2, aux_loss=0.7)
    y = Balance(w).beside(torch.zeros((), dtype=torch.float64), scores, chosen, lambda counts: 1)
    y.requires_grad_() if not y.requires_grad else y
    (found,) = torch.autograd.grad(y, scores)
    parts = scores / scores.sum(-1, keepdim=True)
    f = torch.stack([(chosen == e).sum((1, 2)) for e in range(4)], 1) / 5
    loss = 0.7 * (4 / 2) * (f * parts.mean(1)).sum(1).mean()
    assert torch.allclose(found, torch.autograd.grad(loss, scores)[0], rtol=1e-12)


def test_first_choices_are_taken_first():
    """Of three tokens that all choose expert 0 first or second, in the order that counts."""
    w = tv.GPT(hidden=4, heads=1, seq=3, batch=1, experts=3, top_k=2, capacity=1.0)
    scores = torch.tensor([[[0.4, 0.6, 0.0], [0.9, 0.1, 0.0], [0.8, 0.0, 0.2]]])
    experts, weights, numbers = Router(w).choose(scores)
    assert w.taken == 2 and experts[0].tolist() == [[1, 0], [0, 1], [0, 2]]
    assert numbers[0].tolist() == [[0, 2], [0, 1], [1, 0]]
    assert weights[0, 0].tolist() == pytest.approx([0.6, 0.0])  # the second choice came third


def test_dropped_choices_and_the_balance_loss_change_the_training():
    """So the tests above would see them missing."""
    plain = replace(CHOSEN, dtype="float64")
    gradients = []
    for w in (plain, replace(plain, capacity=0.5), replace(plain, aux_loss=0.3)):
        program = reference_program(w)
        program.step([torch.from_numpy(part) for part in w.tokens(0)])
        gradients.append(program.gradients()["blocks.0.mlp.router.weight"])
    for other in gradients[1:]:
        assert (other - gradients[0]).abs().max() > 1e-3 * gradients[0].abs().max()


@pytest.mark.parametrize(
    "strategy, w, said",
    [
        (tv.Experts(ep=3), GIVEN, "experts=8 does not split evenly over ep=3: use ep=2 or 4"),
        (tv.Experts(ep=2), tv.GPT(), "has no experts to spread: use a workload such as"),
        (tv.Experts(ep=2, etp=2), GIVEN, "where tp=1: use etp=1, or Megatron"),
        (tv.Experts(ep=4), replace(GIVEN, batch=6), "batch=6 does not split evenly over ep"),
        (TP * tv.Experts(ep=2), DROPPING, "of which etp=1 gives a rank a part: use etp=2"),
        (tv.Experts(ep=2) * tv.Context(cp=2), DROPPING, "use capacity=None, or no Context"),
    ],
)
def test_sizes_that_clash_are_named(strategy, w, said):
    with pytest.raises(ValueError, match=said):
        strategy.check(w)


@pytest.mark.parametrize(
    "sizes, said",
    [
        ({"experts": 4, "top_k": 5}, "top_k=5 is more than experts=4: use top_k=4 or less"),
        ({"experts": 4, "capacity": 0}, "capacity=0 is not between 0.01 and 1000"),
        ({"moe_ffn": 8}, "moe_ffn=8 is about experts: give experts=8"),
        ({"experts": 4, "routing": 1.0}, "routing=1.0 is no routing"),
        ({"experts": 4, "router": "hash"}, "router='hash' is not possible: use 'softmax'"),
    ],
)
def test_workloads_that_cannot_be_are_refused(sizes, said):
    with pytest.raises(ValueError, match=said):
        tv.GPT(**sizes)


def test_factors_that_do_not_multiply_are_named():
    with pytest.raises(ValueError, match=r"experts are cut over one axis .*use Megatron\(tp=4\)"):
        tv.ATP(mesh=(2, 2)) * tv.Experts(ep=2)
    with pytest.raises(ValueError, match="etp=4 ranks cannot share an expert where tp=2"):
        tv.Megatron(tp=2) * tv.Experts(ep=2, etp=4)
