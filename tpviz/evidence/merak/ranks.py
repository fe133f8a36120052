"""How the ranks of a pipeline spend a step, place by place: by formula, or in a trace.

A place is an index along pp; its ranks run the same actions. By formula (derived): a rank's
simulated actions, then gradient synchronisation and the optimizer; the rest of the step is bubble.
While its own message is in flight a rank without work exposes communication, else it idles, as
`tpviz.core.trace.analyses.bubble` counts it.
"""

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from tpviz.cluster.clock.cost import parts
from tpviz.core.mesh import Mesh
from tpviz.core.schedules.measured import peaks_in_flight
from tpviz.core.trace.analyses import breakdown, intersect, length, merge
from tpviz.schemes.pipeline.step import clock, end_segments

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.cluster.clock.cost import Segment
    from tpviz.core.schedules import ScheduleTimes
    from tpviz.core.trace import Trace
    from tpviz.core.workload import GPT
    from tpviz.schemes.merak.strategy import Merak


class PlaceParts(NamedTuple):
    """Seconds of a step of one place's ranks: of ``kernels``, of kernels that ``recompute``, of
    exposed communication, and of idle time."""

    kernels: float
    recompute: float
    exposed: float
    bubble: float


class Clocked(NamedTuple):
    """A step by formula. line : its `schedules.ScheduleTimes`. places : `PlaceParts` of each, of
    ``step`` seconds. pieces : {(kind of action, stage): its `tpviz.cluster.clock.cost.Segment`s}.
    segments : per place those of all its actions."""

    step: float
    line: "ScheduleTimes"
    places: tuple[PlaceParts, ...]
    pieces: "dict[tuple[str, int], list[Segment]]"
    segments: "tuple[list[Segment], ...]"


def clocked(s: "Merak", w: "GPT", cluster: "Cluster", step: float) -> Clocked:
    """The `Clocked` step of a `Merak` that takes ``step`` seconds, gradient synchronisation
    and optimizer included."""
    mesh = Mesh(s.axes)
    line, pieces = clock(s, w, cluster, mesh)
    segments = tuple(
        [segment for a in row for segment in pieces[a.kind, a.stage]]
        for row in line.schedule.actions
    )
    places = tuple(
        _parts(s, w, cluster, mesh, line, place, own, step) for place, own in enumerate(segments)
    )
    return Clocked(step, line, places, pieces, segments)


def _parts(s, w, cluster, mesh, line, place, segments, step):
    own = [*segments, *end_segments(s, w, cluster, mesh, line, place)]
    again = sum(x.compute for x in segments if x.phase == "recompute")
    kernels = parts(own)["compute"] - again
    waits = sum(sum(x.exposed.values()) for x in own) + _travel(line, place)
    return PlaceParts(kernels, again, waits, max(0.0, step - kernels - again - waits))


def _travel(line, place):
    """Seconds in which a rank idles while its own message is in flight."""
    steps, ends = line.schedule.order, line.end[place]
    sent = [
        line.end[sender.rank][sender.index]
        for sender, step in ((steps[s.needs], s) for s in steps if s.is_message)
        if place in (sender.rank, step.rank)
    ]
    gaps = merge((0.0, *ends), (*line.start[place], inf))
    return length(intersect(gaps, merge(sent, [time + line.latency for time in sent])))


def read(trace: "Trace", s: "Merak") -> tuple[PlaceParts, ...]:
    """Per place along pp its `PlaceParts` in a trace of this `Merak`, averaged over steps and
    ranks."""
    mesh, steps, seconds = Mesh(s.axes), len(trace.steps), {}
    for rank, spent in breakdown(trace).items():
        mine = trace.select(rank=rank, kind="compute", phase="recompute")
        again = float((mine["end"] - mine["start"]).sum())
        seconds.setdefault(mesh.coords(rank)["pp"], []).append(
            (
                spent.compute + spent.overlapped - again,
                again,
                spent.exposed - spent.waiting,
                spent.idle + spent.waiting,
            )
        )
    return tuple(
        PlaceParts(*(sum(x) / len(seconds[p]) / steps for x in zip(*seconds[p])))
        for p in sorted(seconds)
    )


def flight(trace: "Trace", s: "Merak", w: "GPT") -> tuple[int, ...]:
    """Per place along pp the most microbatches, times stages, that a trace of this `Merak` has in
    flight at once."""
    return peaks_in_flight(trace, lambda layer: s.stage_of(layer, w))


def mean(places: Sequence[PlaceParts]) -> PlaceParts:
    """The `PlaceParts` of the average rank."""
    return PlaceParts(*(sum(x) / len(places) for x in zip(*places)))


def sizes_in_words(s: "Merak") -> str:
    """The sizes of a `Merak` in words: "Merak, pp 4, tp 2, 8 microbatches"."""
    sizes = ", ".join(f"{axis} {size}" for axis, size in s.axes.items() if size > 1)
    return f"Merak, {sizes or 'one rank'}, {s.microbatches} microbatches"
