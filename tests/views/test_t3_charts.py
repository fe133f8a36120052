"""Charts of T3's lab: the data in the figure, badges, notes, words; counts that are identities."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from plain_chart import assert_plain

import tpviz as tv
from tpviz.evidence import t3
from tpviz.evidence.t3.movement import CONFIGS, KINDS
from tpviz.evidence.t3.paper import ANCHORS, AgainstPaper, Compared
from tpviz.evidence.t3.sublayers import MODELS, SUBLAYERS, SublayerRow, Sublayers
from tpviz.evidence.t3_hardware import Gemm, Machine
from tpviz.schemes.t3.paper import ideal_speedup

W = tv.GPT(layers=1, hidden=64, heads=4, seq=64, batch=16, vocab=64)


@pytest.fixture(scope="module")
def modes():
    return made("modes")


@pytest.fixture(scope="module")
def paying():
    return made("paying")


def made_up():
    """Sublayers as if they had been simulated."""
    dram = {
        c: {
            "gemm_read": 4.0 - i,
            "rs_read": 15.0,
            "gemm_write": 8.0,
            "rs_write": 8.0,
            "dma_read": 6.0,
            "update_local": 7.0,
            "update_incoming": 7.0,
        }
        for i, c in enumerate(("sequential", "t3", "t3_mca"))
    }
    rows = [
        SublayerRow(
            model,
            tp,
            name,
            4.0,
            3.0,
            2.8,
            2.5,
            {
                "sequential": 9.5,
                "ideal": 6.5,
                "ideal_nmc": 6.5,
                "t3": 8.0 - i / 8,
                "t3_mca": 7.5 - i / 4,
            },
            dram,
        )
        for model in MODELS.values()
        for tp in model.tp
        for i, name in enumerate(SUBLAYERS)
    ]
    return Sublayers(tuple(rows), Machine())


def against():
    rows = [
        Compared(anchor, anchor.paper + 2 * i - 9, {}, null=10.0 + i)
        for i, anchor in enumerate(ANCHORS)
    ]
    return AgainstPaper(tuple(rows), made_up())


MAKERS = {
    "modes": lambda: t3.modes(W, t3.ring(4).scale_model(dtype="float16", hidden=9)),
    "paying": lambda: t3.paying(inner=(256, 768, 2048)),
    "movement": lambda: t3.movement(5),
    "sublayers": made_up,
    "paper": against,
}


@cache
def made(which):
    return MAKERS[which]()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("which", MAKERS)
def test_every_chart_is_plain_and_says_what_it_shows(which, theme):
    study = made(which)
    assert len({len(row) for row in study.to_table()}) == 1 and repr(study).startswith("<")
    scene = study.scene()
    assert_plain(scene, study.to_svg, theme, scene["badges"], study.describe())


# -- memory ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("ranks", [3, 8, 16])
def test_counts_are_the_rings_and_the_simulators(ranks):
    found = t3.movement(ranks)
    assert found.total("sequential", "read") == 2 * ranks - 1
    assert (
        found.total("sequential", "incoming", "sum") == found.total("sequential", "gemm") == (ranks)
    )
    assert found.total("t3_mca", "read") == ranks - 2
    assert found.total("t3_mca", "gemm") == found.total("t3_mca", "incoming") == ranks - 1
    assert found.exact
    wrong = dict(found.runs)
    wrong["t3_mca"] = replace(
        wrong["t3_mca"],
        drams=({**wrong["t3_mca"].dram, "dma_read": wrong["t3_mca"].dram["dma_read"] + 1},),
    )
    assert not replace(found, runs=wrong).exact
    assert "DIFFER" in replace(found, runs=wrong).describe()


def test_ratios_are_those_published():
    saved = {n: t3.movement(n) for n in (8, 16)}
    assert saved[8].fewer_reads == 2.5
    assert saved[16].fewer_reads == pytest.approx(2.21, abs=0.005)
    assert [round(100 * m.saved, 1) for m in saved.values()] == [24.4, 20.4]


def test_bars_are_the_counts():
    found = t3.movement(6)
    figure = found.figure()
    for column, config in enumerate(CONFIGS):
        for trace, kind in zip(figure.data[4 * column : 4 * column + 4], KINDS):
            assert sum(trace.y) == found.total(config, kind) and len(trace.y) == 6
            assert trace.name == KINDS[kind]
    shapes = [trace.marker.pattern.shape for trace in figure.data[:4]]
    assert len(set(shapes)) == 4 and figure.layout.barmode == "stack"


# -- when it pays ----------------------------------------------------------------------------------
def test_the_closed_form_is_that_of_ideal_overlap_where_memory_is_free(paying):
    free = Machine(dram=1e15, link=15e9, cus=8, latency=0.0)
    for point in t3.paying(inner=(256, 700, 2048), machine=free).points:
        assert point.speedup("ideal") == pytest.approx(ideal_speedup(point.x), rel=0.02)
    assert max(ideal_speedup(x) for x in np.linspace(0.01, 6, 600)) == pytest.approx(1.5, abs=0.002)
    figure = paying.figure()
    assert max(figure.data[0].y) == 1.5 == ideal_speedup(1.0)
    for trace, config in zip(figure.data[1:], ("t3", "t3_mca", "ideal")):
        assert list(trace.y) == [p.speedup(config) for p in paying.points]
        assert list(trace.x) == [p.x for p in paying.points]
    assert paying.best == pytest.approx(paying.points[0].k / paying.points[0].x)


# -- modes -----------------------------------------------------------------------------------------
def test_formula_and_virtual_clock_agree_on_step_and_sublayer(modes):
    for row in modes.rows:
        one, two = row.times["predicted"], row.times["simulated"]
        assert one.step == pytest.approx(two.step, rel=1e-9)
        assert one.sublayer == pytest.approx(two.sublayer, rel=1e-9)
    assert modes.gain("chunk") > 0.1
    assert modes.gain("sequential") == 0
    assert modes.gain("tile", "simulated", "step") == pytest.approx(modes.gain("tile", what="step"))


def test_a_run_is_drawn_beside_and_says_when_it_is_not_faithful(modes):
    first = modes.rows[0]
    ran = replace(first.times["predicted"], step=1.0, faithful=False)
    first = replace(first, times={**first.times, "measured": ran})
    study = replace(modes, rows=(first, *modes.rows[1:]))
    assert study.badges == ["predicted", "simulated", "emulated"]
    assert "Not faithful, events too short for this machine: sequential." in study.describe()
    emulated = [t for t in study.figure().data if t.name == "emulated"]
    assert [list(t.x) for t in emulated] == [["sequential"]] * 2
    assert emulated[0].y[0] == 1.0
    with pytest.raises(ValueError, match="tile has no measured times: use 'predicted' or 'sim"):
        study.gain("tile", "measured")


# -- the paper -------------------------------------------------------------------------------------
def test_speedups_are_drawn_model_by_model():
    found = made_up()
    for trace, config in zip(t3.drawn(found).data, ("ideal", "t3", "t3_mca")):
        assert [y for y in trace.y if y is not None] == [r.speedup(config) for r in found.rows]
        assert list(trace.y)[4] is None  # a model's line ends before the next begins


def test_numbers_stand_beside_the_papers_with_what_they_are():
    study = against()
    lines, theirs, null, ours = t3.drawn(study).data
    rows = [r for r in study.rows if r.anchor.kind != "identity"][::-1]
    assert list(theirs.x) == [r.anchor.paper for r in rows]
    assert list(ours.x) == [r.ours for r in rows]
    assert list(null.x) == [r.null for r in rows] and "null model" in null.name
    assert [mark == "circle" for mark in ours.marker.symbol] == [r.matched for r in rows]
    assert (
        list(theirs.y)
        == list(ours.y)
        == [f"{r.anchor.name} ({r.anchor.kind}; {r.anchor.source})" for r in rows]
    )
    assert {r.matched for r in rows} == {True, False}
    assert list(lines.x[:3]) == [rows[0].anchor.paper, rows[0].ours, None]


def test_bad_arguments():
    for call, match in (
        (lambda: t3.movement(2), "ranks=2 is too small: the least that works is 3"),
        (lambda: t3.movement(8, Gemm(128, 128, 64)), "too few for ranks=8: use ranks=1"),
        (lambda: t3.paying(inner=()), "inner is empty: give some inner dims, as in"),
        (lambda: t3.paying(ranks=1), "ranks=1 is too small: the least that works is 2"),
        (lambda: t3.modes(W, t3.ring(4), tp=1), "tp=1 is too small"),
        (lambda: t3.modes(W, t3.ring(4), modes=("tiles",)), "mode='tiles' is not possible"),
        (lambda: t3.modes(W, t3.ring(4), modes=()), "modes is empty: give some of seq"),
        (lambda: t3.modes(W, t3.ring(2)), "4 ranks do not fit the 2 devices"),
        (lambda: t3.drawn(3), r"drawn takes what t3.sublayers\(\) or"),
        (lambda: t3.ring(1), "gpus=1 is too small"),
    ):
        with pytest.raises(ValueError, match=match):
            call()
