"""``scaling``: a model of AxoNN's papers on growing machines, with the best grid at every size.

At each number of devices all grids are tried, with recomputation, as the papers run and count. A
grid whose memory does not fit gets microbatches: the fewest that fit, since each gathers all
weights again. Of those that fit two are shown: the first by the communication model, as the papers
choose, and the one with the shortest predicted step. All of it by formula.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tpviz.cluster import Cluster
from tpviz.cluster.clusters import frontier, perlmutter
from tpviz.core.charts import axis, growth
from tpviz.core.charts import points as points_of
from tpviz.core.checks import one_of, whole_number
from tpviz.core.tables import show_bytes, show_seconds
from tpviz.core.workload import GPT
from tpviz.evidence.report import Report, listed, whole_numbers
from tpviz.schemes.axonn.models import NOMINAL, SIZES, Utilisation, paper_models, utilisation
from tpviz.schemes.axonn.paper import fitting, seconds
from tpviz.schemes.axonn.rates import of_cluster
from tpviz.schemes.axonn.strategy import AxoNN
from tpviz.verbs.ranking import rounded

from .choosing import cheapest, fewest, least_step, needs, predicted
from .claims import runs_of
from .overlapping import grid_of

if TYPE_CHECKING:
    from .claims import ClaimedRun

DEVICES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
NODES = {"perlmutter": (perlmutter, 4), "frontier": (frontier, 8)}
"""{name: (preset, devices of a node)}."""
STYLES = {
    "best by communication model": ("axis0", "dot", "circle-open"),
    "fastest predicted": ("forward", "solid", "diamond"),
    "HFU, predicted": ("axis1", "solid", "circle"),
    "MFU, predicted": ("backward", "dash", "square-open"),
    "exposed communication, predicted": ("exposed", "dashdot", "x"),
}
"""{line: (ink, dash, marker)}."""


class GridChoice(NamedTuple):
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
        count = self.strategy.accumulation
        return grid_of(self.strategy) + f", {count} microbatches" * (count > 1)


class GridPoint(NamedTuple):
    """A number of devices. grids : whose sizes divide; fit : of these, whose memory fits; first :
    by the communication model; fastest : by predicted step; both None where nothing fits, with the
    reason."""

    devices: int
    grids: int
    fit: int
    first: GridChoice | None = None
    fastest: GridChoice | None = None
    reason: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class GridScaling(Report):
    """``points``, a `GridPoint` for each number of devices, smallest first; peak : FLOP/s of a
    device, the vendor's, of which ``used`` are fractions."""

    model: str
    workload: GPT
    machine: str
    device: str
    peak: float
    points: tuple[GridPoint, ...]
    badges = ("predicted",)

    @property
    def possible(self) -> tuple[GridPoint, ...]:
        """The points at which some grid fits."""
        return tuple(p for p in self.points if p.first)

    @property
    def claims(self) -> "tuple[ClaimedRun, ...]":
        """The papers' claims for this model on this machine: `claims.Run`."""
        return runs_of(self.machine, self.model)

    def at(self, devices: int) -> GridPoint:
        """The `GridPoint` of a number of devices."""
        points = {p.devices: p for p in self.points}
        return points[one_of("devices", devices, tuple(points))]

    def drawing(self) -> dict[str, Any]:
        """Left: seconds of a step, logarithmic. Right: shares in %, and what the papers say as
        stars."""
        points, theirs = self.possible, self.claims
        both = {
            "best by communication model": [p.first for p in points if p.first],
            "fastest predicted": [p.fastest for p in points if p.fastest],
        }
        fastest = both["fastest predicted"]
        shares = {
            "HFU, predicted": [c.used.hfu for c in fastest],
            "MFU, predicted": [c.used.mfu for c in fastest],
            "exposed communication, predicted": [c.exposed / c.step for c in fastest],
        }
        seconds = {name: [c.step for c in choices] for name, choices in both.items()}
        texts = {name: [c.words for c in both.get(name, fastest)] for name in STYLES}
        titles = "a step", "HFU and MFU (% of peak), exposed (% of step)"
        x = axis("devices", [p.devices for p in points])
        panels = growth(x, titles, seconds, shares, STYLES, texts)
        if theirs:
            star = points_of(
                "the paper's HFU (hollow: not confirmed for this model)",
                [run.devices for run in theirs],
                [100 * run.fraction for run in theirs],
                "axis4",
                ["star" if run.sure else "star-open" for run in theirs],
                13,
                text=[run.words for run in theirs],
            )
            panels[1]["traces"].append(star)
        ticks = sorted({*x["tickvals"], *(run.devices for run in theirs)})
        for one in panels:
            one["x"] = axis("devices", ticks)
        batch = f"batch {self.workload.batch} x {self.workload.seq} tokens"
        title = f"{self.model} on {self.machine}: AxoNN's best grids, {batch}"
        return {"title": title, "panels": panels}

    def _lines(self):
        return ((p, p.first, p.fastest) for p in self.points)

    def _columns(self):
        return [
            ("devices", lambda p, a, b: str(p.devices)),
            ("grids that fit", lambda p, a, b: f"{p.fit} of {p.grids}"),
            ("best by communication model", lambda p, a, b: a.words if a else p.reason),
            ("communication", lambda p, a, b: show_seconds(a.communication) if a else ""),
            ("step", lambda p, a, b: show_seconds(a.step) if a else ""),
            ("fastest predicted", lambda p, a, b: b.words if b else ""),
            ("step", lambda p, a, b: show_seconds(b.step) if b else ""),
            ("exposed", lambda p, a, b: _percent(b.exposed / b.step) if b else ""),
            ("HFU", lambda p, a, b: _percent(b.used.hfu) if b else ""),
            ("MFU", lambda p, a, b: _percent(b.used.mfu) if b else ""),
        ]

    def words(self) -> list[str]:
        """Step time and device utilisation by number of devices."""
        lines = [f"Predicted: {self.model} on {self.machine}."]
        for p in self.possible[:1] + self.possible[1:][-1:]:
            best = p.fastest
            assert best is not None  # of a possible point
            lines.append(self.say("point", p=p, best=best, exposed=best.exposed / best.step))
        return lines

    def notes(self) -> list[str]:
        """Definitions, the papers' claims, and omissions."""
        how = self.say("scaling", peak=self.peak / 1e12)
        theirs = [f"The paper, not reproduced: {run.words}." for run in self.claims]
        left = [f"{p.devices} ({p.reason})" for p in self.points if not p.first]
        return [how, *theirs, *[f"Left out: {'; '.join(left)}."] * bool(left)]

    def __repr__(self):
        return f"<{self.say('GridScaling', last=self.possible[-1])}>"


