"""A calibration -> scene, then SVG, table, words: measured times and the lines fitted to them.

One panel for every kind of group; both axes logarithmic. Marks are measured, lines the fit of the
all-reduces; the broken one follows for all-gather and reduce-scatter, with half the hops and bytes.
"""

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from tpviz.cluster import Cluster
from tpviz.core import charts

from .chart_svg import LEGIBLE, chart_svg
from .svg import amount, image, seconds

__all__ = ["LEGIBLE", "calibration_scene", "calibration_svg", "describe", "image", "to_table"]


MARKERS = {
    "all_reduce": "circle",
    "send": "triangle-up",
    "all_gather": "square-open",
    "reduce_scatter": "diamond-open",
}
NAMES = {name: name.replace("_", "-") for name in MARKERS} | {"send": "message"}
FIT = "hops x latency + bytes / bandwidth, fitted to all-reduces and messages", "solid"
FITS = {
    "all_reduce": FIT,
    "send": FIT,
    "all_gather": ("half the hops and bytes, for all-gather and reduce-scatter", "dash"),
}
"""{collective: (words, dash) of the line through it}; reduce-scatter's is all-gather's."""


def calibration_scene(
    points: Sequence[dict[str, Any]],
    fits: Mapping[Any, tuple[float, float]],
    cluster: Cluster,
    badge: str,
    hosts: Mapping[str, dict[str, Any]] = MappingProxyType({}),
) -> dict[str, Any]:
    """The scene, ready for JSON: ``panels`` (title, alpha, bandwidth, points), limits, ``device``.

    points, fits, hosts : as `Calibration` has them. Raises ``ValueError`` without a fit.
    """
    if not fits:
        raise ValueError("there is nothing to draw: this calibration has no fits")
    panels = []
    for kind, (alpha, bandwidth) in fits.items():
        own = [{k: v for k, v in p.items() if k != "kind"} for p in points if p["kind"] == kind]
        fit = {"alpha": alpha, "bandwidth": bandwidth}
        panels.append({"title": _title(kind), **fit, "points": own})
    times = [p[key] for p in points for key in ("seconds", "fitted")]
    sizes = [p["bytes"] for p in points]
    return {
        "title": cluster.caption,
        "badge": badge,
        "panels": panels,
        "times": [min(times), max(times)],
        "sizes": [min(sizes), max(sizes)],
        "device": {
            "name": cluster.device.name,
            "flops": dict(cluster.device.flops),
            "memory_bandwidth": cluster.device.memory_bandwidth,
            "losses": cluster.device.losses,
        },
        "hosts": {n: {k: of[k] for k in ("ranks", "gemm", "copy")} for n, of in hosts.items()},
    }


def _title(kind):
    if isinstance(kind, str):
        return "messages between neighbours" if kind == "message" else f"messages {kind}"
    stride, size = kind
    return f"groups of {size}, " + ("neighbours" if stride == 1 else f"{stride} apart")


def calibration_svg(scene: dict[str, Any], theme: str = "auto") -> str:
    """Draw the scene; theme "light", "dark", "auto" or "page"."""
    low, high = (math.log10(limit) for limit in scene["times"])
    decades = [10.0**power for power in range(math.ceil(low - 0.15), math.floor(high + 0.15) + 1)]
    ticks = decades if len(decades) > 1 else charts.log_ticks(scene["times"])
    y = charts.axis(ticks=ticks) | {"ticktext": [seconds(t) for t in ticks]}
    chart = {
        "title": f"Measured and fitted communication times of {scene['title']}",
        "badges": [scene["badge"]],
        "panels": [_panel(one, y) for one in scene["panels"]],
        "notes": [f"{_device(scene)}."],
        "alt": describe(scene),
        "shared_y": True,
    }
    return chart_svg(chart, theme)


def _panel(one, y):
    sizes, traces = sorted({p["bytes"] for p in one["points"]}), []
    for name, marker in MARKERS.items():
        own = sorted((p for p in one["points"] if p["collective"] == name), key=itemgetter("bytes"))
        if not own:
            continue
        if fit := FITS.get(name):
            (words, dash), (x, y_of_x) = fit, zip(*_line(one, own))
            fitted = charts.line(words, x, y_of_x, ("axis0", dash, ""))
            traces.append(fitted | {"mode": "lines"})
        values = [p["bytes"] for p in own], [p["seconds"] for p in own]
        size = 12 if "open" in marker else 8  # it lets a full one show through
        traces.append(charts.points(NAMES[name], *values, "fg", marker, size))
    title = f"{one['title']}\n{seconds(one['alpha'])} a hop, {amount(one['bandwidth'], 'B/s')}"
    x = charts.axis("size of the tensor", sizes) | {"ticktext": list(map(_bytes, sizes))}
    return charts.panel(title, traces, x, y)


def _device(scene):
    rates = ", ".join(f"{d} {amount(r, 'FLOP/s')}" for d, r in scene["device"]["flops"].items())
    memory = amount(scene["device"]["memory_bandwidth"], "B/s")
    device = f"{scene['device']['name']}: GEMMs {rates}; copies {memory}"
    reached = scene["device"]["losses"]
    return device + (f"; in training steps: {reached}" if reached else "")


def _line(panel, points):
    """(bytes, seconds) along the fitted line: straight in the numbers, so bent on these axes."""
    low, high, one = points[0]["bytes"], points[-1]["bytes"], points[0]
    for step in range(25):
        size = low * (high / low) ** (step / 24)
        bytes_sent = one["volume"] / one["bytes"] * size
        yield size, one["hops"] * panel["alpha"] + bytes_sent / panel["bandwidth"]


def _bytes(size):
    for unit, scale in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.4g} {unit}"
    return f"{size} B"


def to_table(scene: dict[str, Any]) -> list[list[str]]:
    """Rows of strings, header first: each point, the range of its repeats, its line, the rest."""
    table = [["groups", "collective", "size", "measured", "of", "fitted", "residual"]]
    for panel in scene["panels"]:
        for p in panel["points"]:
            spread = f"{seconds(p['shortest'])} to {seconds(p['longest'])}"
            row = [panel["title"], NAMES[p["collective"]], _bytes(p["bytes"])]
            row += [seconds(p["seconds"]), spread, seconds(p["fitted"])]
            table.append([*row, f"{100 * p['residual']:+.1f} %"])
    return table


def describe(scene: dict[str, Any]) -> str:
    """The measurements and the quality of the fit, in words."""
    lines = [f"{scene['title']} ({scene['badge']})."]
    for panel in scene["panels"]:
        points = [p for p in panel["points"] if p["collective"] in ("all_reduce", "send")]
        worst = max(points, key=lambda p: abs(p["residual"]))
        lines.append(
            f"{panel['title'].capitalize()}: {seconds(panel['alpha'])} a hop and "
            f"{amount(panel['bandwidth'], 'B/s')}; the point furthest from the line is "
            f"{_bytes(worst['bytes'])}, {100 * worst['residual']:+.0f} %."
        )
    for host, of in scene["hosts"].items():
        rates = ", ".join(f"{d} {amount(r, 'FLOP/s')}" for d, r in of["gemm"].items())
        copies = amount(of["copy"], "B/s")
        lines.append(f"{host}, {of['ranks']} ranks: GEMMs {rates}; copies {copies}.")
    return " ".join([*lines, _device(scene) + "."])
