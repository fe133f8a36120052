"""How well predictions do over many rows: errors, ranking, regret, fits or not, and baselines.

>>> spearman([1.0, 2.0, 3.0], [10.0, 30.0, 20.0]), area([3, 2], [1, 2])
(0.5, 0.875)
"""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from statistics import median
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tpviz.core.tables import show_seconds
from tpviz.verbs.room import room
from tpviz.verbs.utilization import utilization

from .adapter import RunPlan, cluster_of
from .rows import DATA, FILES, PublishedRow, published
from .validate import Checked

LEAST = 5
"""Rows of a group from which layouts are ranked."""
DISTURBED = 0.01
"""Share of the peak below which something else than the step seems to have taken the time."""
GEMMS = 18
"""Matrix products of a layer in a step: 6 forward, with attention's two, and 12 backward."""
ANY = "any GPU"
AXES = ("tp", "pp", "dp", "vpp", "micro_batch")
_Any = TypeVar("_Any")
TOGETHER = "source", "model", "n_gpus", "gpu", "seq", "global_batch"


class ScorePoint(NamedTuple):
    """A run with a prediction and a measurement: both of its step, in seconds, or both of the
    memory of a rank, in bytes."""

    row: PublishedRow
    plan: RunPlan
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted / self.measured


class Errors(NamedTuple):
    """Of ``rows`` ratios predicted / measured: their median, and the median and the 90th percentile
    of their absolute errors."""

    rows: int
    ratio: float
    median: float
    p90: float


class Ranking(NamedTuple):
    """Layouts of one model and batch on as many GPUs: Spearman's rank correlation of predicted and
    measured steps, the same within one micro batch (the mean over those with `LEAST` layouts, by
    their number; None where none has), and how much slower than the fastest measured the fastest
    predicted one is."""

    source: str
    model: str
    n_gpus: int
    gpu: str
    rows: int
    correlation: float
    within: float | None
    regret: float


def points(rows: Iterable[Checked]) -> list[ScorePoint]:
    """Those that have a prediction and a measurement, of what they are rows of."""
    found = ((r.row, r.plan, r.predicted, r.measured) for r in rows)
    return [ScorePoint(row, plan, p, m) for row, plan, p, m in found if plan and p and m]


def peaks(rows: Iterable[Checked]) -> list[ScorePoint]:
    """The same of memory, whatever they are rows of."""
    found = ((r.row, r.plan, r.memory) for r in rows)
    return [
        ScorePoint(row, plan, memory.total, row.peak)
        for row, plan, memory in found
        if plan and memory and row.peak
    ]


def errors(points: Collection[ScorePoint]) -> Errors:
    """The `Errors` of one point or more."""
    ratios = [p.ratio for p in points]
    off = [abs(r - 1) for r in ratios]
    return Errors(len(ratios), median(ratios), median(off), float(np.percentile(off, 90)))


def by(points: Iterable[_Any], key: Callable[[_Any], Any]) -> dict[Any, list[_Any]]:
    """{key: its points}, sorted by key."""
    found = defaultdict(list)
    for point in points:
        found[key(point)].append(point)
    return dict(sorted(found.items()))


def by_source(points: Iterable[ScorePoint]) -> dict[str, Errors]:
    """{source: its `Errors`}."""
    return {source: errors(own) for source, own in by(points, lambda p: p.row.source).items()}


def groups(points: Iterable[ScorePoint]) -> dict[tuple[Any, ...], list[ScorePoint]]:
    """{(source, model, number of GPUs, GPU, tokens, sequences): its points}, of those with `LEAST`
    or more. BigScience gives one name to models of several shapes and one size."""
    found = by(points, lambda p: tuple(getattr(p.row, name) for name in TOGETHER))
    return {key: own for key, own in found.items() if len(own) >= LEAST}


def rankings(points: Iterable[ScorePoint]) -> list[Ranking]:
    """The `Ranking` of each of the `groups`."""
    found = []
    for (source, model, n_gpus, gpu, *_), own in groups(points).items():
        times = [p.predicted for p in own], [p.measured for p in own]
        values = spearman(*times), _within(own), regret(*times)
        found.append(Ranking(source, model, n_gpus, gpu, len(own), *values))
    return found


