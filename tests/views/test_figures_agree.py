"""All numbers of a picture are of one step, the median one: exposed communication never exceeds
it, whatever other steps took."""

import re
from html import unescape

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_runs import panel, trace_of
from synthetic import synthetic_trace
from test_comparison_figure import RESIDUAL, Found

from tpviz.core.trace import Event, Trace
from tpviz.core.trace.pipeline import measured
from tpviz.core.trace.steps import median_step
from tpviz.views.figures.comparison import comparison_scene
from tpviz.views.figures.page import page
from tpviz.views.figures.timeline import describe, timeline_scene
from tpviz.views.widgets.results import exposed_share

UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
AXES = st.sampled_from([{"tp": 2}, {"dp": 2, "tp": 2}, {"tp": 3}])
PACE = st.lists(st.floats(0.05, 20), min_size=1, max_size=8)


@st.composite
def traces(draw):
    """Steps that take unlike times: the clock runs at another pace in each part of the trace."""
    trace = synthetic_trace(draw(AXES), 2, draw(st.integers(1, 5)), draw(st.integers(0, 9)))
    pace = draw(PACE)
    knots = np.linspace(0, trace["end"].max(), len(pace) + 1)
    then = np.cumsum([0.0, *pace]) * knots[1]
    slow = {name: np.interp(trace[name], knots, then) for name in ("start", "end")}
    return Trace({**trace.columns, **slow}, trace.meta)


def times(words):
    """{what: seconds} of the times that a text says."""
    said = re.findall(r"(step time|exposed comm\w+)(?: \([a-z ]+\d?\))? ([\d.]+) (\w*s)", words)
    return {what: float(number) * UNITS[unit] for what, number, unit in said}


@settings(max_examples=30, deadline=None)
@given(traces())
def test_timeline_and_page_and_result(trace):
    scene = timeline_scene(trace)
    one = median_step(trace)
    assert np.diff(scene["first"]) == pytest.approx(trace.step_time) or len(trace.steps) == 1
    for words in (describe(scene), ", ".join(map(" ".join, scene["metrics"]))):
        said = times(words)
        assert said["step time"] == pytest.approx(one.step_time, rel=6e-3)
        assert 0 < said["exposed communication"] <= said["step time"]
        assert len(re.findall(r"\d m?u?s\b", words)) <= 3  # the trace's duration, and these two
    assert describe(scene) in unescape(page(trace))
    share = exposed_share(trace)
    assert share == pytest.approx(100 * said["exposed communication"] / one.step_time, rel=6e-3)
    assert share <= 100


@settings(max_examples=30, deadline=None)
@given(traces(), st.data())
def test_comparison(trace, data):
    ranks = data.draw(st.lists(st.sampled_from(trace.ranks), min_size=1, unique=True))
    simulated = Trace(trace.columns, {**trace.meta, "badge": "simulated"})
    scene = comparison_scene(None, simulated, trace, Found(RESIDUAL), ranks)
    assert [time for _, time in scene["marks"]] == [trace.step_time] * 2
    for source in scene["sources"]:
        bare = np.subtract(source["exposed"]["end"], source["exposed"]["start"])
        drawn = np.bincount(source["exposed"]["lane"], bare, len(source["lanes"]))
        assert (drawn <= trace.step_time * (1 + 1e-6)).all() and drawn.any()
    of_timeline = dict(timeline_scene(trace)["metrics"])
    for what in ("overlap (all ranks)", "exposed communication (worst rank)"):
        assert dict(scene["numbers"])[what] == [of_timeline[what]] * 2


@settings(max_examples=20, deadline=None)
@given(PACE)
def test_schedule(pace):
    once, events, now = trace_of(panel(p=2, m=4).timeline), [], 0.0
    for step, slow in enumerate(pace):
        for event in once:
            start, end = now + slow * event.start, now + slow * event.end
            events.append(event._replace(id=len(events), step=step, start=start, end=end))
        until = now + slow * once["end"].max()
        events += [
            Event(id=-1, rank=rank, kind="step", lane="step", step=step, start=now, end=until)
            for rank in once.ranks
        ]
        now = until
    events = [event._replace(id=i, waits_for=-1) for i, event in enumerate(events)]
    trace = Trace.from_events(events, once.meta)
    drawn = measured(trace)
    assert drawn.makespan <= trace.step_time * (1 + 1e-9)
    assert max(drawn.idle) <= drawn.makespan
