"""Charts: plotly figures drawn from plain data, with badges, notes and the usual colours.

A scene is a dict ready for JSON: ``title``; ``badges`` (the sources of the numbers; cannot be
turned off); ``panels`` side by side, as `panel` makes them; ``notes`` (remarks that belong to the
picture); ``alt``, the picture in words; and, where wanted, ``height`` (px of a panel), ``legend``
(lines of the legend), ``subplots`` and ``layout`` (what plotly's ``make_subplots`` and
``update_layout`` take). Traces are plotly's, with names for colours, which follow the theme:
"ink:forward" is an ink, "ink:fg" the page's text, "ink:on-forward" text on that ink,
"ink:forward/0.5" half of it mixed with the page. plotly loads when the first chart is drawn.

>>> steps = {"predicted": {1: 3e-3, 2: 2e-3}, "simulated": {1: 3e-3, 2: 2.5e-3}}
>>> drawn = curves("a step", steps, x=axis("chunks"))
>>> drawn["title"], [(t["name"], t["y"]) for t in drawn["traces"]]
('a step (ms)', [('predicted', [3.0, 2.0]), ('simulated', [3.0, 2.5])])
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import ceil, floor, log10
from textwrap import wrap
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .palette import tokens

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
LINES = {
    "predicted": ("forward", "dot", "circle-open"),
    "with contention": ("axis2", "dashdot", "x"),
    "simulated": ("backward", "dash", "square-open"),
    "measured": ("axis0", "solid", "diamond"),
}
"""Where a line's numbers come from -> (ink, dash, marker); never colour alone."""
BARS = {"predicted": "", "simulated": "/", "measured": "x"}
"""Where a bar's numbers come from -> its pattern; its ink is the line's."""
FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"
HEAD, PANEL, UNDER, LEGEND, LINE, WRAP = 112, 330, 52, 28, 16, 125
FROM_ZERO = {"rangemode": "tozero"}
"""An axis that begins at 0."""


# -- the data of a chart ---------------------------------------------------------------------------
def panel(
    title: str,
    traces: list[dict[str, Any]],
    x: dict[str, Any] | None = None,
    y: dict[str, Any] | None = None,
    marks: Iterable[dict[str, Any]] = (),
    rules: Iterable[dict[str, Any]] = (),
) -> dict[str, Any]:
    """One panel. traces : plotly's. x, y : layout of the axes. marks : annotations. rules : lines
    across it, {"x" or "y": where, and how they look}."""
    return {
        "title": title,
        "traces": traces,
        "x": x or {},
        "y": y or {},
        "marks": list(marks),
        "rules": list(rules),
    }


def axis(
    title: str | None = None, ticks: Collection[float] | None = None, **more: Any
) -> dict[str, Any]:
    """The layout of an axis. ticks : where its ticks are; it is logarithmic then."""
    if title is not None:
        more["title"] = {"text": title, "standoff": 6}
    if ticks is not None:
        words = [f"{t:g}" if isinstance(t, float) else str(t) for t in ticks]
        more |= {"type": "log", "tickvals": list(ticks), "ticktext": words}
    return more


def line(
    name: str, x: Iterable[Any], y: Iterable[float | None], style: Sequence[str], **more: Any
) -> dict[str, Any]:
    """Points joined by a line. style : (ink, dash, marker), which all say which line it is."""
    ink, dash, marker = style
    return {
        "type": "scatter",
        "name": name,
        "x": list(x),
        "y": list(y),
        "mode": "lines+markers",
        "legendgroup": name,
        "line": {"color": f"ink:{ink}", "dash": dash, "width": 2},
        "marker": {"symbol": marker, "size": 9, "color": f"ink:{ink}"},
        **more,
    }


def points(
    name: str,
    x: Iterable[Any],
    y: Iterable[Any],
    ink: str,
    symbol: str | list[str],
    size: int,
    **more: Any,
) -> dict[str, Any]:
    """Points by themselves. symbol : plotly's marker, of all or of each."""
    marker = {"symbol": symbol, "size": size, "color": f"ink:{ink}"}
    own = {"type": "scatter", "name": name, "mode": "markers", "x": list(x), "y": list(y)}
    return {**own, "marker": marker, **more}


def bar(
    name: str, x: Iterable[Any], y: Iterable[float], ink: str, shape: str, **pattern: Any
) -> dict[str, Any]:
    """Bars. shape : plotly's pattern over the ink; pattern : what else it has."""
    pattern = {"shape": shape, "fillmode": "overlay", "size": 6, "fgcolor": "ink:bg", **pattern}
    return {
        "type": "bar",
        "name": name,
        "x": list(x),
        "y": list(y),
        "legendgroup": name,
        "marker": {"color": f"ink:{ink}", "pattern": pattern},
    }


