"""The exercises of notebook 15 ask for what the package computes with: its router, cut, ledgers."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch

import tpviz as tv
from tpviz.course import experts, experts_ranks
from tpviz.schemes.experts.cut import ExpertCut
from tpviz.schemes.experts.paper import imbalance
from tpviz.schemes.gpt.experts import Router
from tpviz.schemes.ownership import local_shapes

W = tv.GPT(layers=1, hidden=64, seq=64, batch=8, experts=8, dtype="bfloat16", routing=tv.Routing())


@pytest.mark.parametrize("k", [1, 2])
def test_weights_are_those_of_the_router(k):
    scores = (0.3, -1.2, 1.7, 0.4)
    router = Router(tv.GPT(hidden=1, heads=1, experts=4, top_k=k), dtype=torch.float64)
    with torch.no_grad():
        router.weight.copy_(torch.tensor(scores)[:, None])
        chosen, weights, *_ = router.choose(router.scores(torch.ones(1, 1, 1, dtype=torch.float64)))
    of_all = torch.zeros(4, dtype=torch.float64).scatter(0, chosen.flatten(), weights.flatten())
    np.testing.assert_allclose(of_all, experts.weights(scores, k), rtol=1e-6)


def test_the_busiest_rank_is_that_of_the_cut():
    w, cut = replace(W, routing=tv.Routing(1.0)), ExpertCut(4)
    counts = 4 * cut.sent(w)
    rows, ratio = experts.busiest(tuple(counts.tolist()), 4)
    assert rows == max(cut.loads(w, index).sum() for index in range(4))
    assert ratio == pytest.approx(imbalance(w.routing, 8, 2, 4), rel=0.02)


def test_bytes_are_those_of_the_ledger():
    ledger = tv.Experts(ep=4).ledger(W)
    _, _, rows = ledger.total(collective="all_to_all_v", phase="forward")
    assert experts.sent(W.batch * W.seq // 4, 2, 64, 4)[0] == rows


@pytest.mark.parametrize("etp", [1, 2])
def test_parts_are_those_of_the_plan(etp):
    plan = tv.Megatron(tp=2) * tv.Experts(ep=4, etp=etp)
    shapes, tokens = local_shapes(plan, W), W.batch // 4 * W.seq
    own = sum(prod(shapes[f"blocks.0.mlp.{name}.weight"]) for name in ("up", "down"))
    local = plan.local(W)
    rows = local.batch * len(plan.cut.places(local))
    assert experts.parts(8, 64, 256, tokens, 2, 4, etp) == (own, rows)


def test_the_exchange_of_the_exercise_is_a_sum_over_experts():
    case = experts_ranks._make(np.random.default_rng(0), {"world": 4})
    stack = np.concatenate([own[3] for own in case.inputs])
    for (x, chosen, weights, _), want in zip(case.inputs, case.expected):
        for token, row in enumerate(x):
            made = [
                w * np.maximum(row @ stack[e], 0) for e, w in zip(chosen[token], weights[token])
            ]
            np.testing.assert_array_equal(sum(made), want[token])
