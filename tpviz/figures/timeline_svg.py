"""The timeline scene as one static SVG: for README, nbviewer, printing, and places with no kernel.

Bars of one kind on one lane become one path, and bars closer than a fraction of a pixel are drawn
as one, so a trace of any length gives a small picture.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tpviz.checks import number, whole_number
from tpviz.trace.analyses import merge

from .palette import svg_style
from .svg import amount, bars_path, document, pattern_defs, rect, seconds, text, ticks
from .timeline_bars import at_window

GUTTER, RIGHT, HEAD = 112, 24, 62
COMPUTE, COMM, GAP, MEMORY = 20, 13, 8, 54
SUBPIXEL = 0.35
MARKS = 100  # more beginnings and ends of steps than that would hatch the picture


def timeline_svg(
    scene: dict[str, Any],
    width: float = 960,
    theme: str = "auto",
    rank: int | None = None,
    window: Sequence[float] | None = None,
) -> str:
    """Draw a timeline scene.

    width in px; theme "light", "dark" or "auto"; rank whose memory is shown (default: the first);
    window (start, end) in s (default: all; of a trace too large for that, the median step).
    Raises ValueError on an empty window, an unknown rank,
    or a width that leaves the lanes no room.
    """
    if not number("width", width, 0, 1e6) > GUTTER + RIGHT:
        raise ValueError(
            f"width={width} px leaves the lanes no room: use more than {GUTTER + RIGHT}"
        )
    low, high = check_window(
        window or scene.get("detail", {}).get("window") or (0.0, scene["duration"])
    )
    rank = scene["ranks"][0] if rank is None else rank
    if not high > low:
        raise ValueError(
            f"window=({low}, {high}) is empty; use (start, end) within 0..{scene['duration']:g} s"
        )
    if whole_number("rank", rank, None) not in scene["ranks"]:
        raise ValueError(f"rank={rank} is not in this trace; it has {scene['ranks']}")
    scene, scale = at_window(scene, low, high), (width - GUTTER - RIGHT) / (high - low)

    def to_x(t):
        return GUTTER + (np.clip(t, low, high) - low) * scale

    tops, bottom = lane_tops(scene)
    body = [pattern_defs(), _header(scene, width), _axis(scene, to_x, low, high, bottom)]
    body += [_lane(scene, i, tops[i], to_x, width) for i in range(len(scene["lanes"]))]
    body.append(_critical(scene, tops, to_x))
    y = bottom + 20
    if str(rank) in scene["memory"]:
        body.append(_memory(scene, rank, y + 14, to_x, high))
        y += MEMORY + 26
    legend, y = _legend(scene, y + 8, width, str(rank) in scene["memory"])
    body.append(legend)
    if "note" in scene:
        y += 20
        body.append(text(10, y + 9.5, scene["note"], "muted", 10.5))
    return document(
        width, y + 22, "".join(body), f"Timeline, {scene['badge']}", svg_style(theme), theme
    )


def check_window(window: Sequence[float]) -> list[float]:
    """(start, end) as floats; ``ValueError`` for anything else."""
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise ValueError(f"window={window!r} must be (start, end) in seconds")
    return [number("window", edge, -1e12, 1e12) for edge in window]


def lane_tops(scene: dict[str, Any], top: float = HEAD) -> tuple[list[float], float]:
    """([y of each lane], y below the last): a gap between ranks."""
    tops, y, before = [], top, None
    for lane in scene["lanes"]:
        y += GAP if before not in (None, lane["rank"]) else 0
        before = lane["rank"]
        tops.append(y)
        y += (COMM if lane["axis"] else COMPUTE) + 2
    return tops, y


def _header(scene, width):
    badge = scene["badge"]
    size = 6.3 * len(badge) + 16
    out = [
        rect(10, 8, size, 19, "", "rx='9.5' fill='none' class='s-fg' stroke-width='1.2'"),
        text(10 + size / 2, 21.5, badge, size=11, anchor="middle", weight=600),
        text(size + 20, 22, scene["title"], "muted"),
    ]
    numbers = "   ".join(f"{label} {value}" for label, value in scene["metrics"])
    out.append(text(10, 44, numbers, size=12, weight=600, extra="xml:space='preserve'"))
    return "".join(out)


def _axis(scene, to_x, low, high, bottom):
    out = []
    marks = [t for step in scene["steps"] for t in step if low <= t <= high]
    for t in marks if len(marks) <= MARKS else ():
        out.append(
            f"<path d='M{to_x(t):.1f},{HEAD - 4}V{bottom}' class='s-muted'"
            " stroke-dasharray='2 3' fill='none'/>"
        )
    for t in ticks(low, high):
        x = to_x(t)
        out.append(f"<path d='M{x:.1f},{HEAD - 4}V{bottom}' class='s-rule' fill='none'/>")
        out.append(text(x, bottom + 14, seconds(t, 4), "muted", 10, "middle"))
    return "".join(out)


def _lane(scene, index, top, to_x, width):
    lane, bars = scene["lanes"][index], scene["bars"]
    height = COMM if lane["axis"] else COMPUTE
    out = [f"<path d='M{GUTTER},{top + height + 1}H{width - RIGHT}' class='s-rule' fill='none'/>"]
    if not lane["axis"]:
        out.append(text(10, top + 14, f"rank {lane['rank']}", size=11, weight=600))
    out.append(text(GUTTER - 6, top + height - 3.5, lane["name"], "muted", 10, "end"))
    mine = np.array(bars["lane"]) == index
    key, start, end = (np.array(bars[c])[mine] for c in ("key", "start", "end"))
    for k, info in enumerate(scene["keys"]):
        spans = _visible(to_x(start[key == k]), to_x(end[key == k]))
        out.append(_bars(*spans, top, height, info, outlined=not scene.get("cut")))
    if not lane["axis"]:
        bare = np.array(scene["exposed"]["lane"]) == index
        spans = (to_x(np.array(scene["exposed"][c])[bare]) for c in ("start", "end"))
        out.append(_exposed(*_visible(*spans), top, height))
    out.append(_names(scene, np.flatnonzero(mine), to_x, top, height))
    return "".join(out)


def _visible(x0, x1):
    """Bars in px with those outside the window dropped and those too close to tell apart joined."""
    shown = x1 > x0
    x0, x1 = merge(x0[shown], x1[shown] + SUBPIXEL)
    return x0, x1 - SUBPIXEL


def _bars(x0, x1, top, height, info, outlined=True):
    if not len(x0):
        return ""
    path, pattern = bars_path(x0, x1, top, height), info["pattern"]
    if info["kind"] == "wait":
        return (
            f"<path d='{path}' class='f-rule'/><path d='{path}' fill='url(#tpv-{pattern})'/>"
            + f"<path d='{path}' class='s-wait' fill='none' stroke-width='0.8'/>" * outlined
        )
    over = f"<path d='{path}' fill='url(#tpv-{pattern})'/>" if pattern != "solid" else ""
    return f"<path d='{path}' class='f-{info['key']}'/>{over}"


def _exposed(x0, x1, top, height):
    if not len(x0):
        return ""
    path = bars_path(x0, x1, top - 1, height + 2)
    line = "".join(f"M{a:.2f},{top + height + 1}H{b:.2f}" for a, b in zip(x0.tolist(), x1.tolist()))
    return (
        f"<path d='{path}' class='f-exposed' fill-opacity='0.3'/>"
        f"<path d='{path}' fill='url(#tpv-exposed)'/>"
        f"<path d='{line}' class='s-exposed' fill='none' stroke-width='2'/>"
    )


def _names(scene, indices, to_x, top, height):
    """The event's name in bars wide enough for it."""
    bars, out = scene["bars"], []
    for i in indices.tolist():
        info, name = scene["keys"][bars["key"][i]], scene["strings"][bars["name"][i]]
        x0, x1 = to_x(bars["start"][i]), to_x(bars["end"][i])
        if info["kind"] != "wait" and x1 - x0 > 6.2 * len(name) + 8:
            halo = f"halo-{info['key']}"
            out.append(text((x0 + x1) / 2, top + height / 2 + 3.5, name, halo, 10, "middle"))
    return "".join(out)


