"""Pipeline schedules on the clock -> scene: lanes of ranks, what they hold, and why they wait.

Works on the `Timeline`s of `tpviz.schedules`, of which it needs the attributes alone.
All times are simulated, in the unit of the durations given; the closed form stands beside them as
"formula", a run as "measured".
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import schedule_lanes as lanes
from .microscope_svg import wrapped
from .palette import INKS, MEMORY_KINDS, PATTERNS, svg_style
from .schedule_lanes import MESSAGE, NUMBERS
from .schedule_layout import LEFT, MEMORY, TOP, WIDTH, Layout, Panel, lay_out, peak, stops
from .schedule_words import compared, say, share
from .svg import amount, check_step, document, head, pattern_defs, rect, text, ticks

if TYPE_CHECKING:
    from tpviz.schedules import Schedule

BADGE = "simulated"
MAX_RANKS, MAX_ACTIONS = 16, 8192
"""{kind of action: its ink}; RB begins with a part in that of R."""


def schedule_scene(
    acts: Sequence[Panel], title: str, unit: str = "", device: float | None = None
) -> dict[str, Any]:
    """The scene of one or two `Panel`s on the same time axis, ready for JSON.

    unit : "s" where times are seconds, "" where they are in the unit of what was given. device :
    bytes that a device has, where the acts have memory. Returns ``title``, ``badge``, ``width``,
    ``height``, ``top`` (px of head that a page shows itself), ``common`` (SVG),
    ``facts``, ``says`` (the acts in words), ``stops`` (px of every end of an action or a wait),
    ``captions`` (of each stop), ``rows`` ([act, rank, y]), ``lane`` (px: height), ``head`` and
    ``foot`` (px: from where to where a play-head stands). What is said of a row:
    `schedule_look.look`. Raises ``ValueError`` above 16 ranks or 8192 actions.
    """
    for act in acts:
        check(act.timeline.schedule)
    layout = lay_out(acts)
    times = list(stops(acts, layout).values())
    return {
        "title": title,
        "badge": BADGE,
        "width": WIDTH,
        "top": TOP - 6,
        **picture(acts, layout, unit, device),
        "facts": facts(acts, unit),
        "says": " ".join(compared(acts, unit)),
        "stops": [round(layout.x(t), 1) for t in times],
        "captions": [f"at {say(t, unit)} of {say(layout.duration, unit)}" for t in times],
        "rows": [[*row] for row in layout.rows],
        "lane": layout.lane,
        "head": TOP + 22,
        "foot": layout.bottom,
    }


def check(schedule: "Schedule") -> None:
    """Raise ``ValueError`` where the picture would not be legible."""
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


# -- numbers ---------------------------------------------------------------------------------------
def facts(acts: Sequence[Panel], unit: str) -> list[list[str]]:
    """(label, text) pairs for the line above the picture."""
    lengths, idles, peaks = [], [], []
    for act in acts:
        line = act.timeline
        lengths.append(say(line.makespan, unit))
        idles.append(share(line.bubble, line.makespan))
        if act.formula:
            lengths[-1] += f" (formula {say(act.formula[0], unit)})"
            idles[-1] += f" (formula {share(act.formula[1], act.formula[0])})"
        if act.measured:
            ran = act.measured
            lengths[-1] += f" ({ran.badge} {say(ran.makespan, unit)})"
            idles[-1] += f" ({ran.badge} {share(ran.idle, ran.makespan)})"
        peaks.append(", ".join(map(str, act.peaks)))
    return [
        [label, " against ".join(words)]
        for label, words in (("makespan", lengths), ("idle", idles), ("most in flight", peaks))
    ]


def to_table(acts: Sequence[Panel], unit: str) -> list[list[str]]:
    """Rows of strings, header first: one rank of one schedule each."""
    kinds: list[str] = list(acts[0].memory[0]) if acts[0].memory else []
    table = [
        [
            "schedule",
            "rank",
            "stages",
            "busy",
            "idle",
            "idle inside",
            "idle, formula",
            "idle, measured",
            "most in flight",
            *(INKS[MEMORY.get(k, k)].label for k in kinds),
        ]
    ]
    for act in acts:
        line = act.timeline
        for r in range(act.ranks):
            table.append(
                [
                    act.name,
                    str(r),
                    ", ".join(map(str, line.schedule.stages_of(r))),
                    say(line.busy[r], unit),
                    say(line.bubble[r], unit),
                    say(max(line.bubble_inside[r], 0.0), unit),
                    say(act.formula[1][r], unit) if act.formula else "",
                    say(act.measured.idle[r], unit) if act.measured else "",
                    str(act.peaks[r]),
                    *(amount(act.memory[r][k]) for k in kinds),
                ]
            )
    return table


"""{kind of memory: its ink}, where it has another name."""


LETTERS, LINE = 165, 15  # of what is said above the picture


def picture(
    acts: Sequence[Panel], layout: Layout, unit: str, device: float | None
) -> dict[str, Any]:
    """{"height", "common"}: the whole picture but for what is chosen and the play-head, as SVG."""
    out = [pattern_defs()]
    for number, act in enumerate(acts):
        out += lanes.drawn(act, number, layout, unit)
        out += lanes.numbers(act, number, layout, unit, device, acts)
    axis, legend = _axis(layout, unit), _legend(acts, layout.bottom + 44, unit)
    return {"height": round(legend[1]), "common": "".join([*out, axis, legend[0]])}


def schedule_svg(
    scene: dict[str, Any], step: int = 0, look: dict[str, Any] | None = None, theme: str = "auto"
) -> str:
    """The picture with the play-head at a stop, and what a row does there, as a whole SVG.

    look : of the row, as `schedule_look.look` gives it; None for no row. theme "light", "dark" or
    "auto". Raises ValueError on a step that is not there.
    """
    check_step(scene, step)
    said = words_of(scene, step, look)
    lines = [part for line in said.splitlines() for part in wrapped(line, LETTERS)]
    top = head(scene) + "".join(
        text(12, 43 + LINE * i, line, size=12) for i, line in enumerate(lines)
    )
    x = scene["stops"][step]
    if step:
        top += (
            f"<path d='M{x},{scene['head']}V{scene['foot']}' class='s-fg' "
            f"stroke-width='1.4'/><path d='M{x},{scene['head']}l-5,-6h10z' class='f-fg'/>"
        )
    mark = look["marks"][moment_of(look, step)] if look and look["marks"] else ""
    body = scene["common"] + top + mark
    return document(
        scene["width"], scene["height"], body, f"{scene['title']}, {said}", svg_style(theme), theme
    )


def check_row(scene: dict[str, Any], row: int) -> None:
    """Raise ``ValueError`` unless the scene has this row; -1 is none."""
    if not -1 <= row < len(scene["rows"]):
        raise ValueError(
            f"row={row} is not in this view: use 0 to {len(scene['rows']) - 1}, or -1 for none"
        )


def moment_of(look: dict[str, Any], step: int) -> int:
    """The place, among a row's moments, of the one up to a stop: at its end the last."""
    return next((i for i, stop in enumerate(look["stops"]) if stop >= step), -1)


