"""Programs that know nothing of tpviz give the same numbers recorded and emulated, and the ledger
that their shapes say."""

from importlib import import_module

import pytest
import torch
from zoo import PROGRAMS, RANKS, by_axis, plainly, recorded

import tpviz as tv
from tpviz.runtime.launch import RankError, RankTimeoutError

for subject in "attention checkpoints data experts messages pipelines tensor".split():
    import_module(f"zoo_{subject}")

# Times are not looked at, so links and devices are as quick as they come.
CLUSTER = tv.clusters.nvlink_pairs(pairs=RANKS // 2)


@pytest.fixture(scope="module")
def plain():
    """{name: each rank's numbers, or the error} on plain gloo; one after another, in one pool."""
    return {name: _tried(plainly, entry.build, backend="gloo") for name, entry in PROGRAMS.items()}


def _tried(*args, **options):
    try:
        return tv.launch(*args, world_size=RANKS, timeout=30, **options)
    except (RankError, RankTimeoutError) as error:
        return error


def _check(name, plain, got, tolerance):
    if isinstance(plain[name], Exception):
        raise plain[name]
    for rank, (theirs, (ours, trace)) in enumerate(zip(plain[name], got)):
        assert len(theirs) == len(ours)
        for a, b in zip(theirs, ours):
            torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance)
        expected = PROGRAMS[name].ledger
        _check_ledger(trace, expected(rank) if callable(expected) else expected)


def _check_ledger(trace, expected):
    found = by_axis(trace.ledger())
    for pair, (_, payload) in expected.items():
        if payload is None and pair in found:
            found[pair] = found[pair][0], None
    assert found == expected


@pytest.mark.parametrize("name", PROGRAMS)
def test_recorded(name, plain):
    _check(name, plain, tv.launch(recorded, PROGRAMS[name].build, world_size=RANKS), 0.0)


@pytest.mark.parametrize("name", PROGRAMS)
def test_emulated(name, plain):
    entry = PROGRAMS[name]
    if entry.refused:
        with pytest.raises(RankError, match=entry.refused):
            tv.launch(recorded, entry.build, CLUSTER, world_size=RANKS)
        return
    got = tv.launch(recorded, entry.build, CLUSTER, world_size=RANKS)
    _check(name, plain, got, entry.emulated_tolerance)


def test_there_are_forty():
    assert len(PROGRAMS) >= 40
