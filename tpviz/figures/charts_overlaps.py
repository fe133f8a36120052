"""Overlaps: a step's kernels and what they wait for on each axis, stacked, one bar a set."""

from typing import TYPE_CHECKING, Any

from .charts import panels, unit_of
from .palette import INKS, axis_keys

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

TITLES = {"predicted": "predicted", "simulated": "simulated", "measured": "emulated"}
SHAPES = {"x": "/", "y": "\\", "z": "x", "data": "."}
"""{axis: pattern}, so that colour never says it alone."""


def overlaps_figure(scene: dict[str, Any], theme: str = "light") -> "Figure":
    """A panel of stacked bars for each source; above each bar how much faster it is than none.

    scene : ``bars`` (names), ``axes``, ``sources`` {source: {"compute": [s], "exposed":
    [{axis: s}], "step": [s], "gain": [fraction]}}.
    """
    from plotly.graph_objects import Bar

    sources = scene["sources"]
    unit, scale = unit_of([s for found in sources.values() for s in found["step"]])
    made = panels(
        scene,
        [f"{TITLES[source]} step ({unit})" for source in sources],
        theme,
        shared_yaxes=True,
        horizontal_spacing=0.03,
    )
    keys = axis_keys(["x", "y", "z", "data"])
    names = [name.replace(" + ", "<br>") for name in scene["bars"]]
    for column, found in enumerate(sources.values(), 1):
        stacks = [("kernels", "forward", "", found["compute"])] + [
            (
                f"waiting for {axis}",
                keys[axis],
                SHAPES[axis],
                [exposed.get(axis, 0.0) for exposed in found["exposed"]],
            )
            for axis in scene["axes"]
        ]
        for name, ink, shape, seconds in stacks:
            made.add_trace(
                Bar(
                    name=name,
                    x=names,
                    y=[s / scale for s in seconds],
                    legendgroup=name,
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
                    hovertemplate="%{x}: %{y:.4g} " + unit + f" {name}<extra></extra>",
                ),
                row=1,
                col=column,
            )
        for name, step, gain in zip(names, found["step"], found["gain"]):
            made.add_annotation(
                text=f"{100 * gain:+.0f} %" if gain else "0 %",
                x=name,
                y=step / scale,
                row=1,
                col=column,
                showarrow=False,
                yshift=10,
                font={"size": 11},
            )
    made.update_layout(barmode="stack")
    made.update_xaxes(showgrid=False, tickangle=0)
    return made
