"""Programs of ranks whose experts have other numbers of rows: from a few records, each row and each
byte as recorded."""

import importlib
from dataclasses import replace

import numpy as np
import pytest

import tpviz as tv
from tpviz.cluster.clock.affine import Affine, enough
from tpviz.core.mesh import Mesh
from tpviz.core.trace.table import Event, Trace

VERB = importlib.import_module("tpviz.verbs.capture")
HOT = tv.GPT(
    hidden=32, heads=4, seq=16, batch=16, vocab=64, experts=8, routing=tv.Routing(skew=1.0)
)
SP = tv.Megatron(tp=2, sp=True)
CASES = {
    "one expert a rank": (tv.Experts(ep=8), HOT, "kernels", 4),
    "every operator": (tv.Experts(ep=4) * tv.Context(cp=2), replace(HOT, seq=64), "all", 4),
    "five factors": (
        SP * tv.Experts(ep=4) * tv.Context(cp=2) * tv.Pipeline(pp=2) * tv.DataParallel(dp=2),
        replace(HOT, batch=32, seq=64, gated=True, shared_experts=1, aux_loss=0.1),
        "kernels",
        15,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_program_is_as_recorded(case, monkeypatch):
    strategy, workload, detail, few = case
    record, recorded = VERB._record, []
    monkeypatch.setattr(VERB, "_record", lambda *a: recorded.append(a[2]) or record(*a))
    found = tv.capture(strategy, workload, detail=detail)
    assert len(recorded) == few < len(found.traces)
    for rank in found.traces.keys() - set(recorded):
        expected = record(strategy, workload, rank, strategy.world_size, detail)
        for name in expected.columns:
            assert found.traces[rank][name].tolist() == expected[name].tolist(), (rank, name)
        for kind in ("memory", "parts"):
            assert found.traces[rank].meta[kind] == expected.meta[kind], rank


def test_what_is_not_affine_is_recorded(monkeypatch):
    strategy, recorded = tv.Experts(ep=8), []
    record = VERB._record

    def squared(*args):
        recorded.append(args[2])
        trace = record(*args)
        return Trace({**trace.columns, "flops": trace["flops"] ** 2}, trace.meta)

    monkeypatch.setattr(VERB, "_record", squared)
    found = tv.capture(strategy, HOT)
    assert sorted(recorded) == [*range(8)] == sorted(found.traces)


def test_each_number_has_its_own_count():
    """Kernels of two experts, an all-to-all of both, and one number that is the same for all."""
    rows = np.array([[2, 3, 5], [5, 4, 9], [7, 11, 18], [4, 9, 13]])
    mesh = Mesh({"ep": 4})

    def trace(rank):
        a, b, both = rows[rank].tolist()
        events = [
            Event(rank=rank, name="mm", start=0, end=1, flops=10 * a, bytes=7 + 2 * a),
            Event(rank=rank, name="mm", start=1, end=2, flops=10 * b, bytes=7 + 2 * b),
            Event(
                rank=rank,
                kind="comm",
                name="all_to_all_v",
                start=2,
                end=3,
                bytes=100 - both,
                wire_bytes=100 - both,
                members="0,1,2,3",
            ),
            Event(rank=rank, name="mm", start=3, end=4, flops=5, bytes=5),
        ]
        series = {"time": [0.0, 1.0, 2.0], "activations": [0, 8 * a, 8 * a + 8 * b]}
        return Trace.from_events(
            events, {"memory": {rank: series}, "parts": {rank: [[a, both, 3]]}}
        )

    chosen = enough(rows)
    assert chosen == [0, 1, 2]
    program = Affine.of_records(mesh, {r: trace(r) for r in chosen}, rows[chosen])
    assert program is not None
    found, expected = program.at(3, rows[3]), trace(3)
    assert {n: c.tolist() for n, c in found.columns.items()} == {
        n: c.tolist() for n, c in expected.columns.items()
    }
    assert found.meta == expected.meta


def test_counts_that_vary_apart_are_told_apart():
    """Two ranks cannot say which of two experts a number is of; as many as it takes can."""
    assert enough(np.array([[4, 4], [4, 4]])) == [0]
    assert enough(np.array([[1], [2], [3]])) == [0, 1]
    assert len(enough(np.array([[1, 1], [2, 2], [3, 3]]))) == 2  # always alike: either will do
    assert len(enough(np.array([[1, 1], [2, 2], [3, 4], [9, 1]]))) == 3
