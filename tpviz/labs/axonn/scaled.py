"""``scaling``: a model of AxoNN's papers on growing machines, its best grid at every size.

At each number of devices all grids are tried, with recomputation, as the papers run and count. A
grid whose memory does not fit gets microbatches: the fewest that fit, since each sends all weights
once more. Of those that fit two are shown: the first by the communication model, as the papers
choose, and the one with the shortest predicted step. All of it by formula.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tpviz.checks import one_of, whole_number
from tpviz.cluster import Cluster
from tpviz.clusters import frontier, perlmutter
from tpviz.cost import show_bytes, show_seconds
from tpviz.figures.charts_models import models_figure
from tpviz.schemes.axonn.models import NOMINAL, SIZES, Utilisation, paper_models, utilisation
from tpviz.schemes.axonn.paper import fitting, seconds
from tpviz.schemes.axonn.rates import of_cluster
from tpviz.schemes.axonn.strategy import AxoNN
from tpviz.tables import html_table
from tpviz.verbs.agreement import rounded
from tpviz.workload import GPT

from .choosing import cheapest, fewest, least_step, needs, predicted
from .claims import runs_of

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from .claims import Run

DEVICES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
NODES = {"perlmutter": (perlmutter, 4), "frontier": (frontier, 8)}
"""{name: (preset, devices of a node)}."""
AXES = ("x", "y", "z", "data")


class Choice(NamedTuple):
    """A grid with the fewest microbatches that fit. Seconds: of ``communication`` by the papers'
    kind of model, of the predicted ``step``, and of ``exposed`` communication in it."""

    strategy: AxoNN
    communication: float
    step: float
    exposed: float
    used: Utilisation

    @property
    def words(self) -> str:
        """8 1 16 8, 2 microbatches."""
        s = self.strategy
        sizes = " ".join(str(getattr(s, axis)) for axis in AXES)
        return sizes + f", {s.accumulation} microbatches" * (s.accumulation > 1)


class Point(NamedTuple):
    """A number of devices. grids : whose sizes divide; fit : of these, whose memory fits; first :
    by the communication model; fastest : by predicted step; both None where nothing fits, with the
    reason."""

    devices: int
    grids: int
    fit: int
    first: Choice | None = None
    fastest: Choice | None = None
    reason: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Scaling:
    """``points``, a `Point` for each number of devices, smallest first; peak : FLOP/s of a device,
    the vendor's, of which ``used`` are fractions."""

    model: str
    workload: GPT
    machine: str
    device: str
    peak: float
    points: tuple[Point, ...]
    badges = ("predicted",)

    @property
    def possible(self) -> tuple[Point, ...]:
        """The points at which some grid fits."""
        return tuple(p for p in self.points if p.first)

    @property
    def claims(self) -> "tuple[Run, ...]":
        """What the papers say of this model on this machine: `claims.Run`."""
        return runs_of(self.machine, self.model)

    def at(self, devices: int) -> Point:
        """The `Point` of a number of devices."""
        found = {p.devices: p for p in self.points}
        return found[one_of("devices", devices, tuple(found))]

    def scene(self) -> dict[str, Any]:
        """The chart as data: see `tpviz.figures.charts_models`."""
        points = self.possible
        both = {
            "first by communication": [p.first for p in points if p.first],
            "fastest predicted": [p.fastest for p in points if p.fastest],
        }
        fastest = both["fastest predicted"]
        return {
            "title": f"{self.model} on {self.machine}: AxoNN's best grids, batch "
            f"{self.workload.batch} x {self.workload.seq} tokens",
            "badges": list(self.badges),
            "devices": [p.devices for p in points],
            "steps": {name: [c.step for c in found] for name, found in both.items()},
            "grids": {name: [c.words for c in found] for name, found in both.items()},
            "shares": {
                "HFU, predicted": [c.used.hfu for c in fastest],
                "MFU, predicted": [c.used.mfu for c in fastest],
                "exposed communication, predicted": [c.exposed / c.step for c in fastest],
            },
            "theirs": [
                {
                    "devices": run.devices,
                    "fraction": run.fraction,
                    "words": run.words,
                    "sure": run.sure,
                }
                for run in self.claims
            ],
            "notes": self._notes(),
            "alt": self.describe(),
        }

    def figure(self, theme: str = "light") -> "Figure":
        """Two panels as a plotly ``Figure``: the step, and how much of the devices is used."""
        return models_figure(self.scene(), theme)

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first."""
        rows = [
            [
                "devices",
                "grids that fit",
                "first by communication",
                "communication",
                "step",
                "fastest predicted",
                "step",
                "exposed",
                "HFU",
                "MFU",
            ]
        ]
        for p in self.points:
            fit = f"{p.fit} of {p.grids}"
            if not p.first or not p.fastest:
                rows.append([str(p.devices), fit, p.reason, *[""] * 7])
                continue
            a, b = p.first, p.fastest
            rows.append(
                [
                    str(p.devices),
                    fit,
                    a.words,
                    show_seconds(a.communication),
                    show_seconds(a.step),
                    b.words,
                    show_seconds(b.step),
                    *(f"{100 * f:.1f} %" for f in (b.exposed / b.step, *b.used)),
                ]
            )
        return rows

    def describe(self) -> str:
        """How the step and the use of the devices go with their number, in words."""
        lines = [f"Predicted: {self.model} on {self.machine}."]
        for p in self.possible[:1] + self.possible[1:][-1:]:
            best = p.fastest
            assert best is not None  # of a possible point
            lines.append(
                f"On {p.devices} devices {p.fit} of {p.grids} grids fit; the fastest is "
                f"{best.words} (x y z data), {show_seconds(best.step)} a step, HFU "
                f"{100 * best.used.hfu:.1f} %, MFU {100 * best.used.mfu:.1f} %, "
                f"{100 * best.exposed / best.step:.1f} % exposed communication."
            )
        return " ".join(lines + self._notes())

    def _notes(self):
        notes = [
            f"By formula, every grid with recomputation and as few microbatches as memory "
            f"allows (weights, gradients and moments in {self.workload.dtype}). HFU counts "
            f"recomputation, MFU does not, both of {self.peak / 1e12:.4g} TFLOP/s; all "
            "matrix products run at the rate of the device's best."
        ]
        notes += [f"Theirs, not reproduced: {run.words}." for run in self.claims]
        left = [f"{p.devices} ({p.reason})" for p in self.points if not p.first]
        return notes + [f"Left out: {'; '.join(left)}."] * bool(left)

    def __repr__(self):
        last = self.possible[-1]
        assert last.fastest is not None
        return (
            f"<Scaling of {self.model} on {self.machine} to {last.devices} devices: "
            f"{show_seconds(last.fastest.step)} a step, HFU "
            f"{100 * last.fastest.used.hfu:.1f} %, predicted>"
        )

    def _repr_html_(self):
        return html_table(self.to_table(), "class='tpviz-lab'")


def scaling(
    model: str = "80B",
    cluster: str | Callable[[int], Cluster] = "perlmutter",
    devices: Iterable[int] = DEVICES,
    batch: int = 8192,
    **knobs: Any,
) -> Scaling:
    """The `Scaling` of a model of AxoNN's papers.

    Parameters
    ----------
    model : a name of `tpviz.schemes.axonn.models.SIZES`.
    cluster : "perlmutter", "frontier", or a function from a number of devices to a `Cluster`.
    devices : numbers of them.
    batch : sequences of 2048 tokens a step, the same for all.
    knobs : order, overlap and keep of `AxoNN`.

    Raises ``ValueError`` where no number of devices has a grid that fits.
    """
    one_of("model", model, tuple(SIZES))
    workload = paper_models(whole_number("batch", batch))[model]
    if not callable(cluster):
        if isinstance(cluster, Cluster):
            raise ValueError(
                f"cluster={cluster!r} has {cluster.size} devices, and scaling takes "
                "growing ones: give a function from a number of devices to a cluster, "
                f"or {' or '.join(map(repr, NODES))}"
            )
        cluster = _preset(one_of("cluster", cluster, tuple(NODES)))
    other = next((name for name in knobs if name not in ("order", "overlap", "keep")), None)
    if other:
        raise ValueError(
            f"{other}={knobs[other]!r} cannot be set here: all grids are tried, with "
            "recomputation and the microbatches that fit; use order, overlap or keep"
        )
    sizes = _sizes(devices)
    clusters = [_checked(cluster(n), n) for n in sizes]
    device = clusters[0].device
    peak = next(
        (peak for name, peak in NOMINAL.items() if device.name.startswith(name)),
        device.flops[workload.dtype],
    )
    points = tuple(_point(workload, n, c, peak, knobs) for n, c in zip(sizes, clusters))
    if not any(p.first for p in points):
        raise ValueError(
            f"{model} fits none of these: "
            + "; ".join(f"{p.devices} devices, {p.reason}" for p in points)
        )
    return Scaling(model, workload, clusters[-1].name, device.name, peak, points)


def _sizes(devices):
    """Numbers of devices, smallest first, none twice."""
    if isinstance(devices, str) or not isinstance(devices, Iterable):
        raise ValueError(f"devices={devices!r}: give numbers of devices in a list, as in (64, 512)")
    sizes = sorted({whole_number("devices", n, 2) for n in devices})
    if not sizes:
        raise ValueError("no devices: give numbers of them in a list, as in (64, 512)")
    return sizes


def _checked(cluster, devices):
    """What the caller's function gave, if it is a cluster of that many devices."""
    if not isinstance(cluster, Cluster):
        raise ValueError(
            f"for {devices} devices the function gave {cluster!r}, not a cluster such "
            "as tv.clusters.perlmutter()"
        )
    if cluster.size < devices:
        raise ValueError(
            f"for {devices} devices the function gave {cluster!r}, which has "
            f"{cluster.size}: as in lambda n: tv.clusters.perlmutter(-(-n // 4))"
        )
    return cluster


