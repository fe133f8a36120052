"""Prediction, simulation and measurement of one step on the same lanes, and their difference.

A scene is a plain JSON dict: for each chosen rank three lanes, the prediction as outlines, the
simulated and the measured step as a timeline draws them, all starting at 0; below them the
residual's parts, end to end, from 0 to the measured step. Badges name each source and cannot be
turned off.
"""

import re
from collections.abc import Iterable
from html import escape
from itertools import groupby
from operator import itemgetter
from textwrap import wrap
from typing import Any

import numpy as np

from tpviz.core.checks import one_of
from tpviz.core.inks import axis_keys, phase_key
from tpviz.core.trace import Trace
from tpviz.core.trace.steps import median_step

from .lanes import Axis, bars, inset, mark, outlines, spans
from .legend import key_of, legend
from .svg import (
    VIEW,
    badge,
    document,
    lines,
    meanings,
    pattern_defs,
    seconds,
    shape,
    text,
    width_of,
    wrapped,
)
from .svg import image as image  # of what shows it
from .timeline import lane_svg, marks, placed, scopes, timeline_scene
from .tokens import INKS

INK_OF_PART = {
    "compute": ("other", "solid"),
    "bandwidth wait": ("exposed", "hatch"),
    "latency wait": ("exposed", "dots"),
    "bubble": ("wait", "zigzag"),
    "contention": ("exposed", "back"),
    "imbalance": ("other", "lines"),
    "straggler": ("other", "cross"),
    "slow link": ("exposed", "grid"),
}
"""Kernels grey, communication red, each with its own pattern; "unexplained" is an empty outline."""


def comparison_scene(
    prediction: Any,
    simulated: Trace,
    measured: Trace | None,
    residual: Any,
    ranks: Iterable[int] | None = None,
    title: str = "",
    caption: str = "",
    about: str = "",
) -> dict[str, Any]:
    """The scene of a `Prediction`, two traces and a `Residual`, ready for JSON.

    Parameters
    ----------
    prediction, measured : each None where there is none.
    title, caption : the strategy, and the cluster. about : more than the title.
    ranks : ranks to draw; None for those the residual blames and one other, or the first alone.

    Returns a dict: ``badges`` (one for each row of a lane), ``foreseen`` (the first row is a
    prediction), ``title``, ``about``, ``caption``, ``duration`` (s), ``ranks``, ``slow`` (of
    each straggler, by rank, what it does), ``sources`` (of each badge the ``lanes``, ``keys``,
    ``bars``, ``exposed`` and ``idle`` of a timeline's scene),
    ``marks`` ([source, step seconds]), ``parts`` (rows of name, seconds, share, start, predicted),
    ``numbers`` ([label, [text of each trace, or of the last]]), ``verdict``. Raises ``ValueError``
    for a rank that is not in the traces.
    """
    traces = [t for t in (simulated, measured) if t is not None]
    foreseen = [] if prediction is None else [prediction]
    badges = [p.badge for p in foreseen]
    badges += [t.badge for t in traces]
    ranks = _ranks(simulated, residual) if ranks is None else [int(rank) for rank in ranks]
    scenes = [_one_step(trace, ranks) for trace in traces]
    steps = [made.step_time for made in (*foreseen, *traces)]
    return {
        "badges": badges,
        "foreseen": bool(foreseen),
        "title": title,
        "about": about,
        "caption": caption,
        "duration": float(max(*steps, *(s["duration"] for s in scenes), 1e-12)),
        "ranks": ranks,
        "slow": {f"{s.rank}": f"kernels {s.factor:.2f} times as long" for s in residual.stragglers},
        "sources": [
            *(_foreseen(p, ranks, simulated.fact("mesh")["axes"]) for p in foreseen),
            *({name: scene[name] for name in DRAWN} for scene in scenes),
        ],
        "marks": [[_source(badge), float(t)] for badge, t in zip(badges, steps)],
        "parts": _parts(foreseen, residual),
        "numbers": _numbers(traces, residual),
        "verdict": residual.verdict,
    }


