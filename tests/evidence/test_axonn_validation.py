"""Validation of AxoNN's lab: all grids, rankings by hand, what was measured, one emulated run."""

from dataclasses import replace

import pytest

import tpviz as tv
from tpviz.evidence import axonn
from tpviz.evidence.axonn.claims import VALIDATION
from tpviz.evidence.axonn.validated import Hits, kind_of

W = tv.GPT(layers=1, hidden=64, heads=8, seq=32, batch=16, vocab=64)
TINY = tv.GPT(layers=1, hidden=32, heads=4, seq=16, batch=4, vocab=64)
NODES = tv.clusters.perlmutter(2)


@pytest.fixture(scope="module")
def found():
    return axonn.validation(W, NODES)


def with_times(found, times):
    """The same with measured times of the first grids, which the model has in this order."""
    rows = [
        r._replace(measured=t, communication=1e-9 * n)
        for n, (r, t) in enumerate(zip(found.rows, times), 1)
    ]
    return replace(found, rows=(*rows, *found.rows[len(rows) :]))


def test_rows_are_all_grids_by_the_communication_model(found):
    assert len(found.rows) == 20 == len(set(r.strategy for r in found.rows))
    for r in found.rows:
        assert r.communication == pytest.approx(r.strategy.communication(W, NODES), rel=1e-12)
        assert r.predicted == tv.predict(r.strategy, W, NODES).step_time and r.measured is None
    times = [r.communication for r in found.order()]
    assert times == pytest.approx(sorted(times)) and found.order() == list(found.rows)
    steps = [r.predicted for r in found.order("predicted")]
    assert steps == pytest.approx(sorted(steps)) and found.order("measured") == []
    assert {kind_of(r.strategy) for r in found.rows} == {"z and data alone", "x", "y", "x and y"}


def test_rankings_by_hand(found):
    run = with_times(found, (2.0, 1.0, 3.0, 5.0, 4.0))
    assert run.tau("communication", "measured") == pytest.approx((10 - 2 * 2) / 10)
    assert run.hits("communication", 3) == Hits(3, 3, 5)
    assert run.hits("communication", 1) == Hits(1, 0, 5)
    assert run.hits("communication", 3).chance == pytest.approx(9 / 5)
    assert run.hits("communication", 5) is None and run.hits("communication", 10) is None
    other = with_times(found, (5.0, 4.0, 3.0, 2.0, 1.0))
    assert other.tau("communication", "measured") == pytest.approx(-1)
    assert other.hits("communication", 2).found == 0
    words = other.describe()
    assert "The first 3 by communication include 1 of the 3 fastest measured of 5 (by" in words
    assert "Kendall's tau of communication and measured: -1.00." in words
    assert "Only the first 5 of 20 grids by the communication model were run." in words
    assert "measured of 5 (by chance 1.8)" in words and "first 10 by" not in words


def test_a_model_that_is_none_is_refused(found):
    with pytest.raises(ValueError, match="mode='steps' is not possible: use 'communication', 'pr"):
        found.tau("communication", "steps")


def test_words_without_runs(found):
    words = found.describe()
    assert VALIDATION in words and "recalled, not confirmed" in VALIDATION
    assert found.badges == ["predicted"] and found.tau("communication", "measured") is None
    assert "measured" not in words.replace(VALIDATION, "")
    first, fastest = (
        {r.strategy for r in found.order(m)[:10]} for m in ("communication", "predicted")
    )
    assert found.hits(top=10) == Hits(10, len(first & fastest), 20)
    assert f"include {len(first & fastest)} of the 10 fastest predicted of 20 (by" in words
    assert found.hits("predicted", 10).found == 10 and "first 10 by predicted" not in words
    assert repr(found).endswith(f"{found.tau():.2f}; predicted>")
    table = found.to_table()
    assert len(table) == 21 and table[1][2] == "1" and table[1][-2:] == ["", ""]
    assert [int(row[4]) for row in table[1:]] != sorted(int(row[4]) for row in table[1:])
    assert found._repr_html_().count("<tr>") == 21


def test_knobs_are_those_of_all():
    rows = axonn.validation(W, NODES, world_size=4, overlap=(), recompute=True).rows
    assert len(rows) == 10 and {(r.strategy.overlap, r.strategy.recompute) for r in rows} == {
        ((), "full")
    }
    least = axonn.validation(W, NODES, least=4).rows
    assert 0 < len(least) < 20 and {r.strategy.data for r in least} == {1, 2}


def test_runs_that_were_not_faithful_are_said(found):
    rows = (found.rows[0]._replace(measured=1.0, faithful=False), *found.rows[1:])
    assert (
        "Not faithful, events too short for this machine: " in replace(found, rows=rows).describe()
    )


@pytest.mark.filterwarnings("ignore:this emulated run")  # the machine may be busy
def test_the_first_are_run_on_real_ranks():
    slow = tv.clusters.nvswitch(2).scale_model(hidden=128, slow_motion=10)
    found = axonn.validation(TINY, slow, run=2, steps=1, progress=False)
    assert [r.measured is not None for r in found.rows] == [True, True, False, False]
    assert all(r.measured > 0 for r in found.measured)
    assert found.badges == ["predicted", "emulated"]
    for panel in found.scene()["panels"]:
        assert sum(len(t["x"]) for t in panel["traces"] if t["mode"] == "markers") == 2


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: axonn.validation(NODES, W), "first comes a workload"),
        (lambda: axonn.validation(W, NODES, world_size=16), "16 ranks do not fit the 8 devices"),
        (lambda: axonn.validation(W, NODES, world_size=1), "world_size=1 is too small"),
        (lambda: axonn.validation(W, NODES, run=0), "run=0 is too small"),
        (lambda: axonn.validation(W, NODES, run="some"), "run must be a whole number, not 'some'"),
        (lambda: axonn.validation(W, NODES, x=2), "x=2: all grids are tried"),
        (
            lambda: axonn.validation(
                replace(W, hidden=64, batch=1, heads=1, vocab=3), NODES, world_size=7
            ),
            "0 of 4 grids of 7 ranks divide the sizes",
        ),
        (lambda: axonn.validation(W, NODES, least=9), "least=9 is too large"),
    ],
)
def test_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
