"""Bounds of a search beside the predictions of what they exclude, on a small cluster."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import tpviz as tv
from tpviz.cluster import Cluster, Device, Level
from tpviz.verbs.space import cells

BOX = Cluster(
    "box",
    Device({"float32": 1e10}, 1e9, 1e12),
    (Level("fast", 2, 4e9, 4e9, 1e-6), Level("slow", 2, 1e8, 2e8, 1e-6)),
)


def bounded(
    w: tv.GPT,
    cluster: Cluster,
    given: Any,
    picked: Callable[[int, Sequence[Any]], Sequence[Any]],
    share: float,
) -> tuple[int, int]:
    """(strategies of 4 ranks whose bounds, and that of their cell, are not above their prediction;
    those of which a bound is more than this ``share`` of it). picked : some of the choices of a
    cell, by its number."""
    seen = near = 0
    for number, cell in enumerate(cells(w, 4, given)):
        with suppress(ValueError):
            cell.strategy.check(w)
            least = cell.strategy.least_of_all(w, cluster)
            bound = cell.strategy.bounds(w, cluster)
            for choice in picked(number, cell.choices):
                strategy = cell.made(choice)
                with suppress(ValueError):
                    step = tv.predict(strategy, w, cluster).step_time * (1 + 1e-9)
                    for closely in (False, True):
                        assert bound(choice, closely) <= step, (strategy.short, closely)
                    assert 0 < least <= step, strategy.short
                    seen, near = seen + 1, near + (bound(choice) > share * step)
    return seen, near
