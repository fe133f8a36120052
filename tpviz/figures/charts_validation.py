"""Models of a step against what was measured: a point for each grid, on the diagonal if right."""

from math import log10
from typing import TYPE_CHECKING, Any, NamedTuple

from .charts import log_ticks, panels, pointer, unit_of
from .palette import INKS

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

KINDS = {
    "z and data alone": ("axis3", "circle"),
    "x": ("axis0", "square"),
    "y": ("axis2", "diamond"),
    "x and y": ("axis4", "x"),
}
"""Which axes of the plane a grid has -> (ink, marker)."""
TITLES = {
    "communication": "communication model",
    "predicted": "predicted step",
    "measured": "measured step",
}
FAR = 5
"""From this ratio of the largest and the least on an axis is logarithmic."""


def validation_figure(scene: dict[str, Any], theme: str = "light") -> "Figure":
    """A panel for each model; the diagonal where both axes are steps; who is first by which.

    scene : ``against`` (what is upward) and ``models`` (to the right, one panel each), modes of
    TITLES; ``seconds`` {mode: [s]}, ``names`` and ``kinds`` (of KINDS) of the points.
    """
    from plotly.graph_objects import Scatter

    models, upward, seconds = scene["models"], scene["against"], scene["seconds"]
    made = panels(
        scene, [f"{TITLES[m]} against {TITLES[upward]}" for m in models], theme, height=380
    )
    for column, mode in enumerate(models, 1):
        same = mode != "communication"  # steps on both axes, which are the same then
        both = seconds[mode] + seconds[upward]
        x = _axis(mode, seconds[mode], both if same else seconds[mode])
        y = _axis(upward, seconds[upward], both if same else seconds[upward])
        if same:
            ends = [min(x.values + y.values), max(x.values + y.values)]
            made.add_trace(
                Scatter(
                    name="both the same",
                    x=ends,
                    y=ends,
                    mode="lines",
                    hoverinfo="skip",
                    line={"color": getattr(INKS["other"], theme), "dash": "dot", "width": 1.5},
                ),
                row=1,
                col=column,
            )
        for kind, (ink, marker) in KINDS.items():
            own = [n for n, k in enumerate(scene["kinds"]) if k == kind]
            made.add_trace(
                Scatter(
                    name=kind,
                    legendgroup=kind,
                    showlegend=column == 1 and bool(own),
                    mode="markers",
                    x=[x.values[n] for n in own],
                    y=[y.values[n] for n in own],
                    text=[scene["names"][n] for n in own],
                    marker={"symbol": marker, "size": 10, "color": getattr(INKS[ink], theme)},
                    hovertemplate=f"x y z data = %{{text}}<br>{x.title}: %{{x:.4g}}<br>"
                    f"{y.title}: %{{y:.4g}}<extra></extra>",
                ),
                row=1,
                col=column,
            )
        for number, words in _pointed(x.values, y.values).items():
            side = (130, 0) if "fastest" in words else (30, -150)  # where points are few
            pointer(
                made,
                f"{words} {scene['names'][number]}",
                x.place(number),
                y.place(number),
                "other",
                theme,
                col=column,
                ax=side[0],
                ay=side[1],
            )
        made.update_xaxes(col=column, **x.layout())
        made.update_yaxes(col=column, **y.layout())
    return made


class _Axis(NamedTuple):
    """Values in a unit, and whether their axis is logarithmic."""

    values: list[float]
    log: bool
    title: str

    def place(self, number):
        """Where an annotation stands: plotly wants the logarithm where the axis has them."""
        return log10(self.values[number]) if self.log else self.values[number]

    def layout(self):
        ticks = log_ticks(self.values) if self.log else []
        more = {"type": "log", "tickvals": ticks, "ticktext": [f"{t:g}" for t in ticks]}
        return {"title": {"text": self.title, "standoff": 6}, **(more if self.log else {})}


def _axis(mode, seconds, reach):
    """The `_Axis` of these seconds if it also has to hold those of ``reach``."""
    unit, scale = unit_of(reach)
    far = min(reach) > 0 and max(reach) / min(reach) > FAR
    return _Axis([s / scale for s in seconds], far, f"{TITLES[mode]} ({unit})")


def _pointed(x, y):
    """{number of a point: words}: the model's first, and the fastest."""
    first, fastest = (min(range(len(values)), key=values.__getitem__) for values in (x, y))
    return (
        {first: "its first, the fastest:"}
        if first == fastest
        else {first: "its first:", fastest: "fastest:"}
    )
