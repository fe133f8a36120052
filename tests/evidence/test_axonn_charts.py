"""Charts of AxoNN's lab: the data in the figure, badges, notes and words; no network, no theme."""

from dataclasses import replace

import numpy as np
import pytest
from plain_chart import assert_plain

import tpviz as tv
from tpviz.core.charts import unit_of
from tpviz.evidence import axonn
from tpviz.evidence.axonn.validated import KINDS

W = tv.GPT(layers=1, hidden=64, heads=8, seq=32, batch=16, vocab=64)
NODES = tv.clusters.perlmutter(2)


def overlaps():
    return axonn.overlaps(W, NODES, (2, 1, 2, 2), simulate=False)


def ranked():
    return axonn.validation(W, NODES)


def measured():
    found = ranked()
    rows = [r._replace(measured=2 * r.predicted + n / 1e5) for n, r in enumerate(found.rows[:12])]
    return replace(found, rows=(*rows, *found.rows[12:]))


def scaling():
    return axonn.scaling("20B", "frontier", (2, 64, 2048), batch=2048)


MAKERS = {"overlaps": overlaps, "ranked": ranked, "measured": measured, "scaling": scaling}


@pytest.fixture(scope="module", params=MAKERS)
def made(request):
    return MAKERS[request.param]()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_chart_is_plain_and_says_what_it_shows(made, theme):
    assert_plain(made.scene(), made.to_svg, theme, made.badges, made.describe())


def test_bars_are_the_parts_of_the_step():
    found = overlaps()
    figure, times = found.figure(), list(found.times["predicted"].values())
    unit, scale = unit_of([t.step for t in times])
    assert figure.layout.annotations[0].text.startswith(f"predicted step ({unit}), ")
    stacks = {trace.name: np.array(trace.y) * scale for trace in figure.data}
    assert list(stacks) == ["kernels", *(f"waiting for {a}" for a in ("data", "z", "x"))]
    assert sum(stacks.values()) == pytest.approx([t.step for t in times])
    for axis in ("data", "z", "x"):
        assert stacks[f"waiting for {axis}"] == pytest.approx([t.exposed[axis] for t in times])
    shapes = [trace.marker.pattern.shape for trace in figure.data]
    assert len(set(shapes)) == 4 and figure.layout.barmode == "stack"
    said = [a.text for a in figure.layout.annotations[1:]]
    assert said == [f"{1 + found.gain(s):.3g}x" for s in found.subsets]


def points(figure, column):
    """{(x, y): name} of the points of a panel."""
    axis = "x" if column == 1 else f"x{column}"
    return {
        (x, y): name
        for t in figure.data
        if t.mode == "markers" and t.xaxis == axis
        for x, y, name in zip(t.x, t.y, t.text)
    }


def test_points_are_the_grids_that_were_run():
    found = measured()
    figure, run = found.figure(), found.measured
    both = [s for r in run for s in (r.predicted, r.measured)]
    others = [s for r in run for s in (r.communication, r.measured)]
    scales = {1: unit_of(both)[1], 2: unit_of(others)[1]}  # one unit on both axes
    assert [a.text for a in figure.layout.annotations[:2]] == [
        "predicted step against measured step",
        "communication model against measured step",
    ]
    for column, mode in ((1, "predicted"), (2, "communication")):
        scale = scales[column]
        expected = {(getattr(r, mode) / scale, r.measured / scale) for r in run}
        assert points(figure, column).keys() == expected
    lines = [t for t in figure.data if t.mode == "lines"]
    assert len(lines) == 1 and lines[0].x == lines[0].y
    assert len({KINDS[k] for k in KINDS}) == 4
    words = " ".join(a.text for a in figure.layout.annotations)
    least = min(run, key=lambda r: r.measured).strategy
    assert f"fastest: {least.x} {least.y} {least.z} {least.data}" in words


def test_without_runs_the_model_stands_against_the_prediction():
    figure = ranked().figure()
    assert figure.layout.annotations[0].text == "communication model against predicted step"
    assert len(points(figure, 1)) == len(ranked().rows) == 20
    assert all(t.mode == "markers" for t in figure.data)


def test_wide_ranges_are_logarithmic_and_pointers_stand_on_their_points():
    """On both axes where the diagonal is, else it were no line."""
    found = ranked()
    least = min(r.predicted for r in found.rows)
    rows = [
        r._replace(measured=r.predicted if r.predicted < 3 * least else None) for r in found.rows
    ]
    narrow = replace(found, rows=tuple(rows)).figure().layout
    assert {narrow.xaxis.type, narrow.yaxis.type} == {None}
    rows = [r._replace(communication=1e-3) for r in rows if r.measured]
    rows[0] = rows[0]._replace(measured=1e-9)
    wide = replace(found, rows=tuple(rows))
    layout = wide.figure().layout
    assert {layout.xaxis.type, layout.yaxis.type, layout.yaxis2.type} == {"log"}
    assert layout.xaxis2.type is None
    scale = unit_of([s for r in wide.measured for s in (r.predicted, r.measured)])[1]
    least = min(wide.measured, key=lambda r: r.measured)
    note = next(
        a for a in layout.annotations if a.text.startswith(("fastest", "model's first, and"))
    )
    assert [10**note.x * scale, 10**note.y * scale] == pytest.approx(
        [least.predicted, least.measured]
    )


def test_scaling_lines_and_stars():
    found = scaling()
    figure, some = found.figure(), found.possible
    traces = {t.name: t for t in figure.data}
    unit, scale = unit_of([c.step for p in some for c in (p.first, p.fastest)])
    assert figure.layout.annotations[0].text == f"a step ({unit})" and len(some) == 2
    for name, get in (
        ("best by communication model", lambda p: p.first),
        ("fastest predicted", lambda p: p.fastest),
    ):
        assert traces[name].x == (64, 2048)
        assert np.array(traces[name].y) * scale == pytest.approx([get(p).step for p in some])
        assert traces[name].text == tuple(get(p).words for p in some)
    for name, get in (
        ("HFU", lambda c: c.used.hfu),
        ("MFU", lambda c: c.used.mfu),
        ("exposed communication", lambda c: c.exposed / c.step),
    ):
        assert traces[f"{name}, predicted"].y == pytest.approx([100 * get(p.fastest) for p in some])
    [stars] = [t for t in figure.data if t.name.startswith("the paper")]
    assert stars.x == (32768, 2048) and stars.marker.symbol == ("star-open",) * 2
    assert stars.y == pytest.approx([22.0, 37.2], abs=0.1)
    [sure] = [
        t
        for t in axonn.scaling("80B", devices=(256,)).figure().data
        if t.name.startswith("the paper")
    ]
    assert sure.marker.symbol == ("star", "star-open")
    own = axonn.scaling("5B", tv.clusters.nvswitch, (8,), batch=32).figure()
    assert not [t for t in own.data if t.name.startswith("the paper")]
