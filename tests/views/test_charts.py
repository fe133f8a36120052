"""Charts: plain data in, the same data in the figure; colours that read; no network, no theme."""

import doctest
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from plain_chart import assert_plain

import tpviz as tv
from tpviz.core import charts
from tpviz.core.charts import LINES, label, log_ticks, panel, unit_of, words_of
from tpviz.evidence import atp
from tpviz.evidence.atp.contended import Contention
from tpviz.evidence.atp.scaled import STYLES
from tpviz.evidence.study import Outcome
from tpviz.views.figures import chart_marks, scales
from tpviz.views.figures.chart_svg import chart_svg
from tpviz.views.figures.plotly_chart import mixed
from tpviz.views.figures.svg import VIEW, width_of
from tpviz.views.figures.tokens import contrast, tokens

W = tv.GPT(layers=1, hidden=64, heads=8, seq=32, batch=8, vocab=64)
NODE = tv.clusters.nvswitch()


def chunks():
    found = atp.chunk_curve(W, NODE, counts=(1, 2, 4, 3), kappa=2, simulate=False)
    runs = [((3e-3, 2e-3), (1e-3, 5e-4), (2e-3, 1e-3)), ((2e-3, 1e-3),) * 3, ((4e-3, 1e-3),) * 3]
    rows = []
    for row, run in zip(found.rows, runs):
        measured = Outcome(run[0][0], {"d1": 1e-3}, faithful=row.label != 4, repeats=run)
        rows.append(replace(row, times={**row.times, "measured": measured}))
    return replace(found, rows=tuple(rows))


def winners():
    found = atp.winners(W, [NODE, tv.clusters.torus(4, 2)])
    for k, strategy in enumerate(found.strategies[:2]):
        cell = found.cells[NODE.name, strategy]
        found.cells[NODE.name, strategy] = cell._replace(measured=1.0 - k / 4)
    return found


def contention():
    return Contention(
        np.ones((2, 2)),
        np.array([[1.0, 2], [3, 4]]),
        1.0,
        64,
        "float32",
        4096,
        3,
        "2 cores, 2 ranks",
        "this machine, gloo",
    )


MAKERS = {
    "chunks": chunks,
    "winners": winners,
    "contention": contention,
    "scaling": lambda: atp.scaling(W, (8, 16, 64)),
}


@pytest.fixture(scope="module", params=MAKERS)
def made(request):
    return MAKERS[request.param]()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_chart_is_plain_and_says_what_it_shows(made, theme):
    assert_plain(made.scene(), made.to_svg, theme, made.scene()["badges"], made.describe())


def traces(figure, **equal):
    return [t for t in figure.data if all(getattr(t, k) == v for k, v in equal.items())]


def test_chunk_lines_are_the_curves():
    curve = chunks()
    figure = curve.figure()
    unit, scale = unit_of([t.step for found in curve.times.values() for t in found.values()])
    assert [a.text for a in figure.layout.annotations[:2]] == [
        f"exposed communication ({unit})",
        f"time of a step, truncated axis ({unit})",
    ]
    for source, found in curve.times.items():
        exposed, step = traces(figure, name=words_of(source))
        assert exposed.x == step.x == curve.counts
        if source != "measured":
            assert np.array(exposed.y) * scale == pytest.approx([t.waits for t in found.values()])
            assert np.array(step.y) * scale == pytest.approx([t.step for t in found.values()])
        assert (step.line.dash, step.marker.symbol) == LINES[source][1:]
    exposed, measured = traces(figure, name="emulated")
    assert np.array(measured.y) * scale == pytest.approx([2e-3, 2e-3, 4e-3])
    assert np.array(exposed.y) * scale == pytest.approx([1e-3] * 3)
    assert np.array(measured.error_y.array) * scale == pytest.approx([1e-3, 0, 0])
    assert np.array(measured.error_y.arrayminus) * scale == pytest.approx([1e-3, 0, 0])
    texts = [a.text for a in figure.layout.annotations]
    for source in curve.times:
        assert f"{words_of(source)}: best {curve.best(source)}" in texts


def test_winner_cells_are_the_gains_and_the_fastest_has_a_star():
    found = winners()
    maps = found.figure().data
    assert len(maps) == 3
    for mode, trace in zip(("communication", "predicted", "measured"), maps):
        for y, strategy in enumerate(found.strategies):
            for x, name in enumerate(found.clusters):
                gain, text = found.gain(name, strategy, mode), trace.text[y][x]
                if gain is None:
                    assert trace.z[y][x] is None and text == ""
                    continue
                assert trace.z[y][x] == pytest.approx(100 * gain)
                assert text.startswith("★") == (found.winner(name, mode) == strategy)
                assert int(text.removeprefix("★ ").split()[0]) == round(100 * gain)
    assert maps[2].text[1][0] == "★ +33" and maps[2].text[0][1] == ""
    assert maps[0].zmin == -maps[0].zmax == maps[1].zmin


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_reads_on_every_cell(theme):
    trace = winners().figure(theme).data[0]
    (_, low), (_, middle), (_, high) = trace.colorscale
    for part in (0, 0.25, 0.5, 0.75, 1):
        for end in (low, high):
            assert contrast(mixed(end, middle, part), trace.textfont.color) >= 4.5
    assert trace.textfont.color == tokens(theme)["fg"]