def _ranks(trace, residual):
    """The slow ranks (two at most) and one that is not; the first rank if none is slow."""
    blamed = [straggler.rank for straggler in residual.stragglers]
    blamed += [link.ranks[0] for link in residual.slow_links if link.placed]
    blamed = sorted(dict.fromkeys(blamed[:2]))
    others = [rank for rank in trace.ranks if rank not in blamed]
    return sorted(blamed + others[:1])


def _one_step(trace, ranks):
    """The timeline scene of some ranks of the median step, from the step's start on any rank."""
    missing = [rank for rank in ranks if rank not in trace.ranks]
    if missing or not ranks:
        known = trace.ranks if len(trace.ranks) < 9 else f"{trace.ranks[0]} to {trace.ranks[-1]}"
        raise ValueError(f"ranks={ranks}: choose one or more of {known}")
    step = median_step(trace)
    step = step.where((step["kind"] == "step") | np.isin(step["rank"], ranks))
    meta = {name: value for name, value in step.meta.items() if name != "memory"}
    return timeline_scene(type(step)(step.columns, meta))


def _foreseen(prediction, ranks, known):
    """The prediction's segments, one after another: kernels, then waiting; and each axis.

    A segment has the time that an axis is busy, not its start. A collective that kernels wait for
    is drawn up to the segment's end; any other was issued before it, and is drawn from its start.
    """
    axes = [*prediction.exposed, *prediction.hidden]
    inks, rows, now = axis_keys(dict.fromkeys([*known, *axes])), [], 0.0
    names = ["", *(axis for axis in reversed(inks) if axis in axes)]  # as those of traces
    for segment in prediction.segments:
        at, end = now + segment.compute, now + segment.seconds
        rows.append(("", phase_key(segment.phase), now, at))
        for length in segment.exposed.values():
            rows.append(("", "exposed", at, at + length))
            at += length
        for axis in dict.fromkeys([*segment.exposed, *segment.hidden]):
            length = segment.exposed.get(axis, 0.0) + segment.hidden.get(axis, 0.0)
            start = max(now, end - length) if axis in segment.exposed else now
            rows.append((axis, inks[axis], start, min(start + length, end)))
        now = end
    rows = [row for row in rows if row[3] > row[2]]
    lanes = [
        {"rank": rank, "lane": f"comm/{axis}" if axis else "compute", "name": axis, "axis": axis}
        for rank in ranks
        for axis in names
    ]
    placed(lanes)
    keys = list(dict.fromkeys(row[1] for row in rows))
    bars = [
        (len(names) * i + names.index(axis), keys.index(ink), start, end)
        for i in range(len(ranks))
        for axis, ink, start, end in rows
    ]
    axis_of = {ink: axis for axis, ink in inks.items()}
    return {
        "lanes": lanes,
        "keys": [key_of(ink, "comm" * (ink in axis_of), axis_of.get(ink, "")) for ink in keys],
        "bars": {
            c: [bar[i] for bar in bars] for i, c in enumerate(("lane", "key", "start", "end"))
        },
        **{spans: {"lane": [], "start": [], "end": []} for spans in ("exposed", "idle")},
    }


def _parts(foreseen, residual):
    """The waterfall: each part begins where the one before ended."""
    formula = foreseen[0].parts if foreseen else {}
    rows, at, before = [], 0.0, 0.0
    for name, length in residual.parts.items():
        predicted = formula.get(name)
        rows.append(
            {
                "name": name,
                "seconds": float(length),
                "share": residual.share(name),
                "start": at,
                "predicted": None if predicted is None else [before, before + float(predicted)],
            }
        )
        at, before = at + float(length), before + float(predicted or 0.0)
    return rows


def _source(badge):
    """What a badge says first, for labels; the whole badge stands in the head."""
    return re.split("[,;]", badge)[0]


