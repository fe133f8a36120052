"""Losses over steps as a chart; every value is also written out."""

import math
from collections.abc import Sequence

from tpviz.core import charts

from .chart_svg import chart_svg


def losses_svg(losses: Sequence[float], theme: str = "auto") -> str:
    """Draw the loss of each step. Raises ValueError where there is none."""
    if not len(losses):
        raise ValueError("no losses to draw: the list is empty")
    steps, finite = range(1, len(losses) + 1), [v if math.isfinite(v) else None for v in losses]
    line = charts.line("loss", steps, finite, ("forward", "solid", "circle"), showlegend=False)
    chart = {
        "title": f"loss of {len(losses)} step{'s' * (len(losses) > 1)}",
        "badges": [],
        "panels": [charts.panel("", [line], charts.axis("step"))],
        "notes": [],
        "alt": "losses " + ", ".join(f"{v:.6g}" for v in losses),
    }
    return chart_svg(chart, theme)
