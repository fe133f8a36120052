"""Schedules on the clock, and made-up runs that keep to it, for the tests of their pictures."""

from typing import Any

from tpviz.core.schedules import ScheduleTimes, schedule, timeline
from tpviz.core.trace import Event, Trace
from tpviz.views.figures.schedule_words import SchedulePanel

PHASE = {
    "F": ["forward"],
    "R": ["recompute"],
    "B": ["backward"],
    "RB": ["recompute", "backward"],
    "I": ["backward"],
    "W": ["backward"],
}


def panel(
    name: str = "shifted_critical_path",
    p: int = 4,
    m: int = 6,
    r: float = 1.0,
    latency: float = 0.0,
    overlapped: bool = False,
    recompute: bool = True,
    b: float = 2.0,
    **more: Any,
) -> SchedulePanel:
    """A `SchedulePanel` of equal stages."""
    made = schedule(name, p, m, recompute=recompute)
    return SchedulePanel(
        timeline(made, 1.0, b, r, latency=latency, overlapped=overlapped),
        (r,) * made.stages,
        **more,
    )


def trace_of(
    line: ScheduleTimes, badge: str = "emulated", late: float = 0.0, kernels: int = 3
) -> Trace:
    """A made-up run that keeps to a clock: kernels of every action, waits for what comes late."""
    events = []
    for rank in range(line.schedule.ranks):
        now = 0.0
        for action, start, end in zip(line.schedule.of(rank), line.start[rank], line.end[rank]):
            if start > now:
                events.append(
                    Event(
                        id=len(events),
                        rank=rank,
                        kind="wait",
                        lane="compute",
                        phase="forward",
                        axis="pp",
                        start=now + late,
                        end=start + late,
                        microbatch=action.microbatch,
                        name="wait recv",
                    )
                )
            parts = PHASE[action.kind]
            long = (end - start) / len(parts) / kernels
            for i in range(kernels * len(parts)):
                events.append(
                    Event(
                        id=len(events),
                        rank=rank,
                        kind="compute",
                        lane="compute",
                        phase=parts[i // kernels],
                        microbatch=action.microbatch,
                        name="mm",
                        start=start + i * long + late,
                        end=start + (i + 1) * long + late,
                    )
                )
            now = end
        events.append(
            Event(
                id=len(events),
                rank=rank,
                kind="compute",
                lane="compute",
                name="adam",
                phase="optimizer",
                start=line.makespan + late,
                end=line.makespan + late + 5.0,
            )
        )
    return Trace.from_events(
        events, {"badge": badge, "mesh": {"axes": {"pp": line.schedule.ranks, "dp": 1, "tp": 1}}}
    )
