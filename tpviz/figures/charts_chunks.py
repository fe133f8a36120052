"""Chunk curves: communication that is waited for, and the step, against the number of chunks."""

from math import log10
from typing import TYPE_CHECKING, Any

from .charts import LINES, line, panels, pointer, unit_of

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

SHOWN = (("exposed", "communication that kernels wait for"), ("step", "time of a step, axis cut"))
SIDE = {"predicted": -44, "with contention": 0, "simulated": 44, "measured": 0}
"""Where its label stands, px to the side, so that labels of one point do not meet."""


def chunks_figure(scene: dict[str, Any], theme: str = "light") -> "Figure":
    """The U-curve: a panel for each of SHOWN, a line for each source of its numbers.

    scene : ``counts``; ``lines`` {source of LINES: {"exposed": [s], "step": [s], and for what was
    measured "low" and "high" {"exposed": [s], ...}}}; ``best`` {source: count}.
    """
    unit, scale = unit_of([v for values in scene["lines"].values() for v in values["step"]])
    made = panels(scene, [f"{title} ({unit})" for _, title in SHOWN], theme)
    for column, (what, _) in enumerate(SHOWN, 1):
        for source, values in scene["lines"].items():
            y = [v / scale for v in values[what]]
            made.add_trace(
                line(
                    source,
                    scene["counts"],
                    y,
                    *LINES[source],
                    theme,
                    showlegend=column == 1,
                    error_y=_spread(values, what, scale),
                ),
                row=1,
                col=column,
            )
            if what == "step":
                best = scene["best"][source]
                pointer(
                    made,
                    f"best {best}",
                    log10(best),
                    y[scene["counts"].index(best)],
                    LINES[source][0],
                    theme,
                    col=column,
                    ax=SIDE[source],
                    ay=-34,
                )
    made.update_xaxes(
        type="log",
        tickvals=scene["counts"],
        title={"text": "chunks", "standoff": 6},
        ticktext=list(map(str, scene["counts"])),
    )
    made.update_yaxes(rangemode="tozero", col=1)
    return made


def _spread(values, what, scale):
    """Bars from the least to the most of the repeats."""
    if "low" not in values:
        return None
    bounds = zip(values["low"][what], values[what], values["high"][what])
    up, down = zip(*(((high - v) / scale, (v - low) / scale) for low, v, high in bounds))
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down}
