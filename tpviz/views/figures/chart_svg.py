"""Charts as SVG: a scene of `tpviz.core.charts`, drawn in Python, in the page's theme.

Panels stand side by side while the words of their axes fit, else one below the other. A trace is a
``<g class='tpv-trace'>`` in the ``<g class='tpv-panel'>`` of its panel.
"""

from collections.abc import Sequence
from html import escape
from itertools import chain, pairwise
from typing import Any

from .chart_marks import (
    LETTER,
    LINE,
    SIZE,
    Plot,
    drawn,
    labels,
    middled,
    rule_line,
    rule_words,
    sample,
    values_of,
)
from .legend import legend
from .scales import scale_of, ticks_of
from .svg import VIEW, badge, document, lines, meanings, pattern_defs, text, width_of, wrapped

WIDTH, PLOT, SLOT, LEFT, GAP, LEAST = VIEW, 230, 30, 10, 26, 190
"""px: of the picture; height of a panel, and of a category in it; free at the left, and between
panels; least width of a panel."""
LEGIBLE = WIDTH
"""px to which a chart may shrink: its text stays as large as any small text."""
ROW = 34
"""Most letters in a line of the name of a category on a y axis."""


def chart_svg(scene: dict[str, Any], theme: str = "auto") -> str:
    """Draw a scene; theme "light", "dark", "auto" or "page"."""
    rows = wrapped(scene["title"], int((WIDTH - 2 * LEFT) / 9.3))
    body = [pattern_defs()]
    body += [text(LEFT, 22 + 19 * i, row, size=16, weight=700) for i, row in enumerate(rows)]
    x, y = LEFT, 12 + 19 * len(rows)
    for words in scene["badges"]:
        if x > LEFT and x + 8.4 * len(words) + 18 > WIDTH - LEFT:
            x, y = LEFT, y + 25
        frame, wide = badge(x, y, words)
        body.append(frame)
        x += wide + 8
    panels, y = _panels(scene, y + 33)
    names, y = _names(scene, y + 6)
    notes = filter(None, [" ".join(meanings(scene["badges"])), *scene["notes"]])
    notes = [row for note in notes for row in wrapped(note, int((WIDTH - 2 * LEFT) / 7.0))]
    body += [panels, names, lines(LEFT, y + 20, notes, 16, "muted", SIZE)]
    return document(WIDTH, y + 12 + 16 * len(notes), body, scene["title"], theme, scene["alt"])


def _names(scene, y):
    """(the legend: every name once, y below it)."""
    items = {}
    for trace in chain(*(one["traces"] for one in scene["panels"])):
        if trace["x"] and trace.get("showlegend", True):
            items.setdefault(trace["name"], {})[trace.get("mode", trace["type"])] = trace
    draw = lambda of: lambda x, y: "".join(sample(trace, x, y) for trace in of.values())
    marks = [(draw(of), name) for name, of in items.items()]
    out, y = legend(marks, LEFT, y, WIDTH, 26)
    return out, y + 14


class _Panel:
    """A panel before its place is chosen. others : the panels whose y axis it has."""

    def __init__(self, one: dict[str, Any], others: Sequence[dict[str, Any]], stack: bool):
        self.one = one
        bars = [trace for trace in one["traces"] if trace["type"] == "bar"]
        self.beside = 1 if stack else len(bars)
        self.x, self.y = one["x"], one["y"]
        if bars:
            self.x, self.y = {"type": "category", **self.x}, {"rangemode": "tozero", **self.y}
        self.x_values = values_of(one, "x")
        self.y_values = list(chain(*(values_of(other, "y") for other in others)))
        if bars and stack:
            for o in others:
                heights = (t["y"] for t in o["traces"] if t["type"] == "bar")
                self.y_values += map(sum, zip(*heights))
        self.names = scale_of(self.x, self.x_values, 0, 1).names
        rows = scale_of(self.y, self.y_values, 0, 1).names
        self.rows = {str(name): wrapped(str(name), ROW) for name in rows}
        most = max(map(len, self.rows.values()), default=0)
        self.height = len(rows) * max(SLOT, LINE * most + 4) if rows else PLOT
        over = 36 if any(not mark["ink"] for mark in one["marks"]) else 0
        self.up = scale_of(self.y, self.y_values, self.height, 0, over)
        self.ticks = ticks_of(self.up, self.y, self.y_values, True)
        self.share = max(3, len(self.names)) if self.names else 5

    @property
    def margin(self):
        """px for the words of the y axis."""
        words = chain(*self.rows.values()) if self.rows else (words for _, words in self.ticks)
        return 10 + max(map(width_of, words), default=0) + (18 if self.y.get("title") else 0)

    def fits(self, wide):
        """Whether the words of the x axis fit a plot so wide."""
        words = (word for name in self.names for word in str(name).split())
        most = max(map(width_of, words), default=0)
        return most <= wide / len(self.names) - 6 if self.names else wide >= LEAST


