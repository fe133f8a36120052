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

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain, repeat
from math import isclose
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from .step import RING_SHIFT, Collective, Composite, Issue, Kernel, Repeat, Step, Wait

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
        self.seconds, self.moved, self.items_of = seconds, moved, cache(self._items)
        self.now, self.queues, self.items = 0.0, defaultdict(_Queue), {}
        self.known: dict[int, _Known | list[Any]] = {}
        """{id of operations: what they do where their axes are idle; or their items, where kernels
        wait for none of them, as for the reductions of buckets, of which there are hundreds}."""

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
            if move.axis not in parent_axis:
                return transfer(cluster, mesh, *move)
            whole = transfer(cluster, mesh, parent_axis[move.axis], *move[1:])
            return whole._replace(axis=move.axis)

        return cls(lambda kernel: device.time(kernel.flops, kernel.bytes, dtype), moved)

    def run(self, step: Step) -> list[Segment]:
        """The step's segments. A part that takes no time and completes no gradient has none.

        Operations that find their axes idle take as long each time, and leave as much in flight.
        """
        segments: list[Segment] = []
        segment, queues = Segment._make, self.queues
        for item in step:
            if isinstance(item, Repeat):
                segments += self._repeat(item)
                continue
            phase, layer, operations, ready = item
            known, start = self.known.get(id(operations)), self.now
            if isinstance(known, list):
                for queue, _, sent, _ in known:
                    queue.put(start, sent)
                if ready:
                    segments.append(Segment(phase, layer, ready=ready))
                continue
            if known is None or (known.axes and self._busy(known.axes)):
                known = self._operations(operations)
            compute, exposed, hidden, latency, took, axes, left = known
            for queue, state in left:
                queue.resume(state, start)
            if took <= 0.0 and not ready:
                continue
            self.now = end = start + took
            for axis, queue in queues.items():
                if start < queue.end and start < end and axis not in axes:
                    hidden = {**hidden, axis: queue.between(start, end)}
            segments.append(segment((phase, layer, compute, exposed, hidden, latency, 0.0, ready)))
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
        now = self.now
        return {axis: queue.end - now for axis, queue in self.queues.items() if queue.end > now}

    def _shift(self, seconds):
        """Everything is as it is, so much later."""
        self.now += seconds
        for queue in self.queues.values():
            queue.resume(queue.state, seconds)

    def _busy(self, axes):
        """Whether anything is in flight on one of them."""
        now = self.now
        for queue in axes.values():
            if queue.end > now:
                return True
        return False

    def _items(self, operation):
        """What to do, in turn: the seconds of a kernel, or (queue, axis, `Transfer` that is issued
        or None, how many are left in flight when kernels go on: None where these do not wait)."""
        if isinstance(operation, Composite):
            return tuple(chain.from_iterable(map(self.items_of, operation.expand())))
        if isinstance(operation, Kernel):
            return (self.seconds(operation),)
        if isinstance(operation, Wait):
            queue = self.queues[operation.axis]
            return ((queue, operation.axis, None, operation.in_flight),)
        issued = isinstance(operation, Issue)
        sent = self.moved(operation.move if issued else operation)
        if not sent.seconds:
            return ()
        return ((self.queues[sent.axis], sent.axis, sent, None if issued else 0),)

    def _operations(self, operations):
        """The `_Known` of operations run now. Where their axes are idle, from 0 on, so that the
        same operations always give the same numbers."""
        key = id(operations)
        if key not in self.items:
            items: list[Any] = [*chain.from_iterable(map(self.items_of, operations))]
            axes = {item[1]: item[0] for item in items if item.__class__ is tuple}
            self.items[key] = items, axes, operations  # kept, so that no other gets their id
        items, axes, _ = self.items[key]
        alone = not self._busy(axes)
        start = now = 0.0 if alone else self.now
        for queue in axes.values():
            queue.look_from(start, alone)
        compute, latency, exposed = 0.0, 0.0, {}
        for item in items:
            if item.__class__ is not tuple:
                compute += item
                now += item
                continue
            queue, axis, sent, in_flight = item
            if sent:
                queue.put(now, sent)
            if in_flight is None:
                continue
            end, hops = queue.until(in_flight, now)
            if end > now:
                exposed[axis] = exposed.get(axis, 0.0) + end - now
                latency += hops
                now = end
        hidden, left = {}, []
        for axis, queue in axes.items():
            if queue.end > start:
                exposed.setdefault(axis, 0.0)
                hidden[axis] = max(0.0, queue.past + queue.between(start, now) - exposed[axis])
                if alone and queue.end > now:
                    left.append((queue, queue.state))
        known = _Known(compute, exposed, hidden, latency, now - start, axes, left)
        if now == start and all(item.__class__ is tuple and item[3] is None for item in items):
            self.known[key] = items
        elif alone:
            self.known[key] = known
        return known


_State = tuple[float, float, list[tuple[float, float, float]]]


class _Queue:
    """The collectives of an axis that are in flight one after another, since it was last idle."""

    __slots__ = "begin", "end", "past", "sent"

    def __init__(self) -> None:
        self.begin = self.end = 0.0
        self.past = 0.0  # seconds of the part that now runs, before `begin`
        self.sent: list[tuple[float, float, float]] = []  # (begin, end, how much of it is hops)

    def look_from(self, start: float, idle: bool) -> None:
        """A part begins. idle : nothing is in flight, and times start anew."""
        self.past = 0.0
        if idle or self.end <= start:
            self.begin = self.end = start
            self.sent = []
        elif self.begin < start:
            self.begin = start

    def put(self, now: float, moved: Transfer) -> None:
        """A `Transfer` is issued now: it begins behind what is in flight."""
        begin, factor = self.end, moved.queued
        if begin <= now:
            self.past += self.end - self.begin
            self.begin = begin = now
            self.sent = []
            factor = 1.0
        self.end = end = begin + factor * moved.seconds
        self.sent.append((begin, end, factor * moved.latency))

    def until(self, in_flight: int, now: float) -> tuple[float, float]:
        """(When all but the last ``in_flight`` have ended, seconds of hops from now to then)."""
        last = len(self.sent) - 1 - in_flight
        if last < 0 or (end := self.sent[last][1]) <= now:
            return now, 0.0
        hops = 0.0
        for begin, stop, latency in reversed(self.sent[: last + 1]):
            if stop <= now:
                break
            hops += latency if begin >= now else latency * (stop - now) / (stop - begin)
        return end, hops

    def between(self, start: float, end: float) -> float:
        """Seconds from start to end with something in flight, where nothing was issued since."""
        begin, stop = self.begin, self.end
        return (stop if stop < end else end) - (begin if begin > start else start)

    @property
    def state(self) -> _State:
        """What `resume` takes."""
        return self.begin, self.end, self.sent

    def resume(self, state: _State, later: float) -> None:
        """What was in flight is so again, so many seconds later."""
        begin, end, sent = state
        self.begin, self.end = begin + later, end + later
        self.sent = [(a + later, b + later, hops) for a, b, hops in sent]


class _Known(NamedTuple):
    """What became of a part's operations. axes : the queues that they use. left : the state, from
    the part's start, of those that it leaves with something in flight, where it found them idle."""

    compute: float
    exposed: dict[str, float]
    hidden: dict[str, float]
    latency: float
    seconds: float
    axes: dict[str, _Queue]
    left: list[tuple[_Queue, _State]]


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
    if not cluster.cores or not cluster.core_share:
        return segments
    moving = sum(sum(s.exposed.values()) + sum(s.hidden.values()) for s in segments)
    if not moving:
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
