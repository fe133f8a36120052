"""``make fit``: the fitted numbers of `coefficients.json`, from the rows that may be fitted on.

The error of a row is |log(predicted / measured)|, at most `MOST`: a median, not a mean, and a
disturbed run counts once and no more. Rows are averaged within a set, one for each profile and
generation of GPU, of the Ultra-Scale grid one for each degree of tensor parallelism, with and
without a pipeline, at a weight of `GRID`: no source outweighs another by its number of rows. The
sum over the sets is made small one number at a time, in steps that shrink. Of the grid's rows one
in `EACH` is taken.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import log
from statistics import fmean

from tpviz.cluster.profiles import FILE, coefficients, fitted, framework_of
from tpviz.verbs.fitted_range import Range, joined, traits
from tpviz.verbs.predict import predict

from .adapter import NotModelled, RunPlan, as_ran, plan_of, profile_of, real
from .rows import PublishedRow, published

MOST, GRID, EACH = 0.4, 0.25, 3
FITTED_ON = (
    "published steps whose part is fit, all that are modelled; of the Ultra-Scale grid, which "
    f"counts {GRID:g} as much, one in {EACH}, with and without pipelines"
)
STEPS = (1.25, 1.12, 1.06, 1.03)
"""Factors by which numbers are changed, one round each."""
SHARES = ("sustained", "attention", "memory_efficiency", "aws_share")
"""How names of numbers begin that are at most 1."""

Runs = list[tuple[PublishedRow, RunPlan]]


def runs() -> Runs:
    """The rows to fit on that are modelled: steps of models without experts whose ``part`` is
    "fit"."""
    found = []
    for row in published():
        if row.part != "fit" or not row.step:
            continue
        try:
            plan = plan_of(row)
        except NotModelled:
            continue
        if not plan.workload.experts:
            found.append((row, plan))
    return found


def ratio(row: PublishedRow, plan: RunPlan, numbers: Mapping[str, float]) -> float:
    """Predicted over measured, with these fitted numbers."""
    cluster = _cluster(row.gpu, row.n_gpus, row.source, tuple(sorted(numbers.items())))
    cluster = as_ran(cluster, row)
    return _seconds(plan.strategy, plan.workload, cluster) / row.step  # pyright: ignore[reportOperatorIssue]


@lru_cache(maxsize=4096)
def _seconds(strategy, workload, cluster):
    """Of a step; most numbers change the clusters of one framework alone."""
    return predict(strategy, workload, cluster).step_time


@lru_cache(maxsize=256)
def _cluster(gpu, n_gpus, source, numbers):
    return real(gpu, n_gpus, source, dict(numbers))


def loss(found: Iterable[tuple[PublishedRow, RunPlan]], numbers: Mapping[str, float]) -> float:
    """The sum over the sets of rows of their mean errors."""
    sets: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row, plan in found:
        grid = row.framework == "nanotron"
        name = profile_of(row.source), f"tp {row.tp}, pp {row.pp > 1}" if grid else row.gpu[:4]
        sets[name].append(min(abs(log(ratio(row, plan, numbers))), MOST))
    return sum(fmean(v) * (GRID if name[0] == "nanotron" else 1) for name, v in sets.items())


def fit(found: Runs, numbers: Mapping[str, float]) -> dict[str, float]:
    """Numbers with less `loss` on the rows, from these on."""
    grid = [run for run in found if run[0].framework == "nanotron"]
    rest = [run for run in found if run[0].framework != "nanotron"]
    return _descend(rest + grid[::EACH], dict(numbers), list(numbers))


def _descend(found, numbers, names):
    least = loss(found, numbers)
    for step in STEPS:
        for name in names:
            for factor in (step, 1 / step):
                while True:
                    tried = {**numbers, name: float(f"{numbers[name] * factor:.3g}")}
                    if name.startswith(SHARES) and tried[name] > 1:
                        break
                    error = loss(found, tried)
                    if error > least - 1e-5:
                        break
                    numbers, least = tried, error
        print(f"{step:g}: {least:.4f} {numbers}", flush=True)
    return numbers


def ranges(found: Runs) -> dict[str, dict[str, Range]]:
    """{framework: {quantity: its range over the rows}}; what lies outside says so
    (`tpviz.verbs.fitted_range`)."""
    known: dict[str, list[dict[str, float | str]]] = defaultdict(list)
    for _, plan in found:
        known[framework_of(plan.cluster)].append(traits(plan.strategy, plan.workload, plan.cluster))
    return {name: joined(own) for name, own in sorted(known.items())}


def main() -> None:
    """Fit, from the shipped numbers on or with ``--anew`` from ideal ones, and write the file; with
    ``--ranges`` only the ranges of the rows."""
    start, known, found = fitted(), coefficients(), runs()
    if "--anew" in sys.argv:
        start = {name: 0.9 if name.startswith(SHARES) else value for name, value in start.items()}
    numbers = start if "--ranges" in sys.argv else fit(found, start)
    for name, entry in known["fitted"].items():
        entry["value"] = numbers[name]
    known |= {"fitted_on": FITTED_ON, "ranges": ranges(found)}
    FILE.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
