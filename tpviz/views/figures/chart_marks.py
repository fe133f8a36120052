"""What stands in the panels of charts: lines, markers, bars, cells, error bars, rules, labels.

Points, bars and cells say their values where the mouse rests. Labels keep off each other, and off
points and lines where there is room.
"""

from collections.abc import Iterable
from html import escape
from itertools import chain, pairwise
from math import cos, hypot, pi, sin
from typing import Any, NamedTuple

import numpy as np

from .scales import Scale
from .svg import SMALL, lines, outline, rect, swatch, text, width_of, wrapped

SIZE, LINE, LETTER, TALL = SMALL, 16, 7.5, 20
"""px: of text, of a line of it, of a letter, about; height of a label with an arrow."""
BAR, WIDEST, CLEAR = 0.74, 96, 8
"""Part of a slot that bars fill, and the most px; px between a label and points."""
DASHES = {"solid": "", "dot": "2 3", "dash": "7 4", "dashdot": "8 3 2 3"}
PATTERNS = {
    "": "solid",
    "/": "diagonal",
    "\\": "back",
    ".": "dots",
    "x": "cross",
    "+": "plus",
    "-": "lines",
    "|": "vertical",
}
"""plotly's pattern -> ours."""
STAR = ((r * sin(k * pi / 5), -r * cos(k * pi / 5)) for k, r in enumerate((1.3, 0.55) * 5))
SHAPES = {
    "circle": "M-1,0a1,1 0 1,0 2,0a1,1 0 1,0 -2,0z",
    "square": "M-.9,-.9h1.8v1.8h-1.8z",
    "diamond": "M0,-1.25L1.25,0L0,1.25L-1.25,0z",
    "triangle-up": "M0,-1.15L1.1,.85H-1.1z",
    "triangle-left": "M-1.15,0L.85,1.1V-1.1z",
    "triangle-right": "M1.15,0L-.85,1.1V-1.1z",
    "star": f"M{'L'.join(f'{x:.3f},{y:.3f}' for x, y in STAR)}z",
    "x": "M-.9,-.9L.9,.9M-.9,.9L.9,-.9",
    "cross": "M-1.1,0H1.1M0,-1.1V1.1",
    "line-ns": "M0,-1V1",
}
"""plotly's marker -> its path, about 1 around its middle."""
STROKES = ("x", "cross", "line-ns")
"""Markers that are lines alone."""

Box = tuple[float, float, float, float]
"""left, top, right, bottom (px)."""


class Plot(NamedTuple):
    """Where a panel draws: its scales; title, axis titles; what labels keep off: ``points``, arrays
    (n, 2) of px, and ``boxes`` of other labels."""

    x: Scale
    y: Scale
    title: str
    x_title: str
    y_title: str
    points: list[np.ndarray]
    boxes: list[Box]

    @property
    def frame(self) -> Box:
        """Its edges."""
        top, bottom = sorted((self.y.start, self.y.end))
        return self.x.start, top, self.x.end, bottom


def ink_of(color: str) -> tuple[str, float]:
    """The ink of a colour, and how much of it is mixed with the page.

    >>> ink_of("ink:forward/0.5"), ink_of("ink:axis0")
    (('forward', 0.5), ('axis0', 1.0))
    """
    ink, _, part = color.removeprefix("ink:").partition("/")
    return ink, float(part or 1)


def drawn(
    trace: dict[str, Any], plot: Plot, beside: tuple[int, int], base: dict[Any, float]
) -> str:
    """A trace. beside : (number of its bars, how many stand side by side). base : {place: top of
    the bars there so far}, which a stack adds to."""
    if trace["type"] == "bar":
        return _bars(trace, plot, *beside, base)
    return (_cells if trace["type"] == "heatmap" else _scatter)(trace, plot)


