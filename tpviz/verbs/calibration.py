"""What `calibrate` found: measured points, the fitted lines, and the `Cluster` they describe."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from statistics import median
from typing import Any

from tpviz.cluster import Cluster, Device, Level
from tpviz.cluster.collectives import cost
from tpviz.cluster.fit import fit_line
from tpviz.cluster.routes import family

_Kind = tuple[int, int] | str  # (stride, size) of an axis, or "message"
FITTED = ("all_reduce", "send")
"""What the lines are fitted to; the other collectives check them."""


@dataclass(frozen=True, repr=False)
class Calibration:
    """A measured machine, or an emulated one.

    cluster : `Cluster` of one level, or the emulated one, with a measured row for every kind of
        group.
    points : a dict each: ``kind`` (the (stride, size) of a mesh axis, or "message"),
        ``collective``, ``bytes`` (of the full tensor), ``hops`` and ``volume`` (bytes) of the ring,
        ``seconds`` (median; emulated: the shortest) with ``shortest`` and ``longest``, ``fitted``
        (s), ``residual``.
    fits : {kind: (seconds of a hop, bytes/s)}.
    badge : where the numbers come from.
    """

    cluster: Cluster
    points: list[dict[str, Any]]
    fits: dict[_Kind, tuple[float, float]]
    badge: str

    @property
    def residual(self) -> dict[_Kind, dict[int, float]]:
        """{kind: {bytes: measured / fitted - 1}} of what the lines are fitted to."""
        found = {kind: {} for kind in self.fits}
        for point in self.points:
            if point["collective"] in FITTED:
                found[point["kind"]][point["bytes"]] = point["residual"]
        return found

    @property
    def worst(self) -> dict[str, Any]:
        """The point that is furthest from its line, of those the lines are fitted to."""
        fitted = [point for point in self.points if point["collective"] in FITTED]
        return max(fitted, key=lambda point: abs(point["residual"]))

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: every point, its line, and how far it is from it."""
        figure = import_module("tpviz.figures.calibration")  # a layer above: when asked for
        return figure.to_table(self.scene())

    def describe(self) -> str:
        """What was found, in words."""
        return import_module("tpviz.figures.calibration").describe(self.scene())

    def scene(self) -> dict[str, Any]:
        """What `tpviz.figures.calibration` draws, ready for JSON."""
        figure = import_module("tpviz.figures.calibration")
        return figure.calibration_scene(self.points, self.fits, self.cluster, self.badge)

    def to_svg(self, theme: str = "auto") -> str:
        """Measured points and fitted lines, one panel for every kind of group, as one SVG."""
        return import_module("tpviz.figures.calibration").calibration_svg(self.scene(), theme)

    def _repr_html_(self):
        return import_module("tpviz.figures.svg").image(self.to_svg(), self.describe())

    def __repr__(self):
        kinds, sizes = len(self.fits) - 1, len(self.residual["message"])
        return (
            f"<Calibration of {self.cluster.size} ranks, {kinds} kinds of groups, "
            f"{sizes} sizes: {self.badge}>"
        )


def calibration_of(ranks: list[dict[str, Any]], emulated: Cluster | None = None) -> Calibration:
    """The `Calibration` from what `timing.time_rank` gave on each rank, or `time_paced_rank` while
    a cluster was ``emulated``."""
    typical = min if emulated else median
    points, fits = [_point(*key, ranks, typical) for key in ranks[0]["points"]], {}  # pyright: ignore[reportCallIssue]
    for kind in dict.fromkeys(point["kind"] for point in points):
        used = [p for p in points if p["kind"] == kind and p["collective"] in FITTED]
        columns = [[p[what] for p in used] for what in ("hops", "volume", "seconds")]
        fits[kind] = fit_line(*columns)  # pyright: ignore[reportArgumentType]
    for point in points:
        alpha, bandwidth = fits[point["kind"]]
        point["fitted"] = point["hops"] * alpha + point["volume"] / bandwidth
        point["residual"] = point["seconds"] / point["fitted"] - 1
    if emulated:
        return Calibration(_emulated(emulated, fits), points, fits, "measured: emulated")
    return Calibration(_cluster(ranks, fits), points, fits, f"measured: {ranks[0]['badge']}")


def _point(
    kind: _Kind,
    collective: str,
    size: int,
    ranks: Sequence[dict[str, Any]],
    typical: Callable[[list[float]], float],
):
    """One measurement: ``typical`` of its repeats, in each of which the slowest group counts."""
    groups = _groups(kind, len(ranks))
    hops, volume = cost("ring", collective, size, len(groups[0]))
    stamps = [rank["points"][kind, collective, size] for rank in ranks]
    one_clock = len({rank["host"] for rank in ranks}) == 1
    took = [
        max(_took([stamps[rank][i] for rank in group], one_clock) for group in groups)
        for i in range(len(stamps[0]))
    ]
    return {
        "kind": kind,
        "collective": collective,
        "bytes": size,
        "hops": hops,
        "volume": volume,
        "seconds": typical(took),
        "shortest": min(took),
        "longest": max(took),
    }


def _groups(kind: _Kind, world_size: int):
    if isinstance(kind, str):
        return [(rank, rank + 1) for rank in range(0, world_size - 1, 2)]
    stride, size = kind
    return family(range(0, stride * size, stride), world_size)


def _took(stamps: Sequence[tuple[float, float]], one_clock: bool):
    """Seconds from the last member's start to the last end; on several hosts, whose clocks differ,
    what it took the member that waited least."""
    if one_clock:
        return max(end for _, end in stamps) - max(start for start, _ in stamps)
    return min(end - start for start, end in stamps)


def _emulated(cluster: Cluster, fits: Mapping[_Kind, tuple[float, float]]):
    """The cluster that was emulated, with measured rows in place of its rule and its own table."""
    rows = {kind: fit for kind, fit in fits.items() if not isinstance(kind, str)}
    return replace(
        cluster,
        name=f"{cluster.name}, emulated and measured",
        algorithm="ring",
        table={kind: bandwidth for kind, (_, bandwidth) in rows.items()},
        latencies={kind: alpha for kind, (alpha, _) in rows.items()},
        source="tv.calibrate of the emulated cluster: all groups of an axis at once",
    )


def _cluster(ranks: Sequence[dict[str, Any]], fits: Mapping[_Kind, tuple[float, float]]):
    """One level that joins all ranks, and the measured rows. Messages set the level's own rates."""
    rows = {kind: fit for kind, fit in fits.items() if not isinstance(kind, str)}
    alpha, bandwidth = fits["message"]
    words = ranks[0]["words"]
    flops = {d: median(rank["gemm"][d] for rank in ranks) for d in ranks[0]["gemm"]}
    copy = median(rank["copy"] for rank in ranks)
    device = Device(flops, ranks[0]["memory"], copy, ranks[0]["device"])
    return Cluster(
        f"this machine ({words})",
        device,
        (Level(words.split(", ")[-1], len(ranks), bandwidth, None, alpha),),  # pyright: ignore[reportArgumentType]
        table={kind: bandwidth for kind, (_, bandwidth) in rows.items()},
        latencies={kind: alpha for kind, (alpha, _) in rows.items()},
        source="tv.calibrate: all groups of an axis at once, ring formula, robust fit",
    )
