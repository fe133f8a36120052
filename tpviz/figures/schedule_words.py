"""What schedules look like, in words: why every action starts when it does, and what two differ in.

Works on the attributes of a `tpviz.schedules.Timeline`.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .svg import amount, seconds

if TYPE_CHECKING:
    from tpviz.schedules import Timeline
    from tpviz.schedules.order import Step

    from .schedule_layout import Panel

DOES = {
    "F": "forward",
    "B": "backward",
    "RB": "recompute and backward",
    "R": "early recompute",
    "I": "gradient of the input",
    "W": "gradient of the weights",
}
CLOSE = 1e-9
"""Of the makespan: times nearer than this are the same."""


def say(time: float, unit: str) -> str:
    """A time in its unit: "12.5", or "12.5 ms" of seconds."""
    return seconds(time) if unit else f"{time:.4g}"


def share(idle: Sequence[float], makespan: float) -> str:
    """ "21.5 %": the idle part of the time of all ranks."""
    return f"{100 * sum(idle) / (len(idle) * makespan) if makespan else 0.0:.1f} %"


# -- what a rank does, and what it waits for -------------------------------------------------------
def spans(timeline: "Timeline", rank: int) -> Iterator[tuple[float, float, int, bool]]:
    """(start, end, index, busy) of all that a rank does and of all its idle time, in order; index
    is the action's, while idle that of the next. What takes no time is left out; an overlapped pair
    is one."""
    schedule, least, now = timeline.schedule, CLOSE * timeline.makespan, 0.0
    index = -1
    for index, (start, end) in enumerate(zip(timeline.start[rank], timeline.end[rank])):
        if timeline.overlapped and (rank, index - 1) in schedule.pairs:
            continue
        if start - now > least:
            yield now, start, index, False
        if end - start > least:
            yield start, end, index, True
        now = end
    if timeline.makespan - now > least:
        yield now, timeline.makespan, index + 1, False


def words(act: "Panel", rank: int, unit: str) -> list[str]:
    """A sentence or more for each of the `spans` of a rank."""
    timeline, path, found = act.timeline, set(act.path), []
    row, least = timeline.schedule.of(rank), CLOSE * timeline.makespan
    held, before = act.held[rank], 0.0
    at = 0
    for start, end, index, busy in spans(timeline, rank):
        while at < len(held) and held[at][0] - start <= least:
            at += 1
        size = sum(act.strips[rank][at - 1][1:]) if act.sizes and at else 0
        holds = _holds(*held[at - 1][1:], size) if at else "Holds nothing."
        if index == len(row):
            found.append(
                f"rank {rank} is done at {say(start, unit)} and idle for the last "
                f"{say(end - start, unit)}."
            )
            continue
        reason, wanted = _reason(timeline, rank, index, before if busy else start, unit)
        word = _word(timeline, rank, index)
        if busy:
            slack = timeline.slack[rank][index]
            late = (
                "On the critical path"
                if (rank, index) in path
                else f"Slack {say(slack, unit)}"
                if slack > least
                else "No slack"
            )
            found.append(
                f"rank {rank}: {word}, {DOES[row[index].kind]}, {say(start, unit)} to "
                f"{say(end, unit)}: {reason}. {late}. {holds}"
            )
            before = end
        else:
            found.append(
                f"rank {rank} is idle for {say(end - start, unit)}, from "
                f"{say(start, unit)}: {word} waits for {wanted}. {holds}"
            )
    return found


def together(timeline: "Timeline", rank: int, index: int) -> range:
    """The indices of an action and, if it is the first of an overlapped pair, of the other."""
    paired = timeline.overlapped and (rank, index) in timeline.schedule.pairs
    return range(index, index + 1 + paired)


def _word(timeline, rank, index):
    """ "F3", or "F3 beside B1"."""
    schedule = timeline.schedule
    return " beside ".join(
        schedule.word(schedule.of(rank)[i]) for i in together(timeline, rank, index)
    )


def _reason(timeline, rank, index, before, unit):
    """(why an action, or a pair, starts when it does; what it waits for from elsewhere)."""
    schedule = timeline.schedule
    there, step, made = awaited(timeline, rank, index)
    own = schedule.word(schedule.of(rank)[index - 1]) if index else ""
    after = f"starts when {own} ends" if index else "starts at once"
    if step is None:
        return after, "nothing"
    maker = schedule.of(step.rank)[step.index]
    what = f"the {'activation' if maker.kind == 'F' else 'gradient'} of {schedule.word(maker)}" + (
        f" from rank {step.rank}" if step.rank != rank else ""
    )
    if there - before > CLOSE * timeline.makespan or not index:
        sent = f", sent at {say(made, unit)}" if there > made else ""
        return f"starts when {what} is there{sent}", what
    return f"{after}; {what} is there since {say(there, unit)}", what


def awaited(timeline: "Timeline", rank: int, index: int) -> "tuple[float, Step | None, float]":
    """(when the last of what an action, or a pair, waits for is there, the `Step` that made it,
    when it was made); the step is None where it waits for nothing."""
    return max(_arrival(timeline, rank, i) for i in together(timeline, rank, index))


def _arrival(timeline, rank, index):
    """(when what an action waits for is there, the `Step` that made it, when it was made)."""
    schedule = timeline.schedule
    step = schedule.step_of[rank, index]
    if step.needs < 0:
        return -1.0, None, 0.0
    maker = schedule.order[step.needs]
    made = timeline.end[maker.rank][maker.index]
    return made + timeline.latency * step.is_message, maker, made


def _holds(full, kept, size):
    if not full + kept:
        return "Holds nothing."
    much = f"Holds {full + kept} microbatch{'es' * (full + kept > 1)}"
    much += f" in {amount(size)}" * (size > 0)
    return f"{much}, {kept if full else 'all'} as checkpoints." if kept else f"{much}."


# -- all of it -------------------------------------------------------------------------------------
def compared(acts: "Sequence[Panel]", unit: str) -> Iterator[str]:
    """Sentences: each act's own, then what sets the second apart from the first."""
    for act in acts:
        line = act.timeline
        of = f" of one of their {act.each} stages" if act.each > 1 else ""
        yield (
            f"{act.name} takes {say(line.makespan, unit)}; ranks are idle "
            f"{share(line.bubble, line.makespan)} of it and hold at most "
            f"{max(act.peaks)} microbatches{of}."
        )
    if len(acts) == 2:
        yield _difference(*acts, unit)  # pyright: ignore[reportCallIssue]


def _difference(one, two, unit):
    """ "1f1b is 6 longer than early_recompute (15.8 %); a rank idles ... and holds ..."."""
    a, b = one.timeline, two.timeline
    more = b.makespan - a.makespan
    if abs(more) <= CLOSE * max(a.makespan, b.makespan):
        first = f"{two.name} takes as long as {one.name}"
    else:
        first = (
            f"{two.name} is {say(abs(more), unit)} {'longer' if more > 0 else 'shorter'} "
            f"than {one.name}" + f" ({100 * abs(more) / (a.makespan or b.makespan):.1f} %)"
        )
    idle = [sum(line.bubble) / line.schedule.ranks for line in (a, b)]
    counts = [max(act.peaks) / act.each for act in (one, two)]  # of all its layers
    held = (
        f"{counts[1]:g} against {counts[0]:g} microbatches"
        if counts[0] != counts[1]
        else "as many microbatches"
    )
    whole = " of all its layers" if max(one.each, two.each) > 1 else ""
    return (
        f"{first}; a rank idles {say(idle[1], unit)} against {say(idle[0], unit)} on average "
        f"and holds at most {held}{whole}."
    )
