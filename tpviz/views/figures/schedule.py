"""Simulated pipeline schedules -> scene: lanes of ranks, activations held, and reasons to wait.

Panels and their description in words: `schedule_words`; their lanes: `schedule_lanes`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tpviz.core.inks import MEMORY_KINDS

from .lanes import play_head, window, zoomable
from .legend import Look, legend
from .schedule_lanes import (
    LEFT,
    RIGHT,
    TOP,
    Lanes,
    axis,
    in_lanes,
    lay_out,
    named,
    stops,
)
from .schedule_words import SchedulePanel, facts, peak, say, spans, summary, to_table, words
from .svg import (
    LETTERS,
    VIEW,
    alone,
    amount,
    check_step,
    lines,
    pattern_defs,
    text,
    wrapped,
)
from .tokens import INKS

if TYPE_CHECKING:
    from tpviz.core.schedules import Schedule

__all__ = ["check", "schedule_detail", "schedule_scene", "schedule_svg", "to_table"]

BADGE = "simulated"
MAX_RANKS, MAX_ACTIONS = 16, 8192
LINE = 15  # px, of the description above the picture
LOOK = Look(16, 11, 6, 7, 18, 9, 13, 18, "muted")


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
    these, ``badge``, ``width``, ``height``, ``top`` (px of head that a page shows itself),
    ``common`` (SVG), ``facts``, ``summary`` (what these do not say), ``stops`` (px of every end of
    an action or a wait), ``captions`` (of each stop), ``names`` (`schedule_lanes.in_lanes`),
    ``axis``, ``opens`` (a stop), ``rows`` ([panel, rank, y]), ``lane`` (px: height), ``head`` and
    ``foot`` (px: from where to where a play-head stands). The detail of a row:
    `schedule_detail`. Raises ``ValueError`` above 16 ranks or 8192 actions.
    """
    for panel in panels:
        check(panel.timeline.schedule)
    layout = lay_out(panels)
    drawn = [Lanes(panels, number, layout, unit, device) for number in range(len(panels))]
    names = in_lanes(name for lanes in drawn for name in lanes.names())
    marks, y = legend(_marks(panels), 12.0, layout.bottom + 35, VIEW, LOOK)
    rows = wrapped(_notes(panels, unit), LETTERS)
    notes = lines(12, y + 27, rows, 15, "muted")
    times = list(stops(panels, layout).values())
    parts = [pattern_defs(), window(LEFT, VIEW - RIGHT, layout.bottom)]
    parts += [lanes.draw() for lanes in drawn]
    return {
        "title": title,
        "about": about,
        "badge": BADGE,
        "width": VIEW,
        "top": TOP - 6,
        "height": round(y + 26 + 15 * len(rows)),
        "common": "".join([*parts, named(names), axis(layout, unit), marks, notes]),
        "names": names,
        "facts": facts(panels, unit),
        "summary": summary(panels, unit),
        "stops": [round(layout.x(t), 1) for t in times],
        "captions": [f"at {say(t, unit)} of {say(layout.duration, unit)}" for t in times],
        "rows": [[*row] for row in layout.rows],
        "lane": layout.lane,
        "head": TOP + 25,
        "foot": layout.bottom,
        "axis": zoomable(LEFT, VIEW - RIGHT, layout.bottom, layout.duration, unit),
        "opens": opening(panels, times),
    }


def opening(panels: Sequence[SchedulePanel], times: Sequence[float]) -> int:
    """The stop at which a page opens: every rank of the first schedule has begun."""
    begun = max(starts[0] for starts in panels[0].timeline.start if len(starts))
    return next(i for i, time in enumerate(times) if time > begun)


def check(schedule: "Schedule") -> None:
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


def _marks(panels):
    """(mark, words) of the items drawn."""
    kinds = {a.kind for panel in panels for row in panel.timeline.schedule.actions for a in row}
    items = [("forward", "F forward")]
    if kinds & {"B", "RB", "I"}:
        items.append(("backward", "B backward" + ", I of the input alone" * ("I" in kinds)))
    if "W" in kinds:
        items.append(("weight_gradient", "W gradient of the weights"))
    if kinds & {"R", "RB"}:
        items.append(("recompute", "R recompute, RB before its backward"))
    items += [("idle", "idle"), ("critical", "critical path"), ("message", "message")]
    items += [("held", "activations held"), ("most", "peak activations held")]
    if any(panel.timeline.schedule.pairs for panel in panels):
        items.append(("pair", "pair of forward and backward"))
    if any(any(panel.timeline.schedule.recomputes) for panel in panels):
        items.append(("checkpoints", "checkpoints held, the rest is recomputed"))
    if any(panel.measured and panel.measured.held for panel in panels):
        items.append(("in flight", "in flight, and as measured"))
    if any(panel.memory for panel in panels):
        items += [(f"memory {ink}", f"memory: {INKS[ink].label}") for ink in MEMORY_KINDS.values()]
    return items


