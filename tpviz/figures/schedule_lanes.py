"""The lanes of a schedule's picture: a bar for each action, what is held, numbers of each rank."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

from . import schedule_layout as figure
from .palette import INKS, MEMORY_KINDS
from .schedule_words import say
from .svg import amount, rect, text

FEW = 64  # messages that are all drawn
MESSAGE = "axis2"  # what travels along pp
NUMBERS = figure.WIDTH - figure.RIGHT + 12  # x of what stands at the right


def drawn(act: figure.Panel, number: int, layout: figure.Layout, unit: str) -> list[str]:
    """An act's heading, lanes and strips, as pieces of SVG."""
    return [
        _head(act, number, layout, unit),
        *_tracks(number, layout),
        _strips(act, number, layout),
        _messages(act, number, layout),
        _bars(act, number, layout),
        _critical(act, number, layout),
        _pairs(act, number, layout),
        _ran(act, number, layout) if act.measured else "",
    ]


def _head(act, number, layout, unit):
    line = act.timeline
    label = text(12, layout.heads[number], act.name, size=14, weight=700)
    more = f"{say(line.makespan, unit)}"
    if act.formula:
        more += f", formula {say(act.formula[0], unit)}"
    if act.measured:
        more += f", measured {say(act.measured.makespan, unit)}"
    x = min(layout.x(line.makespan), figure.WIDTH - figure.RIGHT)
    return label + text(x, layout.heads[number], more, size=12, anchor="end", weight=600)


def _tracks(number, layout):
    """Per rank its name and an empty lane; its background is idle time."""
    for row in layout.of(number):
        yield text(
            figure.LEFT - 10, row.y + layout.lane / 2 + 4, f"rank {row.rank}", size=11, anchor="end"
        )
        yield rect(
            figure.LEFT,
            row.y,
            layout.duration * layout.scale,
            layout.lane,
            "rule",
            "fill-opacity='.45'",
        )


def pieces(act: figure.Panel, rank: int) -> Iterator[tuple[str, float, float, int, int]]:
    """(ink, start, end, half, index) of the bars of a rank; RB is two of them."""
    line, half = act.timeline, figure.halves(act.timeline, rank)
    for i, (action, start, end) in enumerate(
        zip(line.schedule.of(rank), line.start[rank], line.end[rank])
    ):
        part = half.get(i, 0)
        if action.kind == "RB":
            middle = min(start + act.recompute[action.stage], end)
            yield "recompute", start, middle, part, i
            start = middle
        yield figure.INK[action.kind], start, end, part, i


def _bars(act, number, layout):
    """A path for each ink, its pattern over it, and the words that fit."""
    paths, labels = {}, {}
    schedule, size = act.timeline.schedule, layout.font
    for row in layout.of(number):
        for ink, start, end, half, i in pieces(act, row.rank):
            x, wide = layout.x(start), (end - start) * layout.scale
            if wide <= 0:
                continue
            high = layout.lane / (2 if half else 1)
            y = row.y + high * (half == 2)
            paths.setdefault(ink, []).append(f"M{x:.1f},{y:g}h{wide:.1f}v{high:g}h-{wide:.1f}z")
            action = schedule.of(row.rank)[i]
            if ink == "recompute" and action.kind == "RB":
                continue
            for words in (schedule.word(action), str(action.microbatch)):
                if size * 0.62 * len(words) + 2 < wide:
                    labels.setdefault(ink, []).append(
                        f"<text x='{x + wide / 2:.1f}' y='{y + high / 2 + size * 0.36:.1f}'>"
                        f"{words}</text>"
                    )
                    break
    return "".join(_inked(ink, "".join(paths[ink]), layout.edge) for ink in paths) + "".join(
        f"<g class='f-halo-{ink}' font-size='{size}' text-anchor='middle' font-weight='600'>"
        f"{''.join(labels[ink])}</g>"
        for ink in labels
    )


def _inked(ink, path, edge):
    """Bars in an ink, parted by lines of ``edge`` px, and the ink's pattern."""
    out = f"<path d='{path}' class='f-{ink} s-bg' stroke-width='{edge:.2g}' data-key='{ink}'/>"
    if INKS[ink].pattern != "solid":
        out += f"<path d='{path}' fill='url(#tpv-{INKS[ink].pattern})'/>"
    return out


