"""What fusing a GEMM with its reduce-scatter gains, over how long the GEMM is."""

from typing import TYPE_CHECKING, Any

from .charts import line, panels
from .charts_t3 import CONFIGS

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def paying_figure(scene: dict[str, Any], theme: str = "light") -> "Figure":
    """Speedup over x.

    scene : ``curve`` [[x, speedup]], the closed form; ``points`` {config: [[x, speedup, words]]}.
    """
    made = panels(
        scene, ["speedup of the sublayer, over x = GEMM / reduce-scatter"], theme, legend=2
    )
    x, y = zip(*scene["curve"])
    made.add_trace(
        line(
            "without memory: (x+2) / (max(x,1)+1), derived", x, y, "axis4", "solid", "circle", theme
        )
    )
    made.data[-1].mode = "lines"
    for config, points in scene["points"].items():
        name, *style = CONFIGS[config]
        x, y, words = zip(*points)
        made.add_trace(
            line(
                f"{name}, simulated",
                x,
                y,
                *style,
                theme,  # pyright: ignore[reportCallIssue]
                text=words,
                hovertemplate="%{text}: %{y:.3f}",
            )
        )
    color = made.layout.font.color  # pyright: ignore[reportAttributeAccessIssue]
    made.add_vline(1.0, line_dash="dot", line_color=color, line_width=1)
    made.update_xaxes(title={"text": "x", "standoff": 6}, rangemode="tozero")
    return made
