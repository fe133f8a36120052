"""How far predicted steps are from published ones, by framework and GPU: the band around a number.

Of runs to test on alone: nothing was fitted on them. ``make validate`` writes `FILE` with the page.

>>> found = band("FSDP", "H100-SXM-80GB")
>>> found.rows > 10 and found.quantiles == tuple(sorted(found.quantiles))
True
"""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .adapter import profile_of
from .scoreboard import ANY, ScorePoint, by, errors

FILE = Path(__file__).with_name("data") / "bands.json"
SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
FEWEST = 5
"""Runs, with fewer of which there is no band."""
IDEAL = "ideal"


EXPERTS = ", experts"
"""Behind a framework's name: of its runs with experts."""


def profile_with(point: ScorePoint) -> str:
    """The profile of a run, and whether its model has experts."""
    return profile_of(point.row.source) + EXPERTS * bool(point.plan.workload.experts)


class Band(NamedTuple):
    """Of ``rows`` published runs on a ``gpu`` (or `ANY`) by a ``framework`` (with `EXPERTS` behind
    its name, of models with experts; or `IDEAL`: predicted as on ideal devices): median and 90th
    percentile of |predicted / measured - 1|, and the quantiles at `SHARES` of measured / predicted.
    """

    framework: str
    gpu: str
    rows: int
    median: float
    p90: float
    quantiles: tuple[float, ...]

    def around(self, seconds: float) -> list[float]:
        """Seconds of a step at each of `SHARES`, where so many are predicted."""
        return [seconds * quantile for quantile in self.quantiles]

    @property
    def words(self) -> str:
        """What it is made of."""
        runs = "all frameworks" if self.framework == IDEAL else self.framework
        how = "predicted on ideal devices" if self.framework == IDEAL else "nothing fitted on them"
        return (
            f"{self.rows} published runs ({runs}, {self.gpu}; {how}): median error "
            f"{100 * self.median:.1f} %, 90th percentile {100 * self.p90:.1f} %"
        )


def band(framework: str, gpu: str) -> Band | None:
    """The `Band` of a framework, or `IDEAL`, on a GPU; where too few runs were on that, on `ANY`;
    None where there are too few of those too."""
    found = stored().get(framework, {})
    own = next((name for name in (gpu, ANY) if name in found), None)
    if own is None:
        return None
    rows, median, p90, quantiles = found[own]
    return Band(framework, own, rows, median, p90, tuple(quantiles))


def inside(
    points: Iterable[ScorePoint], around: Callable[[ScorePoint], Any]
) -> tuple[int, float, float]:
    """(points with a band, the shares of them measured within its inner and its outer quantiles).
    around : a point's `Band`, or None."""
    found = [(band.around(p.predicted), p.measured) for p in points if (band := around(p))]
    inner, outer = (
        sum(q[low] <= m <= q[high] for q, m in found) / (len(found) or 1)
        for low, high in ((1, 3), (0, 4))
    )
    return len(found), inner, outer


def of_others(
    points: Sequence[ScorePoint], sources: bool = False
) -> Callable[[ScorePoint], Band | None]:
    """For each of these points the band that the others of its framework and GPU make, all of its
    source, model and number of GPUs left out: that of a run which is not published yet. sources :
    leave out all of its source, and take `ANY` GPU."""
    place = lambda p: (profile_with(p), ANY if sources else p.plan.cluster.device.name)
    group = lambda p: (p.row.source, *(() if sources else (p.row.model, p.row.n_gpus)))
    alike, known = by(points, place), {}

    def around(point: ScorePoint) -> Band | None:
        key = (*place(point), *group(point))
        if key not in known:
            rest = [p for p in alike[key[:2]] if group(p) != key[2:]]
            enough = len(rest) >= FEWEST
            known[key] = Band(key[0], key[1], *_numbers(rest)) if enough else None
        return known[key]

    return around


@lru_cache(maxsize=1)
def stored() -> dict[str, Any]:
    """{framework: {gpu: rest of a `Band`}}, and under "made of" the hashes of data, split and
    coefficients."""
    return json.loads(FILE.read_text())


def write(real: Iterable[ScorePoint], ideal: Iterable[ScorePoint], made_of: str) -> None:
    """Store the bands of points to test on: predicted as run by their framework, and as on ideal
    devices. made_of : hashes."""
    found: dict[str, Any] = {"made of": made_of}
    for framework, own in by(real, profile_with).items():
        found[framework] = _of_gpus(own)
    found[IDEAL] = _of_gpus([p for p in ideal if not p.plan.workload.experts])
    lines = (f"{json.dumps(name)}: {json.dumps(its)}" for name, its in found.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    stored.cache_clear()


def _of_gpus(points: list[ScorePoint]):
    groups = {ANY: points} | by(points, lambda p: p.plan.cluster.device.name)
    return {gpu: _numbers(own) for gpu, own in groups.items() if len(own) >= FEWEST}


def _numbers(points: list[ScorePoint]):
    # Of one more run, not of these: it is below the k-th of n with probability k / (n + 1), so the
    # quantile q is the value at q (n + 1). At q (n - 1) + 1, as is usual, 27 runs hold 84 %.
    e = errors(points)
    quantiles = np.quantile([1 / p.ratio for p in points], SHARES, method="weibull")
    return [e.rows, *(float(f"{x:.4g}") for x in (e.median, e.p90)), [*quantiles.round(4).tolist()]]
