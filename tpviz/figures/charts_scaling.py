"""Scaling: communication of a layer in seconds, and as a fraction of the step, over ranks."""

from typing import TYPE_CHECKING, Any

from .charts import line, log_ticks, panels, unit_of

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

STYLES = {
    "1D, constant": ("axis0", "solid", "circle"),
    "best mesh, constant": ("forward", "solid", "square"),
    "1D, shared": ("axis1", "dot", "circle-open"),
    "best mesh, shared": ("recompute", "dot", "square-open"),
    "1D, strong": ("axis0", "dash", "triangle-up"),
    "best mesh, strong": ("forward", "dash", "diamond"),
    "1D, weak": ("axis1", "dashdot", "triangle-up-open"),
    "best mesh, weak": ("recompute", "dashdot", "diamond-open"),
}


def scaling_figure(scene: dict[str, Any], theme: str = "light") -> "Figure":
    """Left: seconds on both fabrics, logarithmic. Right: fractions of one fabric, in %.

    scene : ``sizes``; ``times`` {line of STYLES: [s]}; ``fractions`` {line: [0..1]} of ``fabric``;
    ``meshes`` {fabric: [words]}, for the labels that a pointer brings up.
    """
    unit, scale = unit_of([v for values in scene["times"].values() for v in values])
    titles = [
        f"communication of a layer ({unit})",
        f"its share of the step (%), {scene['fabric']} bandwidth",
    ]
    made = panels(scene, titles, theme, legend=2)
    for column, (lines, factor) in enumerate(
        ((scene["times"], 1 / scale), (scene["fractions"], 100.0)), 1
    ):
        for name, values in lines.items():
            fabric = name.split(", ")[1] if column == 1 else scene["fabric"]
            words = scene["meshes"][fabric] if name.startswith("best") else None
            made.add_trace(
                line(
                    name,
                    scene["sizes"],
                    [v * factor for v in values],
                    *STYLES[name],
                    theme,
                    text=words,
                ),
                row=1,
                col=column,
            )
    made.update_xaxes(
        type="log",
        tickvals=scene["sizes"],
        ticktext=list(map(str, scene["sizes"])),
        title={"text": "ranks N", "standoff": 6},
    )
    ticks = log_ticks([v / scale for values in scene["times"].values() for v in values])
    made.update_yaxes(type="log", tickvals=ticks, ticktext=[f"{t:g}" for t in ticks], row=1, col=1)
    made.update_yaxes(range=[0, 100], row=1, col=2)
    return made