def _percent(share):
    return f"{100 * share:.1f} %"


def scaling(
    model: str = "80B",
    cluster: str | Callable[[int], Cluster] = "perlmutter",
    devices: Iterable[int] = DEVICES,
    batch: int = 8192,
    **knobs: Any,
) -> GridScaling:
    """The `GridScaling` of a model of AxoNN's papers.

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
    sizes = whole_numbers("devices", listed("devices", devices, "devices", (64, 512)), 2)
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
    return GridScaling(model, workload, clusters[-1].name, device.name, peak, points)


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

    They are cached, since a cluster computes its links once.
    """
    preset, node = NODES[name]
    return lru_cache(32)(lambda devices: preset(-(-devices // node)))


def _point(w, devices, cluster, peak, knobs):
    """The `GridPoint` of a number of devices."""
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
        return GridPoint(devices, len(grids), 0, reason=reason)
    rates, flops = lru_cache(None)(of_cluster(cluster, devices)), cluster.device.flops[w.dtype]

    def sent(s):
        return (rounded(seconds(s, w, rates)), s.copies), s

    def bound(s):
        return least_step(s, w, rates, flops), s

    def known(s):
        step, exposed = predicted(s, w, cluster)
        used = utilisation(w, step, devices, peak)
        return step, GridChoice(s, seconds(s, w, rates), step, exposed, used)

    def cut(s):
        return fewest(s, w, memory)

    first = cheapest(fit, sent, lambda s: sent(cut(s)))
    fastest = cheapest(fit, bound, lambda s: bound(cut(s)), known)
    return GridPoint(devices, len(grids), len(fit), known(first)[1], fastest)