def heat_map(
    x: list[str],
    y: list[str],
    z: list[list[float | None]],
    words: list[list[str]],
    limit: float,
) -> dict[str, Any]:
    """Cells from -``limit`` to ``limit``, with ``words`` on them: below 0 in one ink, above in
    another, both so light that text reads on them."""
    ends = [[0, "ink:axis0/0.55"], [0.5, "ink:rule"], [1, "ink:forward/0.55"]]
    cells = {"type": "heatmap", "x": x, "y": y, "z": z, "xgap": 2, "ygap": 2}
    text = {"text": words, "texttemplate": "%{text}", "textfont": {"color": "ink:fg"}}
    return {**cells, **text, "zmin": -limit, "zmax": limit, "colorscale": ends}


def pointer(text: str, x: float, y: float, ink: str, **more: Any) -> dict[str, Any]:
    """An annotation that points out one point in words, in the ink of its line."""
    color = f"ink:{ink}"
    return {
        "text": text,
        "x": x,
        "y": y,
        "arrowcolor": color,
        "bgcolor": color,
        "arrowwidth": 1.5,
        "font": {"color": f"ink:on-{ink}", "size": 11},
        **more,
    }


def unit_of(values: Iterable[float | None]) -> tuple[str, float]:
    """(unit, seconds of it) in which the largest of these times reads well."""
    largest = max((abs(v) for v in values if v is not None), default=0.0)
    return next(((u, s) for u, s in UNITS if largest >= s), UNITS[0] if not largest else UNITS[-1])


def log_ticks(values: Collection[float]) -> list[float]:
    """1, 2 and 5 times powers of ten around these values, above 0."""
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    ticks = [digit * 10.0**power for power in range(low, high + 1) for digit in (1, 2, 5)]
    return [t for t in ticks if min(values) / 2 <= t <= 2 * max(values)]


def words_of(source: str) -> str:
    """The label of a source of numbers: runs are measured on emulated clusters."""
    return "emulated" if source == "measured" else source


# -- charts of several variants by several sources -------------------------------------------------
def curves(
    title: str,
    times: Mapping[str, Mapping[Any, float]],
    unit: tuple[str, float] | None = None,
    name: Callable[[str], str] = words_of,
    spread: Mapping[str, dict[str, Any]] = MappingProxyType({}),
    **more: Any,
) -> dict[str, Any]:
    """A panel with a line for each source. times : {source of LINES: {place on x: seconds}}. unit :
    as `unit_of` gives it, if not that of these times. name : of a source. spread : {source:
    plotly's ``error_y``}. more : as `panel` takes it."""
    word, scale = unit or unit_of([s for one in times.values() for s in one.values()])
    traces = []
    for source, one in times.items():
        seconds = [s / scale for s in one.values()]
        trace = line(name(source), one, seconds, LINES[source])
        traces.append(trace | ({"error_y": spread[source]} if source in spread else {}))
    return panel(f"{title} ({word})", traces, **more)


def bars(title: str, times: Mapping[str, Mapping[Any, float]], **more: Any) -> dict[str, Any]:
    """The data of `curves` as bars side by side: one for each variant and source."""
    unit, scale = unit_of([s for one in times.values() for s in one.values()])
    traces = [
        bar(words_of(s), one, [t / scale for t in one.values()], LINES[s][0], BARS[s])
        for s, one in times.items()
    ]
    return panel(f"{title} ({unit})", traces, **more)


def stacks(
    steps: Mapping[str, Mapping[str, tuple[float, str, Mapping[str, float]]]],
    styles: Mapping[str, tuple[str, str, str]],
    **x: Any,
) -> dict[str, Any]:
    """Panels that split steps into parts: a panel for each source, a stack for each variant.

    steps : {source: {variant: (seconds, what stands above the stack, {part: seconds})}}. styles :
    {part: (words, ink, pattern)}, bottom first. x : layout of the x axes.
    """
    unit, scale = unit_of([one[0] for variants in steps.values() for one in variants.values()])
    panels, x = [], {"showgrid": False, "tickangle": 0, **x}
    for source, variants in steps.items():
        traces = []
        for part, (words, ink, shape) in styles.items():
            seconds = [parts.get(part, 0.0) / scale for *_, parts in variants.values()]
            over = "%{x}: %{y:.4g} " + f"{unit} {words}<extra></extra>"
            traces.append({**bar(words, variants, seconds, ink, shape), "hovertemplate": over})
        flat = {"showarrow": False, "yshift": 10, "font": {"size": 11}}
        marks = [
            {"text": words, "x": name, "y": step / scale, **flat}
            for name, (step, words, _) in variants.items()
        ]
        panels.append(panel(f"{words_of(source)} step ({unit})", traces, x, marks=marks))
    subplots = {"shared_yaxes": True, "horizontal_spacing": 0.03}
    return {"panels": panels, "subplots": subplots, "layout": {"barmode": "stack"}}


