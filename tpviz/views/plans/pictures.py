"""Pictures of a prediction: its step in parts, a rank's memory, every axis. Runs nothing.

>>> parts_svg({"compute": 0.2, "latency wait": 0.1}, "predicted").startswith("<svg")
True
"""

import math
from collections.abc import Mapping, Sequence
from html import escape

from tpviz.cluster.scale import stands_for
from tpviz.core.inks import MEMORY_KINDS
from tpviz.core.mesh import Mesh
from tpviz.core.tables import html_table, quiet
from tpviz.verbs.predict import Prediction
from tpviz.verbs.room import room
from tpviz.views.figures.comparison import INK_OF_PART
from tpviz.views.figures.svg import (
    amount,
    badge,
    document,
    pattern_defs,
    scrolled,
    seconds,
    swatch,
    text,
    ticks,
)

COVERED = (
    "<p class='tpv-covered' style='margin:6px 0'><i>The prediction is covered until you guess "
    "(or skip the guess).</i></p>"
)


def model_html(prediction: Prediction, mesh: Mesh, covered: bool = False) -> tuple[str, str, str]:
    """What `ModelPane` shows, as HTML: pictures of time and memory, a warning, `axes_html`."""
    drawn = COVERED * covered + "".join(map(scrolled, model_svgs(prediction, covered)))
    warning = short_of_memory(prediction)
    short, _, words = prediction.badge.partition(" (")
    warning += quiet(short, f"{words[0].upper()}{words[1:-1]}.") if words else ""
    return drawn, warning, axes_html(prediction, mesh, covered)


def model_svgs(prediction: Prediction, covered: bool = False, theme: str = "page") -> list[str]:
    """The pictures of its step, unless it is ``covered``, and of a rank's memory."""
    cluster, device = prediction.cluster, prediction.cluster.device
    step = parts_svg(prediction.parts, short_badge(prediction), cluster.slow_motion, theme)
    scale, memory = stands_for(cluster)["memory"], prediction.memory()
    return [step] * (not covered) + [memory_svg(memory, device.memory, device.name, theme, scale)]


def short_badge(prediction: Prediction) -> str:
    """Its badge where room is short: without what is out of the fitted range."""
    return "predicted, out of range" if prediction.outside else prediction.badge


def short_of_memory(p: Prediction) -> str:
    """`memory_warning` of a prediction."""
    name = p.cluster.device.name
    return memory_warning(p.memory().total, room(p.cluster, p.training), name)


def memory_warning(total: float, size: float, name: str) -> str:
    """HTML that says by how much a device's ``size`` is exceeded, or ""."""
    if total <= size:
        return ""
    words = (
        f"A rank needs {amount(total)}, {name} has {amount(size)}: split the "
        f"parameters over at least {-(-total // size):.0f} x as many ranks (tp, ZeRO), or "
        "make the batch smaller. On such devices this would run out of memory."
    )
    return message(words)


def message(words: str, colour: str = "#D55E00") -> str:
    """A text that wants attention, as HTML."""
    return (
        f"<div class='tpv-message' role='alert' style='border-left:4px solid {colour};"
        f"padding:4px 8px;white-space:pre-wrap;line-height:1.4'>{escape(words)}</div>"
    )


def axes_table(prediction: Prediction, mesh: Mesh) -> list[list[str]]:
    """Rows of strings, header first: per mesh axis its link and the bytes of a step, full speed."""
    slow = prediction.cluster.slow_motion
    rows = [["axis", "ranks", "link", "hop", "sent", "exposed", "hidden"]]
    wire = {}
    for row in prediction.ledger():
        wire[row.axis] = wire.get(row.axis, 0.0) + row.wire_bytes
    for axis, size in mesh.axes.items():
        link = prediction.cluster.axis_link(mesh, axis) if size > 1 else None
        exposed, hidden = (
            times.get(axis, 0.0) / slow for times in (prediction.exposed, prediction.hidden)
        )
        rate = f"{amount(link.bandwidth * slow)}/s" if link else ""
        hop = seconds(link.latency / slow) if link else ""
        sent = amount(wire.get(axis, 0.0))
        rows.append([axis, str(size), rate, hop, sent, seconds(exposed), seconds(hidden)])
    return rows


def axes_html(prediction: Prediction, mesh: Mesh, covered: bool = False) -> str:
    """`axes_table` as HTML; ``covered`` leaves the times out."""
    rows = axes_table(prediction, mesh)
    return table_html([row[: len(row) - 2 * covered] for row in rows])


def table_html(rows: Sequence[Sequence[str]]) -> str:
    """Rows of strings, header first, as an HTML table; all but the first column to the right."""

    rows = [[str(cell) for cell in row] for row in rows]
    sides = ["left", *["right"] * (len(rows[0]) - 1)]
    styles = [f"padding:1px 8px;white-space:nowrap;text-align:{side}" for side in sides]
    return scrolled(html_table(rows, "style='border-collapse:collapse;line-height:1.4'", styles))


# -- pictures --------------------------------------------------------------------------------------
WIDTH, LEFT, RIGHT, BAR = 470, 10, 460, 26