def _notes(panels, unit):
    """Where numbers come from, and the scale of the strips."""
    notes = [f"Measured: {panel.measured.badge}." for panel in panels if panel.measured]
    if any(panel.formula for panel in panels):
        exact = "for equal stages, where it is exact."
        mean = "with the times of the mean stage, without messages."
        notes.append(f"Formula: closed form {mean if unit else exact}")
    most = max(peak(strip) / panel.unit for panel in panels for strip in panel.strips)
    notes.append(
        f"A strip's height: {amount(most)} of activations between actions."
        if any(panel.sizes for panel in panels)
        else f"A strip's height: {most:g} microbatches of all layers."
    )
    return " ".join(notes)


# -- one row ---------------------------------------------------------------------------------------
def schedule_detail(panels: Sequence[SchedulePanel], row: int, unit: str = "") -> dict[str, Any]:
    """{"row", "stops", "words", "marks"} of a row of the scene of these panels, ready for JSON.

    Of each of its `schedule_words.spans`: the stop at which it ends, a description, and
    the SVG of `schedule_lanes.Lanes.moment`. Empty for row -1.
    """
    if row < 0:
        return {"row": row, "stops": [], "words": [], "marks": []}
    layout = lay_out(panels)
    number, rank, _ = layout.rows[row]
    lanes, place = (
        Lanes(panels, number, layout),
        {at: i for i, at in enumerate(stops(panels, layout))},
    )
    moments = list(spans(panels[number].timeline, rank))
    return {
        "row": row,
        "stops": [place[layout.instant(end)] for _, end, _, _ in moments],
        "words": words(panels[number], rank, unit),
        "marks": [lanes.moment(rank, index, busy) for _, _, index, busy in moments],
    }


def check_row(scene: dict[str, Any], row: int) -> None:
    """Raise ``ValueError`` unless the scene has this row; -1 is none."""
    if not -1 <= row < len(scene["rows"]):
        raise ValueError(
            f"row={row} is not in this view: use 0 to {len(scene['rows']) - 1}, or -1 for none"
        )


def moment_of(detail: dict[str, Any], step: int) -> int:
    """The index, among a row's moments, of the one up to a stop: at its end the last."""
    return next((i for i, stop in enumerate(detail["stops"]) if stop >= step), -1)


def words_of(scene: dict[str, Any], step: int, detail: dict[str, Any] | None) -> str:
    """The description of a row at a stop; without a row, of the schedules."""
    if not detail or not detail["words"]:
        return scene["summary"]
    return f"{scene['captions'][step]}, {detail['words'][moment_of(detail, step)]}"


def schedule_svg(
    scene: dict[str, Any], step: int = 0, detail: dict[str, Any] | None = None, theme: str = "auto"
) -> str:
    """The picture with the play-head at a stop, and what a row does there, as a whole SVG.

    detail : of the row, as `schedule_detail` gives it; None for no row. theme "light", "dark" or
    "auto". Raises ValueError for a step that does not exist.
    """
    check_step(scene, step)
    said = words_of(scene, step, detail)
    now = play_head(scene, scene["stops"][step]) if step else ""
    mark = detail["marks"][moment_of(detail, step)] if detail and detail["marks"] else ""
    return alone(scene, said, scene["common"] + now + mark, theme)


# -- a schedule that cannot run --------------------------------------------------------------------
def faults_scene(schedule: "Schedule", faults: Sequence[str]) -> dict[str, Any]:
    """A scene as `schedule_scene` gives, without lanes: ``summary`` lists the errors.

    faults : sentences; the picture is the schedule as it was written.
    """
    said = "\n".join([f"{schedule.name} cannot run:", *(f"• {fault}" for fault in faults)])
    top = 44 + LINE * len(wrapped(said, LETTERS))
    y, out = top + 4, []
    for line in str(schedule).splitlines():
        for i, part in enumerate(wrapped(line, LETTERS)):
            y += 18
            out.append(text(12 if i == 0 else 40, y, part, "muted"))
    return {
        "title": repr(schedule).strip("<>"),
        "badge": "cannot run",
        "width": VIEW,
        "top": top,
        "height": y + 16,
        "common": "".join(out),
        "facts": [["faults", str(len(faults))]],
        "summary": said,
        "stops": [float(LEFT)],
        "captions": ["cannot run"],
        "rows": [],
        "lane": 0,
        "head": top,
        "foot": top,
        "axis": zoomable(LEFT, VIEW - RIGHT, top, 0.0, ""),
    }
