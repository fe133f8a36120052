"""When every action of a schedule starts and ends: the longest path through what waits for what.

Sends do not block, messages of one pair of ranks do not share a link, and a message is on its way
as soon as its action ends. All times are simulated, in the unit of the durations given.

>>> from tpviz.core.schedules import schedule, timeline
>>> t = timeline(schedule("1f1b", 4, 8))
>>> t.makespan, t.bubble, t.peak_in_flight
(44.0, (12.0, 12.0, 12.0, 12.0), (4, 3, 2, 1))
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import isclose
from numbers import Real

from tpviz.core.checks import number

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
) -> "ScheduleTimes":
    """A schedule on a clock: a `ScheduleTimes`.

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
    if overlapped and schedule.pairs:
        start, end = _run_pairs(schedule, lasts, latency)
    else:
        start, end = ([[] for _ in range(schedule.ranks)] for _ in range(2))
        free, arrives = [0.0] * schedule.ranks, []
        for (rank, _, needs, is_message), (kind, stage, _) in zip(schedule.order, schedule.ordered):
            begins = free[rank]
            if needs >= 0:
                comes = arrives[needs] + latency if is_message else arrives[needs]
                begins = comes if comes > begins else begins
            free[rank] = ends = begins + lasts[kind][stage]
            arrives.append(ends)
            start[rank].append(begins)
            end[rank].append(ends)
    return ScheduleTimes(
        schedule, tuple(map(tuple, start)), tuple(map(tuple, end)), latency, overlapped
    )


def _run_pairs(schedule, lasts, latency):
    """(start, end) of every rank's actions, those of a pair side by side."""
    start, end = ([[] for _ in range(schedule.ranks)] for _ in range(2))
    pairs, steps, rows = schedule.pairs, schedule.order, schedule.actions
    arrives = []  # when the result of each step is made

    def there(needs, is_message):
        """When what an action waits for is there."""
        return arrives[needs] + latency if is_message else arrives[needs] if needs >= 0 else 0.0

    free = [0.0] * schedule.ranks
    for place, (rank, index, needs, is_message) in enumerate(steps):
        if (rank, index - 1) in pairs:  # the second of a pair: as the first
            begins, ends = start[rank][-1], end[rank][-1]
        else:
            kind, stage, _ = rows[rank][index]
            begins, lasting = max(free[rank], there(needs, is_message)), lasts[kind][stage]
            if (rank, index) in pairs:
                begins = max(begins, there(*steps[place + 1][2:]))
                kind, stage, _ = rows[rank][index + 1]
                lasting += lasts[kind][stage]
            ends = begins + lasting
        free[rank] = ends
        arrives.append(ends)
        start[rank].append(begins)
        end[rank].append(ends)
    return start, end


@dataclass(frozen=True, repr=False)
class ScheduleTimes:
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
        """[(time, count)]: the number of activations (one per microbatch and stage of the rank)
        held from the start of their forward to the end of B, RB or W."""
        return [(time, full + kept) for time, full, kept in self.held(rank)]

    @property
    def peak_in_flight(self) -> tuple[int, ...]:
        """Per rank, the maximum of `in_flight`."""
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

    # -- which actions decide how long a schedule takes -------------------------------------------
    # Derived: the critical path method, on a schedule's own graph. With equal stages many actions
    # have no slack and there are many critical paths; the one that is told changes ranks as seldom
    # as it can, and then stays for as long as it can on the rank that idles least between its first
    # and last action: p-1 in 1F1B with recompute, p-2 in Merak's schedule.
    @cached_property
    def slack(self) -> tuple[tuple[float, ...], ...]:
        """Per rank and action, how many seconds later it could end without a longer makespan.

        With slack 0, a longer action makes the makespan longer.
        """
        schedule = self.schedule
        steps = schedule.order
        ends = [[self.makespan] * len(row) for row in schedule.actions]  # at the latest

        def before(rank, index, latest):
            ends[rank][index] = min(ends[rank][index], latest)

        pairs = schedule.pairs if self.overlapped else ()
        for step in reversed(steps):
            rank, index = step[:2]
            if (rank, index - 1) in pairs:  # the second of a pair: with the first, which is next
                continue
            both = (index, index + 1) if (rank, index) in pairs else (index,)
            ends[rank][index] = ends[rank][both[-1]] = min(ends[rank][i] for i in both)
            starts = ends[rank][index] - self.end[rank][index] + self.start[rank][index]
            if index:
                before(rank, index - 1, starts)
            for i in both:
                step = schedule.step_of[rank, i]
                if step.needs >= 0:
                    before(*steps[step.needs][:2], starts - self.latency * step.is_message)
        return tuple(tuple(late - end for late, end in zip(*rows)) for rows in zip(ends, self.end))

    def critical_path(self) -> list[tuple[int, int]]:
        """[(rank, index)] of actions without slack, each beginning when the one before lets it,
        from time 0 to the makespan; where the rank changes there is a message.

        Of an overlapped pair only one action is on the path.
        """
        ends = [(row[-1], -rank) for rank, row in enumerate(self.end) if row]
        if not ends:
            return []
        rank = -max(ends)[1]
        before = self._before()
        here, path = (rank, len(self.end[rank]) - 1), []
        while here is not None:
            path.append(here)
            here = before[here]
        return path[::-1]

    def _before(self):
        """{(rank, index): what is before it on the critical path to it, or None}."""
        schedule, before, costs = self.schedule, {}, {}
        steps = schedule.order
        pairs = schedule.pairs if self.overlapped else ()
        inside = self.bubble_inside
        limit = inside.index(min(inside))

        def ways(step):
            """(cost, what is before) of each way to an action that could not begin earlier."""
            rank, index = step[:2]
            begins = self.start[rank][index]
            first = index - 1 if (rank, index - 1) in pairs else index
            if first and isclose(self.end[rank][first - 1], begins):
                yield costs[rank, first - 1], (rank, first - 1)
            for i in range(first, first + 1 + ((rank, first) in pairs)):
                other = schedule.step_of[rank, i]
                if other.needs < 0:
                    continue
                maker = steps[other.needs][:2]
                made = self.end[maker[0]][maker[1]]
                if isclose(made + self.latency * other.is_message, begins):
                    messages, elsewhere = costs[maker]
                    yield (messages + other.is_message, elsewhere), maker

        for step in steps:
            rank, index = here = step[:2]
            start, end = self.start[rank][index], self.end[rank][index]
            (messages, elsewhere), before[here] = min(ways(step), default=((0, 0.0), None))
            costs[here] = messages, elsewhere + (end - start) * (rank != limit)
        return before

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
            f"{span:.6g}. Ranks are idle {100 * share:.1f} % of it, from {min(bubble):.6g} on rank "
            f"{bubble.index(min(bubble))} to {max(bubble):.6g} on rank "
            f"{bubble.index(max(bubble))}. Most activations, {max(peak)} microbatches, are "
            f"held on rank {peak.index(max(peak))}. The critical path has {len(path)} actions "
            f"and {len(self.critical_messages())} messages and ends with {last} on rank "
            f"{path[-1][0] if path else 0}."
        )

    def __repr__(self):
        return f"<Timeline of {self.schedule!r}: simulated, {self.makespan:.6g}>"
