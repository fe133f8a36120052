"""Which shards go to which stage: contiguous ranges of a list of weights, none of them empty."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np


def uniform(count: int, stages: int) -> list[tuple[int, int]]:
    """Equally many shards a stage: [(start, stop)]; where that leaves some over, the first ones
    have one more. (The release's rule, ceil(n/p) each, can leave last stages empty.)"""
    each, more = divmod(count, stages)
    ends = [each * k + min(k, more) for k in range(stages + 1)]
    return list(pairwise(ends))


def uniform_floor(count: int, stages: int) -> list[tuple[int, int]]:
    """floor(n/p) shards a stage, the last one has all that are left over (as in the release)."""
    ends = [*(count // stages * k for k in range(stages)), count]
    return list(pairwise(ends))


def smallest_largest(weights: Sequence[float] | np.ndarray, stages: int) -> list[tuple[int, int]]:
    """The ranges whose heaviest is as light as can be; of these the most even (the least sum of
    squares). Exact, by dynamic programming over how far the first k stages reach."""
    weights = np.asarray(weights, dtype=float)
    before = np.concatenate([[0.0], np.cumsum(weights)])
    worst = _best(before, stages, np.maximum, lambda load: load)[0]
    limit = worst * (1 + 1e-12)
    _, ends = _best(before, stages, np.add, lambda load: np.where(load <= limit, load**2, np.inf))
    return list(pairwise(ends))


def _best(before, stages, join, cost):
    """(least cost of all, ends of ranges) where costs of ranges are joined by ``join``."""
    count = len(before) - 1
    least, came = np.full(count + 1, np.inf), []
    least[0] = 0.0 if join is np.add else -np.inf
    for _ in range(stages):
        nxt, from_ = np.full(count + 1, np.inf), np.zeros(count + 1, int)
        for stop in range(1, count + 1):
            costs = join(least[:stop], cost(before[stop] - before[:stop]))
            from_[stop] = int(np.argmin(costs))
            nxt[stop] = costs[from_[stop]]
        least, came = nxt, [*came, from_]
    ends = [count]
    for from_ in reversed(came):
        ends.append(int(from_[ends[-1]]))
    return float(least[count]), ends[::-1]
