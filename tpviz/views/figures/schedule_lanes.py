"""The lanes of a schedule: a bar for each action, idle slots, what the fullest rank holds, a run.

Idle slots may be gathered: then bars move left until none is between them, and each rank's idle
time is one block at the right edge, the bubble. Paths say with ``data-to`` where their bars go.
"""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import pairwise
from math import ceil
from typing import Any, NamedTuple

from .lanes import MESSAGE, axis_below, box, ring, timed
from .schedule_words import SchedulePanel, awaited, halves, much, peak, say, spans
from .svg import VIEW, shape, text
from .tokens import INKS

LEFT, RIGHT = 64, 12
ROOM = VIEW - LEFT - RIGHT  # px of the time axis
DIGIT = 8  # px of a digit
INK = {
    "F": "forward",
    "R": "recompute",
    "RB": "backward",
    "B": "backward",
    "I": "backward",
    "W": "weight_gradient",
}
"""{kind of action: its ink}; RB begins with a part in that of R."""


# -- where everything is ---------------------------------------------------------------------------
HEAD, BELOW, HELD = 30, 14, 34
"""px: of a panel's name; under a panel; of the chart of what is held, at least."""
HIGH, THICK = {1: 344, 2: 424}, 64
"""px: of so many panels together, whatever their ranks; of a rank's lanes at most."""
LABEL = 15  # px between two names of ranks, at least


class LaneRow(NamedTuple):
    """A rank's place in the picture: which panel, which rank, where its lane begins; heights of the
    lane and, right below it, of the measured one."""

    panel: int
    rank: int
    y: float
    lane: float
    ran: float


class ScheduleLayout:
    """Where everything is, in px, as high for many ranks as for few.

    heads : y of each panel; pitch : from a rank's lanes to the next's; charts : of each panel the
    base of the chart of what is held, ``held`` px high; scale : px of a unit of time; most : what
    any rank holds at once, bytes or microbatches of all its layers; edge : px between bars.
    """

    def __init__(self, panels: Sequence[SchedulePanel]):
        lanes, room = sum(panel.ranks for panel in panels), HIGH[len(panels)] - HEAD * len(panels)
        self.pitch = pitch = min(THICK, (room - (HELD + BELOW) * len(panels)) / lanes)
        self.held = (room - pitch * lanes) / len(panels) - BELOW
        gap, y = 3 if pitch >= 16 else 1, 0.0
        self.rows: list[LaneRow] = []
        self.heads: list[float] = []
        self.charts: list[float] = []
        for number, panel in enumerate(panels):
            self.heads.append(y)
            y += HEAD
            lane = (pitch - gap) * (0.6 if panel.measured else 1)
            ran = pitch - gap - lane
            self.rows += [LaneRow(number, r, y + pitch * r, lane, ran) for r in range(panel.ranks)]
            y += pitch * panel.ranks + self.held
            self.charts.append(y)
            y += BELOW
        self.bottom = y - BELOW + 4
        self.duration = max(panel.ends for panel in panels)
        self.scale = ROOM / (self.duration or 1.0)
        held = (peak(strip) / panel.unit for panel in panels for strip in panel.strips)
        self.most = max(held, default=0) or 1
        lines = [panel.timeline for panel in panels]
        ends = (zip(*times) for line in lines for times in zip(line.start, line.end))
        lengths = (end - start for pairs in ends for start, end in pairs)
        shortest = min((length for length in lengths if length > 0), default=0.0)
        self.edge = min(0.8, shortest * self.scale / 10)

    def x(self, time: float) -> float:
        """Of a time."""
        return LEFT + time * self.scale

    def instant(self, time: float) -> int:
        """A whole number, the same for times that differ by rounding alone."""
        return round(time / (self.duration or 1.0) * 1e9)

    def of(self, panel: int) -> list[LaneRow]:
        """The rows of a panel, rank by rank."""
        return [row for row in self.rows if row.panel == panel]


def stops(panels: Sequence[SchedulePanel], layout: ScheduleLayout) -> dict[int, float]:
    """{`instant`: time} of 0 and of all ends of actions and of idle time, in order."""
    ends = {
        layout.instant(end): end
        for row in layout.rows
        for _, end, _, _ in spans(panels[row.panel].timeline, row.rank)
    }
    return dict(sorted(({0: 0.0} | ends).items()))