def _critical(scene, tops, to_x):
    path = ""
    for i in scene["critical"]:
        lane = scene["bars"]["lane"][i]
        height = COMM if scene["lanes"][lane]["axis"] else COMPUTE
        x0, x1 = to_x(scene["bars"]["start"][i]), to_x(scene["bars"]["end"][i])
        path += f"M{x0:.2f},{tops[lane]}h{x1 - x0:.2f}v{height}h{x0 - x1:.2f}z"
    return f"<path d='{path}' class='s-fg' fill='none' stroke-width='1.6'/>" if path else ""


def _memory(scene, rank, top, to_x, high):
    """Stacked steps of the four kinds, scaled to the rank's peak."""
    memory = scene["memory"][str(rank)]
    x = to_x(np.append(memory["time"], max(high, memory["time"][-1])))
    base, peak = np.zeros(len(memory["time"])), max(memory["peak"], 1)
    out = [
        text(
            10,
            top - 4,
            f"memory of rank {rank}: peak {amount(memory['peak'])}{memory['note']}",
            size=11,
            weight=600,
        )
    ]
    for info in scene["memory_keys"]:
        upper = base + memory[info["column"]]
        low, high_y = (top + MEMORY * (1 - v / peak) for v in (base, upper))
        forward = "".join(f"L{a:.1f},{y:.1f}H{b:.1f}" for a, b, y in zip(x, x[1:], high_y))
        back = "".join(
            f"L{b:.1f},{y:.1f}H{a:.1f}" for a, b, y in zip(x[-2::-1], x[:0:-1], low[::-1])
        )
        path = f"M{forward[1:]}{back}z"
        out.append(f"<path d='{path}' class='f-{info['key']} s-bg' stroke-width='0.5'/>")
        if info["pattern"] != "solid":
            out.append(f"<path d='{path}' fill='url(#tpv-{info['pattern']})'/>")
        base = upper
    return "".join(out)


def _legend(scene, y, width, memory):
    items = [(k["label"], k) for k in scene["keys"]]
    if scene["exposed"]["lane"]:
        items.append(("exposed communication", None))
    if memory:
        items += [(k["label"], {**k, "kind": "compute"}) for k in scene["memory_keys"]]
    out, x = [], 10.0
    for label, info in items:
        label = f"communication {label}" if info and info["kind"] == "comm" else label
        if x + 24 + 5.6 * len(label) > width:
            x, y = 10.0, y + 18
        here = np.array([x]), np.array([x + 14])
        out.append(_exposed(*here, y, 11) if info is None else _bars(*here, y, 11, info))
        out.append(text(x + 19, y + 9.5, label, size=10.5))
        x += 34 + 5.7 * len(label)
    return "".join(out), y
