"""Lanes over time as SVG: bars and their patterns, names, arrows, time axes, play-heads.

A view defines its lanes, bars and labels and their places; this module defines the look of each
kind of mark. `MARKS` has every mark by its name, for lanes and for the legend (`legend.legend`).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tpviz.core.trace.analyses import merge

from .svg import bars_path, outline, rect, seconds, shape, swatch, text, ticks

APART = 56  # px of a time axis, at least, to a time in words
SUBPIXEL = 0.35  # px; bars closer than that are drawn as one
IDLE = 34  # px of an idle span, at least, to its name
MESSAGE = "axis2"  # the ink of what travels along pp


class Axis(NamedTuple):
    """The times from ``low`` to ``high`` (s), from ``left`` to ``right`` (px)."""

    left: float
    right: float
    low: float
    high: float

    def x(self, time: Any) -> np.ndarray:
        """px of a time (s), or of an array of times; outside of the axis that of its end."""
        scale = (self.right - self.left) / (self.high - self.low)
        return self.left + (np.clip(time, self.low, self.high) - self.low) * scale

    def spans(self, start: Any, end: Any) -> tuple[np.ndarray, np.ndarray]:
        """(left, right) px of bars: those on the axis, joined where too close to tell apart."""
        x0, x1 = self.x(start), self.x(end)
        shown = x1 > x0
        x0, x1 = merge(x0[shown], x1[shown] + SUBPIXEL)
        return x0, x1 - SUBPIXEL

    def rules(self, top: float, bottom: float, y: float) -> str:
        """A line from ``top`` to ``bottom`` at every round time, and the time in words at ``y``."""
        return "".join(
            f"<path d='M{x:.1f},{top}V{bottom}' class='s-rule' fill='none'/>"
            + text(x, y, seconds(time, 4), "muted", anchor="middle")
            for time in ticks(self.low, self.high, min(8, (self.right - self.left) / APART))
            for x in [float(self.x(time))]
        )


def axis_below(
    left: float, y: float, scale: float, duration: float, says: Callable[[float], str]
) -> str:
    """A time axis under lanes, from 0 to ``duration``, its name at the left edge. scale : px of a
    unit of time; says : a time in words."""
    out = ""
    for time in ticks(0, duration, min(10, duration * scale / APART)):
        x = left + time * scale
        out += f"<path d='M{x:.1f},{y:g}v5' class='s-muted'/>"
        out += text(x, y + 17, says(time), "muted", anchor="middle")
    line = f"<path d='M{left},{y:g}H{left + duration * scale:.1f}' class='s-muted'/>"
    return f"{line}<g data-axis=''>{out}</g>{text(0, y + 17, 'time', 'muted')}"


def zoomable(
    left: float, right: float, y: float, duration: float, unit: str
) -> dict[str, float | str]:
    """A time axis (px) for a page that zooms; unit : "s", or "" of times without one."""
    return {"left": left, "right": right, "y": y, "duration": duration, "unit": unit}


def timed(drawn: str) -> str:
    """SVG on a time axis, which moves where a page zooms; see `tpviz.views.widgets.base.Film`."""
    return f"<g data-timed='' clip-path='url(#tpv-window)'>{drawn}</g>"


def window(left: float, right: float, bottom: float) -> str:
    """The part of the picture (px) in which `timed` is seen."""
    place = f"x='{left - 3}' width='{right - left + 6}' height='{bottom:g}'"
    return f"<clipPath id='tpv-window'><rect {place}/></clipPath>"


def play_head(scene: dict[str, Any], x: float) -> str:
    """The play-head of a scene with ``head`` and ``foot`` (px), at x."""
    return (
        f"<path d='M{x},{scene['head']}V{scene['foot']}' class='s-fg' stroke-width='1.4'/>"
        f"<path d='M{x},{scene['head']}l-5,-6h10z' class='f-fg'/>"
    )


# -- bars ------------------------------------------------------------------------------------------
def bars(x0: np.ndarray, x1: np.ndarray, top: float, height: float, key: str) -> str:
    """Bars of one ink on a lane."""
    return shape(bars_path(x0, x1, top, height), key)


def spans(x0: np.ndarray, x1: np.ndarray, top: float, height: float, kind: str) -> str:
    """Spans of exposed communication or of idle time, in which a lane has no bars."""
    return shape(bars_path(x0, x1, top, height), kind, kind)


def idle_word(x0: np.ndarray, x1: np.ndarray, top: float, height: float) -> str:
    """The name of the longest of these spans, where it is wide enough."""
    at = int((x1 - x0).argmax()) if len(x0) else 0
    if not len(x0) or x1[at] - x0[at] < IDLE:
        return ""
    return text((x0[at] + x1[at]) / 2, top + height / 2 + 4.5, "idle", "muted", anchor="middle")


def inset(x0: Sequence[float], x1: Sequence[float], top: float, height: float) -> str:
    """The path of boxes drawn within their spans, so that neighbours do not share a line."""
    return "".join(
        f"M{a + edge:.2f},{top}h{b - a - 2 * edge:.2f}v{height}H{a + edge:.2f}z"
        for a, b in zip(x0, x1)
        for edge in [min(0.6, (b - a) / 4)]
    )


def outlines(
    x0: Sequence[float], x1: Sequence[float], top: float, height: float, token: str, extra: str = ""
) -> str:
    """Unfilled bars: what is predicted."""
    return f"<path d='{inset(x0, x1, top, height)}' class='s-{token}' fill='none' {extra}/>"


def box(x: float, y: float, width: float, height: float) -> str:
    """The path of a bar, in px; finely, since a page may zoom."""
    return f"M{x:.2f},{y:g}h{width:.2f}v{height:g}h-{width:.2f}z"


def idle(x: float, y: float, width: float, height: float) -> str:
    """Idle time, or a lane of it."""
    return swatch(x, y, width, height, "idle", "idle")


def ring(
    x: float, y: float, width: float, height: float, rx: float, stroke: float, extra: str = ""
) -> str:
    """A ring around what is chosen, on a wider one that parts it from any bar."""
    place = x, y, width, height
    return outline(*place, "bg", 5, rx) + outline(*place, "fg", stroke, rx, extra)


# -- the marks of legends --------------------------------------------------------------------------
def _one(mark, *looks):
    """A mark of bars as a mark of a legend."""
    return lambda x, y, width, height: mark(
        np.array([float(x)]), np.array([float(x + width)]), y, height, *looks
    )


MARKS: dict[str, Callable[[float, float, float, float], str]] = {
    "exposed": _one(spans, "exposed"),
    "predicted": _one(outlines, "fg", "stroke-width='1.2'"),
    "idle": idle,
    "message": lambda x, y, width, height: (
        f"<path d='M{x},{y + 5}h{width}' class='s-{MESSAGE}' stroke-width='1.8'/>"
    ),
    "mean": lambda x, y, width, height: (
        f"<path d='M{x + 4},{y - 1}v13' class='s-fg' stroke-width='1.2'/>"
    ),
    "pale": lambda x, y, width, height: (
        rect(x, y, width, height, "activations", "fill-opacity='.16'")
        + outline(x, y, width, height, "fg", 0.8)
    ),
    "partial": lambda x, y, width, height: (
        outline(x + 4, y - 3, width - 4, height - 1, "activations", 1.2)
        + rect(x, y + 1, width - 4, height - 1, "activations", "fill-opacity='.75'")
        + outline(x, y + 1, width - 4, height - 1, "fg", 0.8)
    ),
}
"""{name: what draws the mark in a box, given by its x, y, width and height in px}; other names are
inks of `tokens.INKS`."""


def mark(name: str, x: float, y: float, width: float, height: float) -> str:
    """The mark of a legend: one of `MARKS`, an ink, or "memory " and its ink: a lower bar."""
    if name.startswith("memory "):
        return swatch(x, y + height / 2, width, height / 2, name.removeprefix("memory "))
    return MARKS[name](x, y, width, height) if name in MARKS else swatch(x, y, width, height, name)
