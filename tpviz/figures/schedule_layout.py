"""What the schedule view shows, and where: acts, lanes of ranks, and the scale of time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from .schedule_words import spans

if TYPE_CHECKING:
    from tpviz.cost import Memory
    from tpviz.schedules import Timeline

    from .schedule_measured import Measured

WIDTH, LEFT, RIGHT, TOP = 1060, 74, 196, 84


INK = {
    "F": "forward",
    "R": "recompute",
    "RB": "backward",
    "B": "backward",
    "I": "backward",
    "W": "gradients",
}


@dataclass(frozen=True)
class Panel:
    """One schedule on the clock, and what is known beside it.

    timeline : its `Timeline`. recompute : seconds of each stage, the first part of RB. formula :
    (makespan, idle time of each rank) by closed form, or None. memory : for each rank
    {kind: bytes}, or (). measured : `schedule_measured.Measured`, or None. sizes : for each stage
    (bytes of a microbatch as backward needs it, those that are kept where the rest is recomputed),
    or () where bytes are not known.
    """

    timeline: "Timeline"
    recompute: tuple[float, ...]
    formula: tuple[float, Sequence[float]] | None = None
    memory: "tuple[Memory, ...]" = ()
    measured: "Measured | None" = None
    sizes: tuple[tuple[int, int], ...] = ()

    @property
    def name(self) -> str:
        """The schedule's."""
        return self.timeline.schedule.name

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
        """Per rank what `Timeline.held` gives."""
        return [self.timeline.held(rank) for rank in range(self.ranks)]

    @cached_property
    def strips(self) -> list[list[tuple[float, int, int]]]:
        """As `held`, in bytes where these are known."""
        return (
            [weighed(self.timeline, rank, self.sizes) for rank in range(self.ranks)]
            if self.sizes
            else self.held
        )

    @property
    def unit(self) -> int:
        """What `strips` have of a microbatch of all layers of a rank."""
        return 1 if self.sizes else self.each

    @cached_property
    def peaks(self) -> list[int]:
        """Per rank the most microbatches, times stages, that it holds."""
        return [peak(held) for held in self.held]


class Row(NamedTuple):
    """A rank's place in the picture: which act, which rank, where its lane begins."""

    act: int
    rank: int
    y: float


class Layout(NamedTuple):
    """Where everything is, in px. heads : y of each act's heading; lane, ran, strip, gap, font :
    heights of a simulated lane, a measured one, the strip of what is held, the room between, and
    letters; flown : height of the strip of what a run had in flight; scale : px of a unit of time;
    most : what any rank holds at once, bytes or microbatches of all its layers; edge : px between
    bars."""

    rows: tuple[Row, ...]
    heads: tuple[float, ...]
    lane: int
    ran: int
    strip: int
    flown: int
    gap: int
    font: int
    scale: float
    duration: float
    bottom: float
    most: float
    edge: float

    def x(self, time: float) -> float:
        """Of a time."""
        return LEFT + time * self.scale

    def instant(self, time: float) -> int:
        """A whole number, the same for times that differ by rounding alone."""
        return round(time / (self.duration or 1.0) * 1e9)

    def of(self, act: int) -> list[Row]:
        """The rows of an act, rank by rank."""
        return [row for row in self.rows if row.act == act]


def lay_out(acts: Sequence[Panel]) -> Layout:
    """The `Layout` of acts; smaller where there are many lanes."""
    lanes = sum(act.ranks for act in acts)
    lane, strip, gap, font = (28, 16, 10, 11) if lanes <= 8 else (20, 10, 6, 10)
    strip += 8 * (lanes <= 4)
    ran, flown = (lane - 10, 14) if any(act.measured for act in acts) else (0, 0)
    strip = max(strip, 38 - lane - ran) if any(act.memory for act in acts) else strip
    rows, heads, y = [], [], TOP
    for number, act in enumerate(acts):
        heads.append(y + 11)
        y += 26
        for rank in range(act.ranks):
            rows.append(Row(number, rank, y))
            y += lane + ran + strip + flown + gap
        y += 6
    duration = max(act.ends for act in acts)
    most = max((peak(strip) / act.unit for act in acts for strip in act.strips), default=0) or 1
    scale = (WIDTH - LEFT - RIGHT) / (duration or 1.0)
    shortest = min(
        (
            end - start
            for act in acts
            for rows_of in zip(act.timeline.start, act.timeline.end)
            for start, end in zip(*rows_of)
            if end > start
        ),
        default=0.0,
    )
    return Layout(
        tuple(rows),
        tuple(heads),
        lane,
        ran,
        strip,
        flown,
        gap,
        font,
        scale,
        duration,
        y,
        most,
        min(0.8, shortest * scale / 10),
    )


def weighed(
    timeline: "Timeline", rank: int, sizes: Sequence[tuple[int, int]]
) -> list[tuple[float, int, int]]:
    """`Timeline.held` in bytes; sizes : as those of a `Panel`."""
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
    """The most that is held, whole and as checkpoints."""
    return max((whole + kept for _, whole, kept in strip), default=0)


def stops(acts: Sequence[Panel], layout: Layout) -> dict[int, float]:
    """{`instant`: time} of 0 and of all ends of actions and of idle time, in order."""
    found = {0: 0.0} | {
        layout.instant(end): end
        for row in layout.rows
        for _, end, _, _ in spans(acts[row.act].timeline, row.rank)
    }
    return dict(sorted(found.items()))


def halves(timeline: "Timeline", rank: int) -> dict[int, int]:
    """{index: 1 or 2} of actions drawn as the upper or lower half of a lane."""
    pairs = sorted(timeline.schedule.pairs) if timeline.overlapped else ()
    return {index + i: i + 1 for r, index in pairs if r == rank for i in (0, 1)}


MEMORY = {"optimizer": "optimizer_state"}
