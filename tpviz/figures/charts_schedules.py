"""Schedules: where the average rank of a pipeline spends its step, one bar a schedule."""

from typing import TYPE_CHECKING, Any

from .charts import panels, unit_of
from .palette import INKS

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

TITLES = {"predicted": "predicted", "simulated": "simulated", "measured": "emulated"}
STACK = {
    "kernels": ("kernels", "forward", ""),
    "recompute": ("recomputation", "recompute", "."),
    "exposed": ("waiting for bytes", "exposed", "x"),
    "bubble": ("bubble", "wait", "/"),
}
"""{part: (words, ink, pattern)}, bottom first."""
CROWD = 11
"""So many bars have their names upright."""


def schedules_figure(scene: dict[str, Any], theme: str = "light") -> "Figure":
    """A panel of stacked bars for each source; above each bar its step against the first's.

    scene : ``sources`` {source: {"names": [schedule], "step": [s], "parts": {part of STACK: [s]}}}.
    """
    from plotly.graph_objects import Bar

    sources = scene["sources"]
    unit, scale = unit_of([s for found in sources.values() for s in found["step"]])
    counts = [len(found["names"]) for found in sources.values()]
    made = panels(
        scene,
        [f"{TITLES[source]} step ({unit})" for source in sources],
        theme,
        shared_yaxes=True,
        horizontal_spacing=0.03,
        column_widths=[max(3, count) for count in counts],
    )
    for column, found in enumerate(sources.values(), 1):
        names = [name.replace("_", "<br>") for name in found["names"]]
        for part, (words, ink, shape) in STACK.items():
            made.add_trace(
                Bar(
                    name=words,
                    x=names,
                    y=[s / scale for s in found["parts"][part]],
                    legendgroup=words,
                    showlegend=column == 1,
                    marker={
                        "color": getattr(INKS[ink], theme),
                        "pattern": {
                            "shape": shape,
                            "fillmode": "overlay",
                            "size": 6,
                            "fgcolor": made.layout.paper_bgcolor,  # pyright: ignore[reportAttributeAccessIssue]
                        },
                    },
                    hovertemplate="%{x}: %{y:.4g} " + unit + f" {words}<extra></extra>",
                ),
                row=1,
                col=column,
            )
        for name, step in zip(names, found["step"]):
            more = round(100 * (step / found["step"][0] - 1))
            made.add_annotation(
                text=f"{more:+d} %" if more else "0 %",
                x=name,
                y=step / scale,
                row=1,
                col=column,
                showarrow=False,
                yshift=10,
                font={"size": 11},
            )
    made.update_layout(barmode="stack")
    made.update_xaxes(
        showgrid=False, tickangle=0 if sum(counts) <= CROWD else -60, tickfont={"size": 10}
    )
    return made
