"""What ranks did in a run of a pipeline, as bars under those of its schedule."""

import re

import pytest
from schedule_runs import panel, trace_of

from tpviz.core.schedules import SCHEDULES
from tpviz.core.trace import Event, Trace
from tpviz.core.trace.pipeline import measured
from tpviz.views.figures.schedule import schedule_scene
from tpviz.views.figures.schedule_lanes import ScheduleLayout
from tpviz.views.figures.schedule_words import SchedulePanel, figures

BAR = re.compile(r"M([\d.]+),([\d.]+)h([\d.]+)")


@pytest.mark.parametrize("name", SCHEDULES)
def test_measured_lanes_are_the_runs(name):
    for one in (panel(name, 4, 8, latency=0.3), panel(name, 2, 4, recompute=False)):
        ran = measured(trace_of(one.timeline, late=3.0))
        assert ran.makespan == pytest.approx(one.timeline.makespan)
        assert ran.idle == pytest.approx(one.timeline.bubble)
        assert ran.badge == "emulated"


def test_a_wait_parts_two_bars_of_the_same_microbatch():
    def event(start, end, kind="compute"):
        return Event(
            id=start,
            kind=kind,
            lane="compute",
            phase="backward",
            microbatch=0,
            axis=("pp" if kind == "wait" else ""),
            start=float(start),
            end=float(end),
        )

    meta = {"mesh": {"axes": {"pp": 1}}}
    ran = measured(Trace.from_events([event(0, 1), event(2, 3)], meta))
    assert ran.bars == ([("backward", 0.0, 3.0)],)
    ran = measured(Trace.from_events([event(0, 1), event(1, 2, "wait"), event(2, 3)], meta))
    assert (ran.bars[0], ran.idle) == ([("backward", 0.0, 1.0), ("backward", 2.0, 3.0)], (1.0,))


def test_what_a_run_had_in_flight_is_a_line_over_what_the_clock_says():
    line = panel(latency=0.3).timeline
    one = SchedulePanel(
        line,
        (1.0,) * 4,
        measured=measured(
            trace_of(line, late=3.0),
            lambda rank: [(time + 3.0, count) for time, count in line.in_flight(rank)],
        ),
    )
    for ran, clock in zip(one.measured.held[1], line.in_flight(1), strict=True):
        assert ran == pytest.approx(clock)
    scene, layout = schedule_scene([one], "t"), ScheduleLayout([one])
    [path] = re.findall(r"d='([^']*)'[^>]*data-flown", scene["common"])  # of the fullest rank
    heights = [float(v) for v in re.findall(r"V([\d.]+)", path)]
    assert len(heights) == len(line.in_flight(one.fullest))
    [base] = layout.charts
    assert base - min(heights) == pytest.approx(layout.held - 6, abs=0.01)
    assert heights[-1] == pytest.approx(base, abs=0.01)
    assert figures([one], "")[1][-1].endswith(f", {max(line.peak_in_flight)} in flight")
    assert "data-flown" not in schedule_scene([panel()], "t")["common"]


def test_a_run_is_drawn_under_the_simulated_lanes():
    line = panel().timeline
    one = SchedulePanel(line, (1.0,) * 4, None, (), measured(trace_of(line)))
    scene, layout = schedule_scene([one], "t"), ScheduleLayout([one])
    [drawn] = re.findall(r"<g data-source='emulated' data-rest=''>(.*?)</g>", scene["common"])
    for row in layout.rows:
        long = sum(
            float(bar[2])
            for path in re.findall(r"d='([^']*)'[^>]*data-key", drawn)
            for bar in BAR.findall(path)
            if abs(float(bar[1]) - row.y - row.lane - 1) < 0.01
        )
        assert long / layout.scale == pytest.approx(line.busy[row.rank], rel=0.01)
    assert ">run<" in scene["common"]
    assert [row[-1] for row in scene["table"]] == ["emulated", "30, idle 25.0 %"]


def test_what_is_no_run_of_a_pipeline():
    with pytest.raises(ValueError, match=r"this trace has no axis pp but tp"):
        measured(Trace.from_events([Event()], {"mesh": {"axes": {"tp": 1}}}))
    with pytest.raises(ValueError, match=r"this trace has no rank with a microbatch"):
        measured(
            Trace.from_events(
                [Event(kind="compute", lane="compute")], {"mesh": {"axes": {"pp": 1}}}
            )
        )
