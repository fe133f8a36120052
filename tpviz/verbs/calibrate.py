"""``calibrate``: measure this machine's links and devices on real ranks, and get a `Cluster`; after
`tpviz.use` those of several hosts, and the links between them.

found = tv.calibrate(4)
found.cluster, found.residual, found.to_svg()
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import reduce
from operator import getitem, itemgetter
from statistics import median
from typing import Any, cast

from tpviz.cluster import Cluster, Device, Level
from tpviz.cluster.clock.program import strides
from tpviz.cluster.collectives import cost
from tpviz.cluster.fit import LEAST_STEPS, fit_kernels, fit_line
from tpviz.cluster.profiles import fitted
from tpviz.cluster.routes import family
from tpviz.core.checks import one_of, whole_number
from tpviz.core.mesh import Mesh
from tpviz.core.show import Drawn, figure_of
from tpviz.core.trace.clocks import ahead
from tpviz.core.trace.faithful import warn_if_late
from tpviz.core.workload import GPT
from tpviz.ranks.hosts import host as host_of_rank
from tpviz.ranks.launch import launch
from tpviz.ranks.most import check_world_size
from tpviz.schemes.gpt.kernels import adamw
from tpviz.schemes.gpt.pointwise import work
from tpviz.schemes.zero.strategy import DataParallel

from .checks import check_cluster
from .timing import LARGE, SMALL, time_paced_rank, time_rank

_Kind = tuple[int, int] | str  # (stride, size) of an axis, or one of the messages
MESSAGE, BETWEEN, ALONE = "message", "between hosts", "between hosts, one pair"
"""Kinds of messages: between neighbours; of several hosts those within each, between a rank of one
host and its counterpart on another, and the same of one such pair while all others rest."""
FITTED = ("all_reduce", "send")
"""What the lines are fitted to; the other collectives check them."""


@dataclass(frozen=True, repr=False)
class Calibration(Drawn):
    """A measured machine, or an emulated one.

    cluster : `Cluster` of one level, of several hosts with one more for the links between them, or
        the emulated one; with a measured row for every kind of group.
    points : a dict each: ``kind`` (the (stride, size) of a mesh axis, or one of `MESSAGE`,
        `BETWEEN` and `ALONE`), ``collective``, ``bytes`` (of the full tensor), ``hops`` and
        ``volume`` (bytes) of the ring, ``seconds`` (median; emulated: the shortest) with
        ``shortest`` and ``longest``, ``fitted`` (s), ``residual``.
    fits : {kind: (seconds of a hop, bytes/s)}.
    badge : where the numbers come from.
    hosts : {name: "ranks", "cores", "gemm" (FLOP/s by dtype), "copy" (bytes/s) and "step" (s, of
        all training steps)} of each host, where there are several; the cluster's device is as slow
        as the slowest, which the others wait for.
    """

    cluster: Cluster
    points: list[dict[str, Any]]
    fits: dict[_Kind, tuple[float, float]]
    badge: str
    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)

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
        return figure_of(self).to_table(self.scene())

    def describe(self) -> str:
        """What was found, in words."""
        return figure_of(self).describe(self.scene())

    def scene(self) -> dict[str, Any]:
        """What `tpviz.views.figures.calibration` draws, ready for JSON."""
        return figure_of(self).calibration_scene(
            self.points, self.fits, self.cluster, self.badge, self.hosts
        )

    def to_svg(self, theme: str = "auto") -> str:
        """Measured points and fitted lines, one panel for every kind of group, as one SVG."""
        return figure_of(self).calibration_svg(self.scene(), theme)

    def __repr__(self):
        kinds = sum(not isinstance(kind, str) for kind in self.fits)
        sizes = len(self.residual[MESSAGE])
        return (
            f"<Calibration of {self.cluster.size} ranks, {kinds} kinds of groups, "
            f"{sizes} sizes: {self.badge}>"
        )


def calibration_of(ranks: list[dict[str, Any]], emulated: Cluster | None = None) -> Calibration:
    """The `Calibration` from what `timing.time_rank` gave on each rank, or `time_paced_rank` while
    a cluster was ``emulated``."""
    typical, names = min if emulated else median, [rank["host"][0] for rank in ranks]
    per_host = _per_host(names)
    ranks = [_on_one_clock(rank) for rank in ranks]
    pairs = _pairs(len(ranks), per_host)
    points, fits = [_point(*key, pairs, ranks, typical) for key in ranks[0]["points"]], {}  # pyright: ignore[reportCallIssue]
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
    hosts = {n: _of_host([r for r in ranks if r["host"][0] == n]) for n in dict.fromkeys(names)}
    several = hosts if len(hosts) > 1 else {}
    cluster = _cluster(ranks, fits, points, hosts)
    return Calibration(cluster, points, fits, f"measured: {ranks[0]['badge']}", several)


def _per_host(names: Sequence[str]) -> int:
    """How many ranks each host has, of the names of all ranks' hosts; ``ValueError`` where they are
    not equally many: a cluster's hosts are."""
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    if len(set(counts.values())) > 1:
        words = ", ".join(f"{n} on {name}" for name, n in counts.items())
        size, least = len(counts), min(counts.values())
        raise ValueError(
            f"{len(names)} ranks are {words}: a cluster has as many on each host, so use "
            f"world_size={least * size} or {(least + 1) * size}"
        )
    return len(names) // len(counts)


