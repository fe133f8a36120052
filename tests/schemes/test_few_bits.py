"""Gradients in few bits: exact bytes and times, errors within their bounds, and nothing else."""

import numpy as np
import pytest
import torch
from tiny import EXACT, TINY, UNTIED, assert_as_captured, named, peaks
from together import each, together

import tpviz as tv
from tpviz.schemes.gpt.program import batch_of, reference_program

FEW = [
    (tv.DataParallel(dp=4, bucket_mb=0.02, gradients="int8"), UNTIED),
    (tv.DataParallel(dp=4, bucket_mb=0.02, zero=1, gradients="int4"), TINY),
    (tv.DataParallel(dp=4, zero=2, gradients="int8", accumulation=2), TINY),
    (tv.DataParallel(dp=4, zero=3, gradients="int8", recompute="full"), UNTIED),
    (tv.DataParallel(dp=4, zero=3, shard=2, gradients="int4", accumulation=2), TINY),
    (tv.Megatron(tp=2, sp=True) * tv.DataParallel(dp=2, gradients="int8"), TINY),
    (tv.Context(cp=2) * tv.DataParallel(dp=2, zero=1, gradients="int4"), TINY),
]
CASES = pytest.mark.parametrize("strategy, w", FEW, ids=named)


@CASES
def test_program_is_that_of_the_formulas(strategy, w):
    assert_as_captured(strategy, w)


@CASES
def test_errors_are_within_what_scales_allow(strategy, w):
    found = together(lambda case: tv.gradient_error(*case), FEW)[strategy, w]
    assert found.within and 0.2 < max(found.share.values()), found
    assert all(found.errors[name] <= found.bounds[name] * (1 + 1e-6) for name in found.errors)
    eighth = strategy.gradients == "int8"
    assert (1e-3 if eighth else 0.05) < found.whole < (0.05 if eighth else 0.5)
    assert found.errors.keys() == w.parameter_shapes().keys()


def test_verify_says_that_it_is_not_equal():
    found = tv.verify(*FEW[0], steps=1, progress=False)
    assert found.ledger_ok and not found.ok
    assert found.errors["outputs"] < 1e-10 < found.errors["gradient head.weight"]


def packed(x, bits):
    """What arrives of the numbers x that are sent, block by block."""
    most, out = 2 ** (bits - 1) - 1, np.empty_like(x)
    for start in range(0, len(x), 256):
        block = x[start : start + 256]
        scale = np.float64(np.float32(np.abs(block).max() / most)) or 1.0
        out[start : start + 256] = np.clip(np.round(block / scale), -most, most) * scale
    return out


def total(flats, bits, again):
    """The sum over ranks of flat gradients, in few bits; again : the sum is sent so, too."""
    parts = zip(*(np.split(flat, len(flats)) for flat in flats))
    sums = [sum(packed(part, bits) for part in of_rank) for of_rank in parts]
    return np.concatenate([packed(part, bits) if again else part for part in sums])


def by_hand(strategy, w):
    """{parameter: gradient} in one process: all ranks' gradients, one after the other."""
    ranks, names = strategy.dp, list(w.parameter_shapes())
    inputs, targets = batch_of(w, 0)
    grads = []
    for rows in zip(inputs.chunk(ranks), targets.chunk(ranks)):
        program = reference_program(w, torch.float64)
        loss = program.module(*rows)
        loss.backward(torch.full_like(loss, 1 / ranks))
        grads.append({name: program.named[name].grad.numpy().ravel() for name in names})
    found = {}
    for bucket in strategy.buckets(w):
        flats = np.zeros((ranks, bucket.numel))
        for flat, of_rank in zip(flats, grads):
            for name, start, size in bucket.parts:
                flat[start : start + size] = of_rank[name]
        bits = {"int8": 8, "int4": 4}[strategy.gradients]
        summed = total(list(flats), bits, again=not strategy.zero)
        found |= {name: summed[start : start + size] for name, start, size in bucket.parts}
    return found


def gradients(strategy, w):
    """On a rank."""
    mesh = tv.Mesh(strategy.axes).device_mesh()
    program = strategy.build(w, mesh, torch.float64)
    program.step(batch_of(w, 0))
    return {name: g.numpy().ravel() for name, g in program.gradients().items()}


def test_the_difference_is_that_of_quantisation_alone():
    """In one process, by NumPy, the same numbers on every rank."""
    cases = [
        (tv.DataParallel(dp=4, zero=zero, bucket_mb=0.02, gradients=bits), w)
        for zero, bits, w in ((0, "int8", TINY), (0, "int4", UNTIED), (2, "int4", TINY))
    ]
    for (strategy, w), ranks in each(gradients, cases).items():
        expected = by_hand(strategy, w)
        for found in ranks:
            for name, value in expected.items():
                error, size = np.abs(found[name] - value).max(), np.abs(value).max()
                assert error <= 1e-12 * size, (strategy.short, name, error, size)


def test_bytes_by_hand():
    """A number's bits, and 4 bytes for each 256 of a rank's part, or fewer."""
    w = tv.GPT(layers=2, hidden=64, heads=4, seq=32, batch=8, vocab=256)
    part = w.num_parameters // 4
    assert 4 * part == w.num_parameters and part % 256
    for bits, each_of in (("int8", 1), ("int4", 0.5)):
        few = tv.DataParallel(dp=4, bucket_mb=100, gradients=bits).ledger(w)
        payload = 4 * (part * each_of + 4 * (part // 256 + 1))
        assert few.total(collective="all_to_all") == (1, payload, payload * 3 / 4)
        assert few.total(collective="all_gather") == (1, payload, payload * 3 / 4)
    whole = tv.DataParallel(dp=4, bucket_mb=100).ledger(w).total()
    assert few.total()[2] / whole[2] == pytest.approx((0.5 + 4 / 256) / 4, rel=1e-3)


def test_memory_has_the_padding():
    w = tv.GPT(layers=1, hidden=10, heads=2, seq=5, batch=3, vocab=33, tied=False)
    few = tv.DataParallel(dp=3, bucket_mb=0.005, gradients="int8")
    padding = few.memory(w)["gradients"] - tv.DataParallel(dp=3).memory(w)["gradients"]
    assert padding == sum(b.numel - sum(part[2] for part in b.parts) for b in few.buckets(w)) * 4
    assert padding > 0
    found, formula = peaks(few, w), few.memory(w)
    assert {kind: found[kind] for kind in EXACT} == {kind: formula[kind] for kind in EXACT}


@pytest.mark.parametrize(
    "made, message",
    [
        (
            lambda: tv.DataParallel(gradients="int3"),
            "gradients='int3' is not possible: use 'full', 'int8' or 'int4'",
        ),
        (
            lambda: tv.Pipeline(pp=2) * tv.DataParallel(dp=2, gradients="int8"),
            'use gradients="full"',
        ),
        (
            lambda: tv.gradient_error(tv.DataParallel(), TINY),
            'use DataParallel\\(gradients="int8"\\) or "int4"',
        ),
    ],
)
def test_what_is_not_possible(made, message):
    with pytest.raises(ValueError, match=message):
        made()