def _numbers(traces, residual):
    """The headline: ratio, exposed communication, overlap, and how late the emulation was."""
    steps = [median_step(t) for t in traces]
    of_overlap, of_exposed = scopes(traces[-1])
    rows = [
        [of_exposed, [seconds(step.exposed_communication()) for step in steps]],
        [of_overlap, [f"{100 * step.overlap():.1f} %" for step in steps]],
    ]
    if len(traces) == 2 and traces[0].step_time:
        ratio = traces[1].step_time / traces[0].step_time
        rows.insert(0, [f"{_source(residual.badge)} / simulated", [f"{ratio:.3f}"]])
    if residual.late:
        rows.append(["pacing late by at most", [seconds(residual.late)]])
    return rows


# -- in words --------------------------------------------------------------------------------------
def to_table(scene: dict[str, Any]) -> list[list[str]]:
    """Rows of strings, header first: each part as predicted and as measured, then the steps."""
    badges, steps = scene["badges"], [t for _, t in scene["marks"]]
    rows = [["part", "predicted", badges[-1], "share"]]
    for part in scene["parts"]:
        foreseen = part["predicted"]
        foreseen = "" if foreseen is None else seconds(foreseen[1] - foreseen[0])
        rows.append([part["name"], foreseen, seconds(part["seconds"]), part["share"]])
    predicted = seconds(steps[0]) if scene["foreseen"] else ""
    rows.append(["step", predicted, seconds(steps[-1]), "100.0 %"])
    if len(steps) > 1 + scene["foreseen"]:
        share = 100 * steps[-2] / steps[-1] if steps[-1] else 0.0
        rows.append([f"step, {badges[-2]}", "", seconds(steps[-2]), f"{share:.1f} %"])
    return rows


def describe(scene: dict[str, Any]) -> str:
    """The comparison in a few sentences, for readers who do not see it."""
    ends = zip(scene["badges"], scene["marks"])
    steps = ", ".join(f"{seconds(t)} {badge}" for badge, (_, t) in ends)
    parts = ", ".join(
        f"{p['name']} {seconds(p['seconds'])} ({p['share']})"
        for p in scene["parts"]
        if p["seconds"]
    )
    names = [name for name, _ in scene["marks"][scene["foreseen"] :]]
    numbers = "; ".join(
        f"{label}: " + ", ".join(f"{text} {name}" for text, name in zip(texts, names))
        if len(texts) > 1
        else f"{label}: {texts[0]}"
        for label, texts in scene["numbers"]
    )
    return (
        f"One step of {scene['about'] or scene['title']} on {scene['caption']}: {steps}. "
        f"{numbers}. "
        f"The {scene['marks'][-1][0]} step is {parts}. {scene['verdict']}"
    )


# -- the picture -----------------------------------------------------------------------------------
DRAWN = "lanes", "keys", "bars", "exposed", "idle"
GUTTER, RIGHT, HEAD, NUMBERS = 254, 24, 114, 192
BETWEEN, COLUMN = 14, 110
PART, PARTS_HEAD, LINE = 21, 48, 16
DASHES = ("2 3", "7 4", "")
"""How the step's end is marked: dotted as predicted, dashed as simulated, solid as measured."""


def comparison_svg(
    scene: dict[str, Any], width: float = VIEW, theme: str = "auto", verdict: bool = True
) -> str:
    """Draw a comparison scene.

    width in px; theme "light", "dark", "auto" or "page"; verdict : with its sentences. Raises
    ValueError on a width that leaves the lanes no room.
    """
    least = GUTTER + RIGHT + 200
    if not width >= least:
        raise ValueError(f"width={width} px leaves the lanes no room: use {least} or more")
    scene = {**scene, "parts": [p for p in scene["parts"] if p["seconds"] or _ahead(p)]}
    ends = [part["start"] + part["seconds"] for part in scene["parts"]]
    ahead = [part["predicted"][1] for part in scene["parts"] if part["predicted"]]
    low, high = min([0.0, *ends]), max([scene["duration"], *ends, *ahead])
    axis = Axis(GUTTER, width - RIGHT, low, high)
    drawn, lanes_end = _lanes(scene, axis)
    parts_top = lanes_end + PARTS_HEAD
    bottom = parts_top + PART * (len(scene["parts"]) + 1)
    body = [pattern_defs(), _header(scene, width), axis.rules(HEAD - 4, bottom, lanes_end + 13)]
    body += [drawn, _waterfall(scene, parts_top, axis), _ends(scene, axis, lanes_end, bottom)]
    drawn, y = legend(_marks(scene), 10.0, bottom + 24, width)
    words, y = _words(scene, y + 34, width, one_of("verdict", verdict, (True, False)))
    label = f"Comparison: {', '.join(scene['badges'])}"
    return document(width, y, [*body, drawn, words], label, theme)