def growth(
    x: dict[str, Any],
    titles: tuple[str, str],
    seconds: Mapping[str, Sequence[float]],
    shares: Mapping[str, Sequence[float]],
    styles: Mapping[str, Sequence[str]],
    texts: Mapping[str, Sequence[str] | None],
) -> list[dict[str, Any]]:
    """Two panels over a number of ranks: seconds, logarithmic, and shares (0..1) in percent.

    x : the axis, as `axis` gives it with ticks, which are where the points are. styles, texts :
    {line: (ink, dash, marker)}, {line: what a pointer brings up at each point}.
    """
    unit, scale = unit_of([s for values in seconds.values() for s in values])
    panels = []
    for title, lines, factor in zip(
        (f"{titles[0]} ({unit})", titles[1]), (seconds, shares), (1 / scale, 100.0)
    ):
        traces = [
            line(name, x["tickvals"], [v * factor for v in values], styles[name], text=texts[name])
            for name, values in lines.items()
        ]
        panels.append(panel(title, traces, x))
    panels[0]["y"] = axis(
        ticks=log_ticks([s / scale for values in seconds.values() for s in values])
    )
    panels[1]["y"] = {"range": [0, 100]}
    return panels


# -- drawing ---------------------------------------------------------------------------------------
def check_theme(theme: str) -> str:
    """Raise ``ValueError`` but on "light" or "dark": plotly figures cannot follow a page."""
    if theme not in ("light", "dark"):
        raise ValueError(f"theme={theme!r} is not one of 'light', 'dark'")
    return theme


def chart(scene: dict[str, Any], theme: str = "light") -> "Figure":
    """Draw a scene as a plotly ``Figure``; theme "light" or "dark".

    Opaque, so that it reads on any page. Each name stands once in the legend.
    """
    from plotly.subplots import make_subplots

    colors = tokens(check_theme(theme))
    titles, named = [one["title"] for one in scene["panels"]], set()
    figure = make_subplots(1, len(titles), subplot_titles=titles, **scene.get("subplots", {}))
    figure.update_annotations(font={"size": 13, "color": colors["fg"]})
    _frame(figure, scene, colors)
    for column, one in enumerate(scene["panels"], 1):
        for trace in one["traces"]:
            name = trace.get("name")
            if name in named or not trace["x"]:
                trace = {**trace, "showlegend": False}
            named |= {name} - {None}
            figure.add_trace(_inked(trace, colors), row=1, col=column)
        for mark in one["marks"]:
            figure.add_annotation(row=1, col=column, **_inked(mark, colors))
        for rule in one["rules"]:
            add: Any = figure.add_vline if "x" in rule else figure.add_hline
            add(row=1, col=column, **_inked(rule, colors))  # pyright: ignore[reportCallIssue]
        figure.update_xaxes(row=1, col=column, **one["x"])
        figure.update_yaxes(row=1, col=column, **one["y"])
    return figure.update_layout(scene.get("layout", {}))


def _frame(figure, scene, colors):
    """Title, badges, notes, legend and the page's colours."""
    height = scene.get("height", PANEL)
    notes = [text for note in scene["notes"] for text in wrap(note, WRAP, subsequent_indent="   ")]
    above = UNDER + LEGEND * scene.get("legend", 1)
    foot = above + LINE * len(notes) + 12
    figure.update_layout(
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
    figure.update_xaxes(gridcolor=colors["rule"], linecolor=colors["muted"], zeroline=False)
    figure.update_yaxes(gridcolor=colors["rule"], linecolor=colors["muted"], zeroline=False)
    corner = {"xref": "paper", "yref": "paper", "x": 0, "yanchor": "top", "xanchor": "left"}
    for number, badge in enumerate(scene["badges"]):
        figure.add_annotation(
            text=f"<b>{badge}</b>",
            y=1,
            yshift=62,
            xshift=sum(8 * len(b) + 22 for b in scene["badges"][:number]),
            showarrow=False,
            bordercolor=colors["fg"],
            borderpad=3,
            font={"size": 11},
            **corner,
        )
    if notes:
        figure.add_annotation(
            text="<br>".join(notes),
            y=0,
            yshift=-above,
            align="left",
            showarrow=False,
            font={"size": 11, "color": colors["muted"]},
            **corner,
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
