"""Charts of Merak's lab: the data in the figure, badges, notes and words; no network, no theme."""

from dataclasses import replace

import numpy as np
import pytest
from plain_chart import assert_plain

import tpviz as tv
from tpviz.core.charts import unit_of
from tpviz.evidence import merak

W = tv.GPT(layers=8, hidden=256, heads=8, seq=512, batch=16, vocab=64)
NODES = tv.clusters.perlmutter(1)
S = tv.Merak(pp=4, microbatches=8)


def schedules():
    """As if the first had been run."""
    found = merak.schedules(W, NODES)
    predicted = found.rows[0].times["predicted"]
    slower = replace(
        predicted,
        step=2 * predicted.step,
        places=tuple(type(p)(*(2 * x for x in p)) for p in predicted.places),
    )
    first = replace(found.rows[0], times={"predicted": predicted, "measured": slower})
    return replace(found, rows=(first, *found.rows[1:]))


def tradeoff():
    most = replace(S, recompute="none").memory(W).total
    return merak.tradeoff(W, NODES, S, 0.9 * most)


def halves():
    return merak.halves(W, NODES, pp=2)


MAKERS = {"schedules": schedules, "tradeoff": tradeoff, "halves": halves}


@pytest.fixture(scope="module", params=MAKERS)
def made(request):
    return MAKERS[request.param]()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_chart_is_plain_and_says_what_it_shows(made, theme):
    assert_plain(made.scene(), made.to_svg, theme, made.badges, made.describe())


def test_bars_are_the_parts_of_the_average_rank():
    found = schedules()
    figure, times = found.figure(), [r.times["predicted"] for r in found.rows]
    unit, scale = unit_of([2 * times[0].step, *(t.step for t in times)])
    assert figure.layout.annotations[0].text.split(",")[0] == f"predicted step ({unit})"
    *stacks, other = [np.array(trace.y) * scale for trace in figure.data]
    assert [trace.name for trace in figure.data] == [
        "kernels",
        "recomputation",
        "exposed communication",
        "bubble",
        "emulated",
    ]
    assert sum(stacks) == pytest.approx([t.step for t in times])
    assert other == pytest.approx([2 * times[0].step])
    for name, part in zip(("kernels", "recompute", "exposed", "bubble"), stacks):
        assert part == pytest.approx([sum(getattr(p, name) for p in t.places) / 4 for t in times])
    shapes = [trace.marker.pattern.shape for trace in figure.data[:4]]
    assert len(set(shapes)) == 4 and figure.layout.barmode == "stack"
    said = [a.text for a in figure.layout.annotations]
    for t in times:
        assert f"{times[0].step / t.step:.3g}x" in said


def test_lines_are_the_points_of_both_rules_and_the_budget():
    found = tradeoff()
    figure = found.figure()
    lines = {}
    for trace in figure.data:
        lines.setdefault(trace.name, []).append(trace)
    for rule, points in found.points.items():
        steps, sizes = lines.pop(rule)
        (average,) = lines.pop(f"{rule}, average rank")
        assert np.array(average.y) / sizes.y == pytest.approx(
            [sum(p.needs) / 4 / p.most for p in points]
        )
        assert list(steps.x) == list(sizes.x) == [p.keep for p in points]
        assert np.array(steps.y) / steps.y[0] == pytest.approx(
            [p.step / points[0].step for p in points]
        )
        assert np.array(sizes.y) * found.points[rule][0].most == pytest.approx(
            [p.most * sizes.y[0] for p in points]
        )
        words = [" ".join(map(str, p.num_recomputed)) for p in points]
        assert list(steps.text) == [f"layers recomputed {numbers}" for numbers in words]
    assert not lines
    budget = [shape for shape in figure.layout.shapes if shape.y0 == shape.y1]
    assert budget[0].y0 / sizes.y[0] == pytest.approx(found.budget / points[0].most)
    arrows = {a.text: a.x for a in figure.layout.annotations if a.text.endswith(": fits")}
    assert arrows == {f"{rule}: fits": p.keep for rule, p in found.picked.items()}
    assert 0 < arrows["uniform: fits"] < 1
    far = replace(found, budget=1e15).figure()
    assert not far.layout.shapes  # a budget far above would flatten the lines


def test_levels_are_lines_of_steps_waits_and_blocks():
    found = halves()
    figure = found.figure()
    traces = {(t.name, t.xaxis): t for t in figure.data}
    times = [r.times["predicted"] for r in found.rows]
    for axis, what in (("x", "step"), ("x2", "waits")):
        values = [getattr(t, what) for t in times]
        unit, scale = unit_of(values)
        line = traces["predicted", axis]
        assert np.array(line.y) * scale == pytest.approx(values)
        assert list(line.x) == ["0", "1", "2", "3"]
        assert any(f"({unit})" in a.text for a in figure.layout.annotations)
    for phase in ("forward", "backward"):
        assert list(traces[f"{phase}, predicted", "x3"].y) == [r.blocks[phase] for r in found.rows]
    assert list(traces["expected, kernels long enough (derived)", "x3"].y) == [2, 1, 0.5, 0.125]
