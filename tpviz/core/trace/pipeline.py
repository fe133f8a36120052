"""Measured actions of a pipeline's ranks, as bars like those of its schedule."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from tpviz.core.mesh import Mesh
from tpviz.core.trace.steps import median_step

if TYPE_CHECKING:
    from tpviz.core.trace import Trace

PHASES = ("forward", "recompute", "backward")


class Measured(NamedTuple):
    """A run's step, from its first forward to its last backward.

    badge : where the times come from. bars : per place along pp a list of (phase, start, end), in
    seconds. makespan : seconds. idle : per place, seconds without compute. held : per place
    [(second, microbatches in flight from then on)], or () where they are not known.
    """

    badge: str
    bars: tuple[list[tuple[str, float, float]], ...]
    makespan: float
    idle: tuple[float, ...]
    held: tuple[list[tuple[float, int]], ...] = ()


def measured(
    trace: "Trace", count: Callable[[int], Iterable[tuple[float, int]]] | None = None
) -> Measured:
    """The `Measured` of a trace of a pipeline, of its median step: of each place along pp the rank
    with the lowest number.

    A bar is one phase of one microbatch, from its first kernel to its last, and ends where the rank
    waits for a message of the pipeline. count : gives of a rank [(time of the trace, microbatches
    in flight)]; where it raises ``ValueError``, as on a microbatch of which the trace has a part
    alone, they are not known. Raises ``ValueError`` where the trace has no axis pp, or no
    microbatches.
    """
    step, ranks = median_step(trace), ranks_of_places(trace, "measured lanes")
    rows = [_bars(step.select(rank=rank, lane="compute")) for rank in ranks]
    if not any(rows):  # a stage may have no kernels
        raise ValueError(
            "this trace has no rank with a microbatch: measured lanes need events "
            "labelled with phase and microbatch"
        )
    zero = min(row[0][1] for row in rows if row)
    bars = tuple([(phase, start - zero, end - zero) for phase, start, end in row] for row in rows)
    makespan = max(row[-1][2] for row in bars if row)
    idle = tuple(makespan - sum(end - start for _, start, end in row) for row in bars)
    try:
        held = (
            tuple([(time - zero, number) for time, number in count(rank)] for rank in ranks)
            if count
            else ()
        )
    except ValueError:
        held = ()
    return Measured(trace.badge, bars, makespan, idle, held)


def ranks_of_places(trace: "Trace", what: str) -> list[int]:
    """The lowest rank at each place along pp; ``ValueError``, which says ``what`` needs that axis,
    where the trace has none."""
    axes = trace.fact("mesh")["axes"]
    if "pp" not in axes:
        raise ValueError(
            f"this trace has no axis pp but {', '.join(axes) or 'no axes at all'}: "
            f"{what} need a run of tv.Merak, or of another pipeline over pp"
        )
    return Mesh(axes).group(0, "pp")


def _bars(events):
    """[(phase, start, end)] of one rank's compute lane, in order."""
    columns = [
        events[name].tolist() for name in ("start", "end", "kind", "phase", "microbatch", "axis")
    ]
    bars, before = [], None
    for start, end, kind, phase, microbatch, axis in sorted(zip(*columns)):
        if kind == "wait" and axis == "pp":
            before = None if end > start else before
        elif phase in PHASES and microbatch >= 0:
            if (phase, microbatch) == before:
                bars[-1] = (phase, bars[-1][1], max(end, bars[-1][2]))
            else:
                bars.append((phase, start, end))
            before = phase, microbatch
    return bars
