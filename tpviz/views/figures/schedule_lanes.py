"""The lanes of a schedule: a bar for each action, activations held, numbers of each rank."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import Any, NamedTuple

from tpviz.core.inks import MEMORY_KINDS

from .lanes import MESSAGE, axis_below, box, idle, ring, timed
from .schedule_words import SchedulePanel, awaited, halves, peak, say, spans
from .svg import VIEW, amount, shape, swatch, text
from .tokens import INKS

LEFT, RIGHT, TOP = 74, 176, 84
ROOM = VIEW - LEFT - RIGHT  # px of the time axis
LETTER, WIDER = 0.62, 0.7  # a letter's width, of its font size; by how many letters a W is wider
NUMBERS = VIEW - RIGHT + 12  # x of what stands at the right
FEW, WIDE = 64, 28  # messages that are all drawn; px of a lane of few
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
class LaneRow(NamedTuple):
    """A rank's place in the picture: which panel, which rank, where its lane begins."""

    panel: int
    rank: int
    y: float


class ScheduleLayout(NamedTuple):
    """Where everything is, in px. heads : y of each panel's heading; lane, ran, strip, gap :
    heights of a simulated lane, a measured one, the strip of what is held, and the room between;
    flown : height of the strip of what a run had in flight; scale : px of a unit of time;
    most : what any rank holds at once, bytes or microbatches of all its layers; edge : px between
    bars."""

    rows: tuple[LaneRow, ...]
    heads: tuple[float, ...]
    lane: int
    ran: int
    strip: int
    flown: int
    gap: int
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

    def of(self, panel: int) -> list[LaneRow]:
        """The rows of a panel, rank by rank."""
        return [row for row in self.rows if row.panel == panel]