def _ahead(part):
    """Seconds of a part that are predicted."""
    return part["predicted"][1] - part["predicted"][0] if part["predicted"] else 0.0


def _lanes(scene, axis):
    """(each rank's lane of every source, y below the last): outlines of the prediction, or bars."""
    out, y = "", HEAD
    for rank in scene["ranks"]:
        out += text(10, y + 15, f"rank {rank}", weight=600)
        if slow := scene["slow"].get(f"{rank}"):
            out += text(10, y + 34, "straggler", "exposed", weight=600)
            out += lines(10, y + 50, wrapped(slow, 18), LINE, "exposed")
        for i, source in enumerate(scene["sources"]):
            mine = [k for k, lane in enumerate(source["lanes"]) if lane["rank"] == rank]
            tops = [source["lanes"][k]["at"][0] for k in mine]
            drawn = "".join(
                lane_svg(source, k, axis, False, bars if i or not scene["foreseen"] else _outlined)
                for k in reversed(mine)
            )
            name = _cut(scene["marks"][i][0], 84, 6.0)
            out += text(GUTTER - 6, y + 15, name, "muted", anchor="end")
            out += f"<g transform='translate(0 {y - tops[0][0]:g})'>{drawn}</g>"
            y += max(top + height for top, height in tops) - tops[0][0] + 5
        y += BETWEEN
    return out, y - BETWEEN


def _outlined(x0, x1, top, height, ink):
    bare = spans(x0, x1, top, height, ink) if ink == "exposed" else ""
    return bare + outlines(x0, x1, top + 0.6, height - 1.2, ink, "stroke-width='1.2'")


def _header(scene, width):
    """The badges, the title, and the cluster."""
    out, x = "", 10.0
    for words, dash in zip(scene["badges"], DASHES[not scene["foreseen"] :]):
        frame, size = badge(x, 8, words.partition(" (")[0], dash)
        out, x = out + frame, x + size + 8
    about = f"<title>{escape(scene['about'])}</title>"
    out += f"<g>{about}{text(10, 44, _cut(scene['title'], width - 20, 7.1))}</g>"
    return out + text(10, 60, _cut(f"on {scene['caption']}", width - 20, 7.1), "muted")


