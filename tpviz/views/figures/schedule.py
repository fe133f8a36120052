"""Simulated pipeline schedules -> scene: lanes of ranks, activations held, and reasons to wait.

Panels and their description in words: `schedule_words`; their lanes: `schedule_lanes`.
"""

import re
from collections.abc import Sequence
from typing import Any

from tpviz.core.schedules import Schedule

from .film import film_svg
from .lanes import play_head, window, zoomable
from .legend import keyed
from .schedule_lanes import HEAD, LEFT, RIGHT, Lanes, ScheduleLayout, axis, in_lanes, named, stops
from .schedule_words import SchedulePanel, figures, say, spans, summary, to_table, words
from .svg import LETTERS, VIEW, check_step, meanings, pattern_defs, table_html, text, wrapped
from .tokens import INKS

__all__ = ["check", "schedule_detail", "schedule_scene", "schedule_svg", "to_table"]

BADGE = "simulated"
MAX_RANKS, MAX_ACTIONS = 16, 8192
AXIS = 24  # px, under the lanes
MOVED = re.compile(r"d='([^']*)'([^>]*?) data-to='([^']*)'")


def schedule_scene(
    panels: Sequence[SchedulePanel],
    title: str,
    unit: str = "",
    device: float | None = None,
    about: str = "",
) -> dict[str, Any]:
    """The scene of one or two `SchedulePanel`s on the same time axis, ready for JSON.

    unit : "s" where times are seconds, "" where they are in the unit of what was given. device :
    bytes that a device has, where the panels have memory. about : more than the title. Returns
    these, ``badge``, ``width``, ``height``, ``common`` (SVG), ``legend`` (`legend.keyed`),
    ``table`` (rows of strings; as HTML: ``under``), ``finding`` (a sentence), ``stops`` (px of
    every end of an action or a wait), ``captions`` (of each stop), ``names``
    (`schedule_lanes.in_lanes`), ``axis``, ``opens`` (a stop), ``rows`` ([panel, rank, y]), ``lane``
    (px: height), ``head`` and ``foot`` (px: from where to where a play-head stands). The detail of
    a row: `schedule_detail`. Raises ``ValueError`` above 16 ranks or 8192 actions.
    """
    for panel in panels:
        check(panel.timeline.schedule)
    layout, rows = ScheduleLayout(panels), figures(panels, unit, device)
    drawn = [Lanes(panels, number, layout, unit) for number in range(len(panels))]
    names = in_lanes(name for lanes in drawn for name in lanes.names())
    times = list(stops(panels, layout).values())
    sources = dict.fromkeys([BADGE, *(p.measured.badge for p in panels if p.measured)])
    parts = [pattern_defs(), window(LEFT, VIEW - RIGHT, layout.bottom)]
    parts += [lanes.draw() for lanes in drawn]
    return {
        "title": title,
        "about": about,
        "badge": " and ".join(sources),
        "width": VIEW,
        "least": 300,
        "top": 0,
        "height": round(layout.bottom) + AXIS,
        "common": "".join([*parts, named(names), axis(layout, unit)]),
        "names": names,
        "legend": keyed((ink, INKS[ink].pattern, said) for ink, said in _inks(panels).items()),
        "table": rows,
        "under": table_html(rows),
        "notes": meanings(sources),
        "finding": summary(panels, unit),
        "stops": [round(layout.x(t), 1) for t in times],
        "captions": [f"at {say(t, unit)} of {say(layout.duration, unit)}" for t in times],
        "rows": [[row.panel, row.rank, round(row.y, 1)] for row in layout.rows],
        "lane": round(layout.pitch, 1),
        "head": HEAD - 2,
        "foot": round(layout.bottom, 1),
        "axis": zoomable(LEFT, VIEW - RIGHT, round(layout.bottom, 1), layout.duration, unit),
        "opens": opening(panels, times),
    }


def opening(panels: Sequence[SchedulePanel], times: Sequence[float]) -> int:
    """The stop at which a page opens: every rank of the first schedule has begun."""
    begun = max(starts[0] for starts in panels[0].timeline.start if len(starts))
    return next(i for i, time in enumerate(times) if time > begun)


def check(schedule: Schedule) -> None:
    """Raise ``ValueError`` if the picture would not be legible."""
    if schedule.ranks > MAX_RANKS:
        raise ValueError(
            f"{schedule.name} has {schedule.ranks} ranks: this view shows at most {MAX_RANKS}"
        )
    count = sum(map(len, schedule.actions))
    if count > MAX_ACTIONS:
        raise ValueError(
            f"{schedule.name} has {count} actions: this view shows at most "
            f"{MAX_ACTIONS}; use fewer microbatches"
        )


