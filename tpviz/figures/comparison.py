"""Prediction, simulation and measurement of one step on the same lanes, and what sets them apart.

A scene is a plain JSON dict: for each chosen rank and lane three rows, the prediction as outlines,
the simulated and the measured step as bars, all starting at 0; below them the residual's parts, end
to end, from nothing to the measured step. Badges say which is which and cannot be turned off.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from tpviz.tables import html_table
from tpviz.trace.steps import median_step

from .palette import INKS, axis_keys, phase_key
from .svg import seconds
from .timeline import timeline_scene

if TYPE_CHECKING:
    from tpviz.trace import Trace

INK_OF_PART = {
    "compute": ("other", "solid"),
    "exposed communication": ("exposed", "hatch"),
    "latency": ("exposed", "dots"),
    "bubble": ("wait", "hatch"),
    "contention": ("exposed", "back"),
    "straggler": ("other", "cross"),
    "slow link": ("exposed", "cross"),
}
"""Kernels grey, communication red, waiting hatched; "unexplained" is an empty outline."""


def comparison_scene(
    prediction: Any,
    simulated: "Trace",
    measured: "Trace | None",
    residual: Any,
    ranks: Iterable[int] | None = None,
    title: str = "",
    caption: str = "",
) -> dict[str, Any]:
    """The scene of a `Prediction`, two traces and a `Residual`, ready for JSON.

    Parameters
    ----------
    prediction, measured : each None where there is none.
    title, caption : what was compared, and on which cluster.
    ranks : ranks to draw; None for those the residual blames and one other, or the first alone.

    Returns a dict: ``badges`` (one for each row of a lane), ``foreseen`` (the first row is a
    prediction), ``title``, ``caption``, ``duration`` (s), ``ranks``, ``rows`` (rank, lane, axis,
    source: index of ``badges``),
    ``bars`` and ``outlines`` (columns row, key, start, end; bars also name), ``exposed`` (row,
    start, end), ``marks`` ([badge, step seconds]), ``parts`` (rows of name, seconds, share, start,
    predicted), ``numbers`` ([label, text]), ``verdict``. Raises ``ValueError`` for a rank that is
    not in the traces.
    """
    traces = [t for t in (simulated, measured) if t is not None]
    foreseen = [] if prediction is None else [prediction]
    badges = [p.badge for p in foreseen]
    badges += [t.badge for t in traces]
    ranks = _ranks(simulated, residual) if ranks is None else [int(rank) for rank in ranks]
    scenes = [_one_step(trace, ranks) for trace in traces]
    axes = _axes(scenes, foreseen)
    keys = axis_keys(list(simulated.fact("mesh")["axes"]) + axes)
    rows = [
        {"rank": rank, "lane": axis or "compute", "axis": axis, "source": source}
        for rank in ranks
        for axis in ["", *axes]
        for source in range(len(badges))
    ]
    place = {(row["rank"], row["axis"], row["source"]): i for i, row in enumerate(rows)}
    bars, exposed = _bars(scenes, place, len(foreseen))
    marks = [made.step_time for made in (*foreseen, *traces)]
    return {
        "badges": badges,
        "foreseen": bool(foreseen),
        "title": title,
        "caption": caption,
        "duration": float(max(*marks, *(s["duration"] for s in scenes), 1e-12)),
        "ranks": ranks,
        "rows": rows,
        "bars": bars,
        "outlines": _outlines(foreseen, ranks, keys, place),
        "exposed": exposed,
        "marks": [[badge, float(t)] for badge, t in zip(badges, marks)],
        "parts": _parts(foreseen, residual),
        "numbers": _numbers(traces, residual),
        "verdict": residual.verdict,
        "axes": {axis: keys[axis] for axis in axes},
    }


def _ranks(trace, residual):
    """Those that are blamed (two at most) and one that is not; the first where nobody is."""
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


def _axes(scenes, foreseen):
    """Axes that have a lane: of the traces in their order, then what only the prediction has."""
    drawn = [lane["axis"] for scene in scenes for lane in scene["lanes"] if lane["axis"]]
    predicted = [axis for p in foreseen for axis in (*p.exposed, *p.hidden)]
    return list(dict.fromkeys(drawn + predicted))


def _bars(scenes, place, first):
    """(bars, exposed spans) of the traces, by row of the comparison."""
    bars = {name: [] for name in ("row", "key", "start", "end", "name")}
    exposed = {name: [] for name in ("row", "start", "end")}
    for source, scene in enumerate(scenes, first):
        row_of = [place[lane["rank"], lane["axis"], source] for lane in scene["lanes"]]
        columns = scene["bars"]
        bars["row"] += [row_of[lane] for lane in columns["lane"]]
        bars["key"] += [scene["keys"][key]["key"] for key in columns["key"]]
        bars["name"] += [scene["strings"][name] for name in columns["name"]]
        exposed["row"] += [row_of[lane] for lane in scene["exposed"]["lane"]]
        for name in ("start", "end"):
            bars[name] += columns[name]
            exposed[name] += scene["exposed"][name]
    return bars, exposed


def _outlines(foreseen, ranks, keys, place):
    """The prediction's segments, one after another: kernels, then waiting; and each axis.

    A segment says how long an axis is busy, not when. What kernels wait for is drawn up to the
    segment's end; what they do not wait for was issued before it, and is drawn from its start.
    """
    found, now = [], 0.0
    for segment in (segment for p in foreseen for segment in p.segments):
        at, end = now + segment.compute, now + segment.seconds
        found.append(("", phase_key(segment.phase), now, at))
        for length in segment.exposed.values():
            found.append(("", "exposed", at, at + length))
            at += length
        for axis in dict.fromkeys([*segment.exposed, *segment.hidden]):
            length = segment.exposed.get(axis, 0.0) + segment.hidden.get(axis, 0.0)
            start = max(now, end - length) if axis in segment.exposed else now
            found.append((axis, keys[axis], start, min(start + length, end)))
        now = end
    found = [bar for bar in found if bar[3] > bar[2]]
    names = ("row", "key", "start", "end")
    out = {name: [] for name in names}
    for rank in ranks:
        for axis, *rest in found:
            for name, value in zip(names, (place[rank, axis, 0], *rest)):
                out[name].append(value)
    return out


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


def _numbers(traces, residual):
    """The headline: ratio and overlaps, and how far the emulation overran its own clock."""
    words = [f"{100 * t.overlap():.1f} % {t.badge}" for t in traces]
    rows = []
    if len(traces) == 2 and traces[0].step_time:
        rows.append(
            [f"{residual.badge} / simulated", f"{traces[1].step_time / traces[0].step_time:.3f}"]
        )
    rows.append(["overlap", ", ".join(words)])
    if residual.late:
        rows.append(["late by at most", f"{seconds(residual.late)} a step"])
    return rows


def to_table(scene: dict[str, Any]) -> list[list[str]]:
    """Rows of strings, header first: each part as predicted and as found, then the steps."""
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
    steps = ", ".join(f"{seconds(t)} {badge}" for badge, t in scene["marks"])
    parts = ", ".join(
        f"{p['name']} {seconds(p['seconds'])} ({p['share']})"
        for p in scene["parts"]
        if p["seconds"]
    )
    numbers = "; ".join(f"{label}: {text}" for label, text in scene["numbers"])
    return (
        f"One step of {scene['title']} on {scene['caption']}: {steps}. {numbers}. "
        f"The {scene['badges'][-1]} step is {parts}. {scene['verdict']}"
    )


def to_html(scene: dict[str, Any], to_svg: Callable[..., str]) -> str:
    """The picture and its table, for a notebook. to_svg : function (theme=...) -> SVG."""
    rows = to_table(scene)
    side = "padding:1px 12px;text-align:"
    aligned = [side + ("left" if i == 0 else "right") for i in range(len(rows[0]))]
    table = html_table(rows, "style='border-collapse:collapse'", aligned)
    return (
        f"<div class='tpv-comparison'>{to_svg(theme='page')}"
        f"<details><summary>table</summary>{table}</details></div>"
    )


def label_of(key: str, axes: dict[str, str]) -> str:
    """What a key of bars or outlines means, in words."""
    names = {ink: axis for axis, ink in axes.items()}
    return f"communication {names[key]}" if key in names else INKS[key].label
