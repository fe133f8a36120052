"""What ATP's exercises are graded by: against captured programs, simulations, and by hand."""

import numpy as np
import pytest

import tpviz as tv
from tpviz.core.trace import Event, Trace
from tpviz.course import atp, atp_layers
from tpviz.course.formula import NEAR

W = tv.GPT(layers=1, hidden=32, heads=8, seq=16, batch=4, vocab=64)


@pytest.mark.parametrize(
    "mesh, order",
    [((4, 2), "column"), ((2, 4), "row"), ((2, 2), "row"), ((4, 1), "column"), ((1, 4), "column")],
)
def test_bytes_of_a_block_are_those_of_the_captured_layers(mesh, order):
    strategy = tv.ATP(mesh=mesh, order=order)
    rows = tv.capture(strategy, W).trace(0).select(kind="comm")
    sent = sum(
        e.wire_bytes for e in rows if e.layer.startswith("blocks.0.") and "norm" not in e.layer
    )
    assert atp.block_bytes(strategy, W) == pytest.approx(sent, rel=1e-12) and sent > 0


def test_ranks_counted_the_other_way_and_another_order_are_told_apart():
    for seed in range(3):
        for question in atp.OWNED.make(np.random.default_rng(seed)):
            turned, other, *_ = atp.OWNED.mistakes(*question.arguments.values()).values()
            assert turned != other, str(question)


def test_the_time_by_which_meshes_are_judged_is_that_of_the_bytes():
    unit = 8 * W.batch * W.seq * W.hidden * W.itemsize / 8
    for mesh in ((8, 1), (4, 2), (2, 4), (1, 8)):
        bytes_sent = atp.block_bytes(tv.ATP(mesh=mesh), W)
        assert atp._seconds(*mesh, 1, 1) == pytest.approx(bytes_sent / unit, rel=1e-12)


def test_the_best_machines_meshes_differ_and_are_clearly_best():
    best = {}
    for cluster, _ in atp._machines():
        times = atp.mesh_times(cluster, atp._workload())
        least, second = sorted(times.values())[:2]
        assert second > 1.5 * (NEAR - 1) * least + least
        best[cluster.name] = min(times, key=times.get)
    assert set(best.values()) == {(4, 2, "column"), (2, 4, "column")}


def test_predicted_choices_are_those_of_the_simulation():
    cluster, _ = atp._machines()[1]
    w = atp._workload()
    times = atp.mesh_times(cluster, w)
    for choice in ((2, 4, "column"), (4, 2, "row")):
        simulated = tv.simulate(tv.ATP(mesh=choice[:2], order=choice[2]), w, cluster).step_time
        assert times[choice] == pytest.approx(simulated, rel=1e-9)


def test_few_some_and_many_chunks_are_best_somewhere():
    import numpy as np

    questions = atp.CHUNK_COUNT.make(np.random.default_rng(0))
    near = [{c for c, t in q.known.items() if t <= NEAR * min(q.known.values())} for q in questions]
    assert sorted(map(min, near)) == [1, 4, 8]
    assert all(len(choices) < 4 for choices in near)


def trace_of(*events):
    """One event a second: "k" a kernel, a letter's issue, and "-" the letter to wait for it."""
    rows = []
    for at, what in enumerate(events):
        times = {"id": at, "start": float(at), "end": at + 0.5}
        if what == "k":
            rows.append(Event(flops=10, **times))
        elif what[0] == "-":
            rows.append(Event(kind="wait", waits_for=events.index(what[1:]), **times))
        else:
            rows.append(Event(kind="comm", lane="comm/d2", name="all_reduce", bytes=8, **times))
    return Trace.from_events(rows)


@pytest.mark.parametrize(
    "events, waits",
    [
        (("k", "a", "-a"), 1),
        (("k", "a", "k", "-a"), 0.5),
        (("k", "a", "-a", "k", "b", "-b"), 1),
        (("k", "a", "k", "b", "-a", "-b"), 0.5),
        (("k", "k", "a", "b", "-a", "-b"), 1),
        (("k", "a", "k", "b", "k", "c", "k", "d", "-a", "-b", "-c", "-d"), 0.25),
        (("a", "k", "-a"), 0),
    ],
)
def test_exposed_by_hand(events, waits):
    assert atp_layers.exposed(trace_of(*events)) == pytest.approx(waits)