# -- the lanes of a panel --------------------------------------------------------------------------
class Lanes:
    """A panel in the picture of some: its lanes, in their places. unit : as of
    `schedule.schedule_scene`."""

    def __init__(
        self, panels: Sequence[SchedulePanel], number: int, layout: ScheduleLayout, unit: str = ""
    ):
        self.number, self.layout, self.unit, self.x = number, layout, unit, layout.x
        self.panel, self.rows = panels[number], layout.of(number)
        self.timeline = self.panel.timeline
        self.schedule = self.timeline.schedule

    def draw(self) -> str:
        """The panel's name, lanes and chart, as SVG."""
        parts = [self._bars(), self._bubble(), self._held(), self._critical()]
        parts += [self._ran()] if self.panel.measured else []
        y, end = self.layout.heads[self.number] + 16, self.timeline.makespan
        name = text(0, y, self.panel.title, size=16, weight=650)
        parts.append(text(self.x(end), y, f"takes {say(end, self.unit)}", anchor="end", weight=650))
        return name + timed("".join(parts)) + "".join(self._labels())

    def _labels(self):
        """The names of lanes, as many as there is room for."""
        every = ceil(LABEL / self.layout.pitch)
        for row in self.rows[::every]:
            yield text(LEFT - 10, row.y + row.lane / 2 + 4.5, f"rank {row.rank}", anchor="end")
        if (first := self.rows[0]).ran:
            yield text(LEFT - 10, first.y + first.lane + first.ran, "run", "muted", anchor="end")
        y = self.layout.charts[self.number]
        top = y - max(15, self.layout.held - 18)  # of the chart's scale
        yield text(LEFT - 10, top, self._chart()[-1], "muted", anchor="end")
        yield text(LEFT - 10, y, f"rank {self.panel.fullest}", "muted", anchor="end")

    def pieces(self, rank: int) -> Iterator[tuple[str, float, float, int, int]]:
        """(ink, start, end, half, index) of the bars of a rank; RB is two of them."""
        line, half = self.timeline, halves(self.timeline, rank)
        for i, (action, start, end) in enumerate(
            zip(self.schedule.of(rank), line.start[rank], line.end[rank])
        ):
            part = half.get(i, 0)
            if action.kind == "RB":
                middle = min(start + self.panel.recompute[action.stage], end)
                yield "recompute", start, middle, part, i
                start = middle
            yield INK[action.kind], start, end, part, i

    def slots(self, rank: int) -> list[tuple[float, float]]:
        """(start, end) of a rank's idle times."""
        return [(a, b) for a, b, _, busy in spans(self.timeline, rank) if not busy]

    def _bars(self):
        """A path for each ink, and one of idle slots."""
        paths: dict[str, list[tuple[str, float]]] = {}
        for row in self.rows:
            slots, before, at = self.slots(row.rank), 0.0, 0
            for ink, start, end, half, _ in self.pieces(row.rank):
                while at < len(slots) and slots[at][0] < start:
                    before, at = before + slots[at][1] - slots[at][0], at + 1
                self._add(paths, ink, row, start, end, start - before, half)
            after = self.timeline.makespan - sum(b - a for a, b in slots)
            for a, b in slots:
                self._add(paths, "idle", row, a, b, after)
                after += b - a
        return "".join(_inked(ink, bars, self.layout.edge) for ink, bars in paths.items())

    def _add(self, paths, ink, row, start, end, to, half=0):
        """A bar, and the px where it begins once idle slots are gathered."""
        wide, (y, high) = (end - start) * self.layout.scale, _half(row, half)
        if wide > 0:
            bar = box(self.x(start), round(y, 2), wide, round(high, 2))
            paths.setdefault(ink, []).append((bar, self.x(to)))

    def _bubble(self):
        """How much idle time there is: in the block of each rank, once they are gathered."""
        out = ""
        for row in self.rows:
            idle, high = self.timeline.bubble[row.rank], row.lane
            words = f"bubble {say(idle, self.unit)}"
            if high >= 13 and idle * self.layout.scale > 7.2 * len(words) + 6:
                x = self.x(self.timeline.makespan - idle / 2)
                out += text(x, row.y + high / 2 + 4.5, words, anchor="middle", weight=650)
        return f"<g data-gathered='' display='none'>{out}</g>"

    def names(self) -> Iterator[tuple[str, float, float, float, str]]:
        """(ink, base line, x, width, microbatch) of every bar, in px."""
        for row in self.rows:
            actions = self.schedule.of(row.rank)
            for ink, start, end, half, i in self.pieces(row.rank):
                y, high = _half(row, half)
                if high >= 12 and end > start:
                    wide = (end - start) * self.layout.scale
                    yield ink, y + high / 2 + 4.5, self.x(start), wide, str(actions[i].microbatch)

    def place(self, rank: int, index: int) -> tuple[float, float, float, float]:
        """(x, y, width, height) of an action's bar."""
        start, end = (times[rank][index] for times in (self.timeline.start, self.timeline.end))
        y, high = _half(self.rows[rank], halves(self.timeline, rank).get(index, 0))
        return self.x(start), y, (end - start) * self.layout.scale, high

    def _critical(self):
        """An outline around each run of the critical path on one rank, and its messages."""
        line, out, arrows, parts = self.timeline, "", "", []
        for rank, index in self.panel.path:
            if not parts or parts[-1][-1][0] != rank:
                parts.append([])
            parts[-1].append((rank, index))
        for part in parts:
            (rank, first), (_, last) = part[0], part[-1]
            x, end = self.x(line.start[rank][first]), self.x(line.end[rank][last])
            row = self.rows[rank]
            if end > x:
                out += box(x + 0.8, row.y + 0.8, max(end - x - 1.6, 0), row.lane - 1.6)
        for (rank, index), (to, at) in pairwise(self.panel.path):
            if rank != to:
                x0, x1 = self.x(line.end[rank][index]), self.x(line.start[to][at])
                one, other = self.rows[rank], self.rows[to]
                down = other.y > one.y
                y0, y1 = one.y + one.lane * down, other.y + other.lane * (not down)
                arrows += f"M{x0:.1f},{y0:g}L{x1:.1f},{y1:g}"
        return (
            "<g data-critical='' display='none'>"
            f"<path d='{out}' fill='none' class='s-fg' stroke-width='2'/>"
            f"<path d='{arrows}' fill='none' class='s-fg' stroke-width='2.4'/></g>"
        )

    def _chart(self):
        """(what the fullest rank holds, what a run counted of it, the chart's top, it in words)."""
        panel, most = self.panel, self.layout.most
        ran = panel.measured.held[panel.fullest] if panel.measured and panel.measured.held else ()
        if not ran:
            return panel.strips[panel.fullest], ran, most * panel.unit, much(panel, most, " held")
        strip = panel.held[panel.fullest]
        top = max(peak(strip), *(count for _, count in ran))
        return strip, ran, top, f"{top / panel.each:g} held"

    def _held(self):
        """What the fullest rank holds over time: whole microbatches, checkpoints above them; where
        a run counted them, in microbatches, with the run's as a line."""
        sizes, (strip, ran, top, _) = self.layout, self._chart()
        base = sizes.charts[self.number]
        high, last = (sizes.held - 6) / top, self.timeline.makespan
        paths = {"whole": "", "checkpoints": ""}
        for (start, full, kept), (stop, *_) in zip(strip, [*strip[1:], (last, 0, 0)]):
            wide, low = (stop - start) * sizes.scale, base
            for what, share in (("whole", full), ("checkpoints", kept)):
                low -= share * high
                if share and wide > 0:
                    paths[what] += box(self.x(start), round(low, 2), wide, round(share * high, 2))
        end = self.x(last)
        line = f"M{LEFT},{base:g}" + "".join(
            f"H{self.x(t):.1f}V{base - n * high:.2f}" for t, n in ran
        )
        return (
            f"<g data-rest=''><path d='{paths['whole']}' class='f-activations' data-held='whole'/>"
            f"<path d='{paths['checkpoints']}' class='f-activations' fill-opacity='.38' "
            f"data-held='checkpoints'/><path d='M{LEFT},{base:g}H{end:.1f}' class='s-muted'/>"
            + f"<path d='{line}' class='s-fg' fill='none' stroke-width='1.5' data-flown=''/>"
            * bool(ran)
            + "</g>"
        )

    def _ran(self):
        """Under each lane the rank's measured bars."""
        ran, out = self.panel.measured, ""
        for row in self.rows:
            paths: dict[str, str] = {}
            for ink, start, end in ran.bars[row.rank]:  # pyright: ignore[reportOptionalMemberAccess]
                wide = max((end - start) * self.layout.scale, 0.3)
                paths[ink] = paths.get(ink, "") + box(
                    self.x(start), row.y + row.lane + 1, wide, row.ran - 1
                )
            out += "".join(
                shape(
                    path, f"{ink} s-bg", INKS[ink].pattern, f"stroke-width='0.2' data-key='{ink}'"
                )
                for ink, path in paths.items()
            )
        return f"<g data-source='{escape(ran.badge)}' data-rest=''>{out}</g>"  # pyright: ignore[reportOptionalMemberAccess]

    # -- a moment ----------------------------------------------------------------------------------
    def moment(self, rank: int, index: int, busy: bool) -> str:
        """A ring around an action, and a broken one around the action it waited for; while the rank
        is idle before it, around the one it waits for."""
        if index == len(self.schedule.of(rank)):
            return ""
        here, out = self.place(rank, index), ""
        step = awaited(self.timeline, rank, index)[1]
        if step:
            x, y, width, high = maker = self.place(step.rank, step.index)
            end = f"{here[0]:.1f},{here[1] + here[3] / 2:g}"
            path = f"M{x + width:.1f},{y + high / 2:g}L{end}"
            out += f"<path d='{path}' class='s-{MESSAGE}' stroke-width='3'/>"
            out += _ring(maker, "stroke-dasharray='4 3' data-needed=''")
        return out + _ring(here, "data-chosen=''") if busy else out


