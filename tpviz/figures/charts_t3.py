"""T3's sublayers by model, and the paper's numbers beside ours."""

from typing import TYPE_CHECKING, Any

from .charts import line, panels
from .palette import INKS

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

CONFIGS = {
    "ideal": ("ideal overlap", "forward", "dot", "circle-open"),
    "t3": ("T3", "axis1", "dash", "square-open"),
    "t3_mca": ("T3-MCA", "backward", "solid", "diamond"),
}
"""{configuration: (name, ink, dash, marker)}."""
ROW = 19
"""px of a number of the paper."""


def sublayers_figure(scene: dict[str, Any], theme: str = "light") -> "Figure":
    """Speedup of each sublayer over sequential, simulated.

    scene : ``places`` [[model and TP, sublayer]]; ``speedups`` {config: [speedup]}.
    """
    made = panels(scene, ["speedup over GEMM, reduce-scatter and all-gather in turn"], theme)
    models = list(dict.fromkeys(model for model, _ in scene["places"]))
    each, gap = len(scene["places"]) // len(models), [None]
    places = [x for m in range(len(models)) for x in [*range(m * each, (m + 1) * each), *gap]]
    words = [
        x
        for m in range(len(models))
        for x in [f"{models[m]}, {n}" for _, n in scene["places"][m * each : (m + 1) * each]] + gap
    ]
    for config, (name, *style) in CONFIGS.items():
        found = [None if x is None else scene["speedups"][config][x] for x in places]
        made.add_trace(
            line(
                name,
                places,
                found,
                *style,
                theme,  # pyright: ignore[reportCallIssue]
                text=words,
                hovertemplate="%{text}: %{y:.3f}",
            )
        )
    most = max(max(values) for values in scene["speedups"].values())
    for number, model in enumerate(models):
        made.add_annotation(
            text=model,
            x=number * each + (each - 1) / 2,
            y=most + 0.07,
            showarrow=False,
            font={"size": 11},
        )
        if number:
            color = made.layout.font.color  # pyright: ignore[reportAttributeAccessIssue]
            made.add_vline(number * each - 0.5, line_width=1, line_color=color)
    made.update_yaxes(range=[0.98, most + 0.12])
    made.update_xaxes(
        tickvals=list(range(len(scene["places"]))),
        ticktext=[n for _, n in scene["places"]],
        tickangle=-45,
    )
    return made


def paper_figure(scene: dict[str, Any], theme: str = "light") -> "Figure":
    """The paper's numbers beside ours, in percent.

    scene : ``rows`` [{"name", "paper", "ours", "kind", "source", "matched"}].
    """
    from plotly.graph_objects import Scatter

    rows = scene["rows"][::-1]
    names = [f"{r['name']} ({r['kind']}; {r['source']})" for r in rows]
    made = panels(scene, ["percent"], theme, height=60 + ROW * len(rows), legend=2)
    ends = [x for r in rows for x in (r["paper"], r["ours"], None)]
    made.add_trace(
        Scatter(
            x=ends,
            y=[n for n in names for _ in range(3)],
            mode="lines",
            showlegend=False,
            hoverinfo="skip",
            line={"color": getattr(INKS["wait"], theme), "width": 2},
        )
    )
    for name, values, ink, symbol in (
        ("the paper's, by its abstract or reading notes", "paper", "axis4", "star"),
        ("ours, simulated (hollow: more than 5 points off)", "ours", "backward", "circle"),
    ):
        marks = [symbol if values == "paper" or r["matched"] else f"{symbol}-open" for r in rows]
        words = [f"{r[values]:.1f} %" for r in rows]
        made.add_trace(
            Scatter(
                name=name,
                x=[r[values] for r in rows],
                y=names,
                mode="markers",
                text=words,
                hovertemplate="%{y}: %{text}<extra></extra>",
                marker={"symbol": marks, "size": 11, "color": getattr(INKS[ink], theme)},
            )
        )
    made.update_yaxes(
        automargin=True, categoryorder="array", categoryarray=names, tickfont={"size": 11}
    )
    made.update_layout(width=1180, margin={"l": 360})
    return made
