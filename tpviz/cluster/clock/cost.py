"""What a rank's step costs: segments in time order, and how much of each axis is hidden.

A strategy's step (`tpviz.core.step`) runs on a clock, which gives a `Segment` for each of its
parts; the step's time is the sum of its segments. `tpviz.cluster.clock.reference` has the clock to
read, `tpviz.cluster.clock.fast` the one in use.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache, partial
from itertools import repeat
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from tpviz.cluster.exchanges import EQUAL
from tpviz.core.copies import COPY
from tpviz.core.step import RING_SHIFT, Collective, Kernel

from .queues import Transfer

if TYPE_CHECKING:
    from tpviz.cluster import Cluster, Device
    from tpviz.core.mesh import Mesh

PARTS = ("compute", "bandwidth wait", "latency wait", "bubble")
"""Of a step. The two waits are its exposed communication: kernels wait for bytes, or for hops."""
ONCE = repeat(1)


def transfer(
    cluster: "Cluster", mesh: "Mesh", axis: str, collective: str, payload: float, parts: Any = ()
) -> Transfer:
    """The `Transfer` of ``payload`` bytes (the full tensor) over a mesh axis, all groups at it.

    A `step.RING_SHIFT` takes as long as its slowest message in any group. parts : of an all-to-all
    of unequal ones, as of a `step.Collective`.
    """
    if collective == COPY:
        return Transfer(axis, payload / cluster.device.host_rate)
    size = mesh.ranks_along(axis)
    if size == 1:
        return Transfer(axis, 0.0)
    if collective == RING_SHIFT:
        shift = (
            cluster.collective_parts("send", payload, 2, k) for k in _ring(cluster, mesh, axis)
        )
        latency, sending = max(shift, key=sum)
    else:
        link = cluster.axis_link(mesh, axis)
        if parts or collective == EQUAL:
            of = parts or payload / size
            payload = cluster.exchanged(of, mesh.group(0, axis), mesh.size, slowest=True)
            collective = EQUAL
        latency, sending = cluster.collective_parts(collective, payload, size, link)
    return Transfer(axis, latency + sending, latency, cluster.queued)


@lru_cache(maxsize=256)
def _transfers(cluster, mesh):
    """`transfer` on a cluster's mesh, asked once for each collective: steps of one layout share
    most of theirs."""
    return cache(partial(transfer, cluster, mesh))


@lru_cache(maxsize=64)
def _ring(cluster, mesh, axis):
    return cluster.ring_links(mesh, axis)


def rates(
    cluster: "Cluster",
    mesh: "Mesh",
    dtype: str,
    parent_axis: Mapping[str, str] = MappingProxyType({}),
    device: "Device | None" = None,
) -> tuple[Callable[[Kernel], float], Callable[[Collective], Transfer]]:
    """The two functions that a clock takes: (kernel -> seconds, collective -> `Transfer`).

    parent_axis : {axis of the step that is none of the mesh: the mesh's axis it is a part of},
    which has a queue of its own. device : in place of the cluster's.
    """
    device, sent = device or cluster.device, _transfers(cluster, mesh)

    def moved(move: Collective) -> Transfer:
        if move.axis not in parent_axis:
            return sent(*move)
        whole = sent(parent_axis[move.axis], *move[1:])
        return whole._replace(axis=move.axis)

    own = lambda kernel: device.time(kernel.flops, kernel.bytes, kernel.dtype or dtype)
    return own, moved


class Segment(NamedTuple):
    """A stretch of a rank's step, in seconds of the cluster.

    layer : the module's name. exposed : {axis: kernels wait for it}. hidden : {axis: it runs while
    they do not}: under kernels, or while they wait for another axis. latency : the part of
    ``exposed`` that is hops and not bytes. bubble : nothing to do (pipelines). ready : parameters
    whose gradients are complete at its end, in the order of their arrival.
    """

    phase: str
    layer: str = ""
    compute: float = 0.0
    exposed: dict[str, float] = {}
    hidden: dict[str, float] = {}
    latency: float = 0.0
    bubble: float = 0.0
    ready: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it takes: kernels, waiting and bubble."""
        waiting = sum(self.exposed.values()) if self.exposed else 0.0
        return self.compute + waiting + self.bubble


def crowding(cluster: "Cluster", ranks: int) -> float:
    """The factor by which kernels slow down when ``ranks`` ranks compute at once on the host cores
    that they share; 1 if there are enough cores."""
    return max(1.0, min(ranks, cluster.per_host) / cluster.cores) if cluster.cores else 1.0


def on_shared_cores(
    segments: Sequence[Segment], cluster: "Cluster", ranks: int
) -> Sequence[Segment]:
    """The segments of a rank, kernels already longer by `crowding`, where moving bytes takes cores.

    A step takes at least its work over the cores (Graham 1966): the kernels of all ranks, and what
    their collectives take of a core, hidden ones too. What that adds lengthens kernels by a factor.
    """
    if not cluster.cores or not cluster.core_share:
        return segments
    moving = sum(sum(s.exposed.values()) + sum(s.hidden.values()) for s in segments)
    if not moving:
        return segments
    compute = sum(s.compute for s in segments)
    alone = compute / crowding(cluster, ranks)
    work = min(ranks, cluster.per_host) * (alone + cluster.core_share * moving) / cluster.cores
    longer = work - sum(s.seconds for s in segments)
    if longer <= 0:
        return segments
    return [s._replace(compute=s.compute * (1 + longer / compute)) for s in segments]


def parts(segments: Iterable[Segment], times: Iterable[int] = ONCE) -> dict[str, float]:
    """{part: seconds} of `PARTS`, in that order; they sum to the step. times : how often each of
    the segments is there."""
    compute = exposed = latency = bubble = 0.0
    for s, count in zip(segments, times):
        compute += s.compute * count
        bubble += s.bubble * count
        exposed += sum(s.exposed.values()) * count
        latency += s.latency * count
    return dict(zip(PARTS, (compute, exposed - latency, latency, bubble)))


def by_axis(
    segments: Iterable[Segment], which: str, times: Iterable[int] = ONCE
) -> dict[str, float]:
    """{axis: seconds} of "exposed" or "hidden" over all segments. times : as for `parts`."""
    found: dict[str, float] = {}
    for segment, count in zip(segments, times):
        for axis, seconds in getattr(segment, which).items():
            found[axis] = found.get(axis, 0.0) + seconds * count
    return found


def counted(segments: Sequence[Segment]) -> tuple[list[Segment], list[int]]:
    """(the distinct segments, how often each occurs): once per microbatch in a pipeline."""
    times = Counter(map(id, segments))
    return list({id(s): s for s in segments}.values()), list(times.values())


class Memory(dict):
    """Bytes of one rank by kind: parameters, gradients, optimizer, activations.

    Each is its own peak within a step. ``total``, their sum, is what a device must have at most:
    the peaks need not meet (activations are highest where the first gradients arrive).
    """

    @property
    def total(self) -> float:
        """Sum of the kinds, bytes."""
        return sum(self.values())

    def mixed(self, itemsize: int, gradients: float = 4, states: float = 12) -> "Memory":
        """The same where the optimizer has a float32 copy beside its two moments, and gradients are
        added up in float32: 2, 4 and 12 bytes of a parameter, shared out as here (Rajbhandari et
        al. 2020, arXiv 1910.02054, section 3.1). itemsize : bytes of a number here; gradients,
        states : others than these 4 and 12."""
        factors = {"parameters": 2, "gradients": gradients, "optimizer": states / 2}
        return Memory({k: n * factors.get(k, itemsize) / itemsize for k, n in self.items()})
