"""Simulated schedules in numbers and words: activations held, why every action starts when it does,
and how two schedules differ.

Works on the `ScheduleTimes`s of `tpviz.core.schedules`, of which it needs the attributes alone. All
times are simulated, in the unit of the durations given; the closed form stands beside them as
"formula", a run as "measured".
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tpviz.cluster.clock.cost import Memory
from tpviz.core.schedules import ScheduleTimes
from tpviz.core.schedules.order import Step
from tpviz.core.trace.pipeline import Measured

from .svg import amount, seconds
from .tokens import INKS

DOES = {
    "F": "forward",
    "B": "backward",
    "RB": "recompute and backward",
    "R": "early recompute",
    "I": "gradient of the input",
    "W": "gradient of the weights",
}
CLOSE = 1e-9
"""Relative to the makespan: closer times are equal."""

MEMORY_INKS = {"optimizer": "optimizer_state"}
"""{kind of memory: its ink}, where it has another name."""


@dataclass(frozen=True)
class SchedulePanel:
    """One simulated schedule, and the other data about it.

    timeline : its `ScheduleTimes`. recompute : seconds of each stage, the first part of RB. formula
    : (makespan, idle time of each rank) by closed form, or None. memory : for each rank
    {kind: bytes}, or (). measured : `schedule_measured.Measured`, or None. sizes : for each stage
    (bytes of a microbatch as backward needs it, those that are kept where the rest is recomputed),
    or () where bytes are not known.
    """

    timeline: ScheduleTimes
    recompute: tuple[float, ...]
    formula: tuple[float, Sequence[float]] | None = None
    memory: tuple[Memory, ...] = ()
    measured: Measured | None = None
    sizes: tuple[tuple[int, int], ...] = ()

    @property
    def name(self) -> str:
        """The schedule's."""
        return self.timeline.schedule.name

    @property
    def title(self) -> str:
        """The schedule's name in words."""
        return self.name.replace("_", " ")

    @property
    def ranks(self) -> int:
        """How many lanes it takes."""
        return self.timeline.schedule.ranks

    @cached_property
    def each(self) -> int:
        """Stages on a rank: each holds its share of the rank's activations."""
        schedule = self.timeline.schedule
        return max(len(schedule.stages_of(rank)) for rank in range(schedule.ranks)) or 1

    @property
    def ends(self) -> float:
        """When the last bar ends, simulated or measured."""
        return max(self.timeline.makespan, self.measured.makespan if self.measured else 0.0)

    @cached_property
    def path(self) -> list[tuple[int, int]]:
        """The critical path."""
        return self.timeline.critical_path()

    @cached_property
    def held(self) -> list[list[tuple[float, int, int]]]:
        """Per rank what `ScheduleTimes.held` gives."""
        return [self.timeline.held(rank) for rank in range(self.ranks)]

    @cached_property
    def strips(self) -> list[list[tuple[float, int, int]]]:
        """As `held`, in bytes if known."""
        if not self.sizes:
            return self.held
        return [weighed(self.timeline, rank, self.sizes) for rank in range(self.ranks)]

    @cached_property
    def fullest(self) -> int:
        """The rank that holds most."""
        tops = [peak(strip) for strip in self.strips]
        return tops.index(max(tops))

    @property
    def unit(self) -> int:
        """A rank's bytes in `strips` per microbatch of all its layers."""
        return 1 if self.sizes else self.each

    @cached_property
    def peaks(self) -> list[int]:
        """Per rank the most microbatches, times stages, that it holds."""
        return [peak(held) for held in self.held]


def weighed(
    timeline: ScheduleTimes, rank: int, sizes: Sequence[tuple[int, int]]
) -> list[tuple[float, int, int]]:
    """`ScheduleTimes.held` in bytes; sizes : as those of a `SchedulePanel`."""
    changes = {}
    for action, start, end in zip(
        timeline.schedule.of(rank), timeline.start[rank], timeline.end[rank]
    ):
        whole, kept = sizes[action.stage]
        again = timeline.schedule.recomputes[action.stage]
        for kinds, time, more in (
            ("F", start, (0, kept) if again else (whole, 0)),
            (("R", "RB"), start, (whole, -kept)),
            (("B", "RB", "W"), end, (-whole, 0)),
        ):
            if action.kind in kinds:
                was = changes.get(time, (0, 0))
                changes[time] = was[0] + more[0], was[1] + more[1]
    series, now = [], (0, 0)
    for time in sorted(changes):
        now = now[0] + changes[time][0], now[1] + changes[time][1]
        series.append((time, *now))
    return series


