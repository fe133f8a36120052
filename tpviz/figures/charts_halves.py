"""Halves of microbatches: the step, and what kernels wait for, by level of sub-pipelining."""

from typing import TYPE_CHECKING, Any

from .charts import LINES, line, panels, unit_of

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

TITLES = {"predicted": "predicted", "measured": "emulated"}
BLOCKS = {
    "forward": ("forward", "solid", "triangle-right"),
    "backward": ("backward", "dash", "triangle-left"),
    "expected": ("axis2", "dot", "star-open"),
}
"""{line: (ink, dash, marker)}."""


def halves_figure(scene: dict[str, Any], theme: str = "light") -> "Figure":
    """Seconds of a step; seconds that kernels wait for tp in it; the same of a block, in sums of a
    whole microbatch (c), beside what is expected.

    scene : ``levels``; ``sources`` {source: {"levels", "step": [s], "waits": [s]}}; ``blocks``
    {phase: [c]}; ``expected`` [c].
    """
    sources = scene["sources"]
    scales = {
        what: unit_of([s for found in sources.values() for s in found[what]])
        for what in ("step", "waits")
    }
    made = panels(
        scene,
        [
            f"a step ({scales['step'][0]})",
            f"waits for tp ({scales['waits'][0]})",
            "waits of a block (in c)",
        ],
        theme,
        legend=2,
    )
    for source, found in sources.items():
        for column, what in enumerate(("step", "waits"), 1):
            made.add_trace(
                line(
                    TITLES[source],
                    map(str, found["levels"]),
                    [s / scales[what][1] for s in found[what]],
                    *LINES[source],
                    theme,
                    showlegend=column == 1,
                ),
                row=1,
                col=column,
            )
    for name, values in {**scene["blocks"], "expected": scene["expected"]}.items():
        words = (
            "expected, kernels long enough (derived)"
            if name == "expected"
            else (f"{name}, predicted")
        )
        made.add_trace(
            line(words, map(str, scene["levels"]), values, *BLOCKS[name], theme), row=1, col=3
        )
    made.update_xaxes(type="category", title={"text": "level", "standoff": 6})
    for column in (2, 3):
        made.update_yaxes(rangemode="tozero", row=1, col=column)
    return made
