"""Cost: a rank's step on a clock, as segments in time order, and how much of each axis is hidden.

A strategy's step (`tpviz.step`) runs on a `Clock`, which gives a `Segment` for each of its parts.
The step's time is the sum of its segments.

>>> from tpviz import Mesh, clusters
>>> from tpviz.step import Collective, Kernel, Overlapped, Part
>>> kernel, move = Kernel(10**9, 0), Collective("tp", "all_reduce", 1_000_000)
>>> step = [Part("forward", "up", (kernel, move)), Part("", "up", (Overlapped(move, kernel),))]
>>> clock = Clock.of(clusters.nvswitch(4), Mesh({"tp": 4}), "float32")
>>> waited, overlapped = (segment.exposed["tp"] for segment in clock.run(step))
>>> overlapped < waited
True
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import repeat
from math import isclose
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from .step import RING_SHIFT, Collective, Issue, Kernel, Repeat, Step, Wait, expanded

if TYPE_CHECKING:
    from .cluster import Cluster, Device
    from .mesh import Mesh

PARTS = ("compute", "bandwidth wait", "latency wait", "bubble")
"""Of a step. The two waits are its exposed communication: kernels wait for bytes, or for hops."""
ONCE = repeat(1)


class Transfer(NamedTuple):
    """One collective of a mesh axis, alone on its links: seconds, and how much of it is latency;
    `Cluster.queued`, where it waits for another."""

    axis: str
    seconds: float
    latency: float = 0.0
    queued: float = 1.0


def transfer(
    cluster: "Cluster", mesh: "Mesh", axis: str, collective: str, payload: float
) -> Transfer:
    """The `Transfer` of ``payload`` bytes (the full tensor) over a mesh axis, all groups at it.

    A `step.RING_SHIFT` takes as long as its slowest message in any group.
    """
    size = mesh.axes[axis]
    if size == 1:
        return Transfer(axis, 0.0)
    if collective == RING_SHIFT:
        shift = (
            cluster.collective_parts("send", payload, 2, k) for k in _ring(cluster, mesh, axis)
        )
        latency, sending = max(shift, key=sum)
    else:
        link = cluster.axis_link(mesh, axis)
        latency, sending = cluster.collective_parts(collective, payload, size, link)
    return Transfer(axis, latency + sending, latency, cluster.queued)


@lru_cache(maxsize=64)
def _ring(cluster, mesh, axis):
    """Links of neighbours in all rings of an axis, one of each bandwidth, latency and curve."""
    links = (
        cluster.link((a, b), mesh.size, b - a)
        for ring in mesh.groups(axis)
        for a, b in zip(ring, ring[-1:] + ring)
    )
    return list({(*link[:2], link.curve): link for link in links}.values())


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


class Clock:
    """A rank's step on a clock: kernels one after another, and a queue for every axis (derived).

    Collective k of an axis ends at end_k = max(issued_k, end_{k-1}) + t_k, alone on its links; t_k
    is less where it waits for the one before and `Cluster.queued` says so.
    seconds : of a `tpviz.step.Kernel`; moved : the `Transfer` of a `tpviz.step.Collective`.
    """

    def __init__(self, seconds: Callable[[Kernel], float], moved: Callable[[Collective], Transfer]):
        self.seconds, self.moved = cache(seconds), cache(moved)
        self.now, self.queues, self.closed, self.expanded = 0.0, {}, {}, {}

    @classmethod
    def of(
        cls,
        cluster: "Cluster",
        mesh: "Mesh",
        dtype: str,
        parent_axis: Mapping[str, str] = MappingProxyType({}),
        device: "Device | None" = None,
    ) -> "Clock":
        """A cluster's clock. parent_axis : {axis of the step that is none of the mesh: the mesh's
        axis it is a part of}, which has a queue of its own. device : `Strategy.device`, where it is
        not the cluster's."""
        device = device or cluster.device

        def moved(move):
            axis = parent_axis.get(move.axis, move.axis)
            return transfer(cluster, mesh, axis, *move[1:])._replace(axis=move.axis)

        return cls(lambda kernel: device.time(kernel.flops, kernel.bytes, dtype), moved)

    def run(self, step: Step) -> list[Segment]:
        """The step's segments. A part that takes no time and completes no gradient has none."""
        segments: list[Segment] = []
        for item in step:
            if isinstance(item, Repeat):
                segments += self._repeat(item)
            else:
                self._part(item, segments)
        return segments

    def _repeat(self, item):
        """A pass that finds all queues as the one before found them takes as long, and so do all
        that follow: they are not run again."""
        segments, made, before, seconds = [], [], None, 0.0
        for _ in range(item.count):
            ahead = self._ahead()
            if before is not None and _close(ahead, before, self.now):
                self._shift(seconds)
            else:
                made, before = self.run(item.parts), ahead
                seconds = sum(segment.seconds for segment in made)
            segments += made
        return segments

    def _ahead(self):
        """{axis: how long its queue will take}."""
        ends = {axis: queue[-1][1] - self.now for axis, queue in self.queues.items() if queue}
        return {axis: end for axis, end in ends.items() if end > 0}

    def _shift(self, seconds):
        """Everything is as it is, so much later."""
        self.now += seconds
        for axis, queue in self.queues.items():
            self.queues[axis] = [(a + seconds, b + seconds, latency) for a, b, latency in queue]

    def _part(self, part, segments):
        """A part that no queue reaches into, and that leaves none, always takes as long."""
        phase, layer, operations, ready = part
        if len(operations) == 1 and operations[0].__class__ is Issue and not ready:
            moved = self.moved(operations[0].move)  # a bucket's reduction: there are hundreds
            if moved.seconds:
                _enqueue(self.queues.setdefault(moved.axis, []), self.now, moved)
            return
        busy = []
        for axis, queue in self.queues.items():
            if queue and queue[-1][1] > self.now:
                busy.append(axis)
        known = self.closed.get(id(operations))
        if known is None or not known.axes.isdisjoint(busy):
            known = self._operations(operations, busy)
        start, self.now = self.now, self.now + known.seconds
        if known.seconds <= 0.0 and not ready:
            return
        hidden = known.hidden
        for axis in busy:
            if axis not in known.axes and (shared := self._shared(axis, start, self.now)) > 0:
                hidden = {**hidden, axis: shared}
        segments.append(
            Segment(phase, layer, known.compute, known.exposed, hidden, known.latency, 0.0, ready)
        )

    def _operations(self, operations, busy):
        """The `_Known` of operations run now. Where no queue reaches into them, from 0 on, so that
        the same operations always give the same numbers."""
        if id(operations) not in self.expanded:  # kept with them, so that no other gets their id
            todo = tuple(expanded(operations))
            axes = frozenset(map(_axis, todo)) - {""}
            self.expanded[id(operations)] = operations, todo, axes
        _, todo, axes = self.expanded[id(operations)]
        alone = axes.isdisjoint(busy)
        start = now = 0.0 if alone else self.now
        for axis in axes:
            if alone or axis not in self.queues:
                self.queues[axis] = []
        queues, seconds, moved = self.queues, self.seconds, self.moved
        compute, latency, exposed = 0.0, 0.0, {}
        for operation in todo:
            kind = operation.__class__
            if kind is Kernel:
                took = seconds(operation)
                compute += took
                now += took
                continue
            if kind is not Wait:
                sent = moved(operation[0] if kind is Issue else operation)
                if not sent.seconds:
                    continue
                axis, queue = sent.axis, queues[sent.axis]
                _enqueue(queue, now, sent)
                if kind is Issue:
                    continue
                left = 0
            else:
                axis, left = operation
                queue = queues[axis]
            last = len(queue) - 1 - left
            if last >= 0 and (end := queue[last][1]) > now:
                exposed[axis] = exposed.get(axis, 0.0) + end - now
                latency += _latency(queue, last, now)
                now = end
        hidden = {}
        for axis in axes:
            if queues[axis]:
                exposed.setdefault(axis, 0.0)
                hidden[axis] = max(0.0, self._shared(axis, start, now) - exposed[axis])
        known = _Known(compute, exposed, hidden, latency, now - start, axes)
        if alone and all(not queues[axis] or queues[axis][-1][1] <= now for axis in axes):
            self.closed[id(operations)] = known
            self.queues |= {axis: [] for axis in axes}
        elif alone:
            for axis in axes:
                queues[axis] = [(a + self.now, b + self.now, hops) for a, b, hops in queues[axis]]
        return known

    def _shared(self, axis, start, end):
        """Seconds from start to end in which the axis has a collective in flight; forgets those
        that ended before."""
        queue = self.queues[axis]
        first = 0
        while first < len(queue) and queue[first][1] <= start:
            first += 1
        del queue[:first]
        shared = 0.0
        for begin, stop, _ in queue:
            if begin >= end:
                break
            shared += (stop if stop < end else end) - (begin if begin > start else start)
        return shared