def _half(row, half):
    """(y, height) of a bar on a lane, or on the upper (1) or lower (2) half of it."""
    high = row.lane / (2 if half else 1)
    return row.y + high * (half == 2), high


def _inked(ink, bars, edge):
    """Bars in an ink, parted by lines of ``edge`` px, and where they go once idle is gathered."""
    path, to = "".join(bar for bar, _ in bars), " ".join(f"{x:.1f}" for _, x in bars)
    where = f"stroke-width='{edge:.2g}' data-key='{ink}' data-to='{to}'"
    if ink == "idle":
        drawn = shape(path, ink, ink, f"data-key='idle' data-to='{to}'")
    else:
        drawn = shape(path, f"{ink} s-bg", INKS[ink].pattern, where)
    return drawn.replace("class='tpv-mark'", f"class='tpv-mark' data-to='{to}'")


def _ring(place, extra):
    x, y, width, high = place
    return ring(x - 2, y - 2, width + 4, high + 4, 3, 2.6, extra)


def in_lanes(names: Iterable[tuple[str, float, float, float, str]]) -> list[list[Any]]:
    """`Lanes.names` as [ink, base line, width, [[x, name], ...]], for a page."""
    lanes: dict[tuple[str, float, float], list[Any]] = {}
    for ink, y, x, wide, name in names:
        lanes.setdefault((ink, round(y, 1), round(wide, 2)), []).append([round(x, 2), name])
    return [[*lane, several] for lane, several in lanes.items()]


def named(lanes: Iterable[Sequence[Any]]) -> str:
    """The names of `in_lanes`, all of a lane where the longest fits its bar; as ``drawNames``."""
    texts: dict[str, str] = {}
    for ink, y, wide, several in lanes:
        fits = DIGIT * max(len(name) for _, name in several) + 4 < wide
        for x, name in several if fits else ():
            text = f"<text x='{x + wide / 2:.1f}' y='{y:g}'>{name}</text>"
            texts[ink] = texts.get(ink, "") + text
    groups = (f"<g class='f-halo-{ink}'>{some}</g>" for ink, some in texts.items())
    looks = "font-size='13' text-anchor='middle' font-weight='600'"
    return f"<g data-names='' {looks}>{''.join(groups)}</g>"


def axis(layout: ScheduleLayout, unit: str) -> str:
    """The time axis under all lanes."""
    says = lambda time: say(time, unit)
    drawn = axis_below(LEFT, layout.bottom, layout.scale, layout.duration, says)
    return f"<g data-rest=''>{drawn}</g>"