def words_of(scene: dict[str, Any], step: int, look: dict[str, Any] | None) -> str:
    """What is said of a row at a stop; without a row, of the schedules."""
    if not look or not look["words"]:
        return scene["says"]
    return f"{scene['captions'][step]}, {look['words'][moment_of(look, step)]}"


# -- axis and legend -------------------------------------------------------------------------------
def _axis(layout, unit):
    y, out = layout.bottom, []
    for tick in ticks(0, layout.duration, 10):
        x = layout.x(tick)
        out.append(
            f"<path d='M{x:.1f},{y:g}v5' class='s-muted'/>"
            + text(x, y + 17, say(tick, unit), "muted", 10, "middle")
        )
    end = layout.x(layout.duration)
    words = "time" if unit else "time, in the unit of f"
    return f"<path d='M{LEFT},{y:g}H{end:.1f}' class='s-muted'/>{''.join(out)}" + text(
        NUMBERS, y + 17, words, "muted", 10
    )


def _legend(acts, y, unit):
    """(what means what, in lines; y of their end)."""
    kinds = {a.kind for act in acts for row in act.timeline.schedule.actions for a in row}
    items = [("forward", "F forward")]
    if kinds & {"B", "RB", "I"}:
        items.append(("backward", "B backward" + ", I of the input alone" * ("I" in kinds)))
    if "W" in kinds:
        items.append(("gradients", "W gradient of the weights"))
    if kinds & {"R", "RB"}:
        items.append(("recompute", "R recompute, RB before its backward"))
    items += [
        ("rule", "idle"),
        ("critical", "critical path"),
        ("message", "message"),
        ("activations", "held, whole"),
        ("most", "most that is held"),
    ]
    if any(act.timeline.schedule.pairs for act in acts):
        items.append(("pair", "pair of forward and backward"))
    if any(any(act.timeline.schedule.recomputes) for act in acts):
        items.append(("checkpoints", "held as checkpoints"))
    if any(act.measured and act.measured.held for act in acts):
        items.append(("flown", "in flight, and as measured"))
    if any(act.memory for act in acts):
        items += [(ink, f"memory: {INKS[ink].label}") for ink in MEMORY_KINDS.values()]
    out, x = [], 12.0
    for key, words in items:
        wide = 24 + 5.9 * len(words) + 16
        if x + wide > WIDTH:
            x, y = 12.0, y + 18
        out.append(_swatch(key, x, y) + text(x + 22, y, words, "muted", 11))
        x += wide
    notes = [f"Measured: {act.measured.badge}." for act in acts if act.measured]
    if any(act.formula for act in acts):
        notes.append(
            "Formula: closed form "
            + (
                "with the times of the mean stage, without messages."
                if unit
                else "for equal stages, where it is exact."
            )
        )
    most = max(peak(strip) / act.unit for act in acts for strip in act.strips)
    notes.append(
        f"A strip's height: {amount(most)} of activations between actions."
        if any(act.sizes for act in acts)
        else f"A strip's height: {most:g} microbatches of all layers."
    )
    out.append(text(12, y + 18, " ".join(notes), "muted", 11))
    return "".join(out), y + 32


