"""A chart's scene (`tpviz.core.charts`) as a plotly figure; plotly loads then."""

from math import log10
from typing import TYPE_CHECKING, Any

from tpviz.core.checks import one_of

from .tokens import tokens

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def plotly_figure(scene: dict[str, Any], theme: str = "light") -> "Figure":
    """A scene as a plotly ``Figure`` to work on, on no background; theme "light" or "dark"."""
    from plotly.subplots import make_subplots

    colors, named = tokens(one_of("theme", theme, ("light", "dark"))), set()
    titles, shared = [one["title"] for one in scene["panels"]], scene.get("shared_y", False)
    figure = make_subplots(1, len(titles), subplot_titles=titles, shared_yaxes=shared)
    for column, one in enumerate(scene["panels"], 1):
        at: dict[str, Any] = {"row": 1, "col": column}
        for trace in one["traces"]:
            name = trace["name"]
            legend = {"legendgroup": name, "showlegend": name not in named and bool(trace["x"])}
            named.add(name)
            figure.add_trace(_inked({**legend, **trace}, colors), **at)
        for mark in one["marks"]:
            place = {
                way: log10(mark[way]) if one[way].get("type") == "log" else mark[way]
                for way in ("x", "y")
            }
            box = (
                {"bgcolor": colors[mark["ink"]], "font_color": colors[f"on-{mark['ink']}"]}
                if (mark["ink"])
                else {"showarrow": False, "yshift": 10}
            )
            figure.add_annotation(text=mark["text"], **place, **box, **at)
        for rule in one["rules"]:
            add = figure.add_vline if "x" in rule else figure.add_hline
            where = {way: rule[way] for way in rule if way in ("x", "y")}
            add(**where, line_dash=rule["dash"], annotation_text=rule["text"], **at)
        figure.update_xaxes(**at, **one["x"])
        figure.update_yaxes(**at, **one["y"])
    look = {"gridcolor": colors["rule"], "linecolor": colors["muted"], "zeroline": False}
    figure.update_xaxes(automargin=True, **look)
    figure.update_yaxes(automargin=True, **look)
    clear = "rgba(0,0,0,0)"
    return figure.update_layout(
        template="none",
        barmode="stack" if scene.get("stack") else "group",
        paper_bgcolor=clear,
        plot_bgcolor=clear,
        font_color=colors["fg"],
        title_text="<br>".join([scene["title"], f"<b>{', '.join(scene['badges'])}</b>"]),
        meta={"alt": scene["alt"], "notes": scene["notes"]},
    )


def _inked(value, colors):
    """The same data with the theme's colours for their names."""
    if isinstance(value, dict):
        return {key: _inked(one, colors) for key, one in value.items()}
    if isinstance(value, list):
        return [_inked(one, colors) for one in value]
    if not isinstance(value, str) or not value.startswith("ink:"):
        return value
    ink, _, part = value.removeprefix("ink:").partition("/")
    return mixed(colors[ink], colors["bg"], float(part)) if part else colors[ink]


def mixed(color: str, other: str, part: float) -> str:
    """``part`` of one "#RRGGBB" in another."""
    pairs = ((int(c[i : i + 2], 16) for c in (color, other)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part * a + (1 - part) * b):02X}" for a, b in pairs)