def peak(strip: Iterable[tuple[float, int, int]]) -> int:
    """The peak activations held, whole and as checkpoints."""
    return max((whole + kept for _, whole, kept in strip), default=0)


def halves(timeline: ScheduleTimes, rank: int) -> dict[int, int]:
    """{index: 1 or 2} of actions drawn as the upper or lower half of a lane."""
    pairs = sorted(timeline.schedule.pairs) if timeline.overlapped else ()
    return {index + i: i + 1 for r, index in pairs if r == rank for i in (0, 1)}


def say(time: float, unit: str) -> str:
    """A time in its unit: "12.5", or "12.5 ms" of seconds."""
    return seconds(time) if unit else f"{time:.4g}"


def share(idle: Sequence[float], makespan: float) -> str:
    """ "21.5 %": the idle part of the time of all ranks."""
    return f"{100 * sum(idle) / (len(idle) * makespan) if makespan else 0.0:.1f} %"


# -- what a rank does, and what it waits for -------------------------------------------------------
def spans(timeline: ScheduleTimes, rank: int) -> Iterator[tuple[float, float, int, bool]]:
    """(start, end, index, busy) of a rank's actions and idle times, in order; index is the
    action's, while idle that of the next. What takes no time is left out; an overlapped pair is
    one."""
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


def words(panel: SchedulePanel, rank: int, unit: str) -> list[str]:
    """A sentence or more for each of the `spans` of a rank."""
    timeline, path, sentences = panel.timeline, set(panel.path), []
    row, least = timeline.schedule.of(rank), CLOSE * timeline.makespan
    held, before = panel.held[rank], 0.0
    at = 0
    for start, end, index, busy in spans(timeline, rank):
        while at < len(held) and held[at][0] - start <= least:
            at += 1
        size = sum(panel.strips[rank][at - 1][1:]) if panel.sizes and at else 0
        holds = _holds(*held[at - 1][1:], size) if at else "Holds nothing."
        since, long = say(start, unit), say(end - start, unit)
        if index == len(row):
            sentences.append(f"rank {rank} is done at {since} and idle for the last {long}.")
            continue
        reason, wanted = _reason(timeline, rank, index, before if busy else start, unit)
        word = " beside ".join(
            timeline.schedule.word(row[i]) for i in together(timeline, rank, index)
        )
        if not busy:
            sentences.append(
                f"rank {rank} is idle for {long}, from {since}: {word} waits for {wanted}. {holds}"
            )
            continue
        slack = timeline.slack[rank][index]
        late = f"Slack {say(slack, unit)}" if slack > least else "No slack"
        late = "On the critical path" if (rank, index) in path else late
        sentences.append(
            f"rank {rank}: {word}, {DOES[row[index].kind]}, {since} to "
            f"{say(end, unit)}: {reason}. {late}. {holds}"
        )
        before = end
    return sentences


def together(timeline: ScheduleTimes, rank: int, index: int) -> range:
    """The indices of an action and, if it is the first of an overlapped pair, of the other."""
    paired = timeline.overlapped and (rank, index) in timeline.schedule.pairs
    return range(index, index + 1 + paired)


def _reason(timeline, rank, index, before, unit):
    """(why an action, or a pair, starts when it does; what it waits for from another rank)."""
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
        return f"starts when {what} arrives{sent}", what
    return f"{after}; {what} arrived at {say(there, unit)}", what


def awaited(timeline: ScheduleTimes, rank: int, index: int) -> tuple[float, Step | None, float]:
    """(when the last input of an action, or a pair, arrives, the `Step` that made it, when it was
    made); the step is None where it waits for nothing."""
    return max(_arrival(timeline, rank, i) for i in together(timeline, rank, index))


def _arrival(timeline, rank, index):
    """(when the input of an action arrives, the `Step` that made it, when it was made)."""
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
def compared(panels: Sequence[SchedulePanel], unit: str) -> Iterator[str]:
    """Sentences: each panel's own, then how the second differs from the first."""
    for panel in panels:
        line = panel.timeline
        of = f" of one of their {panel.each} stages" if panel.each > 1 else ""
        yield (
            f"{panel.title} takes {say(line.makespan, unit)}; ranks are idle "
            f"{share(line.bubble, line.makespan)} of it and hold at most "
            f"{max(panel.peaks)} microbatches{of}."
        )
    if len(panels) == 2:
        yield _difference(*panels, unit)  # pyright: ignore[reportCallIssue]