def test_contention_shows_every_pair_and_the_authors_range():
    own, median, authors = contention().figure().data
    assert own.x == (1, 2, 3, 4) and median.x == (2.5,)
    assert median.error_x.array == (0.75,) and median.error_x.arrayminus == (0.75,)
    assert authors.x == (1.5, 2.1) and "authors' traces" in authors.name


@pytest.mark.parametrize("fabric", ["constant", "shared"])
def test_scaling_lines_are_the_points(fabric):
    found = atp.scaling(W, (8, 16, 64))
    figure = found.figure(fabric=fabric)
    unit, scale = unit_of(
        [s for ps in found.points.values() for p in ps for s in (p.seconds, p.seconds_1d)]
    )
    assert figure.layout.annotations[0].text == f"(a) communication of a layer ({unit})"
    for name, points in found.points.items():
        for start, attribute in (("1D", "seconds_1d"), ("best mesh", "seconds")):
            [trace] = traces(figure, name=f"{start}, {name}")
            assert trace.x == (8, 16, 64)
            assert np.array(trace.y) * scale == pytest.approx(
                [getattr(p, attribute) for p in points]
            )
    for weak in (False, True):
        [trace] = traces(figure, name=f"best mesh, {'weak' if weak else 'strong'}")
        assert trace.y == pytest.approx([100 * p.fraction(weak) for p in found.points[fabric]])
        assert trace.text[0] == f"{found.points[fabric][0].strategy.mesh} column"
    assert len(set(STYLES.values())) == len(STYLES)
    assert len({style[1:] for style in STYLES.values()}) == len(STYLES)  # not by colour alone


@pytest.mark.parametrize("module", [charts, scales, chart_marks])
def test_examples_are_true(module):
    done = doctest.testmod(module)
    assert done.attempted and not done.failed


def test_helpers():
    assert unit_of([0.0]) == ("s", 1.0) and unit_of([2e-3, None]) == ("ms", 1e-3)
    assert unit_of([3e-10]) == ("ns", 1e-9)
    assert mixed("#000000", "#FFFFFF", 0.5) == "#808080" and mixed("#123456", "#FFFFFF", 1) == (
        "#123456"
    )
    assert log_ticks([3.0, 40.0]) == [2, 5, 10, 20, 50]


def test_charts_load_without_plotly():
    code = (
        "import sys, tpviz.core.charts, tpviz.evidence.atp, tpviz.evidence.study; "
        "print('plotly' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_no_arrow_crosses_the_words_of_a_label():
    svg = chunks().to_svg()
    assert svg.rindex("<path d='M0,0l-7,-3.5v7z'") < svg.index(": best ")


def test_an_arrow_keeps_off_other_labels():
    """Of points that lie close together."""
    places = {"most data parallelism": (3.0, 5.0), "tv.search": (3.0, 5.0), "you": (3.1, 4.7)}
    marks = [label(words, *at, f"axis{i}") for i, (words, at) in enumerate(places.items())]
    dots = charts.points(
        "a layout", [0.0, 3.0, 3.1, 9.0], [0.0, 5.0, 4.7, 9.0], "other", "circle", 8
    )
    scene = {
        "title": "",
        "badges": [],
        "notes": [],
        "alt": "",
        "panels": [panel("", [dots], marks=marks)],
    }
    svg = chart_svg(scene, "light")
    number = r"(-?[\d.]+)"
    arrows = re.findall(rf"<path d='M{number},{number}L{number},{number}'[^>]*width='1.5'", svg)
    found = re.findall(
        rf"<rect x='{number}' y='{number}' width='{number}' height='{number}'[^>]*rx='3'", svg
    )
    assert len(arrows) == len(found) == len(marks)
    for i, arrow in enumerate(np.array(arrows, float)):
        way = np.linspace(arrow[:2], arrow[2:], 50)
        for j, (left, top, wide, high) in enumerate(np.array(found, float)):
            inside = (way > (left, top)) & (way < (left + wide, top + high))
            assert i == j or not inside.all(axis=1).any(), (i, j)


def test_a_long_name_of_an_axis_stays_inside_its_panel():
    words = "share of all layers of the first stage whose activations a rank keeps"
    two = [panel("", [charts.line("0", [0, 1], [0, 1], LINES["simulated"])], {"title": words})] * 2
    scene = {"title": "", "badges": [], "panels": two, "notes": [], "alt": ""}
    svg = chart_svg(scene)
    named = [
        one for one in re.findall(r"<text x='([\d.]+)'[^>]*>([a-z ]+)<", svg) if one[1] in words
    ]
    assert " ".join(row for _, row in named) == f"{words} {words}"
    assert all(float(x) + width_of(row) / 2 < VIEW for x, row in named)
