"""The workload of these tests: small, and divisible by everything that is tried."""

from dataclasses import replace

import tpviz as tv

TINY = tv.GPT(layers=2, hidden=16, heads=8, seq=8, batch=8, vocab=32)
UNTIED = replace(TINY, tied=False)


def assert_equal(strategy, workload, steps=2):
    """`verify` finds the same numbers and the exact ledger."""
    found = tv.verify(strategy, workload, steps=steps, progress=False)
    assert found.ledger_ok, found
    assert found.max_error < 1e-10, found
    names = set(workload.parameter_shapes())
    compared = {f"{kind} {name}" for kind in ("gradient", "parameter") for name in names}
    assert compared | {"outputs", "input gradient", "losses"} == found.errors.keys()