def parts_svg(
    parts: Mapping[str, float], source: str, slow_motion: float = 1, theme: str = "page"
) -> str:
    """One stacked bar of the parts of a step, drawn to a time axis, and each part in figures.

    parts : {name: seconds}, in the inks of the comparison; source : of the numbers; slow_motion :
    the factor in these seconds. The step is drawn at full speed, so that configurations in
    different slow motion can be compared. Raises ValueError where the parts are no times.
    """
    parts = {name: time / slow_motion for name, time in parts.items()}
    if not all(math.isfinite(t) and t >= 0 for t in parts.values()) or not sum(parts.values()):
        raise ValueError(f"parts={parts} are not the times of a step")
    total = sum(parts.values())
    scale = (RIGHT - LEFT) / _ceiling(total)
    slowly = f"{slow_motion:,g} x slow motion"
    if len(source) < 12:  # a longer badge leaves no room for the seconds
        slowly = f"{seconds(total * slow_motion)} in {slowly}"
    frame, width = badge(LEFT, 6, source)
    body, x = [pattern_defs(), frame], LEFT
    words = f"step time {seconds(total)}"
    body.append(text(LEFT + width + 12, 21, words, size=16, weight=650))
    body.append(text(RIGHT, 21, slowly if slow_motion != 1 else "", "muted", anchor="end"))
    for name, time in parts.items():
        body.append(_bar(x, 36, time * scale, BAR, *INK_OF_PART[name]))
        if time * scale > 44:
            share = f"{100 * time / total:.0f} %"
            halo, middle = f"halo-{INK_OF_PART[name][0]}", x + time * scale / 2
            body.append(text(middle, 36 + BAR / 2 + 4, share, halo, anchor="middle", weight=600))
        x += time * scale
    for t in ticks(0, (RIGHT - LEFT) / scale, 6):
        at = LEFT + t * scale
        body.append(f"<path d='M{at:.1f},{36 + BAR}v5' class='s-muted' fill='none'/>")
        anchor = "start" if t == 0 else "end" if at > RIGHT - 15 else "middle"
        body.append(text(at, 36 + BAR + 16, seconds(t), "muted", anchor=anchor))
    y = 36 + BAR + 36
    for i, (name, time) in enumerate(parts.items()):
        left, top = LEFT + (i % 2) * 232, y + (i // 2) * 18
        body.append(_bar(left, top - 9, 14, 11, *INK_OF_PART[name]))
        figures = f"{seconds(time)} ({per_cent(time / total)})"
        body.append(text(left + 20, top, f"{name} {figures}"))
    height = y + 18 * ((len(parts) - 1) // 2) + 10
    label = f"{source}: " + ", ".join(f"{name} {seconds(time)}" for name, time in parts.items())
    return document(WIDTH, height, body, label, theme)


def memory_svg(
    memory: Mapping[str, float], capacity: float, device: str, theme: str = "page", scale: float = 1
) -> str:
    """A rank's memory by kind, against its device's memory. memory : {kind: bytes}. scale : what a
    byte of it stands for, on a scale model."""
    total = sum(memory.values())
    enlarged = total < capacity / 50
    room = RIGHT - LEFT - 64 * enlarged
    stands = f" (for {amount(capacity * scale)})" if scale != 1 else ""
    share = f"{amount(total)} of {amount(capacity)}{stands}, {device}, "
    share += per_cent(total / capacity)
    scale = room / (max(total, 1) if enlarged else max(total, capacity))
    title = text(LEFT, 12, "memory of a rank", weight=600)
    words = text(LEFT, 29, share)
    body, x = [pattern_defs(), title, words], LEFT
    for kind, size in memory.items():
        body.append(_bar(x, 38, size * scale, 14, MEMORY_KINDS[kind]))
        x += size * scale
    if enlarged:
        body.append(text(RIGHT, 50, "enlarged", "muted", anchor="end"))
    else:
        ink = "exposed" if total > capacity else "fg"
        end = LEFT + capacity * scale
        body.append(f"<path d='M{end:.1f},34v22' class='s-{ink}' stroke-width='2' fill='none'/>")
    for i, (kind, size) in enumerate(memory.items()):
        left, top = LEFT + (i % 2) * 232, 74 + (i // 2) * 18
        body.append(_bar(left, top - 9, 14, 11, MEMORY_KINDS[kind]))
        body.append(text(left + 20, top, f"{kind} {amount(size)}"))
    height = 74 + 18 * ((len(memory) - 1) // 2) + 8
    return document(WIDTH, height, body, f"memory of a rank {share}", theme)


def _bar(x, y, width, height, key, pattern=None):
    edge = f"<path d='M{x + width:.2f},{y}v{height}' class='s-bg' fill='none'/>"
    return swatch(x, y, width, height, key, pattern) + edge


def per_cent(fraction: float) -> str:
    """48 %, 3.9 %, 0.00048 %, 130 %."""
    return f"{100 * fraction:.0f} %" if fraction >= 0.0995 else f"{100 * fraction:.2g} %"


def _ceiling(value):
    """The end of the time axis: the next of 1, 1.5, 2, 3, 5, 7 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return power * next((m for m in (1, 1.5, 2, 3, 5, 7, 10) if value <= m * power * 1.0001), 10)
