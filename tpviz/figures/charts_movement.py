"""Memory traffic of a sublayer, chunk by chunk: a panel for sequential and one for T3."""

from typing import TYPE_CHECKING, Any

from .charts import panels
from .palette import INKS

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

INK = {
    "gemm": ("forward", ""),
    "incoming": ("axis0", "/"),
    "read": ("axis1", "\\"),
    "sum": ("backward", "x"),
}
"""{what moves: (ink, pattern)}."""


def movement_figure(scene: dict[str, Any], theme: str = "light") -> "Figure":
    """Chunks read and written for each chunk of the output, in the order in which it goes.

    scene : ``counts`` {name of a configuration: per chunk {kind: chunks}}; ``kinds`` {kind: words}.
    """
    from plotly.graph_objects import Bar

    names = list(scene["counts"])
    made = panels(
        scene,
        [
            f"{name}: {sum(sum(row.values()) for row in scene['counts'][name])} "
            "chunks read and written"
            for name in names
        ],
        theme,
        legend=2,
        shared_yaxes=True,
    )
    for column, name in enumerate(names, 1):
        rows = scene["counts"][name]
        for kind, words in scene["kinds"].items():
            ink, pattern = INK[kind]
            made.add_trace(
                Bar(
                    name=words,
                    x=list(range(1, len(rows) + 1)),
                    y=[row[kind] for row in rows],
                    legendgroup=words,
                    showlegend=column == 1,
                    marker={
                        "color": getattr(INKS[ink], theme),
                        "pattern": {
                            "shape": pattern,
                            "fillmode": "overlay",
                            "size": 7,
                            "fgcolor": made.layout.plot_bgcolor,  # pyright: ignore[reportAttributeAccessIssue]
                            "fgopacity": 0.6,
                        },
                    },
                ),
                row=1,
                col=column,
            )
    made.update_layout(barmode="stack", bargap=0.25)
    made.update_xaxes(
        dtick=1, title={"text": "chunk, in the order in which it goes", "standoff": 6}
    )
    return made