class _Known(NamedTuple):
    """What became of a part's operations; axes: those that they use."""

    compute: float
    exposed: dict[str, float]
    hidden: dict[str, float]
    latency: float
    seconds: float
    axes: frozenset[str]


def _enqueue(queue, now, moved):
    """Put a `Transfer` that is issued now behind what its axis has in flight."""
    begin = queue[-1][1] if queue and queue[-1][1] > now else now
    factor = moved.queued if begin > now else 1.0
    queue.append((begin, begin + factor * moved.seconds, factor * moved.latency))


def _axis(operation):
    """The axis an operation issues on or waits for, or ""."""
    if isinstance(operation, (Collective, Wait)):
        return operation.axis
    return operation.move.axis if isinstance(operation, Issue) else ""


def _latency(queue, last, start):
    """From start to the end of collective ``last``, the seconds that those in flight spend on
    hops."""
    spent = 0.0
    for number in range(last, -1, -1):
        begin, stop, latency = queue[number]
        if stop <= start:
            break
        spent += latency * (stop - max(begin, start)) / (stop - begin)
    return spent


def _close(a, b, now):
    """Whether two states of the queues are the same but for rounding."""
    return a.keys() == b.keys() and all(
        isclose(a[axis], b[axis], rel_tol=1e-9, abs_tol=1e-12 * now) for axis in a
    )