def _critical(act, number, layout):
    """An outline around the stretches of the critical path on one rank, and its messages."""
    line, rows, out, arrows = act.timeline, layout.of(number), [], []
    for stretch in _stretches(act.path):
        (rank, first), (_, last) = stretch[0], stretch[-1]
        x, end = layout.x(line.start[rank][first]), layout.x(line.end[rank][last])
        if end > x:
            out.append(
                f"M{x + 0.8:.1f},{rows[rank].y + 0.8:g}h{end - x - 1.6:.1f}"
                f"v{layout.lane - 1.6:g}h-{end - x - 1.6:.1f}z"
            )
    for (rank, index), (to, at) in pairwise(act.path):
        if rank != to:
            arrows.append(
                _down(
                    layout.x(line.end[rank][index]),
                    layout.x(line.start[to][at]),
                    rows[rank].y,
                    rows[to].y,
                    layout,
                )
            )
    return (
        f"<path d='{''.join(out)}' fill='none' class='s-fg tpv-critical' stroke-width='2'/>"
        f"<path d='{''.join(arrows)}' fill='none' class='s-fg' stroke-width='2.4'/>"
    )


def _stretches(path):
    """The critical path in parts on one rank each."""
    parts = []
    for here in path:
        if not parts or parts[-1][-1][0] != here[0]:
            parts.append([])
        parts[-1].append(here)
    return parts


def _pairs(act, number, layout):
    """A bracket over each pair of a forward and a backward, overlapped or in turn."""
    line, rows, out = act.timeline, layout.of(number), []
    for rank, index in sorted(line.schedule.pairs):
        x, end = layout.x(line.start[rank][index]), layout.x(line.end[rank][index + 1])
        y = rows[rank].y
        out.append(f"M{x + 1:.1f},{y - 1:g}v-3H{end - 1:.1f}v3")
    return f"<path d='{''.join(out)}' fill='none' class='s-fg tpv-pairs' stroke-width='1.3'/>"


def _down(x0, x1, y0, y1, layout):
    """From a lane's edge to another's: a message."""
    if y1 > y0:
        return f"M{x0:.1f},{y0 + layout.lane:g}L{x1:.1f},{y1:g}"
    return f"M{x0:.1f},{y0:g}L{x1:.1f},{y1 + layout.lane:g}"


def _messages(act, number, layout):
    """All messages as thin lines, where they are few."""
    line, schedule, rows, out = act.timeline, act.timeline.schedule, layout.of(number), []
    sent = [step for step in schedule.order if step.is_message]
    if len(sent) > FEW:
        return ""
    for step in sent:
        maker = schedule.order[step.needs]
        made = line.end[maker.rank][maker.index]
        out.append(
            _down(
                layout.x(made),
                layout.x(made + line.latency),
                rows[maker.rank].y,
                rows[step.rank].y,
                layout,
            )
        )
    return (
        f"<path d='{''.join(out)}' fill='none' class='s-{MESSAGE} tpv-messages' "
        "stroke-width='1.1'/>"
    )


# -- what ranks hold -------------------------------------------------------------------------------
def _strips(act, number, layout):
    """Under each lane what is held over time: whole microbatches, on top of them checkpoints, and
    a line where the rank holds most."""
    whole, checkpoints, most, labels = [], [], [], []
    end = act.timeline.makespan
    for row in layout.of(number):
        base = row.y + layout.lane + layout.ran + layout.strip
        high = (layout.strip - 3) / layout.most / act.unit
        held = act.strips[row.rank]
        labels.append(
            text(figure.LEFT - 10, base - layout.strip / 2 + 3, "held", "muted", 9.5, "end")
        )
        most.append(f"M{layout.x(0):.1f},{base - figure.peak(held) * high:.2f}H{layout.x(end):.1f}")
        for (start, full, kept), (stop, *_) in zip(held, [*held[1:], (end, 0, 0)]):
            x, wide = layout.x(start), (stop - start) * layout.scale
            for path, low, count in ((whole, 0, full), (checkpoints, full, kept)):
                if count and wide > 0:
                    path.append(
                        f"M{x:.1f},{base - (low + count) * high:.2f}h{wide:.1f}"
                        f"v{count * high:.2f}h-{wide:.1f}z"
                    )
    return (
        f"<path d='{''.join(whole)}' class='f-activations' data-held='whole'/>"
        f"<path d='{''.join(checkpoints)}' class='f-activations' fill-opacity='.38' "
        f"data-held='checkpoints'/><path d='{''.join(most)}' class='s-activations' "
        f"stroke-dasharray='2 3' data-held='most'/>{''.join(labels)}"
    )