def summary(panels: Sequence[SchedulePanel], unit: str) -> str:
    """Which schedule is longer, or what is the bubble of the only one."""
    if len(panels) == 2:
        return f"{_longer(*panels, unit)}."  # pyright: ignore[reportCallIssue]
    line = panels[0].timeline
    idle, takes = share(line.bubble, line.makespan), say(line.makespan, unit)
    return f"Ranks are idle {idle} of the step, which takes {takes}."


def _longer(one, two, unit):
    """ "1f1b is 6 longer than early_recompute (15.8 %)"."""
    a, b = one.timeline.makespan, two.timeline.makespan
    if abs(b - a) <= CLOSE * max(a, b):
        return f"{two.title} takes as long as {one.title}"
    return (
        f"{two.title} is {say(abs(b - a), unit)} {'longer' if b > a else 'shorter'} "
        f"than {one.title} ({100 * abs(b - a) / (a or b):.1f} %)"
    )


def _difference(one, two, unit):
    """As `_longer`, and "; a rank idles ... and holds ..."."""
    a, b, first = one.timeline, two.timeline, _longer(one, two, unit)
    idle = [sum(line.bubble) / line.schedule.ranks for line in (a, b)]
    counts = [max(panel.peaks) / panel.each for panel in (one, two)]  # of all its layers
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


def figures(
    panels: Sequence[SchedulePanel], unit: str, device: float | None = None
) -> list[list[str]]:
    """The table under the picture, header first: a schedule each. Its closed form is in words where
    it gives the same. device : as of `schedule.schedule_scene`."""
    columns = ["schedule", "step", "idle", "held at most"]
    form = "by formula" + " (mean stage, no messages)" * bool(unit)
    more = {
        form: [_formula(panel, unit) for panel in panels],
        next((p.measured.badge for p in panels if p.measured), ""): [_ran(p, unit) for p in panels],
        "memory": [_memory(panel, device) for panel in panels],
    }
    more = {name: cells for name, cells in more.items() if any(cells)}
    rows = [[*columns, *more]]
    for number, panel in enumerate(panels):
        line = panel.timeline
        row = [panel.title, say(line.makespan, unit), share(line.bubble, line.makespan)]
        most = peak(panel.strips[panel.fullest]) / panel.unit
        row += [f"{much(panel, most)}, rank {panel.fullest}"]
        rows.append([*row, *(cells[number] for cells in more.values())])
    return rows


def much(panel: SchedulePanel, most: float, unit: str = "") -> str:
    """What is held, in bytes if known, else in microbatches of all of a rank's layers."""
    return amount(most) if panel.sizes else f"{most:g}{unit}"


def _formula(panel, unit):
    if not panel.formula:
        return ""
    (length, idle), line = panel.formula, panel.timeline
    least = CLOSE * line.makespan
    if all(abs(a - b) <= least for a, b in zip((length, *idle), (line.makespan, *line.bubble))):
        return "the same step and idle"
    return f"{say(length, unit)}, idle {share(idle, length)}"


def _ran(panel, unit):
    ran = panel.measured
    if not ran:
        return ""
    most = max((count for held in ran.held for _, count in held), default=0)
    words = f"{say(ran.makespan, unit)}, idle {share(ran.idle, ran.makespan)}"
    return words + f", {most} in flight" * bool(most)


def _memory(panel, device):
    """The rank that needs most, and what its device has."""
    if not panel.memory:
        return ""
    most = max(memory.total for memory in panel.memory)
    if device is None:
        return amount(most)
    return f"{amount(most)} of {amount(device)}" + ": too much" * (most > device)


def to_table(panels: Sequence[SchedulePanel], unit: str) -> list[list[str]]:
    """Rows of strings, header first: one rank of one schedule each."""
    kinds: list[str] = list(panels[0].memory[0]) if panels[0].memory else []
    head = ["schedule", "rank", "stages", "busy", "idle", "idle inside"]
    head += ["idle, formula", "idle, measured", "most in flight"]
    table = [head + [INKS[MEMORY_INKS.get(k, k)].label for k in kinds]]
    for panel in panels:
        line = panel.timeline
        for r in range(panel.ranks):
            times = line.busy[r], line.bubble[r], max(line.bubble_inside[r], 0.0)
            row = [panel.name, str(r), ", ".join(map(str, line.schedule.stages_of(r)))]
            row += [say(time, unit) for time in times]
            row.append(say(panel.formula[1][r], unit) if panel.formula else "")
            row.append(say(panel.measured.idle[r], unit) if panel.measured else "")
            table.append([*row, str(panel.peaks[r]), *(amount(panel.memory[r][k]) for k in kinds)])
    return table