def lay_out(panels: Sequence[SchedulePanel]) -> ScheduleLayout:
    """The `ScheduleLayout` of panels; smaller where there are many lanes."""
    lanes = sum(panel.ranks for panel in panels)
    lane, strip, gap = (WIDE, 16, 10) if lanes <= 8 else (20, 12, 6)
    strip += 8 * (lanes <= 4)
    ran, flown = (lane - 10, 14) if any(panel.measured for panel in panels) else (0, 0)
    strip = max(strip, 44 - lane - ran) if any(panel.memory for panel in panels) else strip
    rows, heads, y = [], [], TOP
    for number, panel in enumerate(panels):
        heads.append(y + 11)
        y += 26
        for rank in range(panel.ranks):
            rows.append(LaneRow(number, rank, y))
            y += lane + ran + strip + flown + gap
        y += 6
    duration = max(panel.ends for panel in panels)
    most = (
        max((peak(held) / panel.unit for panel in panels for held in panel.strips), default=0) or 1
    )
    scale = ROOM / (duration or 1.0)
    lengths = (
        end - start
        for panel in panels
        for times in zip(panel.timeline.start, panel.timeline.end)
        for start, end in zip(*times)
    )
    shortest = min((length for length in lengths if length > 0), default=0.0)
    sizes = lane, ran, strip, flown, gap, scale, duration, y, most
    return ScheduleLayout(tuple(rows), tuple(heads), *sizes, min(0.8, shortest * scale / 10))


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
    """A panel in the picture of some: its lanes, in their places.

    unit, device : as of `schedule.schedule_scene`.
    """

    def __init__(
        self,
        panels: Sequence[SchedulePanel],
        number: int,
        layout: ScheduleLayout,
        unit: str = "",
        device: float | None = None,
    ):
        self.panels, self.number, self.layout = panels, number, layout
        self.unit, self.device, self.x = unit, device, layout.x
        self.panel, self.rows = panels[number], layout.of(number)
        self.timeline = self.panel.timeline
        self.schedule = self.timeline.schedule

    def draw(self) -> str:
        """The panel's heading, lanes, strips and numbers, as SVG."""
        parts = [*(self._idle(row.y, self.layout.lane) for row in self.rows), self._strips()]
        parts += [self._messages(), self._bars(), self._critical(), self._pairs()]
        parts += [self._ran()] if self.panel.measured else []
        words = [self._head(), *(line for row in self.rows for line in self._words(row))]
        return timed("".join(parts)) + "".join(words)

    def _head(self):
        panel, makespan, y = self.panel, self.timeline.makespan, self.layout.heads[self.number]
        more = say(makespan, self.unit)
        if panel.formula:
            more += f", formula {say(panel.formula[0], self.unit)}"
        if panel.measured:
            more += f", measured {say(panel.measured.makespan, self.unit)}"
        x = min(self.x(makespan), VIEW - RIGHT)
        label = text(12, y, panel.name, size=16, weight=700)
        return label + text(x, y, more, anchor="end", weight=600)

    def _label(self, y, words, token="muted"):
        return text(LEFT - 10, y, words, token, anchor="end")

    def _idle(self, y, height):
        return idle(LEFT, y, self.layout.duration * self.layout.scale, height)

    def _words(self, row):
        """What stands left and right of a rank's lanes."""
        sizes, below = self.layout, row.y + self.layout.lane + self.layout.ran
        yield self._label(row.y + sizes.lane / 2 + 4, f"rank {row.rank}", "fg")
        yield self._label(below + sizes.strip / 2 + 3, "held")
        if sizes.ran and self.panel.measured:
            yield self._label(below - 3, "measured")
            if self.panel.measured.held:
                yield self._label(below + sizes.strip + sizes.flown - 2, "in flight")
        yield from self._numbers(row)

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

    def _bars(self):
        """A path for each ink, its pattern over it."""
        paths = {}
        for row in self.rows:
            for ink, start, end, half, _ in self.pieces(row.rank):
                wide, (y, high) = (end - start) * self.layout.scale, self._half(row, half)
                if wide > 0:
                    paths.setdefault(ink, []).append(box(self.x(start), y, wide, high))
        return "".join(_inked(ink, "".join(path), self.layout.edge) for ink, path in paths.items())

    def names(self) -> Iterator[tuple[str, float, float, float, str]]:
        """(ink, base line, x, width, name) of every bar that has a name, in px."""
        for row in self.rows:
            actions = self.schedule.of(row.rank)
            for ink, start, end, half, i in self.pieces(row.rank):
                y, high = self._half(row, half)
                if end > start and (ink != "recompute" or actions[i].kind != "RB"):
                    wide = (end - start) * self.layout.scale
                    yield ink, y + high / 2 + 4, self.x(start), wide, self.schedule.word(actions[i])

    def _half(self, row, half):
        """(y, height) of a bar on a lane, or on the upper (1) or lower (2) half of it."""
        high = self.layout.lane / (2 if half else 1)
        return row.y + high * (half == 2), high

    def place(self, rank: int, index: int) -> tuple[float, float, float, float]:
        """(x, y, width, height) of an action's bar."""
        start, end = (times[rank][index] for times in (self.timeline.start, self.timeline.end))
        y, high = self._half(self.rows[rank], halves(self.timeline, rank).get(index, 0))
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
            if end > x:
                high = self.layout.lane - 1.6
                out += box(x + 0.8, self.rows[rank].y + 0.8, max(end - x - 1.6, 0), high)
        for (rank, index), (to, at) in pairwise(self.panel.path):
            if rank != to:
                arrows += self._down(line.end[rank][index], line.start[to][at], rank, to)
        return (
            f"<path d='{out}' fill='none' class='s-fg tpv-critical' stroke-width='2'/>"
            f"<path d='{arrows}' fill='none' class='s-fg' stroke-width='2.4'/>"
        )

    def _pairs(self):
        """A bracket over each pair of a forward and a backward, overlapped or in turn."""
        line, out = self.timeline, ""
        for rank, index in sorted(self.schedule.pairs):
            x, end = self.x(line.start[rank][index]), self.x(line.end[rank][index + 1])
            out += f"M{x + 1:.1f},{self.rows[rank].y - 1:g}v-3H{end - 1:.1f}v3"
        return f"<path d='{out}' fill='none' class='s-fg tpv-pairs' stroke-width='1.3'/>"

    def _down(self, sent, arrived, rank, to):
        """From a lane's edge to another's: a message."""
        x0, x1, high = self.x(sent), self.x(arrived), self.layout.lane
        y0, y1 = self.rows[rank].y, self.rows[to].y
        if y1 > y0:
            return f"M{x0:.1f},{y0 + high:g}L{x1:.1f},{y1:g}"
        return f"M{x0:.1f},{y0:g}L{x1:.1f},{y1 + high:g}"

    def _messages(self):
        """All messages as thin lines, where they are few."""
        line, out = self.timeline, ""
        sent = [step for step in self.schedule.order if step.is_message]
        if len(sent) > FEW:
            return ""
        for step in sent:
            maker = self.schedule.order[step.needs]
            made = line.end[maker.rank][maker.index]
            out += self._down(made, made + line.latency, maker.rank, step.rank)
        looks = f"class='s-{MESSAGE} tpv-messages' stroke-width='1.1'"
        return f"<path d='{out}' fill='none' {looks}/>"

    def _strips(self):
        """Under each lane the activations held over time: whole microbatches, checkpoints above
        them, and a line at the peak."""
        whole, checkpoints, most = "", "", ""
        end, sizes = self.timeline.makespan, self.layout
        for row in self.rows:
            base = row.y + sizes.lane + sizes.ran + sizes.strip
            high = (sizes.strip - 3) / sizes.most / self.panel.unit
            held = self.panel.strips[row.rank]
            most += f"M{self.x(0):.1f},{base - peak(held) * high:.2f}H{self.x(end):.1f}"
            for (start, full, kept), (stop, *_) in zip(held, [*held[1:], (end, 0, 0)]):
                x, wide = self.x(start), (stop - start) * sizes.scale
                tall, low = round(full * high, 2), round(kept * high, 2)
                if full and wide > 0:
                    whole += box(x, round(base - full * high, 2), wide, tall)
                if kept and wide > 0:
                    checkpoints += box(x, round(base - (full + kept) * high, 2), wide, low)
        return (
            f"<path d='{whole}' class='f-activations' data-held='whole'/>"
            f"<path d='{checkpoints}' class='f-activations' fill-opacity='.38' "
            f"data-held='checkpoints'/><path d='{most}' class='s-activations' "
            f"stroke-dasharray='2 3' data-held='most'/>"
        )

    # -- a run -------------------------------------------------------------------------------------
    def _ran(self):
        """Under each lane the rank's measured bars."""
        out, high = "", self.layout.ran - 3
        for row in self.rows:
            y, paths = row.y + self.layout.lane + 2, {}
            for ink, start, end in self.panel.measured.bars[row.rank]:  # pyright: ignore[reportOptionalMemberAccess]
                wide = max((end - start) * self.layout.scale, 0.3)
                paths[ink] = paths.get(ink, "") + box(self.x(start), y, wide, high)
            out += self._idle(y, high)
            out += "".join(_inked(ink, path, 0.2) for ink, path in paths.items())
            out += self._flown(row) if self.panel.measured.held else ""  # pyright: ignore[reportOptionalMemberAccess]
        return f"<g data-source='{escape(self.panel.measured.badge)}'>{out}</g>"  # pyright: ignore[reportOptionalMemberAccess]

    def _flown(self, row):
        """Microbatches in flight: simulated as an area, measured as a line over it."""
        sizes, held = self.layout, self.panel.measured.held  # pyright: ignore[reportOptionalMemberAccess]
        base = row.y + sizes.lane + sizes.ran + sizes.strip + sizes.flown - 1
        high = (sizes.flown - 3) / max(
            *self.panel.peaks, *(n for series in held for _, n in series)
        )
        start = f"M{self.x(0):.1f},{base:g}"

        def steps(series):
            return start + "".join(f"H{self.x(t):.1f}V{base - n * high:.2f}" for t, n in series)

        ahead = steps([(time, full + kept) for time, full, kept in self.panel.held[row.rank]])
        return (
            f"<path d='{ahead}' class='f-recompute' fill-opacity='.35'/>"
            f"<path d='{steps(held[row.rank])}' class='s-fg' fill='none' "
            "stroke-width='1.3' data-flown=''/>"
        )

    # -- numbers at the right ----------------------------------------------------------------------
    def _numbers(self, row):
        """Idle time simulated, by formula and measured; the most in flight; memory."""
        panel, line, rank, unit = self.panel, self.timeline, row.rank, self.unit
        part = 100 * line.bubble[rank] / (line.makespan or 1.0)
        words = [f"idle {say(line.bubble[rank], unit)} ({part:.3g} %)"]
        if panel.formula:
            words.append(f"formula {say(panel.formula[1][rank], unit)}")
        peak = f"{panel.peaks[rank]} in flight"
        if panel.measured:
            words.append(f"measured {say(panel.measured.idle[rank], unit)}")
            if panel.measured.held:
                most = max(count for _, count in panel.measured.held[rank])
                peak += f", measured {most}"
        if self.layout.lane < WIDE:  # there is no room: the table has it
            del words[1:]
        for i, words_of_line in enumerate([*words, peak]):
            token = "muted" if 0 < i < len(words) else "fg"
            yield text(NUMBERS, row.y + 10 + 14 * i, words_of_line, token)
        if panel.memory:
            yield self._memory(panel.memory[rank], row.y + 14 * len(words) + 14)

    def _memory(self, memory, y):
        """A bar of the rank's bytes by kind, and its device's memory."""
        out, x, wide = "", float(NUMBERS), RIGHT - 152
        most = max(memory.total for panel in self.panels for memory in panel.memory)
        for kind, ink in MEMORY_KINDS.items():
            width = memory[kind] / most * wide
            out += swatch(x, y + 2, width, 9, ink)
            x += width
        too_much = self.device is not None and memory.total > self.device
        of = f" of {amount(self.device)}" if self.device is not None else ""
        token, weight = ("exposed", 700) if too_much else ("muted", "")
        words = f"{amount(memory.total)}{of}"
        return out + text(NUMBERS + wide + 4, y + 10, words, token, weight=weight)

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


