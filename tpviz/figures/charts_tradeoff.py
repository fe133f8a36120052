"""Recomputation against memory: the step and a rank's bytes over the part that stage 0 keeps."""

from typing import TYPE_CHECKING, Any

from .charts import line, panels, pointer, unit_of

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

STYLES = {
    "stage-aware": ("forward", "solid", "diamond"),
    "uniform": ("axis0", "dot", "circle-open"),
}
"""{rule: (ink, dash, marker)}."""
AVERAGE = {"stage-aware": ("forward", "dashdot", "x"), "uniform": ("axis0", "dashdot", "cross")}
"""The same for the average rank."""
SIZES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))


def tradeoff_figure(scene: dict[str, Any], theme: str = "light") -> "Figure":
    """Left: seconds of a step. Right: bytes of the rank that needs most and of the average rank,
    the budget dashed.

    scene : ``lines`` {rule of STYLES: {"keep", "step": [s], "bytes", "average", "drops": [words]}};
    ``budget`` bytes; ``picked`` {rule: k0 that fits}.
    """
    lines, budget = scene["lines"], scene["budget"]
    unit, second = unit_of([s for found in lines.values() for s in found["step"]])
    most = max(b for found in lines.values() for b in found["bytes"])
    size, byte = next((name, n) for name, n in SIZES if max(most, 1) >= n)
    made = panels(scene, [f"a step ({unit})", f"{size} of the rank that needs most"], theme)
    for rule, found in lines.items():
        for what, name, scale, column, style in (
            ("step", rule, second, 1, STYLES[rule]),
            ("bytes", rule, byte, 2, STYLES[rule]),
            ("average", f"{rule}, average rank", byte, 2, AVERAGE[rule]),
        ):
            made.add_trace(
                line(
                    name,
                    found["keep"],
                    [v / scale for v in found[what]],
                    *style,
                    theme,
                    showlegend=what != "bytes",
                    text=found["drops"],
                    hovertemplate="k0 = %{x:.3g}: %{y:.4g}, layers recomputed %{text}",
                ),
                row=1,
                col=column,
            )
        if rule in scene["picked"]:
            at = found["keep"].index(scene["picked"][rule])
            shift = -40 if rule == "stage-aware" else 40
            pointer(
                made,
                f"{rule}: fits",
                found["keep"][at],
                found["step"][at] / second,
                STYLES[rule][0],
                theme,
                ax=-30 if at else 30,
                ay=-shift,
            )
    if budget <= 3 * most:  # else the line would flatten the curves
        made.add_hline(
            y=budget / byte,
            row=1,  # pyright: ignore[reportArgumentType]
            col=2,  # pyright: ignore[reportArgumentType]
            annotation_text="budget",
            line={
                "dash": "dash",
                "color": made.layout.font.color,  # pyright: ignore[reportAttributeAccessIssue]
            },
        )
    made.update_xaxes(
        title={"text": "k0: part of the first stage's layers that keeps everything", "standoff": 6},
        range=[-0.03, 1.03],
    )
    made.update_yaxes(rangemode="tozero", row=1, col=2)
    return made