def _cut(words, room, each):
    """The words, shortened to ``room`` px at ``each`` px a character."""
    most = max(int(room / each), 4)
    return words if len(words) <= most else words[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _ends(scene, axis, lanes_end, bottom):
    """Where each step ends: three lines, their labels in rows so that none covers another, and no
    line crosses one, or a time of the axis; steps that say the same time share one."""
    out, labels, dashes = "", "", iter(DASHES[not scene["foreseen"] :])
    ends = [(seconds(t), name, t) for name, t in scene["marks"]]
    rows = [list(same) for _, same in groupby(ends, itemgetter(0))]
    for i, row in enumerate(rows, 3 - len(rows)):
        y = HEAD - 38 + 12.5 * i
        for _, _, t in row:
            out += (
                f"<path d='M{float(axis.x(t)):.1f},{y - 8}V{lanes_end + 2}m0,14V{bottom}' "
                f"fill='none' class='s-fg' stroke-width='1.1' stroke-dasharray='{next(dashes)}'/>"
            )
        words = f"{' = '.join(name for _, name, _ in row)} {row[0][0]}"
        x, wide = min(float(axis.x(t)) for *_, t in row), 1.1 * width_of(words)
        labels += shape(
            f"M{x - 5 - wide:.1f},{y - 10}h{wide + 2:.1f}v13h-{wide + 2:.1f}z", "bg", ""
        )
        labels += text(x - 5, y, words, anchor="end", weight=600)
    return out + labels


def _waterfall(scene, top, axis):
    """Each part from where the one before ended; the prediction's as outlines above the bars."""
    out = [text(10, top - 9, f"the {scene['marks'][-1][0]} step, part by part", weight=600)]
    if scene["foreseen"]:
        out.append(legend([("predicted", "hollow: predicted")], GUTTER, top - 18.5, 1e4)[0])
    y = top
    for part in scene["parts"]:
        out.append(text(10, y + 14, part["name"]))
        for x, words in ((NUMBERS, seconds(part["seconds"])), (GUTTER - 6, part["share"])):
            out.append(text(x, y + 14, words, anchor="end"))
        if _ahead(part) > 0:
            x0, x1 = map(float, map(axis.x, part["predicted"]))
            ahead = [x0], [max(x1, x0 + 1)]
            out.append(outlines(*ahead, y + 1.5, 5.5, "fg", "stroke-width='1.1'"))
        end = part["start"] + part["seconds"]
        x0, x1 = sorted((float(axis.x(part["start"])), float(axis.x(end))))
        out.append(_part(part["name"], x0, x1, y + 8.5, 10.5))
        out.append(
            f"<path d='M{float(axis.x(end)):.1f},{y + 8.5}v{PART}' class='s-muted'"
            " fill='none' stroke-width='0.8'/>"
        )
        y += PART
    name, total = scene["marks"][-1]
    out.append(text(10, y + 16, f"step, {name}", weight=600))
    out.append(text(NUMBERS, y + 16, seconds(total), anchor="end", weight=600))
    x0, x1 = float(axis.x(0.0)), float(axis.x(total))
    out.append(shape(inset([x0], [x1], y + 8.5, 9), "rule s-fg", "solid"))
    return "".join(out)


def _part(name, x0, x1, y, height):
    """A bar of the waterfall, filled by the kind of time; an empty box if unexplained."""
    if x1 - x0 < 0.05:
        return ""
    path = f"M{x0:.2f},{y}h{x1 - x0:.2f}v{height}H{x0:.2f}z"
    ink, pattern = INK_OF_PART.get(name, ("", ""))
    if not ink:
        return (
            f"<path d='{path}' class='s-fg' fill='none' stroke-width='1.1' stroke-dasharray='3 2'/>"
        )
    edge = 1.6 if name in ("straggler", "slow link") else 0.4
    return shape(path, f"{ink} s-fg", pattern, f"stroke-width='{edge}'")


def _marks(scene):
    """(mark, words) of the inks drawn, in their order; exposed time has its own row."""
    items = dict(item for source in scene["sources"] for item in marks(source))
    return [(ink, items[ink]) for ink in INKS if ink in items and ink != "exposed"]


def _words(scene, y, width, whole):
    """The numbers, a column for each trace, and the verdict."""
    names = [name for name, _ in scene["marks"][scene["foreseen"] :]]
    labels = [label for label, _ in scene["numbers"]]
    ends = [40 + max(map(width_of, labels)) + COLUMN * (i + 1) for i in range(len(names))]
    out = [text(x, y, name, "muted", anchor="end") for x, name in zip(ends, names)]
    for label, texts in scene["numbers"]:
        y += LINE
        chip = mark("exposed", 10, y - 9.5, 14, 11) if label.startswith("exposed") else ""
        out += [chip, text(29, y, label)]
        out += [
            text(x, y, words, anchor="end", weight=600)
            for x, words in zip(ends[-len(texts) :], texts)
        ]
    verdict = wrap(scene["verdict"], max(int((width - 20) / 7.4), 20)) if whole else []
    known = ["A formula says how long an axis is busy, not when."] * scene["foreseen"]
    told = wrap(" ".join([*meanings(scene["badges"]), *known]), int((width - 20) / 7))
    for rows, token, weight in ((verdict, "fg", 600), (told, "muted", "")):
        y += LINE / 2
        for line in rows:
            y += LINE
            out.append(text(10, y, line, token, weight=weight))
    return "".join(out), y + LINE / 2