def sample(trace: dict[str, Any], x: float, y: float) -> str:
    """A trace in the legend, 26 px wide and 12 high."""
    if trace["type"] == "bar":
        return _bar(trace, x, y, 26, 12)
    if trace["type"] == "heatmap":
        (_, low), _, (_, high) = trace["colorscale"]
        ends = (low, 1), (low, 0.5), (high, 0.5), (high, 1)
        cells = (_faint(x + 6.5 * i, y, 6.5, 12, end, part) for i, (end, part) in enumerate(ends))
        return "".join(cells) + outline(x, y, 26, 12, "rule")
    out = ""
    if "lines" in trace["mode"]:
        out += _line(f"M{x:.1f},{y + 6:.1f}h26", trace["line"])
    if "markers" in trace["mode"]:
        small = {**trace["marker"], "size": min(trace["marker"]["size"], 12)}
        usual = (
            small["symbol"] if isinstance(small["symbol"], str) else min(small["symbol"], key=len)
        )
        out += _marker({**small, "symbol": usual}, 0, x + 13, y + 6)
    return out


# -- traces ----------------------------------------------------------------------------------------
def _hover(*rows):
    """A ``<title>``, a line for each (what it is, value)."""
    words = []
    for what, value in rows:
        value = f"{value:.4g}" if isinstance(value, float) else str(value)
        words += [f"{what}: {value}" if what else value] * bool(value)
    return f"<title>{escape(chr(10).join(words))}</title>"


def _bars(trace, plot, number, count, base):
    both, out = min(BAR * plot.x.slot, WIDEST), ""
    wide = both / count
    for place, value in zip(trace["x"], trace["y"]):
        low = base.get(place, 0.0)
        left = plot.x.at(place) - both / 2 + number * wide
        up, down = plot.y.at(low + value), plot.y.at(low)
        if count == 1:
            base[place] = low + value
        words = _hover((plot.x_title, place), ("", trace["name"]), (plot.title, float(value)))
        out += f"<g>{words}{_bar(trace, left, up, wide, down - up)}</g>"
    return out


def _bar(trace, x, y, wide, tall):
    ink, over = ink_of(trace["marker"]["color"])[0], trace["marker"]["pattern"]
    waits = " exposed" * (over["fgcolor"] == "ink:exposed")
    return swatch(x, y, wide, tall, ink, PATTERNS[over["shape"]] + waits)


def _cells(trace, plot):
    """A heat map: fainter towards 0."""
    (_, low), _, (_, high) = trace["colorscale"]
    out, wide, tall = "", plot.x.slot - 2, plot.y.slot - 2
    for name, numbers, texts in zip(trace["y"], trace["z"], trace["text"]):
        for place, z, words in zip(trace["x"], numbers, texts):
            if z is None:
                continue
            x, y = plot.x.at(place), plot.y.at(name)
            box, part = (x - wide / 2, y - tall / 2, wide, tall), min(abs(z) / trace["zmax"], 1)
            out += f"<g>{_hover(('', name), ('', place), (trace['name'], words))}"
            out += _faint(*box, high if z > 0 else low, part) + outline(*box, "rule")
            out += middled(x, y, wrapped(words, int(wide / LETTER)), "fg", "middle") + "</g>"
    return out


def _faint(x, y, wide, tall, color, part):
    ink, most = ink_of(color)
    return rect(x, y, wide, tall, ink, f"fill-opacity='{most * part:.3f}'")


def middled(x: float, y: float, rows: list[str], token: str, anchor: str) -> str:
    """Rows of text whose middle is at y."""
    return lines(x, y + 4.2 - LINE * (len(rows) - 1) / 2, rows, LINE, token, SIZE, anchor)


def _scatter(trace, plot):
    """Lines and markers; their places become points of the plot."""
    pairs = list(zip(trace["x"], trace["y"]))
    at = [None if None in pair else (plot.x.at(pair[0]), plot.y.at(pair[1])) for pair in pairs]
    out = ""
    plot.points.append(np.array([p for p in at if p]).reshape(-1, 2))
    if "lines" in trace["mode"]:
        for a, b in ((a, b) for a, b in pairwise(at) if a and b):
            steps = np.linspace(0, 1, 2 + int(hypot(b[0] - a[0], b[1] - a[1]) / 6))[:, None]
            plot.points.append(np.array(a) + steps * (np.array(b) - a))
        path = "".join(
            f"{'L' if before else 'M'}{p[0]:.2f},{p[1]:.2f}"
            for before, p in pairwise([None, *at])
            if p
        )
        out += _line(path, trace["line"])
    if "markers" in trace["mode"]:
        out += _errors(trace, plot, at)
        texts = trace.get("text") or [""] * len(at)
        for i, p in enumerate(at):
            if p:
                x, y = (v if isinstance(v, str) else float(v) for v in pairs[i])
                title = plot.y_title or plot.title
                words = _hover(("", trace["name"]), ("", texts[i]), (plot.x_title, x), (title, y))
                out += _marker(trace["marker"], i, *p, words)
    return out