def _inks(panels):
    """{ink: words} of what is drawn."""
    kinds = {a.kind for panel in panels for row in panel.timeline.schedule.actions for a in row}
    inks = {"forward": "forward"}
    if kinds & {"B", "RB", "I"}:
        inks["backward"] = "backward" + " (of the input)" * ("I" in kinds)
    if "W" in kinds:
        inks["weight_gradient"] = "weights' gradient"
    if kinds & {"R", "RB"}:
        inks["recompute"] = "recompute"
    again = any(any(panel.timeline.schedule.recomputes) for panel in panels)
    return inks | {
        "idle": "idle",
        "activations": "activations held" + " (faint: checkpoints)" * again,
    }


# -- one row ---------------------------------------------------------------------------------------
def schedule_detail(panels: Sequence[SchedulePanel], row: int, unit: str = "") -> dict[str, Any]:
    """{"row", "stops", "words", "marks"} of a row of the scene of these panels, ready for JSON.

    Of each of its `schedule_words.spans`: the stop at which it ends, a description, and
    the SVG of `schedule_lanes.Lanes.moment`. Empty for row -1. Raises ``ValueError`` for a row that
    is not there.
    """
    if row == -1:
        return {"row": row, "stops": [], "words": [], "marks": []}
    last = sum(panel.ranks for panel in panels) - 1
    if not 0 <= row <= last:
        raise ValueError(f"row={row} is not in this view: use 0 to {last}, or -1 for none")
    layout = ScheduleLayout(panels)
    number, rank, *_ = layout.rows[row]
    lanes = Lanes(panels, number, layout)
    place = {at: i for i, at in enumerate(stops(panels, layout))}
    moments = list(spans(panels[number].timeline, rank))
    return {
        "row": row,
        "stops": [place[layout.instant(end)] for _, end, _, _ in moments],
        "words": words(panels[number], rank, unit),
        "marks": [lanes.moment(rank, index, busy) for _, _, index, busy in moments],
    }


def moment_of(detail: dict[str, Any], step: int) -> int:
    """The index, among a row's moments, of the one up to a stop: at its end the last."""
    return next((i for i, stop in enumerate(detail["stops"]) if stop >= step), -1)


def words_of(scene: dict[str, Any], step: int, detail: dict[str, Any] | None) -> str:
    """The description of a row at a stop; without a row, the faults that a schedule has."""
    if not detail or not detail["words"]:
        return "\n".join(scene.get("words", ()))
    return detail["words"][moment_of(detail, step)]


def schedule_svg(
    scene: dict[str, Any],
    step: int = 0,
    detail: dict[str, Any] | None = None,
    theme: str = "auto",
    bubble: bool = False,
    critical: bool = False,
) -> str:
    """The picture with the play-head at a stop, and what a row does there, as a whole SVG.

    detail : of the row, as `schedule_detail` gives it; None for no row. theme "light", "dark" or
    "auto". bubble : idle slots are gathered at the right edge. critical : the critical path is
    outlined. Raises ValueError for a step that does not exist.
    """
    check_step(scene, step)
    common, over = scene["common"], ""
    if bubble:
        common = gathered(common)
    else:
        if critical:
            common = common.replace("data-critical='' display='none'", "data-critical=''")
        if step:
            over = play_head(scene, scene["stops"][step])
        if detail and detail["marks"]:
            over += detail["marks"][moment_of(detail, step)]
    return film_svg({**scene, "common": common}, step, theme, words_of(scene, step, detail), over)


def gathered(common: str) -> str:
    """A picture whose idle slots are gathered: bars stand where their ``data-to`` says."""

    def moved(found):
        to = iter(found[3].split())
        return f"d='{re.sub(r'M[^,]+', lambda _: 'M' + next(to), found[1])}'{found[2]}"

    shown = common.replace("data-gathered='' display='none'", "data-gathered=''")
    shown = shown.replace("data-names=''", "display='none'")
    return MOVED.sub(moved, shown.replace("data-rest=''", "opacity='.2'"))


# -- a schedule that cannot run --------------------------------------------------------------------
def faults_scene(schedule: Schedule, faults: Sequence[str]) -> dict[str, Any]:
    """A scene as `schedule_scene` gives, without lanes: its ``words`` are the errors.

    faults : sentences; the picture is the schedule as it was written.
    """
    y, out = 0, []
    for line in str(schedule).splitlines():
        for i, part in enumerate(wrapped(line, LETTERS)):
            y += 18
            out.append(text(0 if i == 0 else 28, y, part, "muted"))
    return {
        "title": repr(schedule).strip("<>"),
        "badge": "cannot run",
        "width": VIEW,
        "top": 0,
        "height": y + 16,
        "common": "".join(out),
        "facts": [["faults", str(len(faults))]],
        "finding": f"{schedule.name} cannot run:",
        "words": ["\n".join(f"• {fault}" for fault in faults)],
        "stops": [float(LEFT)],
        "captions": ["cannot run"],
        "rows": [],
        "lane": 0,
        "head": 0,
        "foot": 0,
        "axis": zoomable(LEFT, VIEW - RIGHT, 0, 0.0, ""),
    }
