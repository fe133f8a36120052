"""Small helpers shared by the figures: SVG text, readable numbers, round ticks. NumPy only."""

import math
import re
from html import escape
from typing import Any

import numpy as np

from tpviz.checks import whole_number

from .palette import PATTERNS

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
FONT = "font-family='system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif'"


def text(
    x: float,
    y: float,
    content: object,
    token: str = "fg",
    size: float = 11,
    anchor: str = "start",
    weight: int | str = "",
    extra: str = "",
) -> str:
    """An SVG ``<text>``; content is escaped."""
    bold = f" font-weight='{weight}'" if weight else ""
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' class='f-{token}' font-size='{size}'"
        f" text-anchor='{anchor}'{bold} {extra}>{escape(str(content))}</text>"
    )


def rect(x: float, y: float, width: float, height: float, token: str, extra: str = "") -> str:
    """An SVG ``<rect>`` filled with a palette token ("" leaves the fill to ``extra``)."""
    fill = f" class='f-{token}'" if token else ""
    return (
        f"<rect x='{x:.2f}' y='{y:.2f}' width='{max(width, 0):.2f}'"
        f" height='{max(height, 0):.2f}'{fill} {extra}/>"
    )


def document(
    width: float, height: float, body: str, label: str, style: str, theme: str = "auto"
) -> str:
    """A whole SVG with its own background, so that it reads on any page.

    Pattern ids carry the theme: pictures of both themes can stand in one HTML page.
    """
    body = body.replace("url(#tpv-", f"url(#tpv-{theme}-").replace("id='tpv-", f"id='tpv-{theme}-")
    return clean(
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:.0f} {height:.0f}'"
        f" width='{width:.0f}' height='{height:.0f}' class='tpv-{theme}' role='img'"
        f" aria-label='{escape(label, quote=True)}' {FONT}>{style}"
        f"{rect(0, 0, width, height, 'bg')}{body}</svg>"
    )


def clean(markup: str) -> str:
    """SVG or HTML with the replacement character for what XML cannot hold: control characters,
    and lone surrogates, which no UTF-8 file can hold either."""
    return _NO_XML.sub("\ufffd", markup)


def head(scene: dict[str, Any]) -> str:
    """The badge and the title of a scene, on top of a picture that stands alone."""
    size = 6.3 * len(scene["badge"]) + 16
    return (
        rect(10, 8, size, 19, "", "rx='9.5' fill='none' class='s-fg' stroke-width='1.2'")
        + text(10 + size / 2, 21.5, scene["badge"], size=11, anchor="middle", weight=600)
        + text(size + 20, 22, scene["title"], "muted")
    )


def check_step(scene: dict[str, Any], step: int) -> None:
    """Raise ``ValueError`` unless the scene, a film (`tpviz.widgets.base.Film`), has this step."""
    last = len(scene["captions"]) - 1
    if not 0 <= whole_number("step", step, None) <= last:
        raise ValueError(f"step={step} is not in this view: use 0 to {last}")


def pattern_defs() -> str:
    """``<defs>`` with every pattern, in the background colour; ``exposed`` is red."""
    tiles = "".join(
        f"<pattern id='tpv-{name}' width='{tile[0]}' height='{tile[0]}'"
        f" patternUnits='userSpaceOnUse'><path d='{tile[1]}' class='s-bg' fill='none'"
        f" stroke-width='1' stroke-opacity='0.55'/></pattern>"
        for name, tile in PATTERNS.items()
        if tile
    )
    size, path = PATTERNS["hatch"]
    tiles += (
        f"<pattern id='tpv-exposed' width='{size}' height='{size}' patternUnits='userSpaceOnUse'>"
        f"<path d='{path}' class='s-exposed' fill='none' stroke-width='1.4'/></pattern>"
    )
    return f"<defs>{tiles}</defs>"


def bars_path(start: np.ndarray, end: np.ndarray, y: float, height: float) -> str:
    """One path for many bars of a row: arrays of x in px. A path draws far faster than rects."""
    widths = np.maximum(end - start, 0.3)
    return "".join(
        f"M{x:.2f},{y}h{w:.2f}v{height}h-{w:.2f}z" for x, w in zip(start.tolist(), widths.tolist())
    )


def ticks(low: float, high: float, count: int = 8) -> list[float]:
    """Round numbers between low and high, about ``count`` of them."""
    span = high - low
    if not span > 0:
        return [low]
    raw = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def seconds(value: float, digits: int = 3) -> str:
    """12.3 ms, 450 us, 1.2 s."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= scale * 0.9995:
            return f"{value / scale:.{digits}g} {unit}"
    return f"{value / 1e-9:.{digits}g} ns" if value else "0 s"


def amount(value: float, unit: str = "B") -> str:
    """1.5 kB, 2.0 MB (decimal), 3.4 GFLOP."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale * 0.9995:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.4g} {unit}"