def _line(path, look):
    ink = ink_of(look["color"])[0]
    return _stroke(path, ink, look["dash"], f"stroke-width='{look['width']}'")


def _stroke(path, ink, dash="solid", extra=""):
    broken = f" stroke-dasharray='{DASHES[dash]}'" if DASHES[dash] else ""
    return f"<path d='{path}' class='s-{ink}' fill='none'{broken} {extra}/>"


def _marker(marker, number, x, y, words=""):
    """One of a trace's markers."""
    symbol, (ink, _) = marker["symbol"], ink_of(marker["color"])
    symbol = symbol if isinstance(symbol, str) else symbol[number]
    name, size = symbol.removesuffix("-open"), marker["size"] / 2
    look = f"class='f-{ink}'"
    if name in STROKES or name != symbol:
        look = f"class='s-{ink}' fill='none' stroke-width='{2 / size:.3f}' pointer-events='all'"
    place = f"transform='translate({x:.2f} {y:.2f}) scale({size:g})'"
    return f"<path d='{SHAPES[name]}' {place} {look}>{words}</path>"


def _errors(trace, plot, at):
    """Error bars along both axes, with caps."""
    path = ""
    for way, scale in (("x", plot.x), ("y", plot.y)):
        for low, high, (x, y) in zip(*_ends(trace, way), at):
            low, high = f"{scale.at(low):.2f}", f"{scale.at(high):.2f}"
            if way == "x":
                path += f"M{low},{y - 5:.2f}v10M{low},{y:.2f}H{high}m0,-5v10"
            else:
                path += f"M{x - 5:.2f},{low}h10M{x:.2f},{low}V{high}m-5,0h10"
    return path and _stroke(path, ink_of(trace["marker"]["color"])[0], extra="stroke-width='1.6'")


def _ends(trace, way):
    """(lower, upper) ends of error bars."""
    error = trace.get(f"error_{way}", {"array": [], "arrayminus": []})
    low = [value - down for value, down in zip(trace[way], error["arrayminus"])]
    return low, [value + up for value, up in zip(trace[way], error["array"])]


def values_of(one: dict[str, Any], way: str) -> list[Any]:
    """Numbers or names of a panel on its "x" or "y" axis: of traces, error bars, rules, labels."""
    values = [at[way] for at in (*one["rules"], *one["marks"]) if way in at]
    for trace in one["traces"]:
        low, high = _ends(trace, way)
        values = [*trace[way], *low, *high, *values]
    return values


# -- rules and labels ------------------------------------------------------------------------------
def rule_line(rule: dict[str, Any], plot: Plot) -> str:
    """A line across a panel."""
    left, top, right, bottom = plot.frame
    if "x" in rule:
        return _stroke(f"M{plot.x.at(rule['x']):.2f},{top:.1f}V{bottom:.1f}", "fg", rule["dash"])
    return _stroke(f"M{left:.1f},{plot.y.at(rule['y']):.2f}H{right:.1f}", "fg", rule["dash"])


def rule_words(rule: dict[str, Any], plot: Plot) -> str:
    """The words beside a line across a panel."""
    if not rule["text"]:
        return ""
    wide, (left, top, right, bottom) = width_of(rule["text"]), plot.frame
    if "x" in rule:
        at = plot.x.at(rule["x"])
        corners = [(x, y) for y in (top + 2, bottom - 18) for x in (at + 4, at - 4 - wide)]
    else:
        at = plot.y.at(rule["y"])
        corners = [(x, y) for y in (at - 17, at + 3) for x in (right - wide - 4, left + 4)]
    x, y, _, _ = _free(((x, y, x + wide, y + LINE) for x, y in corners), plot)
    return text(x, y + 12, rule["text"], size=SIZE)


