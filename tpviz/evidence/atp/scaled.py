"""``scaling``: bytes and communication time of ATP's best mesh and of 1D as ranks grow.

Two fabrics. "constant": each axis of the mesh has its bandwidth for every N, as on a torus whose
sides are the mesh, or with full bisection. "shared": a cluster by its own rule, by default nodes
behind one NIC, which all rings that leave a node share. All of it is modelled, by
`tpviz.schemes.atp.paper`: latency, overlap, embedding, head and optimizer are not in it, and
whether heads and hidden size divide is not asked.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tpviz.cluster.clusters import nvswitch, nvswitch_nodes
from tpviz.cluster.parts import finite
from tpviz.core.charts import axis, growth
from tpviz.core.checks import one_of
from tpviz.core.tables import show_seconds
from tpviz.core.workload import GPT
from tpviz.evidence.facts import notes
from tpviz.evidence.report import Report, listed, whole_numbers
from tpviz.schemes.atp.paper import best, bus_time, wire_volume
from tpviz.schemes.atp.strategy import ATP
from tpviz.verbs.checks import check_workload

if TYPE_CHECKING:
    from tpviz.cluster import Cluster

SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
FABRICS = ("constant", "shared")
STYLES = {
    "1D, constant": ("axis0", "solid", "circle"),
    "best mesh, constant": ("forward", "solid", "square"),
    "1D, shared": ("axis1", "dot", "circle-open"),
    "best mesh, shared": ("recompute", "dot", "square-open"),
    "1D, strong": ("axis0", "dash", "triangle-up"),
    "best mesh, strong": ("forward", "dash", "diamond"),
    "1D, weak": ("axis1", "dashdot", "triangle-up-open"),
    "best mesh, weak": ("recompute", "dashdot", "diamond-open"),
}
"""{line: (ink, dash, marker)}."""
CAVEATS = tuple(
    notes(__file__)[about]
    for about in ("towards 1 over root N", "strong scaling", "weak scaling", "modelled")
)


class MeshPoint(NamedTuple):
    """The best mesh and 1D on N ranks; of a layer, forward and backward, strong scaling.

    volume, volume_1d : on the wire of a rank, in units of batch x seq x hidden elements.
    seconds, seconds_1d : of communication. compute : seconds of a rank's kernels. factor : by how
    much hidden sizes have grown in weak scaling.
    """

    ranks: int
    strategy: ATP
    volume: float
    volume_1d: float
    seconds: float
    seconds_1d: float
    compute: float
    compute_weak: float
    factor: float

    @property
    def words(self) -> str:
        """The best mesh and its order."""
        return f"{self.strategy.mesh} {self.strategy.order}"

    def fraction(self, weak: bool = False, one: bool = False) -> float:
        """Communication over communication and compute; ``one``: of 1D."""
        seconds = self.seconds_1d if one else self.seconds
        compute = self.compute_weak if weak else self.compute
        seconds *= self.factor if weak else 1
        return seconds / (seconds + compute)


@dataclass(frozen=True, eq=False, repr=False)
class MeshScaling(Report):
    """``points`` {fabric of FABRICS: `MeshPoint` of each size}."""

    workload: GPT
    sizes: tuple[int, ...]
    bandwidths: tuple[float, float]
    shared: str
    points: dict[str, tuple[MeshPoint, ...]]
    badges = ("modelled",)

    def drawing(self, fabric: str = "constant") -> dict[str, Any]:
        """Left: seconds on both fabrics, logarithmic. Right: fractions on one ``fabric``, in %."""
        one_of("fabric", fabric, FABRICS)
        seconds, shares, texts = {}, {}, {}
        for name, points in self.points.items():
            seconds[f"1D, {name}"] = [p.seconds_1d for p in points]
            seconds[f"best mesh, {name}"] = [p.seconds for p in points]
            texts[f"best mesh, {name}"] = [p.words for p in points]
        for kind in ("strong", "weak"):
            for mesh in ("1D", "best mesh"):
                points = self.points[fabric]
                shares[f"{mesh}, {kind}"] = [
                    p.fraction(kind == "weak", mesh == "1D") for p in points
                ]
            texts[f"best mesh, {kind}"] = texts[f"best mesh, {fabric}"]
        titles = "(a) communication of a layer", f"(b, c) share of step (%), {fabric} bandwidth"
        texts = {name: texts.get(name) for name in STYLES}
        x = axis("ranks N", self.sizes)
        return {
            "title": "Communication of a layer as ranks grow: ATP's best mesh against 1D",
            "panels": growth(x, titles, seconds, shares, STYLES, texts),
        }

    def _lines(self):
        return ((name, p) for name, points in self.points.items() for p in points)

    def _columns(self):
        """Volumes are in units of batch x seq x hidden elements."""

        def fraction(weak, one):
            return lambda name, p: f"{100 * p.fraction(weak, one):.1f} %"

        return [
            ("fabric", lambda name, p: name),
            ("ranks", lambda name, p: str(p.ranks)),
            ("best mesh", lambda name, p: p.words),
            ("sends", lambda name, p: f"{p.volume:.3f}"),
            ("1D sends", lambda name, p: f"{p.volume_1d:.3f}"),
            ("ratio", lambda name, p: f"{p.volume / p.volume_1d:.3f}"),
            ("time", lambda name, p: show_seconds(p.seconds)),
            ("1D time", lambda name, p: show_seconds(p.seconds_1d)),
            ("fraction, strong", fraction(False, False)),
            ("1D", fraction(False, True)),
            ("fraction, weak", fraction(True, False)),
            ("1D", fraction(True, True)),
        ]

    def words(self) -> list[str]:
        """The trends in words."""
        lines = ["Modelled. " + self._fabrics()]
        for name, points in self.points.items():
            kinds = ((False, False), (True, False), (False, True), (True, True))
            ends = {"first": points[0], "last": points[-1], "begin": points[0].fraction()}
            shares = [points[-1].fraction(*kind) for kind in kinds]
            lines.append(self.say("trend", name=name, shares=shares, **ends))
        return lines

    def notes(self) -> list[str]:
        """The fabrics, and the caveats."""
        return [self._fabrics(), *CAVEATS]

    def describe(self) -> str:
        """The trends in words, with the caveats."""
        return " ".join([*self.words(), *CAVEATS])

    def _fabrics(self):
        first, second = (f"{rate / 1e9:.4g}" for rate in self.bandwidths)
        return self.say("fabrics", first=first, second=second)

    def __repr__(self):
        last = self.points["constant"][-1]
        return f"<{self.say('MeshScaling', last=last, share=last.volume / last.volume_1d)}>"


def one_nic(ranks: int) -> "Cluster":
    """Nodes of 8 H100s behind one NIC each (nominal rates), as many as ``ranks`` need."""
    if ranks > 8 and ranks % 8:
        raise ValueError(
            f"{ranks} ranks do not fill nodes of 8: use {ranks // 8 * 8} or "
            f"{-(-ranks // 8) * 8}, or give another fabric as shared"
        )
    return nvswitch(ranks) if ranks <= 8 else nvswitch_nodes(ranks // 8, nics=1)


def scaling(
    workload: GPT,
    sizes: Iterable[int] = SIZES,
    bandwidths: tuple[float, float] = (100e9, 100e9),
    shared: "Callable[[int], Cluster]" = one_nic,
    flops: float = 250e12,
) -> MeshScaling:
    """The `MeshScaling` of a workload's layers over numbers of ranks.

    Parameters
    ----------
    bandwidths : (B1, B2) of the constant fabric, bytes/s that a rank sends along d1 and d2.
    shared : the other fabric: a function from a number of ranks to a `Cluster` of so many; nodes
        behind one NIC when left out.
    flops : FLOP/s of a rank.

    In weak scaling hidden sizes grow as sqrt(N) from the first size on, batch and seq stay. Raises
    ``ValueError`` where sizes are no whole numbers of 2 or more or rates are not above 0.
    """
    check_workload(workload)
    if not callable(shared):
        raise ValueError(
            f"shared={shared!r}: give a function from a number of ranks to a cluster "
            "of so many, such as tv.clusters.nvswitch"
        )
    sizes = tuple(whole_numbers("size", listed("sizes", sizes, "ranks", SIZES[:3]), 2))
    if not isinstance(bandwidths, (tuple, list)) or len(bandwidths) != 2:
        raise ValueError(f"bandwidths={bandwidths!r} must be two rates, of d1 and d2, in bytes/s")
    bandwidths = tuple(finite(f"bandwidth of d{k}", b) for k, b in enumerate(bandwidths, 1))  # pyright: ignore[reportAssignmentType]
    flops, fabrics = finite("flops", flops), {n: shared(n) for n in sizes}
    rates = {
        "constant": lambda n: lambda mesh: bandwidths,
        "shared": lambda n: _rates_of(fabrics[n]),
    }
    points = {
        name: tuple(_point(workload, n, rate(n), flops, sizes[0]) for n in sizes)
        for name, rate in rates.items()
    }
    return MeshScaling(workload, sizes, bandwidths, fabrics[sizes[-1]].caption, points)


def _rates_of(cluster):
    """A function from a mesh (d1, d2) to the bandwidths of its axes on a cluster."""
    return lambda mesh: [
        cluster.bandwidth({"d1": mesh[0], "d2": mesh[1]}, axis) for axis in ("d1", "d2")
    ]


def _point(w, n, rates, flops, smallest):
    """The `MeshPoint` of N ranks."""
    one = ATP(mesh=(n, 1), attention="A1" if w.num_kv_heads % n else "A3")
    strategy, seconds = best(ATP.meshes(w, n), w, rates)
    unit, factor = w.batch * w.seq * w.hidden, (n / smallest) ** 0.5
    volume, volume_1d = (sum(wire_volume(s, w).values()) / unit for s in (strategy, one))
    times = seconds, bus_time(one, w, rates(one.mesh))
    compute, weak = (layer_flops(w, by) / n / flops for by in (1.0, factor))
    return MeshPoint(n, strategy, volume, volume_1d, *times, compute, weak, factor)


def layer_flops(w: GPT, factor: float = 1.0) -> float:
    """FLOPs of a layer forward and backward, hidden sizes times ``factor``: those of
    `GPT.step_flops`."""
    tokens, attention = w.batch * w.seq, 4 * w.seq * w.hidden
    return 3 * tokens * (2 * w.block_matrices * factor**2 + attention * factor)
