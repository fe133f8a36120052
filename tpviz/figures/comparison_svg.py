"""The comparison scene as one static SVG: lanes of the three verbs above, the residual below."""

from textwrap import wrap
from typing import Any

import numpy as np

from .comparison import INK_OF_PART, label_of
from .palette import INKS, svg_style
from .svg import document, pattern_defs, rect, seconds, text, ticks
from .timeline_svg import _bars, _exposed, _visible

GUTTER, RIGHT, HEAD, NUMBERS = 254, 24, 98, 200
COMPUTE, COMM, GAP, BETWEEN = 18, 13, 5, 12
PART, PARTS_HEAD, LINE = 21, 34, 16
DASHES = ("2 3", "7 4", "")
"""How the step's end is marked: dotted as predicted, dashed as simulated, solid as measured."""


def comparison_svg(scene: dict[str, Any], width: float = 1000, theme: str = "auto") -> str:
    """Draw a comparison scene.

    width in px; theme "light", "dark", "auto" or "page". Raises ValueError on a width that leaves
    the lanes no room.
    """
    least = GUTTER + RIGHT + 200
    if not width >= least:
        raise ValueError(f"width={width} px leaves the lanes no room: use {least} or more")
    low = min([0.0, *(part["start"] + part["seconds"] for part in scene["parts"])])
    high = max(
        [
            scene["duration"],
            *(p["start"] + p["seconds"] for p in scene["parts"]),
            *(p["predicted"][1] for p in scene["parts"] if p["predicted"]),
        ]
    )
    scale = (width - GUTTER - RIGHT) / (high - low)

    def to_x(t):
        return GUTTER + (np.asarray(t) - low) * scale

    tops, lanes_end = _tops(scene)
    parts_top = lanes_end + PARTS_HEAD
    bottom = parts_top + PART * (len(scene["parts"]) + 1)
    body = [pattern_defs(), _header(scene, width), _axis(low, high, to_x, lanes_end, bottom)]
    body += [_row(scene, i, tops[i], to_x, width) for i in range(len(scene["rows"]))]
    body += [_waterfall(scene, parts_top, to_x), _marks(scene, to_x, bottom)]
    legend, y = _legend(scene, bottom + 24, width)
    words, y = _words(scene, y + 34, width)
    label = f"Comparison: {', '.join(scene['badges'])}"
    return document(width, y, "".join([*body, legend, words]), label, svg_style(theme), theme)


def _tops(scene):
    """([y of each row], y below the last): a gap between lanes, a wider one between ranks."""
    tops, y, before = [], HEAD, None
    for row in scene["rows"]:
        here = row["rank"], row["lane"]
        if before is not None and here != before:
            y += GAP if here[0] == before[0] else BETWEEN
        before = here
        tops.append(y)
        y += _height(row) + 2
    return tops, y


def _height(row):
    return COMM if row["axis"] else COMPUTE


def _header(scene, width):
    """The badges, what this is, and on which cluster."""
    out, x = [], 10.0
    for badge, dash in zip(scene["badges"], _dashes(scene)):
        size = 6.4 * len(badge) + 18
        extra = f"rx='9.5' fill='none' class='s-fg' stroke-width='1.2' stroke-dasharray='{dash}'"
        out.append(rect(x, 8, size, 19, "", extra))
        out.append(text(x + size / 2, 21.5, badge, size=11, anchor="middle", weight=600))
        x += size + 8
    out.append(text(x + 4, 22, _cut(f"on {scene['caption']}", width - x - 20, 6.1), size=11))
    out.append(text(10, 44, _cut(scene["title"], width - 20, 6.0), "muted"))
    return "".join(out)


def _dashes(scene):
    return DASHES if scene["foreseen"] else DASHES[1:]


