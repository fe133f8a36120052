"""A calibration -> scene, then SVG, table, words: measured times and the lines fitted to them.

One panel for every kind of group; both axes logarithmic. Marks are measured (all-reduce a disc,
all-gather a square, reduce-scatter a diamond, a message a disc), lines the fit of the all-reduces;
the broken one follows for all-gather and reduce-scatter, with half the hops and bytes.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .svg import amount, document, head, outline, rect, seconds, text

if TYPE_CHECKING:
    from tpviz.cluster import Cluster

WIDTH, HEIGHT, LEFT, TOP, GAP, DOWN = 236, 150, 62, 104, 92, 74
LINES = {"all_reduce": "", "send": "", "all_gather": "5 3", "reduce_scatter": "5 3"}
NAMES = {name: name.replace("_", "-") for name in LINES} | {"send": "message"}


def calibration_scene(
    points: Sequence[dict[str, Any]],
    fits: Mapping[Any, tuple[float, float]],
    cluster: "Cluster",
    badge: str,
) -> dict[str, Any]:
    """The scene, ready for JSON: ``panels`` (title, alpha, bandwidth, points), limits, ``device``.

    points, fits : as `Calibration` has them. Raises ``ValueError`` without a fit.
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
        },
    }


def _title(kind):
    if kind == "message":
        return "messages between neighbours"
    stride, size = kind
    return f"groups of {size}, " + ("neighbours" if stride == 1 else f"{stride} apart")


def calibration_svg(scene: dict[str, Any], theme: str = "auto") -> str:
    """Draw the scene; theme "light", "dark", "auto" or "page"."""
    body = [head(scene), _legend()]
    panels = scene["panels"]
    columns = 2 if len(panels) in (2, 4) else min(3, len(panels))
    for i, panel in enumerate(panels):
        x, y = LEFT + i % columns * (WIDTH + GAP), TOP + i // columns * (HEIGHT + DOWN)
        body.append(_panel(scene, panel, x, y))
    bottom = TOP + -(-len(panels) // columns) * (HEIGHT + DOWN) - DOWN + 50
    body.append(text(10, bottom, _device(scene), "muted"))
    width = max(LEFT + columns * (WIDTH + GAP) - GAP + 24, 620)
    label = f"Measured and fitted communication times of {scene['title']}"
    return document(width, bottom + 14, body, label, theme)


def _device(scene):
    rates = ", ".join(f"{d} {amount(r, 'FLOP/s')}" for d, r in scene["device"]["flops"].items())
    memory = amount(scene["device"]["memory_bandwidth"], "B/s")
    return f"{scene['device']['name']}: GEMMs {rates}; copies {memory}"


def _legend():
    out, x = [text(10, 46, "measured (median):", "muted")], 132.0
    for name in ("all_reduce", "all_gather", "reduce_scatter"):
        out.append(_mark(name, x, 42) + _stroke(name, [(x + 9, 42), (x + 33, 42)]))
        out.append(text(x + 39, 46, NAMES[name]))
        x += 60 + 6 * len(NAMES[name])
    words = "lines: hops x latency + bytes / bandwidth, fitted to the all-reduces"
    return "".join(out) + text(10, 64, words, "muted")


def _panel(scene, panel, x, y):
    alpha = f"{seconds(panel['alpha'])} a hop, {amount(panel['bandwidth'], 'B/s')}"
    title = text(x, y - 20, panel["title"], size=12, weight=700)
    out = [outline(x, y, WIDTH, HEIGHT, "rule"), title, text(x, y - 6, alpha, "muted")]
    across, up = _scale(scene["sizes"], x, WIDTH), _scale(scene["times"], y + HEIGHT, -HEIGHT)
    for exponent in _decades(scene["times"]):
        place = up(10.0**exponent)
        out.append(rect(x, place, WIDTH, 0.8, "rule"))
        out.append(text(x - 6, place + 4, seconds(10.0**exponent), "muted", 11, "end"))
    sizes = sorted({p["bytes"] for p in panel["points"]})
    shown = sizes[:: max(1, -(-len(sizes) // 5))]
    out += [text(across(b), y + HEIGHT + 15, _bytes(b), "muted", 11, "middle") for b in shown]
    for name in LINES:
        own = [p for p in panel["points"] if p["collective"] == name]
        own.sort(key=lambda p: p["bytes"])
        if own:
            if name != "reduce_scatter":  # its line is the all-gather's
                out.append(_stroke(name, [(across(b), up(t)) for b, t in _line(panel, own)]))
            out += [_mark(name, across(p["bytes"]), up(p["seconds"])) for p in own]
    return "".join(out)


def _line(panel, points):
    """(bytes, seconds) along the fitted line: straight in the numbers, so bent on these axes."""
    low, high, one = points[0]["bytes"], points[-1]["bytes"], points[0]
    for step in range(25):
        size = low * (high / low) ** (step / 24)
        bytes_sent = one["volume"] / one["bytes"] * size
        yield size, one["hops"] * panel["alpha"] + bytes_sent / panel["bandwidth"]


def _scale(limits, start, length):
    """A function from a value to px on a logarithmic scale with its own margin."""
    low, high = math.log10(limits[0]) - 0.15, math.log10(limits[1]) + 0.15
    return lambda value: start + length * (math.log10(value) - low) / (high - low)


def _decades(limits):
    low, high = (math.log10(limit) for limit in limits)
    return range(math.ceil(low - 0.15), math.floor(high + 0.15) + 1)


def _bytes(size):
    for unit, scale in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.4g} {unit}"
    return f"{size} B"


def _stroke(name, places):
    dash = f" stroke-dasharray='{LINES[name]}'" if LINES[name] else ""
    path = "L".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f"<path d='M{path}' fill='none' class='s-axis0' stroke-width='1.4'{dash}/>"


def _mark(name, x, y):
    if name in ("all_reduce", "send"):
        return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.6' class='f-fg'/>"
    turn = f"transform='rotate(45 {x:.1f} {y:.1f})' " if name == "reduce_scatter" else ""
    return rect(x - 3, y - 3, 6, 6, "", f"{turn}class='f-bg s-fg' stroke-width='1.4'")


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
    return " ".join([*lines, _device(scene) + "."])
