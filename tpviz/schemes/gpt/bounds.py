"""Lower bounds of a step's seconds, found faster than the step: what a search leaves out by them
(derived; a test compares them with `predict` on whole spaces).

Kernels run one after another, and so do the collectives of an axis. So a step takes at least as
long as its kernels together with the collectives that they wait for at once, and as all collectives
of one axis. Both sums are the same for every block of a kind: they follow from the steps of models
of one and of two such layers. Collectives in flight together may take `Cluster.queued` of their
time; of those whose sizes are not followed only the bytes count, at the best bandwidth of the link.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tpviz.cluster.clock.fast import Clock
from tpviz.core.mesh import Mesh
from tpviz.core.step import Collective, Issue, Kernel, Step, expanded, flat

from .pointwise import Held, gemms_of, spread

if TYPE_CHECKING:
    from tpviz.cluster import Cluster, Device
    from tpviz.core.workload import GPT
    from tpviz.schemes.strategy import Strategy


class Sums(NamedTuple):
    """Seconds: of kernels, of collectives that they wait for at once, of collectives by axis."""

    kernels: float
    waited: float
    busy: dict[str, float]

    @property
    def serial(self) -> float:
        """Seconds of the kernels and of the collectives that they wait for at once."""
        return self.kernels + self.waited

    @property
    def least(self) -> float:
        """A lower bound of the step's seconds."""
        return max(self.serial, *self.busy.values(), 0.0)

    def plus(self, other: "Sums", times: float = 1) -> "Sums":
        """``times`` times these sums, plus ``other``."""
        axes = dict.fromkeys((*self.busy, *other.busy))
        busy = {a: times * self.busy.get(a, 0.0) + other.busy.get(a, 0.0) for a in axes}
        return Sums(times * self.kernels + other.kernels, times * self.waited + other.waited, busy)


NOTHING = Sums(0.0, 0.0, {})


def grown(workload: "GPT", sums_of: "Callable[[GPT], Sums]") -> Sums:
    """The sums of all blocks and the ends, extrapolated from those of models of one block and of
    two, of each kind of block."""
    total = None
    for kind, blocks in workload.kinds():
        one, two = map(sums_of, shallows(kind))
        block = one.plus(two, -1)
        total = block.plus(total, blocks) if total else block.plus(one, blocks - 1)
    assert total is not None
    return total


def sums(step: Step, clock: Clock, known: dict[Any, Any] | None = None) -> Sums:
    """The `Sums` of a step. known : what was found of operations, where steps share them."""
    kernels, waited, busy = 0.0, 0.0, defaultdict[str, float](float)
    known = {} if known is None else known
    for part, times in flat(step):
        found = known.get(part.operations)
        if found is None:
            found = known[part.operations] = _of(part.operations, clock)
        kernels, waited = kernels + times * found.kernels, waited + times * found.waited
        for axis, seconds in found.busy.items():
            busy[axis] += times * seconds
    return Sums(kernels, waited, dict(busy))


def _of(operations, clock):
    kernels, waited, busy = 0.0, 0.0, defaultdict[str, float](float)
    for one in expanded(operations):
        if isinstance(one, Kernel):
            kernels += clock.seconds(one)
        elif isinstance(one, (Collective, Issue)):
            sent = clock.moved(one.move if isinstance(one, Issue) else one)
            least = sent.seconds * min(1.0, sent.queued)
            busy[sent.axis] += least
            waited += least * isinstance(one, Collective)
    return Sums(kernels, waited, busy)


def kernels_of(device: "Device", held: Held, dtype: str) -> float:
    """Seconds of a microbatch's kernels on a rank, those bound by memory included."""
    on = device if device.plain else spread(device, held)
    return sum(count * on.time(flops, size, dtype) for count, flops, size in gemms_of(held))


def computing(strategy: "Strategy", workload: "GPT", cluster: "Cluster") -> float:
    """Seconds of the kernels of all microbatches of a rank, without recomputation and without the
    sum of gradients: no choice needs less. 0 where a scheme does not say what a rank holds."""
    try:
        held = strategy.held(workload)
    except ValueError:
        return 0.0
    held = held._replace(shards=0)
    return strategy.accumulation * kernels_of(cluster.device, held, workload.dtype)


def by_layers(strategy: "Strategy", workload: "GPT", cluster: "Cluster") -> Callable[..., float]:
    """Implements `Strategy.bounds` from the `Sums` of each choice's `step`."""
    mesh = Mesh(strategy.axes)

    def bound(choice, closely=False):
        made = replace(strategy, **choice)
        try:
            device = made.device(workload, cluster)
            clock = Clock.of(cluster, mesh, workload.dtype, made.parent_axis, device)
            known = {}
            return grown(workload, lambda thin: sums(made.step(thin), clock, known)).least
        except (ValueError, NotImplementedError):
            return 0.0

    return bound


@lru_cache(maxsize=256)
def shallows(workload: "GPT") -> "tuple[GPT, GPT]":
    """A workload whose blocks are alike with one layer, and with two."""
    return workload.one_layer, replace(workload, layers=2)


def bytes_seconds(
    cluster: "Cluster", mesh: Mesh, axis: str, collective: str, payload: float
) -> float:
    """A lower bound of the seconds in which collectives of an axis move ``payload`` bytes."""
    size = mesh.ranks_along(axis)
    if size == 1:
        return 0.0
    link = cluster.axis_link(mesh, axis)
    free = link._replace(latency=0.0, curve=())
    _, volume = cluster.collective_cost(collective, payload, size, free)
    best = max((share for _, share in link.curve), default=1.0)
    return min(1.0, cluster.queued) * volume / (link.bandwidth * best)
