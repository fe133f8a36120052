"""Contention: each pair's ratio, their median and quartiles, beside the authors' A100s."""

from typing import TYPE_CHECKING, Any

from .charts import panels
from .palette import INKS

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def contention_figure(scene: dict[str, Any], theme: str = "light") -> "Figure":
    """One row for this machine, one for the authors' traces; the axis begins at no slowdown.

    scene : ``ratios``, ``ratio`` and ``spread`` of this ``machine``; ``authors``, a range, with
    its ``source``.
    """
    from plotly.graph_objects import Scatter

    made = panels(scene, [""], theme, height=190)
    rows = [scene["machine"], "A100 80GB PCIe"]
    own, theirs, dots = (getattr(INKS[ink], theme) for ink in ("axis0", "forward", "other"))
    low, high = scene["spread"]
    made.add_trace(
        Scatter(
            name="pairs",
            x=scene["ratios"],
            y=[rows[0]] * len(scene["ratios"]),
            mode="markers",
            marker={"symbol": "line-ns-open", "size": 22, "color": dots},
        )
    )
    made.add_trace(
        Scatter(
            name="median, quartiles",
            x=[scene["ratio"]],
            y=[rows[0]],
            mode="markers",
            marker={"symbol": "diamond", "size": 13, "color": own},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [high - scene["ratio"]],
                "arrayminus": [scene["ratio"] - low],
                "color": own,
                "thickness": 3,
            },
        )
    )
    made.add_trace(
        Scatter(
            name=scene["source"],
            x=scene["authors"],
            y=[rows[1]] * 2,
            mode="lines+markers",
            line={"color": theirs, "dash": "dot", "width": 3},
            marker={"symbol": "circle-open", "size": 11, "color": theirs},
        )
    )
    most = max(*scene["ratios"], *scene["authors"])
    made.update_xaxes(
        title={"text": "kappa: time under a collective / time alone", "standoff": 6},
        range=[min(0.9, *scene["ratios"]) - 0.05, most * 1.05],
    )
    made.update_yaxes(type="category", autorange="reversed", categoryarray=rows, automargin=True)
    return made