def _cut(words, room, each):
    """The words, shortened to ``room`` px at ``each`` px a character."""
    most = max(int(room / each), 4)
    return words if len(words) <= most else words[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _axis(low, high, to_x, lanes_end, bottom):
    out = []
    for t in ticks(low, high):
        x = float(to_x(t))
        out.append(f"<path d='M{x:.1f},{HEAD - 4}V{bottom}' class='s-rule' fill='none'/>")
        out.append(text(x, lanes_end + 13, seconds(t, 4), "muted", 10, "middle"))
    return "".join(out)


def _marks(scene, to_x, bottom):
    """Where each step ends: three lines, their labels in three rows so that none covers another."""
    out = []
    for i, ((badge, t), dash) in enumerate(zip(scene["marks"], _dashes(scene))):
        x, y = float(to_x(t)), 60 + 12.5 * i
        out.append(
            f"<path d='M{x:.1f},{y - 8}V{bottom}' class='s-fg' fill='none'"
            f" stroke-width='1.1' stroke-dasharray='{dash}'/>"
        )
        out.append(text(x - 5, y, f"{badge} {seconds(t)}", size=10.5, anchor="end", weight=600))
    return "".join(out)


def _row(scene, index, top, to_x, width):
    """One verb's row of a lane: outlines of the prediction, or bars."""
    row, height = scene["rows"][index], _height(scene["rows"][index])
    out = [f"<path d='M{GUTTER},{top + height + 1}H{width - RIGHT}' class='s-rule' fill='none'/>"]
    if row["source"] == 0:
        if not row["axis"]:
            out.append(text(10, top + 13, f"rank {row['rank']}", size=11, weight=600))
        name = f"communication {row['axis']}" if row["axis"] else "compute"
        out.append(text(58, top + height - 4, name, size=10.5))
    source = _cut(scene["badges"][row["source"]], 78, 5.4)
    out.append(text(GUTTER - 6, top + height - 3.5, source, "muted", 10, "end"))
    if row["source"] == 0 and scene["foreseen"]:
        return "".join(out) + _outlines(scene, index, top, height, to_x)
    bars = scene["bars"]
    mine = np.array(bars["row"], int) == index
    key, start, end = (np.array(bars[name])[mine] for name in ("key", "start", "end"))
    for name in dict.fromkeys(key.tolist()):
        info = _info(name, scene)
        spans = _visible(to_x(start[key == name]), to_x(end[key == name]))
        out.append(_bars(*spans, top, height, info))
    bare = np.array(scene["exposed"]["row"], int) == index
    if bare.any():
        spans = (to_x(np.array(scene["exposed"][name])[bare]) for name in ("start", "end"))
        out.append(_exposed(*_visible(*spans), top, height))
    out += _names(scene, np.flatnonzero(mine), to_x, top, height)
    return "".join(out)


def _info(key, scene):
    """What `timeline_svg` asks to know of a key."""
    kind = "wait" if key == "wait" else "comm" if key in scene["axes"].values() else "compute"
    return {"key": key, "kind": kind, "pattern": INKS[key].pattern}


def _outlines(scene, index, top, height, to_x):
    """Unfilled boxes; what is exposed is dashed. Boxes too narrow to see are joined."""
    spans = scene["outlines"]
    mine = np.array(spans["row"], int) == index
    key, start, end = (np.array(spans[name])[mine] for name in ("key", "start", "end"))
    out = []
    for name in dict.fromkeys(key.tolist()):
        x0, x1 = _visible(to_x(start[key == name]), to_x(end[key == name]))
        dash = " stroke-dasharray='3 2'" if name == "exposed" else ""
        path = "".join(_box(a, b, top + 0.6, height - 1.2) for a, b in zip(x0, x1))
        out.append(f"<path d='{path}' class='s-{name}' fill='none' stroke-width='1.2'{dash}/>")
    return "".join(out)


def _box(x0, x1, top, height):
    inset = min(0.6, (x1 - x0) / 4)
    return f"M{x0 + inset:.2f},{top}h{x1 - x0 - 2 * inset:.2f}v{height}H{x0 + inset:.2f}z"


def _names(scene, indices, to_x, top, height):
    """The event's name in bars wide enough for it, as far as the next bar does not cover them."""
    bars, out, covered = scene["bars"], [], np.inf
    for i in reversed(indices.tolist()):
        name, key = bars["name"][i], bars["key"][i]
        x0, x1 = float(to_x(bars["start"][i])), float(to_x(bars["end"][i]))
        x1, covered = min(x1, covered), x0
        if key != "wait" and x1 - x0 > 6.2 * len(name) + 8:
            middle = (x0 + x1) / 2
            out.append(text(middle, top + height / 2 + 3.5, name, f"halo-{key}", 10, "middle"))
    return out


def _waterfall(scene, top, to_x):
    """Each part from where the one before ended; the prediction's as outlines above the bars."""
    out = [text(10, top - 9, f"the {scene['badges'][-1]} step, part by part", size=12, weight=600)]
    y = top
    for part in scene["parts"]:
        out.append(text(10, y + 14, part["name"], size=11))
        for x, words in ((NUMBERS, seconds(part["seconds"])), (GUTTER - 6, part["share"])):
            out.append(text(x, y + 14, words, size=11, anchor="end"))
        if part["predicted"] and part["predicted"][1] > part["predicted"][0]:
            x0, x1 = map(float, map(to_x, part["predicted"]))
            path = _box(x0, max(x1, x0 + 1), y + 1.5, 5.5)
            out.append(f"<path d='{path}' class='s-fg' fill='none' stroke-width='1.1'/>")
        begin, end = part["start"], part["start"] + part["seconds"]
        x0, x1 = sorted((float(to_x(begin)), float(to_x(end))))
        out.append(_part(part["name"], x0, x1, y + 8.5, 10.5))
        out.append(
            f"<path d='M{float(to_x(end)):.1f},{y + 8.5}v{PART}' class='s-muted'"
            " fill='none' stroke-width='0.8'/>"
        )
        y += PART
    badge, total = scene["marks"][-1]
    out.append(text(10, y + 16, f"step, {badge}", size=11, weight=600))
    out.append(text(NUMBERS, y + 16, seconds(total), size=11, anchor="end", weight=600))
    x0, x1 = float(to_x(0.0)), float(to_x(total))
    out.append(f"<path d='{_box(x0, x1, y + 8.5, 9)}' class='f-rule s-fg' stroke-width='1'/>")
    return "".join(out)


def _part(name, x0, x1, y, height):
    """A bar of the waterfall, filled by what kind of time it is; unexplained an empty box."""
    if x1 - x0 < 0.05:
        return ""
    path = f"M{x0:.2f},{y}h{x1 - x0:.2f}v{height}H{x0:.2f}z"
    ink, pattern = INK_OF_PART.get(name, ("", ""))
    if not ink:
        return (
            f"<path d='{path}' class='s-fg' fill='none' stroke-width='1.1' stroke-dasharray='3 2'/>"
        )
    over = f"<path d='{path}' fill='url(#tpv-{pattern})'/>" if pattern != "solid" else ""
    edge = " stroke-width='1.6'" if name in ("straggler", "slow link") else " stroke-width='0.4'"
    return f"<path d='{path}' class='f-{ink} s-fg'{edge}/>{over}"


def _legend(scene, y, width):
    """What is drawn, in the order of the palette; then how predictions and ends are drawn."""
    used = set(scene["bars"]["key"]) | set(scene["outlines"]["key"])
    keys = [key for key in INKS if key in used and key != "exposed"]
    items = [(label_of(key, scene["axes"]), key) for key in keys]
    if scene["exposed"]["row"] or "exposed" in used:
        items.append((INKS["exposed"].label, "exposed"))
    items += [("predicted: outlines", "")] * scene["foreseen"]
    out, x = [], 10.0
    for label, key in items:
        if x + 24 + 5.7 * len(label) > width:
            x, y = 10.0, y + LINE + 2
        here = np.array([x]), np.array([x + 14.0])
        if key == "exposed":
            out.append(_exposed(*here, y, 11))
        elif key:
            out.append(_bars(*here, y, 11, _info(key, scene)))
        else:
            path = _box(x, x + 14, y, 11)
            out.append(f"<path d='{path}' class='s-fg' fill='none' stroke-width='1.2'/>")
        out.append(text(x + 19, y + 9.5, label, size=10.5))
        x += 36 + 5.7 * len(label)
    return "".join(out), y


def _words(scene, y, width):
    """The numbers and the verdict, wrapped."""
    numbers = "; ".join(f"{label}: {value}" for label, value in scene["numbers"])
    lines = [(line, "") for line in wrap(numbers, max(int((width - 20) / 6.0), 20))]
    lines += [(line, 600) for line in wrap(scene["verdict"], max(int((width - 20) / 6.6), 20))]
    out = [text(10, y + LINE * i, line, size=11.5, weight=w) for i, (line, w) in enumerate(lines)]
    return "".join(out), y + LINE * len(lines)
