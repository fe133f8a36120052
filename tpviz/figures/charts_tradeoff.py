"""Recomputation against memory: the step and a rank's bytes over the part that stage 0 keeps."""

from .charts import line, panels, pointer, unit_of

STYLES = {"stage-aware": ("forward", "solid", "diamond"),
          "uniform": ("axis0", "dot", "circle-open")}
"""{rule: (ink, dash, marker)}."""
SIZES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))


def tradeoff_figure(scene, theme="light"):
    """Left: seconds of a step. Right: bytes of the rank that needs most, the budget dashed.

    scene : ``lines`` {rule of STYLES: {"keep", "step": [s], "bytes", "drops": [words]}};
    ``budget`` bytes; ``picked`` {rule: k0 that fits}.
    """
    lines, budget = scene["lines"], scene["budget"]
    unit, second = unit_of([s for found in lines.values() for s in found["step"]])
    most = max(b for found in lines.values() for b in found["bytes"])
    size, byte = next((name, n) for name, n in SIZES if max(most, 1) >= n)
    made = panels(scene, [f"a step ({unit})", f"bytes of the rank that needs most ({size})"], theme)
    for rule, found in lines.items():
        for column, (what, scale) in enumerate((("step", second), ("bytes", byte)), 1):
            made.add_trace(line(
                rule, found["keep"], [v / scale for v in found[what]], *STYLES[rule], theme,
                showlegend=column == 1, text=found["drops"],
                hovertemplate="k0 = %{x:.3g}: %{y:.4g}, layers recomputed %{text}"),
                row=1, col=column)
        if rule in scene["picked"]:
            at = found["keep"].index(scene["picked"][rule])
            shift = -40 if rule == "stage-aware" else 40
            pointer(made, f"{rule}: fits", found["keep"][at], found["step"][at] / second,
                    STYLES[rule][0], theme, ax=-30 if at else 30, ay=-shift)
    if budget <= 3 * most:  # else the line would flatten the curves
        made.add_hline(y=budget / byte, line={"dash": "dash"}, row=1, col=2,
                       annotation_text="budget")
    made.update_xaxes(title={"text": "k0: part of the first stage's layers that keeps everything",
                             "standoff": 6}, range=[-0.03, 1.03])
    made.update_yaxes(rangemode="tozero", row=1, col=2)
    return made