@lru_cache(None)
def _preset(name):
    """A function from a number of devices to nodes of a preset, the last one perhaps not full.

    They are kept, since a cluster learns its links but once.
    """
    preset, node = NODES[name]
    return lru_cache(32)(lambda devices: preset(-(-devices // node)))


def _point(w, devices, cluster, peak, knobs):
    """The `Point` of a number of devices."""
    memory, grids = (
        cluster.device.memory,
        list(fitting((replace(s, recompute=True, **knobs) for s in AxoNN.space(w, devices)), w)),
    )
    fit = [s for s in grids if any(size <= memory for size in needs(s, w))]
    if not fit:
        least = min((min(needs(s, w)) for s in grids), default=0)
        reason = (
            f"a rank needs {show_bytes(least)} or more and has {show_bytes(memory)}"
            if grids
            else "no grid's sizes divide"
        )
        return Point(devices, len(grids), 0, reason=reason)
    rates, flops = lru_cache(None)(of_cluster(cluster, devices)), cluster.device.flops[w.dtype]

    def sent(s):
        return (rounded(seconds(s, w, rates)), s.copies), s

    def bound(s):
        return least_step(s, w, rates, flops), s

    def known(s):
        found = predicted(s, w, cluster)
        return found[0], Choice(
            s, seconds(s, w, rates), *found, utilisation(w, found[0], devices, peak)
        )

    def cut(s):
        return fewest(s, w, memory)

    first = cheapest(fit, sent, lambda s: sent(cut(s)))
    fastest = cheapest(fit, bound, lambda s: bound(cut(s)), known)
    return Point(devices, len(grids), len(fit), known(first)[1], fastest)
