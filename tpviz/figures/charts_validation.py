"""Models of a step against what was measured: a point for each grid, on the diagonal if right."""

from math import log10

from .charts import log_ticks, panels, pointer, unit_of
from .palette import INKS

KINDS = {"z and data alone": ("axis3", "circle"), "x": ("axis0", "square"),
         "y": ("axis2", "diamond"), "x and y": ("axis4", "x")}
"""Which axes of the plane a grid has -> (ink, marker)."""
TITLES = {"communication": "communication model", "predicted": "predicted step",
          "measured": "measured step"}
FAR = 5
"""From this ratio of the largest and the least on an axis is logarithmic."""


def validation_figure(scene, theme="light"):
    """A panel for each model; the diagonal where both axes are steps; who is first by which.

    scene : ``against`` (what is upward) and ``models`` (to the right, one panel each), modes of
    TITLES; ``seconds`` {mode: [s]}, ``names`` and ``kinds`` (of KINDS) of the points.
    """
    from plotly.graph_objects import Scatter

    upward, y = scene["against"], scene["seconds"][scene["against"]]
    unit, scale = unit_of(y)
    titles = [f"{TITLES[m]} against {TITLES[upward]}" for m in scene["models"]]
    made = panels(scene, titles, theme, height=380)
    for column, mode in enumerate(scene["models"], 1):
        x = scene["seconds"][mode]
        its, of = (unit, scale) if mode != "communication" else unit_of(x)
        if mode != "communication":
            ends = [min(x + y) / scale, max(x + y) / scale]
            made.add_trace(Scatter(
                name="both the same", x=ends, y=ends, mode="lines", hoverinfo="skip",
                line={"color": getattr(INKS["other"], theme), "dash": "dot", "width": 1.5}),
                row=1, col=column)
        for kind, (ink, marker) in KINDS.items():
            own = [n for n, k in enumerate(scene["kinds"]) if k == kind]
            made.add_trace(Scatter(
                name=kind, legendgroup=kind, showlegend=column == 1 and bool(own), mode="markers",
                x=[x[n] / of for n in own], y=[y[n] / scale for n in own],
                text=[scene["names"][n] for n in own],
                marker={"symbol": marker, "size": 10, "color": getattr(INKS[ink], theme)},
                hovertemplate=f"x y z data = %{{text}}<br>{TITLES[mode]} %{{x:.4g}} {its}<br>"
                              f"{TITLES[upward]} %{{y:.4g}} {unit}<extra></extra>"),
                row=1, col=column)
        for number, words in _pointed(x, y).items():
            at = [_place(values, number, unit) for values, unit in ((x, of), (y, scale))]
            pointer(made, f"{words} {scene['names'][number]}", *at, "other", theme, col=column,
                    ax=80, ay=0 if "fastest" in words else -40)
        _axis(made.update_xaxes, [s / of for s in x], column, f"{TITLES[mode]} ({its})")
        _axis(made.update_yaxes, [s / scale for s in y], column, f"{TITLES[upward]} ({unit})")
    return made


def _pointed(x, y):
    """{number of a point: words}: the model's first, and the fastest."""
    first, fastest = (min(range(len(values)), key=values.__getitem__) for values in (x, y))
    return {first: "its first, the fastest:"} if first == fastest else {
        first: "its first:", fastest: "fastest:"}


def _far(values):
    return min(values) > 0 and max(values) / min(values) > FAR


def _place(values, number, scale):
    """Where an annotation stands: plotly wants the logarithm where the axis has them."""
    value = values[number] / scale
    return log10(value) if _far(values) else value


def _axis(update, values, column, title):
    more = {}
    if _far(values):
        ticks = log_ticks(values)
        more = {"type": "log", "tickvals": ticks, "ticktext": [f"{t:g}" for t in ticks]}
    update(col=column, title={"text": title, "standoff": 6}, **more)