# -- a run -----------------------------------------------------------------------------------------
def _ran(act, number, layout):
    """Under each lane what the rank did in a run."""
    out = []
    for row in layout.of(number):
        y, high = row.y + layout.lane + 2, layout.ran - 3
        paths = {}
        for ink, start, end in act.measured.bars[row.rank]:
            x, wide = layout.x(start), max((end - start) * layout.scale, 0.3)
            paths.setdefault(ink, []).append(f"M{x:.1f},{y:g}h{wide:.1f}v{high:g}h-{wide:.1f}z")
        out.append(
            rect(figure.LEFT, y, layout.duration * layout.scale, high, "rule", "fill-opacity='.45'")
        )
        out += [_inked(ink, "".join(path), 0.2) for ink, path in paths.items()]
        out.append(text(figure.LEFT - 10, y + high - 2, "measured", "muted", 9.5, "end"))
        out.append(_flown(act, row, layout) if act.measured.held else "")
    return f"<g data-source='{escape(act.measured.badge)}'>{''.join(out)}</g>"


def _flown(act, row, layout):
    """Microbatches in flight: simulated as an area, measured as a line over it."""
    base, rank = row.y + layout.lane + layout.ran + layout.strip + layout.flown - 1, row.rank
    most = max(*act.peaks, *(count for held in act.measured.held for _, count in held))
    high = (layout.flown - 3) / most

    def steps(series):
        return "".join(f"H{layout.x(time):.1f}V{base - count * high:.2f}" for time, count in series)

    ahead = steps([(time, full + kept) for time, full, kept in act.held[rank]])
    start = f"M{layout.x(0):.1f},{base:g}"
    return (
        f"<path d='{start}{ahead}' class='f-recompute' fill-opacity='.35'/>"
        f"<path d='{start}{steps(act.measured.held[rank])}' class='s-fg' fill='none' "
        "stroke-width='1.3' data-flown=''/>"
        + text(figure.LEFT - 10, base - 1, "in flight", "muted", 9.5, "end")
    )


# -- numbers at the right --------------------------------------------------------------------------
def numbers(
    act: figure.Panel,
    number: int,
    layout: figure.Layout,
    unit: str,
    device: float | None,
    acts: Sequence[figure.Panel],
) -> Iterator[str]:
    """Per rank: idle time simulated, by formula and measured; the most that it holds; memory."""
    line = act.timeline
    for row in layout.of(number):
        rank, y = row.rank, row.y
        part = 100 * line.bubble[rank] / (line.makespan or 1.0)
        words = [f"idle {say(line.bubble[rank], unit)} ({part:.3g} %), {act.peaks[rank]} in flight"]
        if act.formula:
            words.append(f"formula {say(act.formula[1][rank], unit)}")
        if act.measured:
            held = act.measured.held
            words.append(
                f"measured {say(act.measured.idle[rank], unit)}"
                + (f", {max(count for _, count in held[rank])} in flight" if held else "")
            )
        for i, line_of in enumerate(words):
            yield text(NUMBERS, y + 10 + 12 * i, line_of, "muted" if i else "fg", 10.5)
        if act.memory:
            yield _memory(
                act.memory[rank],
                y + 12 * len(words) + 2,
                device,
                max(m.total for a in acts for m in a.memory),
            )


def _memory(memory, y, device, most):
    """A bar of the rank's bytes by kind, and what its device has."""
    out, x, wide = "", float(NUMBERS), figure.RIGHT - 112
    for kind, ink in MEMORY_KINDS.items():
        width = memory[kind] / most * wide
        out += rect(x, y + 2, width, 9, ink)
        if INKS[ink].pattern != "solid":
            out += rect(x, y + 2, width, 9, "", f"fill='url(#tpv-{INKS[ink].pattern})'")
        x += width
    too_much = device is not None and memory.total > device
    of = f" of {amount(device)}" if device is not None else ""
    return out + text(
        NUMBERS + wide + 4,
        y + 10,
        f"{amount(memory.total)}{of}",
        "exposed" if too_much else "muted",
        9.5,
        weight=700 if too_much else "",
    )
