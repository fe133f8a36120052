"""Scaling of a paper's model: the step, and how much of the devices it uses, over their number."""

from typing import TYPE_CHECKING, Any

from .charts import line, log_ticks, panels, unit_of
from .palette import INKS

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

STYLES = {
    "first by communication": ("axis0", "dot", "circle-open"),
    "fastest predicted": ("forward", "solid", "diamond"),
    "HFU, predicted": ("axis1", "solid", "circle"),
    "MFU, predicted": ("backward", "dash", "square-open"),
    "exposed communication, predicted": ("exposed", "dashdot", "x"),
}


def models_figure(scene: dict[str, Any], theme: str = "light") -> "Figure":
    """Left: seconds of a step, logarithmic. Right: shares in %, and what the papers say as stars.

    scene : ``devices``; ``steps`` {line of STYLES: [s]}; ``grids`` {line: [words]} for the labels
    that a pointer brings up; ``shares`` {line: [0..1]}; ``theirs`` [{"devices", "fraction",
    "words", "sure"}].
    """
    from plotly.graph_objects import Scatter

    devices, theirs = scene["devices"], scene["theirs"]
    unit, scale = unit_of([s for found in scene["steps"].values() for s in found])
    made = panels(
        scene, [f"a step ({unit})", "of the vendor's peak, and of the step (%)"], theme, legend=2
    )
    for name, found in scene["steps"].items():
        made.add_trace(
            line(
                name,
                devices,
                [s / scale for s in found],
                *STYLES[name],
                theme,
                text=scene["grids"][name],
            ),
            row=1,
            col=1,
        )
    for name, found in scene["shares"].items():
        made.add_trace(
            line(
                name,
                devices,
                [100 * f for f in found],
                *STYLES[name],
                theme,
                text=scene["grids"]["fastest predicted"],
            ),
            row=1,
            col=2,
        )
    if theirs:
        made.add_trace(
            Scatter(
                name="theirs, of peak, with recomputation (hollow: not confirmed for this model)",
                mode="markers",
                x=[run["devices"] for run in theirs],
                y=[100 * run["fraction"] for run in theirs],
                text=[run["words"] for run in theirs],
                hovertemplate="%{text}<extra>theirs</extra>",
                marker={
                    "symbol": ["star" if run["sure"] else "star-open" for run in theirs],
                    "size": 13,
                    "color": getattr(INKS["axis4"], theme),
                },
            ),
            row=1,
            col=2,
        )
    ticks = sorted({*devices, *(run["devices"] for run in theirs)})
    made.update_xaxes(
        type="log",
        tickvals=ticks,
        ticktext=list(map(str, ticks)),
        tickangle=-45,
        title={"text": "devices", "standoff": 6},
    )
    steps = log_ticks([s / scale for found in scene["steps"].values() for s in found])
    made.update_yaxes(type="log", tickvals=steps, ticktext=[f"{t:g}" for t in steps], row=1, col=1)
    made.update_yaxes(range=[0, 100], row=1, col=2)
    return made
