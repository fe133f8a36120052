"""Ranks that do the same share rows: with the numbers that each one's own replay gives."""

import numpy as np
import pytest

import tpviz as tv
from tpviz.cluster import Cluster, Device, Dimension, Level
from tpviz.cluster.clock import replay
from tpviz.core.trace.columns import COLUMNS

W = tv.GPT(layers=2, batch=16)
DEVICE = Device({"float32": 1e9}, 1e12, 1e10)
NODES = Cluster(
    "nodes",
    DEVICE,
    (
        Level("fast", 2, 4e8, 4e8, 1e-4),
        Level("slow", 4, 1e8, 2e8, 1e-4),
        Level("net", 2, 5e7, 1e8, 1e-4),
    ),
)
TORUS = Cluster("torus", DEVICE, torus=(Dimension("x", 4, 2e8, 1e-6), Dimension("y", 4, 1e8, 1e-6)))
STRATEGIES = [
    tv.Megatron(tp=2) * tv.DataParallel(dp=4, zero=1),
    tv.DataParallel(dp=8, zero=3),
    tv.ATP(mesh=(2, 2), chunks=2) * tv.DataParallel(dp=4),
    tv.AxoNN(x=2, y=2, z=2, data=2, overlap=("oar", "ors", "oag")),
    tv.Merak(pp=2, tp=2, dp=2, microbatches=4),
    tv.Merak(pp=2, dp=4, microbatches=2, schedule="zb_h1"),
    tv.T3(tp=4, mode="tile") * tv.DataParallel(dp=2),
]
CASES = {
    "alike": (NODES, None),
    "torus": (TORUS, tv.Faults(slow_links={3: 3.0})),
    "straggler": (NODES, tv.Faults(stragglers={1: 2.0}, slow_links={0: 1.5})),
    "jitter": (NODES, tv.Faults(jitter=0.1)),
}


@pytest.fixture(scope="module", params=STRATEGIES, ids=lambda s: s.short)
def program(request):
    return request.param, tv.capture(request.param, W)


@pytest.mark.parametrize("case", CASES)
def test_shared_rows_are_those_of_every_ranks_own_replay(program, case, monkeypatch):
    (strategy, capture), (cluster, faults) = program, CASES[case]
    monkeypatch.setattr(replay, "MOST", 0)
    shared = tv.simulate(strategy, W, cluster, capture=capture, faults=faults, steps=2)
    with monkeypatch.context() as alone:
        alone.setattr(tv.Faults, "kernel_kind", lambda faults, rank: rank)
        full = tv.simulate(strategy, W, cluster, capture=capture, faults=faults, steps=2)
    assert len(full.ranks) == len(set(full["rank"].tolist())) == strategy.world_size
    assert shared.ranks == full.ranks and shared.step_time == pytest.approx(full.step_time)
    whole = shared.whole()
    for name in COLUMNS:
        column = whole[name]
        if name in ("start", "end"):
            np.testing.assert_allclose(column, full[name], rtol=1e-9, atol=1e-12)
        else:
            assert (column == full[name]).all(), name
    for rank in (0, strategy.world_size - 1):
        assert shared.ledger(rank=rank) == full.ledger(rank=rank)
        assert len(shared.select(rank=rank)) == len(full.select(rank=rank))
        assert shared.memory(rank).peak == full.memory(rank).peak
    plain = tv.Trace({name: full[name] for name in COLUMNS}, full.meta)
    assert shared.bubble() == pytest.approx(plain.bubble())
    assert shared.overlap() == pytest.approx(plain.overlap())
    assert shared.exposed_communication() == pytest.approx(plain.exposed_communication())
    assert sum(e.end - e.start for e in shared.critical_path()) == pytest.approx(
        sum(e.end - e.start for e in plain.critical_path())
    )


def test_a_large_world_has_the_rows_of_a_few_ranks(monkeypatch):
    """32 nodes of 8: one rank stands for all, until one of them is slow."""
    w = tv.GPT(layers=1, heads=8, batch=256)
    strategy = tv.Megatron(tp=8) * tv.DataParallel(dp=32)
    capture, cluster = tv.capture(strategy, w), tv.clusters.nvswitch_nodes(32)
    monkeypatch.setattr(replay, "MOST", 255 * len(capture.traces[0]))
    trace = tv.simulate(strategy, w, cluster, capture=capture)
    assert len(trace) == len(capture.traces[0]) and trace.ranks == list(range(256))
    assert trace.meta["badge"] == "simulated, 256 ranks by the rows of 1"
    assert trace.ledger(rank=255) == strategy.ledger(w)
    assert set(trace.select(rank=200, axis="tp")["members"].tolist()) == {
        ",".join(map(str, range(200, 208)))
    }
    slow = tv.simulate(strategy, w, cluster, capture=capture, faults=tv.Faults(stragglers={9: 2.0}))
    assert np.unique(slow["rank"]).tolist() == [0, 1, 8, 9]  # it, its tp, its dp and the rest
    assert slow.bubble()[200] == slow.bubble()[0] > slow.bubble()[9]


def test_a_view_of_a_large_world_says_whose_rows_it_shows(monkeypatch):
    from tpviz.views.figures.timeline import timeline_scene

    monkeypatch.setattr(replay, "MOST", 0)
    scene = timeline_scene(tv.simulate(STRATEGIES[0], W, NODES))
    assert scene["ranks"] == [0]
    assert scene["badge"] == "simulated, 8 ranks by the rows of 1"