def _swatch(key, x, y):
    if key == "critical":
        return rect(x + 1, y - 8, 14, 9, "", "fill='none' class='s-fg' stroke-width='1.8'")
    if key == "message":
        return f"<path d='M{x},{y - 4}h16' class='s-{MESSAGE}' stroke-width='1.8'/>"
    if key == "most":
        return (
            f"<path d='M{x},{y - 4}h16' class='s-activations' stroke-width='1.4' "
            "stroke-dasharray='2 3'/>"
        )
    if key == "flown":
        return (
            rect(x, y - 7, 16, 9, "recompute", "fill-opacity='.35'")
            + f"<path d='M{x},{y - 7}h16' class='s-fg' stroke-width='1.3'/>"
        )
    if key == "pair":
        return f"<path d='M{x},{y}v-5h16v5' class='s-fg' fill='none' stroke-width='1.3'/>"
    if key == "checkpoints":
        return rect(x, y - 9, 16, 11, "activations", "fill-opacity='.38'")
    if key == "rule":
        return rect(x, y - 9, 16, 11, "rule", "fill-opacity='.45'")
    pattern = INKS[key].pattern if key != "activations" else "solid"
    out = rect(x, y - 9, 16, 11, key)
    return out + (
        rect(x, y - 9, 16, 11, "", f"fill='url(#tpv-{pattern})'") if PATTERNS[pattern] else ""
    )