def _panels(scene, y):
    """(all panels, y below them)."""
    shared, all_of_them = scene.get("shared_y", False), scene["panels"]
    panels = [
        _Panel(one, all_of_them if shared else [one], scene.get("stack", False))
        for one in all_of_them
    ]
    most, out = 2 if len(panels) == 4 else min(3, len(panels)), ""
    for columns in (*range(most, 0, -1), most):
        rows = [panels[i : i + columns] for i in range(0, len(panels), columns)]
        unit = min(_unit(row, shared) for row in rows)
        if all(panel.fits(unit * panel.share) for panel in panels):
            break
    for row in rows:
        titles = [wrapped(panel.one["title"], int(unit * panel.share / 7.8)) for panel in row]
        top = y + LINE * max(map(len, titles)) + 8
        x, lows = LEFT, []
        for panel, title in zip(row, titles):
            named = not shared or panel is row[0]
            x += panel.margin * named
            heading = lines(x, top - 9 - LINE * (len(title) - 1), title, LINE, "fg")
            drawing, low = _panel(panel, x, top, unit * panel.share, named)
            out += f"<g class='tpv-panel'><g font-weight='700'>{heading}</g>{drawing}</g>"
            lows.append(low)
            x += unit * panel.share + GAP
        y = max(lows) + 12
    return out, y


def _unit(row, shared):
    """px of a share of the plots in a row."""
    margins = sum(panel.margin for panel in (row[:1] if shared else row))
    free = WIDTH - 2 * LEFT - margins - GAP * (len(row) - 1)
    return free / sum(panel.share for panel in row)


def _panel(panel, left, top, wide, named):
    """(a panel, y below its axis). named : whether its y axis has words."""
    one, up = panel.one, panel.up
    y = up._replace(start=up.start + top, end=up.end + top)
    x = scale_of(panel.x, panel.x_values, left, left + wide)
    titles = one["title"], panel.x.get("title", ""), panel.y.get("title", "")
    plot, base = Plot(x, y, *titles, [], []), {}
    out = _y_axis(panel, plot, named)
    below, low = _x_axis(panel, plot)
    out += below + "".join(rule_line(rule, plot) for rule in one["rules"])
    traces = list(enumerate(one["traces"]))
    if all(trace.get("mode") == "lines+markers" for trace in one["traces"]):
        traces.reverse()  # so that dotted lines and hollow markers stand on what they coincide with
    for number, trace in traces:
        beside = (0, 1) if panel.beside == 1 else (number, panel.beside)
        name = escape(trace["name"], True)
        out += f"<g class='tpv-trace' data-name='{name}'>{drawn(trace, plot, beside, base)}</g>"
    out += "".join(rule_words(rule, plot) for rule in one["rules"])
    return out + labels(one["marks"], plot), low


def _y_axis(panel, plot, named):
    left, top, right, bottom = plot.frame
    out = f"<path d='M{left:.1f},{top:.1f}V{bottom:.1f}H{right:.1f}' class='s-muted' fill='none'/>"
    for at, words in panel.ticks:
        at += top
        if not plot.y.names:
            out += f"<path d='M{left:.1f},{at:.2f}H{right:.1f}' class='s-rule' fill='none'/>"
        if named:
            out += middled(left - 8, at, panel.rows.get(words, [words]), "muted", "end")
    if named and plot.y_title:
        x, y = left - panel.margin + 12, (top + bottom) / 2
        turn = f"transform='rotate(-90 {x:.1f} {y:.1f})'"
        out += text(x, y, plot.y_title, "muted", SIZE, "middle", extra=turn)
    return out


def _x_axis(panel, plot):
    """(grid, words, y below them); names in several lines, and upright where they have no room."""
    left, top, right, bottom = plot.frame
    ticks, out, tall = ticks_of(plot.x, panel.x, panel.x_values, False), "", 0
    crowd = (
        not panel.fits(right - left)
        if plot.x.names
        else any(
            b - a < (width_of(one) + width_of(other)) / 2 + 2
            for (a, one), (b, other) in pairwise(ticks)
        )
    )
    for at, words in ticks:
        if not plot.x.names:
            out += f"<path d='M{at:.2f},{top:.1f}V{bottom:.1f}' class='s-rule' fill='none'/>"
        if crowd:
            turn = f"transform='rotate(-90 {at + 4:.1f} {bottom + 6:.1f})'"
            out += text(at + 4, bottom + 6, words, "muted", SIZE, "end", extra=turn)
            tall = max(tall, width_of(words) + 6)
        else:
            longest = max(map(len, words.split()), default=1)
            room = max(int(plot.x.slot / LETTER), longest) if plot.x.names else len(words)
            rows = wrapped(words, room)
            out += lines(at, bottom + 17, rows, LINE, "muted", SIZE, "middle")
            tall = max(tall, LINE * len(rows))
    low = bottom + 4 + tall
    if plot.x_title:
        rows = wrapped(plot.x_title, int((right - left) / LETTER))
        out += lines((left + right) / 2, low + 16, rows, LINE, "muted", SIZE, "middle")
        low += 2 + LINE * len(rows)
    return out, low + 4
