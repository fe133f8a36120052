"""Programs that know nothing of tpviz give the same numbers recorded and emulated, and the ledger
that their shapes say; captured too, or it is said why not."""

from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from zoo import PROGRAMS, RANKS, by_axis, in_turn, plainly, recorded

import tpviz as tv
from tpviz.ranks.fake import fake_tensors, fake_world
from tpviz.ranks.launch import RankError, RankTimeoutError
from tpviz.schemes.strategy import Strategy

pytestmark = pytest.mark.timeout(600)  # on a busy machine; alone all take about a minute

for subject in "attention checkpoints data experts messages pipelines tensor".split():
    import_module(f"zoo_{subject}")

# Times are not looked at, so links and devices are as quick as they come.
CLUSTER = tv.clusters.nvlink_pairs(pairs=RANKS // 2)


@pytest.fixture(scope="module")
def plain():
    """{name: each rank's numbers, or the error} on plain gloo."""
    return _ran(plainly, PROGRAMS, backend="gloo")


@pytest.fixture(scope="module")
def traced():
    """{name: each rank's (numbers, trace), or the error}."""
    return _ran(recorded, PROGRAMS)


@pytest.fixture(scope="module")
def emulated():
    """The same on an emulated cluster, of all that can be emulated."""
    return _ran(recorded, [name for name in PROGRAMS if not PROGRAMS[name].refused], CLUSTER)


def _ran(run, names, *args, **options):
    """All in one job, one after another; where one of them fails, each in a job of its own, so that
    the error is that of its program. What fails together alone is an error of all."""
    builds = {name: PROGRAMS[name].build for name in names}
    try:
        ranks = tv.launch(in_turn, run, builds, *args, world_size=RANKS, timeout=300, **options)
    except (RankError, RankTimeoutError):
        found = {name: _tried(run, build, *args, **options) for name, build in builds.items()}
        if not any(isinstance(ranks, Exception) for ranks in found.values()):
            raise
        return found
    return {name: [rank[name] for rank in ranks] for name in names}


def _tried(*args, **options):
    try:
        return tv.launch(*args, world_size=RANKS, timeout=30, **options)
    except (RankError, RankTimeoutError) as error:
        return error


def _check(name, plain, got, tolerance):
    for ranks in (plain[name], got[name]):
        if isinstance(ranks, Exception):
            raise ranks
    for rank, (theirs, (ours, trace)) in enumerate(zip(plain[name], got[name], strict=True)):
        assert len(theirs) == len(ours)
        for a, b in zip(theirs, ours):
            torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance)
        _check_ledger(trace.ledger(), _expected(name, rank))


def _expected(name, rank):
    ledger = PROGRAMS[name].ledger
    return ledger(rank) if callable(ledger) else ledger


def _check_ledger(ledger, expected):
    found = by_axis(ledger)
    for pair, (_, payload) in expected.items():
        if payload is None and pair in found:
            found[pair] = found[pair][0], None
    assert found == expected


@pytest.mark.parametrize("name", PROGRAMS)
def test_recorded(name, plain, traced):
    _check(name, plain, traced, 0.0)


@pytest.mark.parametrize("name", PROGRAMS)
def test_emulated(name, plain, emulated):
    entry = PROGRAMS[name]
    if entry.refused:
        with pytest.raises(RankError, match=entry.refused):
            tv.launch(recorded, entry.build, CLUSTER, world_size=RANKS)
        return
    _check(name, plain, emulated, entry.emulated_tolerance)


@dataclass(frozen=True)
class Foreign(Strategy):
    """A program of the zoo, which makes its own groups and meshes."""

    name: str

    @property
    def axes(self):
        return {"all": RANKS}

    def check(self, workload):
        """It fits."""

    def build(self, workload, mesh, dtype=None, device="cpu", **options):
        step, _ = PROGRAMS[self.name].build()
        return SimpleNamespace(step=lambda batch: step(), optimizer_step=lambda: None)


@pytest.mark.filterwarnings("ignore")  # torch's own; ranks print them
@pytest.mark.parametrize("name", PROGRAMS)
def test_captured(name):
    entry = PROGRAMS[name]
    if entry.uncaptured:
        with pytest.raises(ValueError, match=entry.uncaptured):
            tv.capture(Foreign(name), tv.GPT())
        return
    captured = tv.capture(Foreign(name), tv.GPT())
    for rank in range(RANKS):
        _check_ledger(captured.ledger(rank), _expected(name, rank))


def test_a_mesh_of_unknown_ranks_is_refused():
    with fake_world(0, RANKS), fake_tensors(), pytest.raises(ValueError, match="list of ranks"):
        dist.device_mesh.DeviceMesh("cpu", torch.arange(RANKS))


def test_there_are_forty():
    assert len(PROGRAMS) >= 40
