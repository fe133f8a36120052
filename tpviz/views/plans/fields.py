"""The knobs of a class by its fields, and what is said of them."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from html import escape
from math import prod
from typing import Any

from tpviz.views.figures.tokens import TYPE


def knob_fields(cls: type) -> list[Field[Any]]:
    """The fields of a strategy class that are knobs (made by `tpviz.schemes.knobs.knob`), in
    order."""
    return [f for f in fields(cls) if "help" in f.metadata and f.default is not MISSING]


def is_pair(value: Any) -> bool:
    """Whether a knob's value is the shape of a mesh of two axes."""
    return isinstance(value, tuple) and len(value) == 2 and all(type(n) is int for n in value)


def pairs(most: int) -> list[tuple[int, int]]:
    """All meshes of two axes with at most so many ranks."""
    return [(a, b) for a in range(1, most + 1) for b in range(1, most // a + 1)]


def label(value: Any) -> str:
    """A value of a knob as a menu shows it."""
    if is_pair(value):
        return f"{value[0]} x {value[1]}, {prod(value)} rank{'s' * (prod(value) > 1)}"
    lines = isinstance(value, str) and "\n" in value  # a schedule of one's own
    return "own" if lines else f"{value:,}" if type(value) is int else str(value)


def small_html(text: str) -> str:
    """Small print as HTML; Lab's own line height would leave a whole empty line between two."""
    return f"<div style='line-height:1.25;font-size:{TYPE['small']}px'>{escape(text)}</div>"


def gave_words(gave: Mapping[str, tuple[Any, Any]], why: str = "") -> str:
    """Which knobs gave way to the one moved, of {name: (before, after)}, and why."""
    words = ", ".join(f"{n} {old} \N{RIGHTWARDS ARROW} {new}" for n, (old, new) in gave.items())
    why = why.partition("; the nearest")[0]  # that is what was changed
    return words and f"Changed so that all fits: {words}{f' ({why})' if why else ''}."
