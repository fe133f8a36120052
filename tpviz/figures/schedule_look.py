"""A closer look at one row of a schedule's picture: each moment in words, and marked."""

from collections.abc import Sequence
from typing import Any

from . import schedule_layout as figure
from .schedule_lanes import MESSAGE
from .schedule_words import awaited, spans, words
from .svg import rect


def look(acts: Sequence[figure.Panel], row: int, unit: str = "") -> dict[str, Any]:
    """{"row", "stops", "words", "marks"} of a row of the scene of these acts, ready for JSON.

    Of each of its `schedule_words.spans`: the stop at which it ends, what is to be said of it, and
    SVG: a ring around the action, and a broken one around what it waited for; while the rank is
    idle, around what it waits for. Empty for row -1.
    """
    if row < 0:
        return {"row": row, "stops": [], "words": [], "marks": []}
    layout = figure.lay_out(acts)
    number, rank, _ = layout.rows[row]
    act, place = acts[number], {at: i for i, at in enumerate(figure.stops(acts, layout))}
    moments = list(spans(act.timeline, rank))
    return {
        "row": row,
        "stops": [place[layout.instant(end)] for _, end, _, _ in moments],
        "words": words(act, rank, unit),
        "marks": [
            _mark(act, layout.of(number), layout, rank, index, busy)
            for _, _, index, busy in moments
        ],
    }


def _mark(act, rows, layout, rank, index, busy):
    if index == len(act.timeline.schedule.of(rank)):
        return ""
    box, out = _box(act, rows, layout, rank, index), ""
    step = awaited(act.timeline, rank, index)[1]
    if step:
        x, y, width, high = maker = _box(act, rows, layout, step.rank, step.index)
        out += (
            f"<path d='M{x + width:.1f},{y + high / 2:g}L{box[0]:.1f},{box[1] + box[3] / 2:g}' "
            f"class='s-{MESSAGE}' stroke-width='3'/>"
            + _ring(maker, " stroke-dasharray='4 3' data-needed=''")
        )
    return out + _ring(box, " data-chosen=''") if busy else out


def _box(act, rows, layout, rank, index):
    """(x, y, width, height) of an action's bar."""
    half = figure.halves(act.timeline, rank).get(index, 0)
    start, end = (times[rank][index] for times in (act.timeline.start, act.timeline.end))
    high = layout.lane / (2 if half else 1)
    return layout.x(start), rows[rank].y + high * (half == 2), (end - start) * layout.scale, high


def _ring(box, extra):
    x, y, width, high = box
    return "".join(
        rect(x - 2, y - 2, width + 4, high + 4, "", f"rx='3' fill='none' {line}")
        for line in ("class='s-bg' stroke-width='5'", f"class='s-fg' stroke-width='2.6'{extra}")
    )
