"""Which actions decide how long a schedule takes: slack, and a critical path.

Derived: the critical path method, on a schedule's own graph. With equal stages many actions have no
slack and there are many critical paths; the one that is told changes ranks as seldom as it can, and
then stays for as long as it can on the rank that idles least between its first and last action:
p-1 in 1F1B with recompute, p-2 in Merak's schedule.
"""

from math import isclose
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .clock import Timeline


def slack(timeline: "Timeline") -> tuple[tuple[float, ...], ...]:
    """Per rank, how much later each action could end, others too, and the makespan stay: seconds.

    Where it is 0 an action that takes longer makes the makespan longer.
    """
    schedule = timeline.schedule
    steps = schedule.order
    ends = [[timeline.makespan] * len(row) for row in schedule.actions]  # at the latest

    def before(rank, index, latest):
        ends[rank][index] = min(ends[rank][index], latest)

    pairs = schedule.pairs if timeline.overlapped else ()
    for step in reversed(steps):
        rank, index = step[:2]
        if (rank, index - 1) in pairs:  # the second of a pair: with the first, which is next
            continue
        both = (index, index + 1) if (rank, index) in pairs else (index,)
        ends[rank][index] = ends[rank][both[-1]] = min(ends[rank][i] for i in both)
        starts = ends[rank][index] - timeline.end[rank][index] + timeline.start[rank][index]
        if index:
            before(rank, index - 1, starts)
        for i in both:
            step = schedule.step_of[rank, i]
            if step.needs >= 0:
                before(*steps[step.needs][:2], starts - timeline.latency * step.is_message)
    return tuple(tuple(late - end for late, end in zip(*rows)) for rows in zip(ends, timeline.end))


def critical_path(timeline: "Timeline") -> list[tuple[int, int]]:
    """[(rank, index)] of actions without slack, each beginning when the one before lets it, from
    time 0 to the makespan; where the rank changes there is a message.

    Of an overlapped pair one is on the path.
    """
    ends = [(row[-1], -rank) for rank, row in enumerate(timeline.end) if row]
    if not ends:
        return []
    rank = -max(ends)[1]
    before = _before(timeline)
    here, path = (rank, len(timeline.end[rank]) - 1), []
    while here is not None:
        path.append(here)
        here = before[here]
    return path[::-1]


def _before(timeline):
    """{(rank, index): what is before it on the critical path to it, or None}."""
    schedule, before, costs = timeline.schedule, {}, {}
    steps = schedule.order
    pairs = schedule.pairs if timeline.overlapped else ()
    inside = timeline.bubble_inside
    limit = inside.index(min(inside))

    def ways(step):
        """(cost, what is before) of each way to an action that could not begin earlier."""
        rank, index = step[:2]
        begins = timeline.start[rank][index]
        first = index - 1 if (rank, index - 1) in pairs else index
        if first and isclose(timeline.end[rank][first - 1], begins):
            yield costs[rank, first - 1], (rank, first - 1)
        for i in range(first, first + 1 + ((rank, first) in pairs)):
            other = schedule.step_of[rank, i]
            if other.needs < 0:
                continue
            maker = steps[other.needs][:2]
            made = timeline.end[maker[0]][maker[1]]
            if isclose(made + timeline.latency * other.is_message, begins):
                messages, elsewhere = costs[maker]
                yield (messages + other.is_message, elsewhere), maker

    for step in steps:
        rank, index = here = step[:2]
        start, end = timeline.start[rank][index], timeline.end[rank][index]
        (messages, elsewhere), before[here] = min(ways(step), default=((0, 0.0), None))
        costs[here] = messages, elsewhere + (end - start) * (rank != limit)
    return before
