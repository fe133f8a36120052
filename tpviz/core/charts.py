"""Charts as data: lines, points, bars and heat maps in panels, with badges and notes.

A scene is a dict ready for JSON: ``title``; ``badges`` (the sources of the numbers; cannot be
turned off); ``panels`` side by side, as `panel` makes them; ``notes`` (remarks that belong to the
picture); ``alt``, the picture in words; where wanted, ``stack`` (bars of a place stand on each
other) and ``shared_y`` (panels have one y axis). Traces and axes use plotly's names, with names for
colours, which follow the theme: "ink:forward" is an ink, "ink:forward/0.5" half of it mixed with
the page. Views draw a scene: as SVG, or with plotly.

>>> steps = {"predicted": {1: 3e-3, 2: 2e-3}, "simulated": {1: 3e-3, 2: 2.5e-3}}
>>> drawn = curves("a step", steps, x=axis("chunks"))
>>> drawn["title"], [(t["name"], t["y"]) for t in drawn["traces"]]
('a step (ms)', [('predicted', [3.0, 2.0]), ('simulated', [3.0, 2.5])])
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import ceil, floor, log10
from types import MappingProxyType
from typing import Any

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
    """One panel. traces : plotly's. x, y : its axes. marks : labels, as `label` gives them. rules :
    lines across it, {"x" or "y": where, "dash": how, "text": words beside it}."""
    return {
        "title": title,
        "traces": traces,
        "x": x or {},
        "y": y or {},
        "marks": list(marks),
        "rules": list(rules),
    }


def axis(title: str = "", ticks: Collection[float] | None = None, **more: Any) -> dict[str, Any]:
    """An axis. ticks : where its ticks are; it is logarithmic then."""
    if ticks is not None:
        words = [f"{t:g}" if isinstance(t, float) else str(t) for t in ticks]
        more |= {"type": "log", "tickvals": list(ticks), "ticktext": words}
    return {"title": title, **more}


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
        "line": {"color": f"ink:{ink}", "dash": dash, "width": 2},
        "marker": {
            "symbol": marker,
            "size": 12 if marker == "circle-open" else 9,
            "color": f"ink:{ink}",
        },
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
    name: str, x: Iterable[Any], y: Iterable[float], ink: str, shape: str, waits: bool = False
) -> dict[str, Any]:
    """Bars. shape : plotly's pattern over the ink. waits : exposed communication, of an axis."""
    over = "ink:exposed" if waits else "ink:bg"
    pattern = {"shape": shape, "fillmode": "overlay", "size": 6, "fgcolor": over}
    marker = {"color": f"ink:{ink}", "pattern": pattern}
    return {"type": "bar", "name": name, "x": list(x), "y": list(y), "marker": marker}


def heat_map(
    x: list[str],
    y: list[str],
    z: list[list[float | None]],
    words: list[list[str]],
    limit: float,
    name: str,
) -> dict[str, Any]:
    """A heat map of ``z`` with the texts ``words`` in its cells. The colour scale runs from
    -``limit`` to ``limit``: one ink below 0, another above, both light enough for text."""
    ends = [[0, "ink:axis0/0.4"], [0.5, "ink:bg"], [1, "ink:forward/0.55"]]
    cells = {"type": "heatmap", "name": name, "x": x, "y": y, "z": z, "xgap": 2, "ygap": 2}
    text = {"text": words, "texttemplate": "%{text}", "textfont": {"color": "ink:fg"}}
    return {**cells, **text, "zmin": -limit, "zmax": limit, "colorscale": ends}


def label(text: str, x: Any, y: float, ink: str = "") -> dict[str, Any]:
    """A text label at the point (x, y); ``ink`` gives it a colour and an arrow to the point."""
    return {"text": text, "x": x, "y": y, "ink": ink}


def unit_of(values: Iterable[float | None]) -> tuple[str, float]:
    """(unit, seconds in that unit) suited to the largest of ``values``, which are seconds."""
    largest = max((abs(v) for v in values if v is not None), default=0.0)
    return next(((u, s) for u, s in UNITS if largest >= s), UNITS[0] if not largest else UNITS[-1])


def log_ticks(values: Collection[float]) -> list[float]:
    """Ticks 1, 2 and 5 times powers of ten that cover the ``values``, which must be above 0."""
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    ticks = [digit * 10.0**power for power in range(low, high + 1) for digit in (1, 2, 5)]
    return [t for t in ticks if min(values) / 2 <= t <= 2 * max(values)]


def words_of(source: str) -> str:
    """The legend text of a source of numbers; a "run" is measured on an emulated cluster."""
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
    styles: Mapping[str, tuple[Any, ...]],
) -> dict[str, Any]:
    """A stack of a step's parts for each variant: by the source that has most variants, of several
    the last. Marks are where the step ends by the other sources, so that one sees what differs.

    steps : {source: {variant: (seconds, what stands above the stack, {part: seconds})}}. styles :
    {part: (words, ink, pattern, and whether it is exposed)}, bottom first.
    """
    unit, scale = unit_of([one[0] for variants in steps.values() for one in variants.values()])
    shown = max(reversed([*steps]), key=lambda source: len(steps[source]))
    parts, traces = {at: one[2] for at, one in steps[shown].items()}, []
    for part, (words, *look) in styles.items():
        seconds = [one.get(part, 0.0) / scale for one in parts.values()]
        traces.append(bar(words, parts, seconds, *look))
    for source, variants in steps.items():
        ends = [one[0] / scale for one in variants.values()]
        symbol = LINES[source][2]
        traces += [points(words_of(source), variants, ends, "fg", symbol, 11)] * (source != shown)
    marks = [label(words, at, step / scale) for at, (step, words, _) in steps[shown].items()]
    title = f"{words_of(shown)} step ({unit}), speedup over first"
    return {"panels": [panel(title, traces, marks=marks)], "stack": True}


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
    every, panels = [s for values in seconds.values() for s in values], []
    unit, scale = unit_of(every)
    for title, lines, factor in zip(
        (f"{titles[0]} ({unit})", titles[1]), (seconds, shares), (1 / scale, 100.0)
    ):
        traces = [
            line(name, x["tickvals"], [v * factor for v in values], styles[name], text=texts[name])
            for name, values in lines.items()
        ]
        panels.append(panel(title, traces, x))
    panels[0]["y"] = axis(ticks=log_ticks([s / scale for s in every]))
    panels[1]["y"] = {"range": [0, 100]}
    return panels
