"""The chunk curve: its numbers are those of the verbs, with an interior best on a balanced case."""

from dataclasses import replace

import pytest

import tpviz as tv
from tpviz.cluster.clock.fast import Clock
from tpviz.core.step import Chunks
from tpviz.evidence import atp
from tpviz.evidence.study import Outcome
from tpviz.schemes.atp.chunks import layer_of
from tpviz.schemes.gpt.step import PIECES
from tpviz.schemes.grid.step import pieces

NODE = tv.clusters.nvswitch()
BALANCED = tv.GPT(
    layers=1, hidden=4096, heads=32, seq=1024, batch=16, vocab=32000, dtype="bfloat16"
)
TINY = tv.GPT(layers=1, hidden=32, heads=4, seq=16, batch=4, vocab=64)


@pytest.fixture(scope="module")
def curve():
    return atp.chunk_curve(BALANCED, NODE, mesh=(4, 2), counts=(8, 1, 3, 4, 2), kappa=1.8)


def test_the_best_lies_inside_and_the_simulation_agrees(curve):
    assert curve.counts == (1, 2, 4, 8)
    for source in ("predicted", "simulated"):
        assert curve.best(source) == 4
    for one, other in zip(*(curve.times[s].values() for s in ("predicted", "simulated"))):
        assert (one.step, one.waits) == pytest.approx((other.step, other.waits), rel=1e-9)
    exposed = [times.waits for times in curve.times["predicted"].values()]
    assert exposed[0] > exposed[1] > exposed[2] < exposed[3]


def test_numbers_are_those_of_predict(curve):
    for count, times in curve.times["predicted"].items():
        found = tv.predict(tv.ATP(mesh=(4, 2), chunks=count), BALANCED, NODE)
        assert (times.step, times.exposed) == (found.step_time, found.exposed)
        assert times.waits == sum(found.exposed.values()) and times.repeats == ()


def test_the_curve_follows_the_layers_time_model(curve):
    """What chunks change is the sum of T(C) over the four layers of the block."""
    clock = Clock.of(NODE, tv.Mesh({"d1": 4, "d2": 2}), BALANCED.dtype)

    def layers(count):
        made = pieces(tv.ATP(mesh=(4, 2), chunks=count).layout, BALANCED)
        parts = [made[name] for name in PIECES]
        found = [
            layer_of(o, clock.seconds, clock.moved)
            for part in parts
            for o in part
            if isinstance(o, Chunks)
        ]
        assert len(found) == 4
        return sum(layer.seconds(count) for layer in found)

    two, four, eight = (curve.times["predicted"][count].step for count in (2, 4, 8))
    assert two - four == pytest.approx(layers(2) - layers(4))
    assert four - eight == pytest.approx(layers(4) - layers(8))


def test_contention_costs_and_is_said(curve):
    for plain, slow in zip(*(curve.times[s].values() for s in ("predicted", "with contention"))):
        assert slow.step > plain.step
        assert slow.step - plain.step == pytest.approx(slow.waits - plain.waits)
    assert "a GEMM takes 1.8 times as long during a collective" in curve.describe()
    assert "kappa = 1 by construction" in curve.describe()


def test_counts_that_do_not_divide_are_named(curve):
    assert list(curve.left_out) == [3]
    reason = "batch=16 does not split evenly over chunks=3: use chunks=2 or 4, or batch=15 or 18"
    assert curve.left_out[3] == reason
    assert f"Left out: 3 chunks ({reason})." in curve.describe()
    assert curve.to_table()[-1][:2] == ["3", reason] and reason in curve._repr_html_()


def test_tokens_may_be_cut_where_the_batch_may_not():
    one = replace(TINY, batch=1)
    found = atp.chunk_curve(one, NODE, counts=(1, 2), chunking="tokens", simulate=False)
    assert found.counts == (1, 2) and set(found.times) == {"predicted"}
    assert atp.chunk_curve(one, NODE, counts=(1, 2), simulate=False).left_out.keys() == {2}


def test_badges_table_and_repr(curve):
    assert curve.badges == ["predicted", "simulated"]
    assert repr(curve) == (
        "<ChunkCurve ATP(mesh=(4, 2), order='column') on NVSwitch node: "
        "predicted best 4, with contention best 4, simulated best 4>"
    )
    table = curve.to_table()
    assert table[0][:3] == ["chunks", "predicted, step", "predicted, exposed"]
    assert {len(row) for row in table} == {7}


@pytest.mark.filterwarnings("ignore:this emulated run")  # the machine may be busy
def test_run_measures_real_ranks_in_slow_motion():
    slow = tv.clusters.nvswitch(2).scale_model(hidden=128, slow_motion=30)
    found = atp.chunk_curve(
        TINY, slow, mesh=(1, 2), counts=(1, 2), simulate=False, run=True, repeats=2, progress=False
    )
    assert list(found.times) == ["predicted", "measured"]
    assert found.badges == ["predicted", "emulated"]
    for times in found.times["measured"].values():
        assert len(times.repeats) == 2
        assert min(s for s, _ in times.repeats) <= times.step <= max(s for s, _ in times.repeats)
        assert 0 < times.waits <= times.step
    assert set(found.times["measured"]) == {1, 2}
    assert "Measured on the emulated cluster" in found.describe()
    spread = found.scene()["panels"][1]["traces"][-1]["error_y"]
    assert min(*spread["array"], *spread["arrayminus"]) >= 0 and found.best("measured") in (1, 2)


def test_runs_that_were_not_faithful_are_said(curve):
    ran = {count: Outcome(1.0, faithful=count != 2) for count in curve.counts}
    rows = [replace(r, times={**r.times, "measured": ran[r.label]}) for r in curve.rows]
    late = replace(curve, rows=tuple(rows))
    assert "Not faithful, events too short for this machine: 2 chunks" in late.describe()
    assert "Not faithful" not in curve.describe()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"mesh": (3, 1)}, r"heads=4 does not split evenly over d1\*d2=3"),
        ({"counts": (3,)}, r"no count of chunks is left of counts=\(3,\): batch=4 does not split"),
        ({"counts": ()}, r"no counts: give numbers of chunks in a list, as in \(1, 2, 4, 8\)"),
        ({"counts": 4}, "counts=4: give numbers of chunks in a list"),
        ({"counts": (0,)}, "count of chunks=0 is too small"),
        ({"kappa": 0.5}, "kappa=0.5 is not between 1 and 1000"),
        ({"repeats": 0}, "repeats=0 is too small"),
        ({"run": 1}, "run=1 is not possible: use True or False"),
        ({"chunking": "pipelined", "kappa": 2, "counts": (2,)}, "no formula for contention"),
        ({"mesh": (4, 4)}, "16 ranks do not fit the 8 devices|heads=4 does not split"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        atp.chunk_curve(TINY, NODE, simulate=False, **arguments)


def test_an_unknown_source_is_refused(curve):
    with pytest.raises(ValueError, match="source='measured' is not possible"):
        curve.best("measured")
