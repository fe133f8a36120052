"""Which strategy wins where: heat maps of the gain over 1D, one for each way to estimate it."""

from textwrap import wrap
from typing import TYPE_CHECKING, Any

from .charts import mixed, panels
from .palette import tokens

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

TITLES = {
    "communication": "communication alone (paper mode)",
    "predicted": "whole step (extended)",
    "measured": "whole step, emulated",
}


def winners_figure(scene: dict[str, Any], theme: str = "light") -> "Figure":
    """Gains in % of 1D's speed: blue faster, orange slower; the fastest of a column has a star.

    scene : ``rows`` and ``columns`` (names), ``gains`` {mode: rows of fractions or None}, ``fits``
    (rows of bools), ``winners`` {mode: row of each column's fastest, or None}.
    """
    from plotly.graph_objects import Heatmap

    modes = list(scene["gains"])
    made = panels(
        scene,
        [TITLES[mode] for mode in modes],
        theme,
        height=max(220, 60 + 34 * len(scene["rows"])),
        shared_yaxes=True,
        horizontal_spacing=0.03,
    )
    percent = {
        m: [[None if g is None else 100 * g for g in row] for row in rows]
        for m, rows in scene["gains"].items()
    }
    limit = max(
        [abs(g) for rows in percent.values() for row in rows for g in row if g is not None] + [1.0]
    )
    limit = min(limit, 100.0)
    page = tokens(theme)
    ends = [mixed(page[ink], page["bg"], 0.55) for ink in ("axis0", "forward")]  # text reads on it
    columns = ["<br>".join(wrap(name, 16)) for name in scene["columns"]]
    for column, mode in enumerate(modes, 1):
        made.add_trace(
            Heatmap(
                z=percent[mode],
                x=columns,
                y=scene["rows"],
                zmin=-limit,
                zmax=limit,
                colorscale=[[0, ends[0]], [0.5, page["rule"]], [1, ends[1]]],
                text=_words(percent[mode], scene["winners"][mode], scene["fits"]),
                textfont={"color": page["fg"]},
                texttemplate="%{text}",
                hovertemplate="%{y} on %{x}: %{text}<extra></extra>",
                xgap=2,
                ygap=2,
                showscale=column == len(modes),
                colorbar={"title": {"text": "gain, %"}, "thickness": 12},
            ),
            row=1,
            col=column,
        )
    made.update_xaxes(showgrid=False, showline=False, tickangle=0, automargin=True)
    made.update_yaxes(showgrid=False, showline=False, type="category", autorange="reversed")
    made.update_layout(margin_l=110)
    return made


def _words(percent, winners, fits):
    """The text of each cell: the gain, a star for the fastest, a word where memory is short."""
    return [
        [
            ""
            if gain is None
            else f"{'★ ' * (winners[x] == y)}{_signed(gain)}{'' if fits[y][x] else ' (memory)'}"
            for x, gain in enumerate(row)
        ]
        for y, row in enumerate(percent)
    ]


def _signed(number):
    """+12, -3, 0."""
    return f"{round(number):+d}" if round(number) else "0"