def _within(points: Iterable[ScorePoint]):
    """The mean rank correlation of layouts with one micro batch."""
    sizes = by(points, lambda p: p.row.micro_batch).values()
    found = [own for own in sizes if len(own) >= LEAST]
    sums = sum(
        len(own) * spearman([p.predicted for p in own], [p.measured for p in own]) for own in found
    )
    return sums / sum(map(len, found)) if found else None


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's rank correlation (1904), ties sharing the mean of their ranks; 0.0 where all of
    one are tied."""
    first, second = _ranks(np.asarray(a)), _ranks(np.asarray(b))
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def regret(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """How much slower than the best measured the pick by prediction is, as a share; of several
    picks that tie their mean."""
    best = min(predicted)
    picks = [m for p, m in zip(predicted, measured) if p <= best * (1 + 1e-9)]
    return sum(picks) / len(picks) / min(measured) - 1


def area(bad: Sequence[float], good: Sequence[float]) -> float:
    """Area under the ROC curve: how likely one of ``bad`` has a larger score than one of ``good``,
    ties counting half (Mann and Whitney 1947)."""
    ranks = _ranks(np.asarray([*bad, *good], float))
    most = len(bad) * (len(bad) + 1) / 2
    return float((ranks[: len(bad)].sum() - most) / (len(bad) * len(good)))


def _ranks(values):
    """Ranks from 1, the mean of their places for equal values."""
    _, inverse, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[inverse]


# -- memory --------------------------------------------------------------------------------------
def needs(rows: Iterable[Checked]) -> list[float]:
    """Predicted bytes over the device's memory, of the rows with a prediction."""
    found = ((r.plan, r.memory) for r in rows)
    return [memory.total / room(plan.cluster) for plan, memory in found if plan and memory]


# -- baselines -----------------------------------------------------------------------------------
def mfu(point: ScorePoint) -> float:
    """Model FLOPs of a measured step over what its GPUs' peak would do in that time."""
    plan = point.plan
    return utilization(plan.workload, plan.cluster, point.row.n_gpus, point.measured)


def shares_of_peak(points: Sequence[ScorePoint]) -> dict[tuple[str, str], float]:
    """{(framework, GPU): median share of the peak FLOP/s that its runs reached}; under `ANY` of all
    its GPUs."""
    found = by(points, lambda p: (p.row.framework, p.plan.cluster.device.name))
    found |= by(points, lambda p: (p.row.framework, ANY))
    return {key: median(map(mfu, own)) for key, own in sorted(found.items())}


def at_share(
    points: Iterable[ScorePoint], shares: Mapping[tuple[str, str], float]
) -> list[ScorePoint]:
    """The same steps, predicted as model FLOPs at a constant share of the peak, by framework and
    GPU, where that is not among the shares as on `ANY`."""
    found = []
    for p in points:
        framework = p.row.framework
        share = shares.get((framework, p.plan.cluster.device.name)) or shares.get((framework, ANY))
        if share:
            found.append(p._replace(predicted=p.measured * mfu(p) / share))
    return found


def own_estimates(points: Iterable[ScorePoint]) -> list[ScorePoint]:
    """Those of which the source states the error of its own prediction, predicted as it did."""
    found = []
    for point in points:
        words = point.row.notes.partition("own prediction ")[2].partition("%")[0]
        if words:
            own = point.measured * (1 + float(words) / 100)
            found.append(point._replace(predicted=own))
    return found


# -- what may be missing ---------------------------------------------------------------------------
def guess(point: ScorePoint) -> str:
    """What the prediction of a step may miss: the first of a few rules that applies, with the
    seconds missing for each layer and microbatch."""
    row, plan = point.row, point.plan
    reached, node = mfu(point), plan.cluster.levels[0].units
    layers = row.layers / row.pp * row.microbatches
    each = show_seconds((point.measured - point.predicted) / layers)
    missing = f"{each} a layer and microbatch"
    gemm = plan.workload.step_flops / row.n_gpus / layers / GEMMS
    seconds = gemm / plan.cluster.device.flops[plan.workload.dtype]
    if point.ratio > 1:
        return "predicted too slow: overlap that the framework has and the strategy has not"
    if reached < DISTURBED:
        return f"a disturbed run? It reached {100 * reached:.2g} % of the peak"
    if row.tp > node:
        return f"tensor parallelism across nodes: {missing}"
    if seconds < 20e-6:
        return f"kernel launches, GEMMs take {show_seconds(seconds)}: {missing}"
    if row.pp > 1:
        return f"the pipeline's messages and the framework: {missing}"
    if row.microbatches * row.micro_batch <= 2 and row.dp > node:
        return f"gradients between nodes, with little to hide them: {missing}"
    return f"memory-bound kernels, efficiency of GEMMs: {missing}"


def data_digest() -> str:
    """12 hex digits of the SHA-256 of the shipped rows."""
    return sha256(b"".join((DATA / f"{kind}.csv.gz").read_bytes() for kind in FILES)).hexdigest()[
        :12
    ]


def coefficients_digest() -> str:
    """12 hex digits of the SHA-256 of all numbers of the published rows' clusters, but of links
    to hosts and of whose the cores are, which no such run uses."""
    keys = sorted({(r.gpu, r.n_gpus, r.source) for r in published() if r.n_gpus})
    texts = []
    for key in keys:
        try:
            data = json.loads(cluster_of(*key).to_json())
        except ValueError:  # a GPU that is not modelled
            continue
        del data["device"]["host"], data["hosts"]
        texts.append(json.dumps(data, indent=2))
    return sha256("".join(texts).encode()).hexdigest()[:12]
