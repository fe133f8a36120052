"""Experts over ranks, on real processes: equal to one process that computes every expert, with the
bytes of every rank by formula, whether the router chooses or a `tpviz.Routing`."""

from dataclasses import replace

import pytest

import tpviz as tv

GIVEN = tv.GPT(
    hidden=16, heads=4, seq=8, batch=16, vocab=32, experts=8, routing=tv.Routing(skew=1.0)
)
CHOSEN = replace(GIVEN, routing=None, gated=True, norm="rms", bias=False, moe_ffn=24, tied=False)
TP, SP = tv.Megatron(tp=2), tv.Megatron(tp=2, sp=True)
PP = tv.Pipeline(pp=2, microbatches=2)


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
        tv.Experts(ep=8),
        TP * tv.Experts(ep=4),
        SP * tv.Experts(ep=2) * tv.Context(cp=2),
        TP * tv.Experts(ep=2, etp=2) * PP,
        SP * tv.Experts(ep=2) * tv.DataParallel(dp=2, zero=1),
        *(tv.Experts(ep=2) * PP * tv.DataParallel(dp=2, zero=zero) for zero in (1, 2, 3)),
    ],
    ids=lambda strategy: strategy.short,
)
def test_products_of_eight_ranks_equal_one_process(strategy, w):
    equal(strategy, w)


@pytest.mark.parametrize(
    "strategy, w, said",
    [
        (tv.Experts(ep=3), GIVEN, "experts=8 does not split evenly over ep=3: use ep=2 or 4"),
        (tv.Experts(ep=2), tv.GPT(), "has no experts to spread: use a workload such as"),
        (tv.Experts(ep=2, etp=2), GIVEN, "where tp=1: use etp=1, or Megatron"),
        (tv.Experts(ep=4), replace(GIVEN, batch=6), "batch=6 does not split evenly over ep"),
    ],
)
def test_sizes_that_clash_are_named(strategy, w, said):
    with pytest.raises(ValueError, match=said):
        strategy.check(w)


@pytest.mark.parametrize(
    "sizes, said",
    [
        ({"experts": 4, "top_k": 5}, "top_k=5 is more than experts=4: use top_k=4 or less"),
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
