"""The workload of these tests: small, and divisible by everything that is tried."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from together import together, verifications

import tpviz as tv
from tpviz.cluster.clock.program import Capture

TINY = tv.GPT(layers=2, hidden=16, heads=8, seq=8, batch=8, vocab=32)
UNTIED = replace(TINY, tied=False)


@cache
def captured(strategy: tv.Strategy, workload: tv.GPT) -> Capture:
    """`tv.capture`, once."""
    return tv.capture(strategy, workload)


def assert_as_captured(strategy: tv.Strategy, workload: tv.GPT, *boxes: tv.Cluster) -> None:
    """Every rank's captured bytes are the formula's, and on each of the ``boxes``, a small one
    unless said, `predict` takes as long as `simulate` without contention."""
    program = captured(strategy, workload)
    for rank in range(strategy.world_size):
        assert program.ledger(rank) == strategy.ledger_of(workload, rank), strategy.short
    for box in boxes or (tv.clusters.nvlink_pairs(4).scale_model(hidden=64),):
        simulated = tv.simulate(strategy, workload, box, capture=program, contention=False)
        predicted = tv.predict(strategy, workload, box).step_time
        assert predicted == pytest.approx(simulated.step_time, rel=1e-9), strategy.short


def named(value: Any) -> str | None:
    """The id of a test's parameter that is a strategy or a workload."""
    if isinstance(value, tv.GPT):
        return ("tied" if value.tied else "untied") + "-llama" * value.gated
    return getattr(value, "short", None)


def assert_equal(
    strategy: tv.Strategy,
    workload: tv.GPT,
    steps: int = 2,
    among: Iterable[tuple[tv.Strategy, tv.GPT]] = (),
) -> None:
    """`verify` finds the same numbers and the exact ledger.

    among : all pairs (strategy, workload) of a test or file, which are verified together.
    """
    case = strategy, workload
    found = verifications(tuple(among) or (case,), steps)[case]
    assert found.ledger_ok, found
    assert found.max_error < 1e-10, found
    names = set(workload.parameter_shapes())
    compared = {f"{kind} {name}" for kind in ("gradient", "parameter") for name in names}
    assert compared | {"outputs", "input gradient", "losses"} == found.errors.keys()


EXACT = ("parameters", "gradients", "optimizer")
"""Kinds of memory that a formula gives to the byte."""


def peaks(
    strategy: tv.Strategy,
    workload: tv.GPT,
    among: Iterable[tuple[tv.Strategy, tv.GPT]] = (),
    tries: int = 20,
) -> dict[str, int]:
    """Bytes of rank 0 at their most, by kind, as tracked; ``among``: as for `assert_equal`.

    A thread of gloo's may hold a tensor that it has summed for a moment longer, a gradient too,
    which only adds: above the formula, with its tolerance, one of several tries counts.
    """
    case = strategy, workload
    most = dict(strategy.memory(workload))
    most["activations"] *= 1.12
    found = _tracked(tuple(among) or (case,))[case]
    for _ in range(tries - 1):
        if all(found[kind] <= most[kind] for kind in (*EXACT, "activations")):
            break
        found = _run_tracked(case)
    return found


@cache
def _tracked(cases):
    return together(_run_tracked, cases)


def _run_tracked(case):
    return tv.run(*case, steps=1, progress=False).memory(0).peaks
