"""Axes of charts: from values to px, and where ticks stand.

>>> scale = scale_of({"type": "log"}, [1, 100], 0, 200)
>>> round(scale.at(10), 6)
100.0
>>> scale_of({}, ["a", "b"], 0, 200).at("b")
150.0
"""

from collections.abc import Iterable, Mapping
from math import log10
from typing import Any, NamedTuple

from .svg import ticks, width_of

PAD = 0.06
"""Part of an axis that stays free beyond its first and last value."""


class Scale(NamedTuple):
    """An axis from ``low`` to ``high`` (the logarithms where it is ``log``), drawn from ``start``
    to ``end`` (px). names : of a category axis, whose places are slots of equal width."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    names: tuple[Any, ...] = ()

    def at(self, value: Any) -> float:
        """px of a value."""
        if self.names:
            value = self.names.index(value) + 0.5
        elif self.log:
            value = log10(value)
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    @property
    def slot(self) -> float:
        """px of a category."""
        return abs(self.end - self.start) / max(len(self.names), 1)


def scale_of(
    axis: Mapping[str, Any], values: Iterable[Any], start: float, end: float, over: float = 0
) -> Scale:
    """The `Scale` of an axis (`charts.axis`) with these values; None is no value.

    over : px that stay free beyond the largest value.
    """
    values = [v for v in values if v is not None]
    if axis.get("type") == "category" or any(isinstance(v, str) for v in values):
        names = tuple(dict.fromkeys([*axis.get("categoryarray", ()), *values]))
        if axis.get("autorange") == "reversed":
            start, end = end, start
        return Scale(0, max(len(names), 1), start, end, False, names)
    log = axis.get("type") == "log"
    if "range" in axis:
        low, high = axis["range"]
        return Scale(low, high, start, end)
    places = [log10(v) if log else v for v in values] or [0.0, 1.0]
    low, high = min(places), max(places)
    zero = axis.get("rangemode") == "tozero" and low >= 0
    low = 0.0 if zero else low
    span = (high - low) or abs(high) or 1.0
    more = over / max(abs(end - start) - over, 1) * span
    return Scale(low - (0 if zero else PAD * span), high + PAD * span + more, start, end, log)


def ticks_of(
    scale: Scale, axis: Mapping[str, Any], values: Iterable[Any], upright: bool
) -> list[tuple[float, str]]:
    """(px, words) of each tick of an axis; those of numbers are left out where they would stand
    on others. upright : whether the axis goes up, so that words stand one above the other."""
    if scale.names:
        return [(scale.at(name), str(name)) for name in scale.names]
    low, high = scale.low, scale.high
    if "tickvals" in axis:
        pairs = list(zip(axis["tickvals"], axis["ticktext"]))
    else:
        distinct = {v for v in values if v is not None}
        few = not upright and len(distinct) <= 8 and all(isinstance(v, int) for v in distinct)
        count = max(2, round(abs(scale.end - scale.start) / (45 if upright else 70)))
        pairs = [(v, f"{v:g}") for v in (sorted(distinct) if few else ticks(low, high, count))]
    shown = [(scale.at(v), v, words) for v, words in pairs if low <= _place(scale, v) <= high]
    if "tickvals" in axis and not scale.log:
        return [(px, words) for px, _, words in shown]
    kept = []
    for px, _, words in sorted(shown, key=lambda tick: scale.log and not _power(tick[1])):
        room = 15 if upright else width_of(words) + 8
        if all(
            abs(px - other) >= (room if upright else (room + wide) / 2) for other, wide, _ in kept
        ):
            kept.append((px, room, words))
    return [(px, words) for px, _, words in sorted(kept)]


def _place(scale, value):
    return log10(value) if scale.log else value


def _power(value):
    """Whether it is a power of ten."""
    return abs(log10(value) - round(log10(value))) < 1e-9