def _inked(ink, path, edge):
    """Bars in an ink, parted by lines of ``edge`` px."""
    return shape(
        path, f"{ink} s-bg", INKS[ink].pattern, f"stroke-width='{edge:.2g}' data-key='{ink}'"
    )


def _ring(place, extra):
    x, y, width, high = place
    return ring(x - 2, y - 2, width + 4, high + 4, 3, 2.6, extra)


def in_lanes(names: Iterable[tuple[str, float, float, float, str]]) -> list[list[Any]]:
    """`Lanes.names` as [ink, base line, width, [x, name, x, name, ...]], for a page."""
    lanes: dict[tuple[str, float, float], list[Any]] = {}
    for ink, y, x, wide, name in names:
        lanes.setdefault((ink, y, round(wide, 2)), []).extend((round(x, 2), name))
    return [[*lane, several] for lane, several in lanes.items()]


def named(lanes: Iterable[Sequence[Any]]) -> str:
    """What fits on each bar of `in_lanes`, its name or its microbatch alone; as ``drawNames``."""
    texts: dict[str, str] = {}
    for ink, y, wide, several in lanes:
        for x, name in zip(several[::2], several[1::2]):
            short = name.lstrip(name.rstrip("0123456789"))
            letters = {name: len(name) + WIDER * ("W" in name), short: len(short)}
            fits = [word for word, count in letters.items() if LETTER * 13 * count + 2 < wide]
            if fits:
                text = f"<text x='{x + wide / 2:.1f}' y='{y:g}'>{fits[0]}</text>"
                texts[ink] = texts.get(ink, "") + text
    groups = (f"<g class='f-halo-{ink}'>{some}</g>" for ink, some in texts.items())
    looks = "font-size='13' text-anchor='middle' font-weight='600'"
    return f"<g data-names='' {looks}>{''.join(groups)}</g>"


def axis(layout: ScheduleLayout, unit: str) -> str:
    """The time axis under all lanes."""
    name = "time" if unit else "time units"
    end, scale = layout.duration, layout.scale
    return axis_below(LEFT, layout.bottom, scale, end, lambda t: say(t, unit), name, NUMBERS)
