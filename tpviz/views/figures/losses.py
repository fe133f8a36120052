"""Losses over steps as a small line picture; every value is also written out."""

import math
from collections.abc import Sequence

from .svg import document, text

LEFT, TOP, HEIGHT = 56, 30, 92


def losses_svg(losses: Sequence[float], width: float = 420, theme: str = "auto") -> str:
    """Draw the loss of each step. Raises ValueError where there is none."""
    if not len(losses):
        raise ValueError("no losses to draw: the list is empty")
    finite = [v for v in losses if math.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    high = high if high > low else low + max(abs(low), 1.0) * 1e-6

    def point(i, value):
        x = LEFT + i * (width - LEFT - 20) / max(len(losses) - 1, 1)
        return x, TOP + HEIGHT * (high - value) / (high - low)

    points = [point(i, v) for i, v in enumerate(losses) if math.isfinite(v)]
    body = [text(10, 16, f"loss of {len(losses)} step{'s' * (len(losses) > 1)}", weight=700)]
    for v in (low, high):
        y = TOP + 4 + HEIGHT * (high - v) / (high - low)
        body.append(text(LEFT - 8, y, f"{v:.4g}", "muted", anchor="end"))
    body.append(f"<path d='M{LEFT},{TOP}V{TOP + HEIGHT}H{width - 12}' class='s-rule' fill='none'/>")
    for i in dict.fromkeys((0, len(losses) - 1)):
        x, under = point(i, low)
        body.append(text(x, under + 17, f"step {i + 1}", "muted", anchor="end" if i else "middle"))
    if len(points) > 1:
        line = "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
        body.append(f"<path d='M{line}' class='s-forward' fill='none' stroke-width='2'/>")
    body += [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' class='f-forward'/>" for x, y in points]
    label = "losses " + ", ".join(f"{v:.6g}" for v in losses)
    return document(width, TOP + HEIGHT + 24, body, label, theme)
