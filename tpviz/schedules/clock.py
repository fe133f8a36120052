"""When every action of a schedule starts and ends: the longest path through what waits for what.

Sends do not block, messages of one pair of ranks do not share a link, and a message is on its way
as soon as its action ends. All times are simulated, in the unit of the durations given.

>>> from tpviz.schedules import schedule, timeline
>>> t = timeline(schedule("1f1b", 4, 8))
>>> t.makespan, t.bubble, t.peak_in_flight
(44.0, (12.0, 12.0, 12.0, 12.0), (4, 3, 2, 1))
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from numbers import Real

from tpviz.checks import number

from . import critical
from .table import Schedule

FOREVER = float("inf")


def timeline(
    schedule: Schedule,
    forward: float | Iterable[float] = 1.0,
    backward: float | Iterable[float] = 2.0,
    recompute: float | Iterable[float] | None = None,
    weight: float | Iterable[float] | None = None,
    latency: float = 0.0,
    overlapped: bool = False,
) -> "Timeline":
    """A schedule on a clock: a `Timeline`.

    forward, backward, recompute, weight : seconds of a microbatch on a (virtual) stage, a number or
    one for each stage. backward is that of the input and of the weights, without recompute;
    recompute is by default ``forward``, weight (W) half of ``backward``, and I is the rest.
    latency : seconds of a message from rank to rank; 0 inside a rank. overlapped : whether the two
    actions of a pair (DualPipeV) run side by side: from when both can, for as long as both take,
    and what they send goes at the end; else one after the other, as the executor does them.
    Raises ``ValueError`` if the schedule cannot run, or a duration cannot be.
    """
    stages = schedule.stages
    f, b = _each("forward", forward, stages), _each("backward", backward, stages)
    r = f if recompute is None else _each("recompute", recompute, stages)
    w = tuple(x / 2 for x in b) if weight is None else _each("weight", weight, stages)
    for stage, (part, whole) in enumerate(zip(w, b)):
        if part > whole:
            raise ValueError(
                f"weight={part} is more than backward={whole} of stage {stage}, of "
                f"which it is a part"
            )
    lasts = {
        "F": f,
        "R": r,
        "B": b,
        "RB": tuple(x + y for x, y in zip(r, b)),
        "W": w,
        "I": tuple(x - y for x, y in zip(b, w)),
    }
    return _run(schedule, lasts, number("latency", latency, 0.0, FOREVER), bool(overlapped))


def _each(name, value, stages):
    """One number for each stage."""
    values = (value,) * stages if isinstance(value, Real) else tuple(value)
    if len(values) != stages:
        raise ValueError(
            f"{name} has {len(values)} numbers: give one, or {stages}, one for each stage"
        )
    return tuple(number(name, v, 0.0, FOREVER) for v in values)


def _run(schedule, lasts, latency, overlapped):
    start, end = ([[] for _ in range(schedule.ranks)] for _ in range(2))
    pairs = schedule.pairs if overlapped else ()
    steps, rows = schedule.order, schedule.actions
    arrives = []  # when the result of each step is made

    def there(needs, is_message):
        """When what an action waits for is there."""
        return arrives[needs] + latency if is_message else arrives[needs] if needs >= 0 else 0.0

    free = [0.0] * schedule.ranks
    for place, (rank, index, needs, is_message) in enumerate(steps):
        if pairs and (rank, index - 1) in pairs:  # the second of a pair: as the first
            begins, ends = start[rank][-1], end[rank][-1]
        else:
            kind, stage, _ = rows[rank][index]
            begins, lasting = free[rank], lasts[kind][stage]
            if needs >= 0 and (comes := there(needs, is_message)) > begins:
                begins = comes
            if pairs and (rank, index) in pairs:
                begins = max(begins, there(*steps[place + 1][2:]))
                kind, stage, _ = rows[rank][index + 1]
                lasting += lasts[kind][stage]
            ends = begins + lasting
        free[rank] = ends
        arrives.append(ends)
        start[rank].append(begins)
        end[rank].append(ends)
    return Timeline(schedule, tuple(map(tuple, start)), tuple(map(tuple, end)), latency, overlapped)


@dataclass(frozen=True, repr=False)
class Timeline:
    """Start and end of every action, as per rank a tuple in the order of the schedule.

    overlapped : whether both actions of a pair have the same start and end.
    """

    schedule: Schedule
    start: tuple[tuple[float, ...], ...]
    end: tuple[tuple[float, ...], ...]
    latency: float = 0.0
    overlapped: bool = False

    @cached_property
    def makespan(self) -> float:
        """From the first start to the last end, over all ranks."""
        return max((row[-1] for row in self.end if row), default=0.0)

    @cached_property
    def busy(self) -> tuple[float, ...]:
        """Per rank, the time in which it computes."""
        return tuple(
            sum(e - max(s, before) for s, e, before in zip(starts, ends, (0.0, *ends)))
            for starts, ends in zip(self.start, self.end)
        )

    @property
    def bubble(self) -> tuple[float, ...]:
        """Per rank, the time of the makespan in which it does not compute."""
        return tuple(self.makespan - busy for busy in self.busy)

    @property
    def bubble_inside(self) -> tuple[float, ...]:
        """Per rank, the idle time between its own first start and last end: "zero" in zero-bubble
        schedules is this one; fill and drain are not in it."""
        return tuple(
            end[-1] - start[0] - busy if end else 0.0
            for start, end, busy in zip(self.start, self.end, self.busy)
        )

    def in_flight(self, rank: int) -> list[tuple[float, int]]:
        """[(time, count)]: microbatches, times stages of this rank, whose activations are held,
        from the start of their forward to the end of B, RB or W."""
        return [(time, full + kept) for time, full, kept in self.held(rank)]

    @property
    def peak_in_flight(self) -> tuple[int, ...]:
        """Per rank, the most that `in_flight` is."""
        return tuple(
            max((count for _, count in self.in_flight(r)), default=0)
            for r in range(self.schedule.ranks)
        )

    def held(self, rank: int) -> list[tuple[float, int, int]]:
        """[(time, full, checkpointed)] of `in_flight`, from each time on.

        full : activations as backward needs them; on a recomputing stage only from the start of R
        or RB. checkpointed : what a recomputing stage keeps instead (the two do not overlap).
        """
        changes = {}
        for action, start, end in zip(self.schedule.of(rank), self.start[rank], self.end[rank]):
            for time, full, kept in self._changes(action, start, end):
                was = changes.get(time, (0, 0))
                changes[time] = was[0] + full, was[1] + kept
        series, full, kept = [], 0, 0
        for time in sorted(changes):
            full, kept = full + changes[time][0], kept + changes[time][1]
            series.append((time, full, kept))
        return series

    def _changes(self, action, start, end):
        if action.kind == "F":
            yield (start, 0, 1) if self.schedule.recomputes[action.stage] else (start, 1, 0)
        if action.kind in ("R", "RB"):
            yield start, 1, -1
        if action.kind in ("B", "RB", "W"):
            yield end, -1, 0

    @cached_property
    def slack(self) -> tuple[tuple[float, ...], ...]:
        """Per rank, how much later each action could end without a longer makespan."""
        return critical.slack(self)

    def critical_path(self) -> list[tuple[int, int]]:
        """[(rank, index)] of actions without slack, from the first to the one that ends last; where
        the rank changes there is a message; see `critical` for which, where there are several."""
        return critical.critical_path(self)

    def critical_messages(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """[((rank, index), (rank, index))]: from and to, of the messages on `critical_path`."""
        path = self.critical_path()
        return [(a, b) for a, b in pairwise(path) if a[0] != b[0]]

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: busy and idle time and activations of each rank."""
        return [["rank", "busy", "bubble", "bubble inside", "in flight"]] + [
            [str(r), *(f"{x:.6g}" for x in row), str(peak)]
            for r, (*row, peak) in enumerate(
                zip(self.busy, self.bubble, self.bubble_inside, self.peak_in_flight)
            )
        ]

    def describe(self) -> str:
        """One paragraph for people who cannot see the picture."""
        s, path = self.schedule, self.critical_path()
        bubble, peak, span = self.bubble, self.peak_in_flight, self.makespan
        share = sum(bubble) / (s.ranks * span) if span else 0.0
        last = s.word(s.of(path[-1][0])[path[-1][1]]) if path else "nothing"
        return (
            f"Simulated: {s.name} on {s.ranks} ranks with {s.microbatches} microbatches takes "
            f"{span:.6g}. Ranks are idle {share:.1%} of it, from {min(bubble):.6g} on rank "
            f"{bubble.index(min(bubble))} to {max(bubble):.6g} on rank "
            f"{bubble.index(max(bubble))}. Most activations, {max(peak)} microbatches, are "
            f"held on rank {peak.index(max(peak))}. The critical path has {len(path)} actions "
            f"and {len(self.critical_messages())} messages and ends with {last} on rank "
            f"{path[-1][0] if path else 0}."
        )

    def __repr__(self):
        return f"<Timeline of {self.schedule!r}: simulated, {self.makespan:.6g}>"