def crowding(cluster: "Cluster", ranks: int) -> float:
    """How many times as long kernels take while so many ranks compute at once on the cores that
    they share, 1 where there are enough."""
    return max(1.0, ranks / cluster.cores) if cluster.cores else 1.0


def on_shared_cores(
    segments: Sequence[Segment], cluster: "Cluster", ranks: int
) -> Sequence[Segment]:
    """The segments of a rank, kernels already longer by `crowding`, where moving bytes takes cores.

    A step takes at least its work over the cores (Graham 1966): the kernels of all ranks, and what
    their collectives take of a core, hidden ones too. What that adds lengthens kernels by a factor.
    """
    moving = sum(sum(s.exposed.values()) + sum(s.hidden.values()) for s in segments)
    if not cluster.cores or not cluster.core_share or not moving:
        return segments
    compute = sum(s.compute for s in segments)
    alone = compute / crowding(cluster, ranks)
    work = ranks * (alone + cluster.core_share * moving) / cluster.cores
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
    """{axis: seconds} of "exposed" or "hidden", summed over the segments. times : of `parts`."""
    found: dict[str, float] = {}
    for segment, count in zip(segments, times):
        for axis, seconds in getattr(segment, which).items():
            found[axis] = found.get(axis, 0.0) + seconds * count
    return found


def counted(segments: Sequence[Segment]) -> tuple[list[Segment], list[int]]:
    """(each segment once, how often it is there): in a pipeline as often as there are
    microbatches."""
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

    def mixed(self, itemsize: int) -> "Memory":
        """The same where the optimizer has a float32 copy beside its two moments, and gradients are
        added up in float32: 2, 4 and 12 bytes of a parameter, shared out as here (Rajbhandari et
        al. 2020, arXiv 1910.02054, section 3.1). itemsize : bytes of a number here."""
        factors = {"parameters": 2, "gradients": 4, "optimizer": 12 / 2}
        return Memory({k: n * factors.get(k, itemsize) / itemsize for k, n in self.items()})


def show_seconds(value: float, digits: int = 3) -> str:
    """12.3 ms, 450 us, 1.2 s."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= scale * 0.9995:
            return f"{value / scale:.{digits}g} {unit}"
    return f"{value / 1e-9:.{digits}g} ns" if value else "0 s"


def show_apart(values: Iterable[float]) -> list[str]:
    """`show_seconds` of each, with as many digits (up to 7) as times need that are not the same.

    >>> show_apart([293.1e-6, 293.4e-6, 1e-3])
    ['293.1 us', '293.4 us', '1 ms']
    """
    values = list(values)
    told: list[str] = []
    for digits in range(3, 8):
        told = [show_seconds(value, digits) for value in values]
        if len(set(told)) == len({f"{value:.6e}" for value in values}):
            break
    return told


def show_bytes(value: float) -> str:
    """1.5 kB, 2 MB: decimal."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= scale * 0.9995:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.4g} B"
