"""The exercises of notebook 14 ask for what the package computes with: its cut, ledgers, limits."""

from math import exp, log

import numpy as np
import pytest

import tpviz as tv
from tpviz.core.step import Kernel
from tpviz.course import check, context, context_ranks
from tpviz.schemes.context.sequence import SequenceCut


@pytest.mark.parametrize("kind", ["ring", "zigzag"])
def test_flops_are_those_of_the_step(kind):
    w = tv.GPT(layers=1, hidden=64, heads=4, seq=256, batch=1)
    for rank in range(4):
        cut, part = SequenceCut(4, kind), tv.Context(cp=4, kind=kind).part(w)
        forward, _ = cut.operations(part, w.heads, w.heads, rank)
        done = sum(op.flops for op in forward if isinstance(op, Kernel))
        assert context.flops(kind, rank, 4, w.seq, w.hidden)[0] == done


@pytest.mark.parametrize("kind", ["ring", "ulysses"])
@pytest.mark.parametrize("cp", [2, 4])
def test_bytes_are_those_of_the_ledger(kind, cp):
    w = tv.GPT(1, 64, 8, 64, 2, kv_heads=4, dtype="bfloat16")
    ledger = tv.Context(cp=cp, kind=kind).ledger(w)
    sent = [ledger.total(axis="cp", phase=phase)[2] for phase in ("forward", "backward")]
    assert [*context.sent(kind, cp, w.batch * w.seq, 64, 8, 4)] == sent


def test_limits_are_where_a_plan_is_refused():
    for heads, kv_heads, tp, seq, ranks in ((16, 8, 2, 24, 16), (8, 8, 1, 40, 7)):
        w, found = tv.GPT(1, 64, heads, seq, 1, kv_heads=kv_heads), {}
        for kind in ("ulysses", "zigzag"):
            for cp in range(1, ranks + 1):
                plan = tv.Context(cp=cp, kind=kind)
                try:
                    (tv.Megatron(tp=tp) * plan if tp > 1 else plan).check(w)
                except ValueError:
                    continue
                found[kind] = cp
        limits = context.limits(heads, kv_heads, tp, seq, ranks)
        assert limits == (found["ulysses"], found["zigzag"])


def test_each_plan_but_the_unbalanced_ring_is_the_fastest_somewhere():
    for seed in range(5):
        best = [q.answer for q in context.KIND.make(np.random.default_rng(seed))]
        assert best == ["tp", "zigzag", "ulysses"]


def test_the_ring_of_the_exercise_is_attention():
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    case = context_ranks._make(np.random.default_rng(0), {"world": 4})
    size = 4 * len(case.expected[0])
    order = np.argsort([context.positions("zigzag", rank, 4, size) for rank in range(4)], None)
    q, k, v = (torch.from_numpy(np.concatenate(each)[order])[None] for each in zip(*case.inputs))
    whole = scaled_dot_product_attention(q, k, v, is_causal=True)[0]
    np.testing.assert_allclose(np.concatenate(case.expected)[order], whole.numpy(), rtol=1e-12)


def merge_raises(one, sum_one, other, sum_other):
    both = log(exp(sum_one) + exp(sum_other))
    return one * exp(sum_one - both) + other * exp(sum_other - both), both


def test_an_overflow_is_named_above_its_traceback():
    message = check("cp_merge", merge_raises).message
    assert "larger than a float holds" in message and "on_ranks.py" not in message
