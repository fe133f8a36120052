"""What charts share: plotly figures from plain data, with badges, notes and the usual colours.

A chart is a pure function from a scene, a plain dict ready for JSON, to a ``plotly`` ``Figure``.
Every scene has ``title``, ``badges`` (where the numbers come from; cannot be turned off), ``notes``
(what must be read beside the picture) and ``alt``, the picture in words. plotly loads when the
first chart is drawn.
"""

from collections.abc import Collection, Iterable
from math import ceil, floor, log10
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from .palette import INKS, text_on, tokens

if TYPE_CHECKING:
    from plotly.graph_objects import Figure, Scatter

UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
LINES = {
    "predicted": ("forward", "dot", "circle-open"),
    "with contention": ("axis2", "dashdot", "x"),
    "simulated": ("backward", "dash", "square-open"),
    "measured": ("axis0", "solid", "diamond"),
}
"""Where a line's numbers come from -> (ink, dash, marker); never colour alone."""
FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"
HEAD, PANEL, UNDER, LEGEND, LINE, WRAP = 112, 330, 52, 28, 16, 125


def check_theme(theme: str) -> str:
    """Raise ``ValueError`` but on "light" or "dark": plotly figures cannot follow a page."""
    if theme not in ("light", "dark"):
        raise ValueError(f"theme={theme!r} is not one of 'light', 'dark'")
    return theme


def unit_of(values: Iterable[float | None]) -> tuple[str, float]:
    """(unit, seconds of it) in which the largest of these times reads well."""
    largest = max((abs(v) for v in values if v is not None), default=0.0)
    return next(((u, s) for u, s in UNITS if largest >= s), UNITS[0] if not largest else UNITS[-1])


def panels(
    scene: dict[str, Any],
    titles: list[str],
    theme: str,
    height: int = PANEL,
    legend: int = 1,
    **more: Any,
) -> "Figure":
    """A ``Figure`` of subplots side by side, with title, badges, notes and the page's colours.

    Opaque, so that it reads on any page. height : px of a panel. legend : lines of the legend.
    """
    from plotly.subplots import make_subplots

    colors = tokens(check_theme(theme))
    made = make_subplots(rows=1, cols=len(titles), subplot_titles=titles, **more)
    made.update_annotations(font={"size": 13, "color": colors["fg"]})
    notes = [text for note in scene["notes"] for text in wrap(note, WRAP, subsequent_indent="   ")]
    above = UNDER + LEGEND * legend
    foot = above + LINE * len(notes) + 12
    made.update_layout(
        template="none",
        width=960,
        height=HEAD + height + foot,
        paper_bgcolor=colors["bg"],
        plot_bgcolor=colors["bg"],
        font={"family": FONT, "size": 12, "color": colors["fg"]},
        margin={"l": 72, "r": 24, "t": HEAD, "b": foot},
        meta={"alt": scene["alt"]},
        title={
            "text": scene["title"],
            "x": 0.01,
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 12},
            "font": {"size": 15},
        },
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": -UNDER / height,
            "yanchor": "top",
        },
    )
    made.update_xaxes(gridcolor=colors["rule"], linecolor=colors["muted"], zeroline=False)
    made.update_yaxes(gridcolor=colors["rule"], linecolor=colors["muted"], zeroline=False)
    for number, badge in enumerate(scene["badges"]):
        made.add_annotation(
            text=f"<b>{badge}</b>",
            xref="paper",
            yref="paper",
            x=0,
            y=1,
            yshift=62,
            yanchor="top",
            xanchor="left",
            xshift=sum(8 * len(b) + 22 for b in scene["badges"][:number]),
            showarrow=False,
            bordercolor=colors["fg"],
            borderpad=3,
            font={"size": 11},
        )
    if notes:
        made.add_annotation(
            text="<br>".join(notes),
            xref="paper",
            yref="paper",
            x=0,
            y=0,
            yshift=-above,
            yanchor="top",
            xanchor="left",
            align="left",
            showarrow=False,
            font={"size": 11, "color": colors["muted"]},
        )
    return made


def mixed(color: str, other: str, part: float) -> str:
    """``part`` of one "#RRGGBB" in another."""
    pairs = ((int(c[i : i + 2], 16) for c in (color, other)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part * a + (1 - part) * b):02X}" for a, b in pairs)


def log_ticks(values: Collection[float]) -> list[float]:
    """1, 2 and 5 times powers of ten around these values, above 0."""
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    ticks = [digit * 10.0**power for power in range(low, high + 1) for digit in (1, 2, 5)]
    return [t for t in ticks if min(values) / 2 <= t <= 2 * max(values)]


def line(
    name: str,
    x: Iterable[Any],
    y: Iterable[float | None],
    ink: str,
    dash: str,
    marker: str,
    theme: str,
    **more: Any,
) -> "Scatter":
    """A ``Scatter`` of points joined by a line: colour, dash and marker all say which it is."""
    from plotly.graph_objects import Scatter

    color = getattr(INKS[ink], theme)
    return Scatter(
        name=name,
        x=list(x),
        y=list(y),
        mode="lines+markers",
        legendgroup=name,
        line={"color": color, "dash": dash, "width": 2},
        marker={"symbol": marker, "size": 9, "color": color},
        **more,
    )


def pointer(
    made: "Figure",
    text: str,
    x: float,
    y: float,
    ink: str,
    theme: str,
    row: int = 1,
    col: int = 1,
    **more: Any,
) -> None:
    """Point out one point in words, in the ink of its line."""
    color = getattr(INKS[ink], theme)
    made.add_annotation(
        text=text,
        x=x,
        y=y,
        row=row,
        col=col,
        arrowcolor=color,
        bgcolor=color,
        arrowwidth=1.5,
        font={"color": text_on(color), "size": 11},
        **more,
    )