def labels(marks: Iterable[dict[str, Any]], plot: Plot) -> str:
    """The labels of a panel (`charts.label`), their words over all arrows."""
    drawn = [(_pointer if mark["ink"] else _above)(mark, plot) for mark in marks]
    return "".join(chain(*zip(*drawn)))


def _free(boxes, plot, to=None):
    """Of these boxes the one with least in it: other labels, then points; of equals the first. to :
    the end of its arrow, which crosses no other label, nor is crossed by one."""
    frame, points = plot.frame, np.concatenate([np.empty((0, 2)), *plot.points])

    def cost(box):
        left, top, right, bottom = box
        out = max(frame[0] - left, frame[1] - top, right - frame[2], bottom - frame[3], 0)
        others = (
            min(right, r) > max(left, a) and min(bottom, b) > max(top, t)
            for a, t, r, b in plot.boxes
        )
        near = (points > (left - CLEAR, top - CLEAR)) & (points < (right + CLEAR, bottom + CLEAR))
        way = _way(box, to) if to else np.empty((0, 2))
        crossed = sum(
            ((way > (a, t)) & (way < (r, b))).all(axis=1).any() for a, t, r, b in plot.boxes
        )
        return (
            1000 * (out > 0)
            + 10 * out
            + 100 * (sum(others) + crossed)
            + int(near.all(axis=1).sum())
        )

    best = min(boxes, key=cost)
    plot.boxes.append(best)
    if to:
        plot.points.append(np.repeat(_way(best, to)[:-2], 9, axis=0))
    return best


def _way(box, to):
    """Points along a box's arrow, (n, 2) px."""
    start = np.clip(to, box[:2], box[2:])
    return start + np.linspace(0, 1, 12)[:, None] * (np.array(to) - start)


def _above(mark, plot):
    """Words above a point, further up where others stand."""
    rows = mark["text"].split("\n")
    wide, tall = max(map(width_of, rows)) / 2, LINE * len(rows)
    x, y = plot.x.at(mark["x"]), plot.y.at(mark["y"]) - 4
    ups = range(0, 60, LINE)
    _, top, _, _ = _free(((x - wide, y - up - tall, x + wide, y - up) for up in ups), plot)
    return "", lines(x, top + 12, rows, LINE, "fg", SIZE, "middle")


def _pointer(mark, plot):
    """Words in the ink of a line, where there is room, and an arrow to their point."""
    room, ink = plot.frame[2] - plot.frame[0] - 16, mark["ink"]
    rows = wrapped(mark["text"], max(8, int(room / LETTER)))
    wide, tall = max(map(width_of, rows)) + 12, TALL + LINE * (len(rows) - 1)
    x, y = plot.x.at(mark["x"]), plot.y.at(mark["y"])
    left, top, right, bottom = _free(_around(x, y, wide, tall), plot, (x, y))
    from_x, from_y = min(max(x, left), right), min(max(y, top), bottom)
    length = max(hypot(x - from_x, y - from_y), 1)
    to_x, to_y = x + 7 * (from_x - x) / length, y + 7 * (from_y - y) / length
    turn = np.degrees(np.arctan2(y - from_y, x - from_x))
    return (
        _stroke(
            f"M{from_x:.1f},{from_y:.1f}L{to_x:.1f},{to_y:.1f}", ink, extra="stroke-width='1.5'"
        )
        + f"<path d='M0,0l-7,-3.5v7z' transform='translate({to_x:.1f} {to_y:.1f})"
        f" rotate({turn:.0f})' class='f-{ink}'/>",
        rect(left, top, wide, tall, ink, "rx='3'")
        + lines(left + 6, top + 13.3, rows, LINE, f"on-{ink}", SIZE),
    )


def _around(x: float, y: float, wide: float, tall: float) -> Iterable[Box]:
    """Places of a label around a point, the nearest first."""
    for far in range(24, 200, 16):
        for turn in range(16):
            across, up = far * cos(turn * pi / 8), far * sin(turn * pi / 8)
            left = x + across - wide / 2 + np.sign(round(across)) * wide / 2
            yield left, y + up - tall / 2, left + wide, y + up + tall / 2
