"""T3's modes on ranks: the step, and one sublayer, by where the numbers come from."""

from typing import TYPE_CHECKING, Any

from .charts import LINES, line, panels, unit_of

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

TITLES = {"predicted": "predicted", "simulated": "simulated", "measured": "emulated"}


def modes_figure(scene: dict[str, Any], theme: str = "light") -> "Figure":
    """Seconds of a step, and of FC-2 in it.

    scene : ``modes``; ``sources`` {source: {"modes", "step": [s], "sublayer": [s]}}.
    """
    sources = scene["sources"]
    scales = {
        what: unit_of([s for found in sources.values() for s in found[what]])
        for what in ("step", "sublayer")
    }
    made = panels(
        scene,
        [f"a step ({scales['step'][0]})", f"FC-2 with its sum, forward ({scales['sublayer'][0]})"],
        theme,
    )
    for source, found in sources.items():
        for column, what in enumerate(scales, 1):
            made.add_trace(
                line(
                    TITLES[source],
                    found["modes"],
                    [s / scales[what][1] for s in found[what]],
                    *LINES[source],
                    theme,
                    showlegend=column == 1,
                ),
                row=1,
                col=column,
            )
    made.update_xaxes(type="category")
    made.update_yaxes(rangemode="tozero")
    return made