def _pairs(world_size: int, per_host: int) -> dict[str, list[tuple[int, int]]]:
    """{kind of messages: (sender, receiver) of all that are sent at once}."""
    step = 2 * per_host
    across = [
        (rank, rank + per_host)
        for first in range(0, world_size - per_host, step)
        for rank in range(first, first + per_host)
    ]
    inside = [
        (rank, rank + 1)
        for first in range(0, world_size, per_host)
        for rank in range(first, first + per_host - 1, 2)
    ]
    if not across or not inside:
        return {MESSAGE: inside or across}
    return {MESSAGE: inside, BETWEEN: across, ALONE: across[:1]}


def _on_one_clock(rank: dict[str, Any]) -> dict[str, Any]:
    """What a rank has measured, by rank 0's clock if both were compared."""
    offset = rank.get("offset")
    if not offset:
        return rank
    moved = {
        key: [[time - float(ahead(time, offset["moments"])) for time in stamp] for stamp in stamps]
        for key, stamps in rank["points"].items()
    }
    return {**rank, "points": moved, "host": [rank["host"][0], offset["to"]]}


def _of_host(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the ranks of one host."""
    of = lambda *path: median(cast(float, reduce(getitem, path, rank)) for rank in ranks)
    steps = ranks[0].get("steps") or {}
    return {
        "ranks": len(ranks),
        "cores": ranks[0].get("cores", 0),
        "memory": min(rank["memory"] for rank in ranks),
        "gemm": {dtype: of("gemm", dtype) for dtype in ranks[0]["gemm"]},
        "copy": of("copy"),
        "to_host": of("to_host"),
        "steps": {w: of("steps", w) for w in steps},
        "step": sum(of("steps", w) for w in steps),
    }


def _point(
    kind: _Kind,
    collective: str,
    size: int,
    pairs: Mapping[str, list[tuple[int, int]]],
    ranks: Sequence[dict[str, Any]],
    typical: Callable[[list[float]], float],
):
    """One measurement: ``typical`` of its repeats, in each of which the slowest group counts."""
    groups = pairs[kind] if isinstance(kind, str) else _groups(*kind, len(ranks))
    hops, volume = cost("ring", collective, size, len(groups[0]))
    stamps = [rank["points"][kind, collective, size] for rank in ranks]
    one_clock = len({rank["host"][1] for rank in ranks}) == 1
    took = [
        max(1e-6, *(_took([stamps[rank][i] for rank in group], one_clock) for group in groups))
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


def _groups(stride: int, size: int, world_size: int):
    return family(range(0, stride * size, stride), world_size)


def _took(stamps: Sequence[tuple[float, float]], one_clock: bool):
    """Seconds from the last member's start to the last end; where clocks differ and nobody compared
    them, what it took the member that waited least."""
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


def _cluster(
    ranks: Sequence[dict[str, Any]],
    fits: Mapping[_Kind, tuple[float, float]],
    points: Sequence[dict[str, Any]],
    hosts: Mapping[str, dict[str, Any]],
):
    """Levels within and between hosts, and the measured rows. Messages set the levels' own rates;
    the slowest host's medians those of the device."""
    rows = {kind: fit for kind, fit in fits.items() if not isinstance(kind, str)}
    words, each = ranks[0]["words"], [*hosts.values()]
    flops = {d: min(of["gemm"][d] for of in each) for d in each[0]["gemm"]}
    memory, copy, host = (min(of[what] for of in each) for what in ("memory", "copy", "to_host"))
    device = Device(flops, memory, copy, ranks[0]["device"], host=host)
    overhead, longer, slower = _among_collectives(ranks, fits)
    if ranks[0].get("steps"):
        slowest = max(each, key=itemgetter("step"))["steps"]
        mean = {w: longer * seconds for w, seconds in slowest.items()}
        device = device_of_steps(device, mean, ahead=not ranks[0]["cores"])
    name, of = f"this machine ({words})", ""
    if len(hosts) > 1:
        name = f"{len(hosts)} hosts ({', '.join(hosts)}; each {words})"
        of = f" on {', '.join(hosts)}"
    checks = {point["collective"] for point in points}.difference(FITTED)
    return Cluster(
        name,
        device,
        _levels(words.split(", ")[-1], fits, len(hosts), len(ranks) // len(hosts)),
        table={kind: bandwidth / slower for kind, (_, bandwidth) in rows.items()},
        latencies={kind: alpha for kind, (alpha, _) in rows.items()},
        source=f"tv.calibrate{of}, {date.today()}: all groups of an axis at once, ring formula, "
        "robust fit",
        factors={name: _factors(name, fits, points) for name in sorted(checks)},
        overhead=overhead,
        queued=_queued(ranks),
        cores=min(of["cores"] for of in each),
        hosts=len(hosts),
        core_share=median(rank.get("core_share", 0.0) for rank in ranks),
    )


def _levels(by: str, fits: Mapping[Any, tuple[float, float]], hosts: int, per_host: int):
    """Links within a host and between hosts, as far as there are any. by : what moves bytes. What
    one pair of ranks gets alone, and all pairs together, says how far they share one link."""
    alpha, bandwidth = fits[MESSAGE]
    found = [Level(by, hosts * per_host, bandwidth, latency=alpha)]
    if hosts > 1 and per_host > 1:
        (latency, alone), (_, each) = fits[ALONE], fits[BETWEEN]
        p2p = max(alone, each)
        among = Level(f"{by}, between hosts", hosts, p2p, max(p2p, per_host * each), latency)
        found = [replace(found[0], units=per_host), among]
    return tuple(found)


def _factors(
    name: str, fits: Mapping[Any, tuple[float, float]], points: Iterable[Mapping[str, Any]]
):
    """How many times as long as the all-reduces' lines say the hops, and the bytes, of a collective
    take in groups of all kinds: the line through what it took, over what they say."""
    own = [p for p in points if p["collective"] == name]
    hops = [p["hops"] * fits[p["kind"]][0] for p in own]
    volume = [p["volume"] / fits[p["kind"]][1] for p in own]
    of_hops, bandwidth = fit_line(hops, volume, [p["seconds"] for p in own])
    return of_hops, 1 / bandwidth


def _among_collectives(
    ranks: Sequence[dict[str, Any]], fits: Mapping[Any, tuple[float, float]]
) -> tuple[float, float, float]:
    """(seconds of a collective beyond its line, how many times as long kernels take, and bytes)
    where both alternate: a line through what small all-reduces between layers lengthen steps by,
    over the seconds between two of them; and what large ones lengthen them by beyond these, in the
    median. (0.0, 1.0, 1.0) where none was timed."""
    if not ranks[0].get("interrupted") or (1, len(ranks)) not in fits:
        return 0.0, 1.0, 1.0
    models = list(zip(*(rank["interrupted"] for rank in ranks)))
    without, small, large = ([median(m[i] for m in of) for of in models] for i in range(3))
    each, rate = fit_line([1] * len(models), without, [max(s, 1e-6) for s in small])
    alpha, bandwidth = fits[1, len(ranks)]
    hops, volume = cost("ring", "all_reduce", SMALL, len(ranks))
    most = ranks[0].get("large", LARGE)
    more = cost("ring", "all_reduce", most, len(ranks))[1] - volume
    slower = median(b - a for a, b in zip(small, large)) * bandwidth / more
    overhead = each - hops * alpha - volume / bandwidth
    return max(0.0, overhead), 1 + 1 / rate, max(1.0, slower)


def _queued(ranks: Sequence[dict[str, Any]]) -> float:
    """`Cluster.queued`: the median over collectives, sizes and ranks; 1.0 where none was timed."""
    found = [ratio for rank in ranks for ratio in rank.get("queued", ())]
    return min(1.0, max(LEAST_QUEUED, median(found))) if found else 1.0


def device_of_steps(device: Device, seconds: Mapping[GPT, float], ahead: bool = False) -> Device:
    """The device whose kernels take as long as measured training steps, each whole on one device.

    Shares of the rates, traffic that is not hidden, and seconds to start a kernel, which adds to
    each; all by `tpviz.cluster.fit.fit_kernels`. seconds : of a step of each. ahead : the host
    launches kernels ahead of the device, a GPU: what a launch takes is the least that a kernel of
    any step does, and the rest is fitted to steps that it does not bound. Fused attention reaches
    the share of GEMMs' rate that it has in published runs (`tpviz.cluster.profiles.fitted`).
    """
    eager = replace(device, pointwise="eager", attention_efficiency=fitted()["attention"])
    steps, launch = [], 0.0
    for w, taken in seconds.items():
        rate = device.flops[w.dtype]
        kernels = work(eager, DataParallel(dp=1).held(w))
        update = (1, 0.0, adamw(w.num_parameters * w.itemsize).bytes)
        rows = [(count, flops / rate, size) for count, flops, size in (*kernels, update)]
        steps.append((rows, taken))
    if ahead:
        counts = [sum(count for count, *_ in rows) for rows, _ in steps]
        launch = min(taken / count for count, (_, taken) in zip(counts, steps))
        steps = [step for n, step in zip(counts, steps) if step[1] > CLEAR * launch * n]
        if len(steps) < LEAST_STEPS:
            return replace(eager, launch=launch)
    arithmetic, unhidden, byte, startup = fit_kernels(steps)
    arithmetic = arithmetic or 1.0  # steps that showed none: as ideal
    faster, bandwidth = max(1.0, 1 / arithmetic), device.memory_bandwidth
    bandwidth = max(bandwidth, 1 / byte) if byte else bandwidth  # in caches more than of copies
    return replace(
        eager,
        flops={dtype: rate * faster for dtype, rate in device.flops.items()},
        memory_bandwidth=bandwidth,
        gemm_efficiency=min(1.0, 1 / (arithmetic * faster)),
        memory_efficiency=min(1.0, 1 / (byte * bandwidth)) if byte else 1.0,
        unhidden=unhidden,
        startup=startup,
        launch=launch,
    )


__all__ = ["Calibration", "calibrate"]

LEAST_QUEUED = 0.1
"""What a collective behind another takes of its time at least, if a measurement says less."""
CLEAR = 1.3
"""How many times the launches of its kernels a step lasts at least that they do not bound."""
SIZES = (2**16, 2**20, 2**22, 2**24)
DTYPES = ("float32", "float64", "bfloat16", "float16")


def calibrate(
    world_size: int = 4,
    axes: dict[str, int] | Mesh | Sequence[dict[str, int] | Mesh] | None = None,
    sizes: Iterable[int] = SIZES,
    *,
    repeats: int = 11,
    dtypes: Iterable[str] = DTYPES[:3],
    gemm: int | None = None,
    cluster: "Cluster | None" = None,
    device: str | None = None,
    timeout: float | None = 300,
    progress: Callable[[int, int, str], Any] | bool | None = None,
) -> Calibration:
    """Measure collectives, messages, GEMMs, copies and training steps here: a `Calibration`.

    For every mesh axis, all its groups run all-reduces (and, as a check, all-gathers and
    reduce-scatters) at once; the median of the repeats counts, and the slowest group.
    A line T = hops * alpha + volume / B is fitted to the all-reduces. Neighbours exchange messages,
    every rank multiplies matrices, copies memory and trains small models, all at the same time.

    Training steps give the efficiency of a model's kernels and the cost of a launch
    (docs/adr/0021); all-gathers and reduce-scatters, how much longer they take than the
    all-reduces' line says; steps with small all-reduces between layers, the ``overhead`` of each
    and how much it slows kernels. The ranks share this host's ``cores``. So `tpviz.predict` and
    `tpviz.simulate` on ``.cluster`` predict plain runs on this machine, which no model paces: see
    `tpviz.compare` with ``emulate=False``.

    After `tpviz.use`, messages between hosts are timed too: of one pair of ranks alone and of all
    pairs at once, which share the link between the hosts. The cluster then has a level for links
    within a host and one for those between them, and each host its own cores.

    Parameters
    ----------
    axes : meshes whose axes to measure, as {"dp": 2, "tp": 2} or a list of these; by default every
        axis that a mesh of ``world_size`` ranks can have.
    sizes : bytes of the full tensor, three or more.
    repeats : of each measurement, after two warm-ups.
    dtypes, gemm : dtypes and size of the GEMMs (512 by default, 4096 on GPUs).
    cluster : a `Cluster` to emulate: then its links are measured (the shortest repeat counts, since
        nothing ends early), and its device stays as described.
    device, timeout (s), progress : as `tpviz.launch` takes them.

    Raises ``ValueError`` before any rank starts if something does not fit.
    """
    world_size = check_world_size(whole_number("world_size", world_size, 2))
    sizes = _checked_sizes(sizes)
    repeats = whole_number("repeats", repeats)
    dtypes = [one_of("dtype", dtype, DTYPES) for dtype in _listed("dtypes", dtypes, DTYPES[:2])]
    if not dtypes:
        raise ValueError(f"give at least one of the dtypes {', '.join(DTYPES)}")
    gemm = gemm if gemm is None else whole_number("gemm", gemm)
    keys = _keys(world_size, axes)
    on: dict[str, Any] = {
        "world_size": world_size,
        "device": device,
        "timeout": timeout,
        "progress": progress,
    }
    if cluster is None:
        hosts = launch(host_of_rank, **on)
        pairs = _pairs(world_size, _per_host([name for name, _ in hosts]))
        return calibration_of(launch(time_rank, keys, pairs, sizes, repeats, dtypes, gemm, **on))
    check_cluster(cluster, "as cluster=")
    cluster.check_world(world_size)
    pairs = _pairs(world_size, world_size)  # paced ranks have one clock
    ranks = launch(time_paced_rank, keys, pairs, sizes, repeats, cluster, **on)
    warn_if_late(max((rank["late"] for rank in ranks), key=lambda late: late["share"]))
    return calibration_of(ranks, cluster)


def _checked_sizes(sizes: Any):
    sizes = _listed("sizes", sizes, SIZES[:3])
    sizes = sorted({whole_number("size of a message", size, 4) for size in sizes})
    if len(sizes) < 3:
        raise ValueError(
            f"{len(sizes)} different sizes are too few for a fit with a residual: "
            f"use 3 or more, as in {SIZES[:3]}"
        )
    return sizes


def _listed(name: str, values: Any, example: Sequence[Any]) -> list[Any]:
    """The values as a list; ``ValueError`` where there is but one, or None."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name}={values!r}: give several in a list, as in {list(example)}")
    return list(values)


def _keys(world_size: int, axes: Any) -> list[tuple[int, int]]:
    """The (stride, size) of the axes, sorted."""
    if axes is None:
        sizes = [n for n in range(2, world_size + 1) if world_size % n == 0]
        every = ((s, n) for n in sizes for s in range(1, world_size))
        return sorted((s, n) for s, n in every if world_size % (s * n) == 0)
    if isinstance(axes, str) or not isinstance(axes, (dict, Mesh, list, tuple)):
        raise ValueError(f'axes={axes!r}: give meshes, as in {{"dp": 2, "tp": {world_size // 2}}}')
    meshes = [axes] if isinstance(axes, (dict, Mesh)) else list(axes)
    found = set()
    for mesh in meshes:
        mesh = mesh if isinstance(mesh, Mesh) else Mesh(mesh)
        if mesh.size != world_size:
            words = " x ".join(f"{name} {size}" for name, size in mesh.axes.items())
            raise ValueError(
                f"mesh {words} has {mesh.size} ranks, but world_size={world_size}: "
                f"use world_size={mesh.size}, or axes whose product is {world_size}"
            )
        found |= {(stride, size) for stride, size in strides(mesh) if size > 1}
    if not found:
        raise ValueError(f"axes={axes!r} has no axis of 2 or more ranks: there is no group to time")
    return sorted(found)
