"""The best grid of thousands of ranks without evaluating the slow formula for every one.

An estimate never exceeds the next finer one (`cheapest`), so the winner is the best of all grids,
as if the finest estimate had ranked them all.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

from tpviz.core.checks import divisors
from tpviz.schemes.axonn.models import hardware_flops
from tpviz.schemes.axonn.paper import block, passes, volume
from tpviz.schemes.axonn.rates import insides
from tpviz.schemes.axonn.strategy import AxoNN
from tpviz.verbs.predict import predict

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.core.workload import GPT

FEW = 4
"""Microbatches that are predicted one by one; more of them take as long each as the last of these
(derived: from the second on each finds the queues as the one before)."""


def cheapest(items: Iterable[Any], *stages: Callable[[Any], tuple[Any, Any]]) -> Any:
    """The item of least cost, as the last stage gave it.

    stages : item -> (cost, item), each slower than the one before it and its cost no lower. An item
    goes to the next stage only when no other has a lower cost.
    """
    first, *finer = stages
    queue = [(cost, number, 0, item) for number, (cost, item) in enumerate(map(first, items))]
    heapify(queue)
    while True:
        _, number, stage, item = heappop(queue)
        if stage == len(finer):
            return item
        cost, item = finer[stage](item)
        heappush(queue, (cost, number, stage + 1, item))


# -- memory ----------------------------------------------------------------------------------------
def microbatches(grid: AxoNN, w: "GPT") -> list[int]:
    """Numbers of microbatches that divide a rank's share of the batch."""
    return [n for n in divisors(w.batch // (grid.data * grid.z)) if AxoNN.allows("accumulation", n)]


def needs(grid: AxoNN, w: "GPT") -> Iterator[float]:
    """Bytes of a rank, lazily: with most microbatches, then with one, when no reduce-scatter of
    another is in flight. No other number needs less than both."""
    for count in dict.fromkeys((microbatches(grid, w)[-1], 1)):
        yield replace(grid, accumulation=count).memory(w).total


def fewest(grid: AxoNN, w: "GPT", memory: float) -> AxoNN:
    """A grid that fits by its `needs`, with the fewest microbatches with which it does."""
    cut = (replace(grid, accumulation=count) for count in microbatches(grid, w))
    return next(s for s in cut if s.memory(w).total <= memory)


# -- seconds of a step -----------------------------------------------------------------------------
def least_step(s: AxoNN, w: "GPT", rates: Callable[[int, int], float], flops: float) -> float:
    """Seconds that a step with recomputation takes at least (derived).

    In forward all-reduces wait for kernels and kernels for them; all-gathers go one by one, and so
    do reduce-scatters; the all-reduce over data comes after all of them. No latency, no LayerNorm,
    embedding or head. rates : as for `tpviz.schemes.axonn.paper.seconds`. flops : of a device, per
    second.
    """
    place, (forward, weights) = insides(s.axes), passes(s)
    rows, kernels = w.batch * w.seq / s.data, hardware_flops(w, True) / s.world_size / flops
    moved = dict.fromkeys(("forward", "gather", "scatter", "data"), 0.0)

    def seconds(axis, count):
        return w.layers * count * w.itemsize / rates(place[axis], s.axes[axis]) if count else 0.0

    for fc in block(w):
        v = volume(fc, rows, s.x, s.y, s.z, s.data)
        moved["forward"] += forward * seconds("x" if fc.transposed else "y", v.forward)
        moved["gather"] += s.accumulation * (weights - 1) * seconds("z", v.gather)
        moved["scatter"] += s.accumulation * seconds("z", v.scatter)
        moved["data"] += seconds("data", v.data)
    return max(kernels + moved["forward"], moved["gather"], moved["scatter"]) + moved["data"]


def predicted(s: AxoNN, w: "GPT", cluster: "Cluster") -> tuple[float, float]:
    """(seconds of a step, of its exposed communication), as by `tpviz.predict`.

    Of many microbatches `FEW` are predicted and the rest added.
    """

    def times(count):
        short = replace(w, batch=w.batch // s.accumulation * count)
        one = predict(replace(s, accumulation=count), short, cluster)
        return one.step_time, sum(one.exposed.values())

    if s.accumulation <= FEW:
        return times(s.accumulation)
    return tuple(b + (s.accumulation - FEW) * (b - a) for a, b in zip(times(FEW - 1), times(FEW)))  # pyright: ignore[reportReturnType]
