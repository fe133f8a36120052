"""How well predictions do over many rows: errors, ranking, regret, fits or not, and baselines.

>>> spearman([1.0, 2.0, 3.0], [10.0, 30.0, 20.0]), area([3, 2], [1, 2])
(0.5, 0.875)
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from statistics import median
from typing import NamedTuple

import numpy as np

from tpviz.cluster import Cluster, Device, Level
from tpviz.cost import show_seconds

from .adapter import cluster_of
from .rows import DATA, FILES, published
from .validate import Checked

LEAST = 5
"""Rows of a group from which layouts are ranked."""
DISTURBED = 0.01
"""Share of the peak below which something else than the step seems to have taken the time."""
GEMMS = 18
"""Matrix products of a layer in a step: 6 forward, with attention's two, and 12 backward."""
AXES = ("tp", "pp", "dp", "vpp", "micro_batch")


class Errors(NamedTuple):
    """Of ``rows`` ratios predicted / measured: their median, and the median and the 90th percentile
    of their absolute errors."""

    rows: int
    ratio: float
    median: float
    p90: float


class Ranking(NamedTuple):
    """Layouts of one model on as many GPUs: Spearman's rank correlation of predicted and measured
    steps, and how much slower than the fastest measured the fastest predicted one is."""

    source: str
    model: str
    n_gpus: int
    gpu: str
    rows: int
    correlation: float
    regret: float


def errors(ratios: Iterable[float]) -> Errors | None:
    """The `Errors` of ratios; None of none."""
    ratios = list(ratios)
    if not ratios:
        return None
    off = [abs(r - 1) for r in ratios]
    return Errors(len(ratios), median(ratios), median(off), float(np.percentile(off, 90)))


def by(rows: Iterable[Checked], key: Callable[[Checked], object]) -> dict:
    """{key: rows with both a prediction and a measurement}, sorted by key."""
    found = defaultdict(list)
    for row in rows:
        if row.ratio:
            found[key(row)].append(row)
    return dict(sorted(found.items()))


def by_source(rows: Iterable[Checked]) -> dict[str, Errors]:
    """{source: its `Errors`}."""
    return {k: errors(r.ratio for r in own) for k, own in by(rows, lambda r: r.source).items()}


def rankings(rows: Iterable[Checked]) -> list[Ranking]:
    """The `Ranking` of every (source, model, number of GPUs, GPU) with `LEAST` rows or more."""
    groups = by(rows, lambda r: (r.source, r.model, r.n_gpus, r.gpu))
    found = []
    for key, own in groups.items():
        if len(own) >= LEAST:
            predicted, measured = [r.predicted for r in own], [r.measured for r in own]
            values = spearman(predicted, measured), regret(predicted, measured)
            found.append(Ranking(*key, len(own), *values))
    return found


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's rank correlation (1904), ties sharing the mean of their ranks; 0.0 where all of
    one are tied."""
    ranks = [_ranks(np.asarray(values)) for values in (a, b)]
    if any(np.ptp(r) == 0 for r in ranks):
        return 0.0
    return float(np.corrcoef(*ranks)[0, 1])


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
    return [r.memory.total / r.plan.cluster.device.memory for r in rows if r.memory and r.plan]


# -- baselines -----------------------------------------------------------------------------------
def shares_of_peak(rows: Iterable[Checked]) -> dict[str, float]:
    """{framework: median share of the peak FLOP/s that its runs reached}."""
    return {
        framework: median(map(mfu, own))
        for framework, own in by(rows, lambda r: r.row.framework).items()
    }


def mfu(checked: Checked) -> float:
    """Model FLOPs of a measured step over what its GPUs' peak would do in that time."""
    plan = checked.plan
    peak = plan.cluster.device.flops[plan.workload.dtype] * checked.n_gpus
    return plan.workload.step_flops / (peak * checked.measured)


def at_share(rows: Iterable[Checked], shares: Mapping[str, float]) -> list[Checked]:
    """The same rows, predicted as model FLOPs at a constant share of the peak, by framework."""
    return [
        replace(r, step=r.measured * mfu(r) / shares[r.row.framework])
        for r in rows
        if r.ratio and r.row.framework in shares
    ]


def ideal(gpu: str, n_gpus: int, source: str) -> Cluster:
    """`adapter.cluster_of` with a device that reaches its rates in every kernel, and links theirs
    in every message."""
    cluster = cluster_of(gpu, n_gpus, source)
    device, levels = cluster.device, cluster.levels
    plain = Device(device.flops, device.memory, device.memory_bandwidth, device.name)
    links = tuple(Level(o.name, o.units, o.p2p, o.group, o.latency, o.nics) for o in levels)
    return replace(cluster, device=plain, levels=links)


def own_estimate(checked: Checked) -> float | None:
    """The error that a source states of its own prediction of the row, as a ratio."""
    words = checked.row.notes.partition("own prediction ")[2].partition("%")[0]
    return 1 + float(words) / 100 if words else None


# -- what may be missing ---------------------------------------------------------------------------
def guess(checked: Checked) -> str:
    """What the prediction of a row may miss: the first of a few rules that applies, with the
    seconds missing for each layer and microbatch."""
    row, plan = checked.row, checked.plan
    reached, node = mfu(checked), plan.cluster.levels[0].units
    layers = row.layers / row.pp * row.microbatches
    missing = f"{show_seconds((checked.measured - checked.step) / layers)} a layer and microbatch"
    gemm = plan.workload.step_flops / row.n_gpus / layers / GEMMS
    seconds = gemm / plan.cluster.device.flops[plan.workload.dtype]
    if checked.ratio > 1:
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
    """12 hex digits of the SHA-256 of all numbers of the published rows' clusters."""
    keys = sorted({(r.gpu, r.n_gpus, r.source) for r in published() if r.n_gpus})
    texts = []
    for key in keys:
        try:
            texts.append(cluster_of(*key).to_json())
        except ValueError:  # a GPU that is not modelled
            continue
    return sha256("".join(texts).encode()).hexdigest()[:12]
