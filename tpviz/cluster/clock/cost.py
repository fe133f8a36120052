"""Cost: a rank's step on a clock, as segments in time order, and how much of each axis is hidden.

A strategy's step (`tpviz.core.step`) runs on a `Clock`, which gives a `Segment` for each of its
parts. The step's time is the sum of its segments.

>>> from tpviz import Mesh, clusters
>>> from tpviz.core.step import Collective, Kernel, Overlapped, Part
>>> kernel, move = Kernel(10**9, 0), Collective("tp", "all_reduce", 1_000_000)
>>> step = [Part("forward", "up", (kernel, move)), Part("", "up", (Overlapped(move, kernel),))]
>>> clock = Clock.of(clusters.nvswitch(4), Mesh({"tp": 4}), "float32")
>>> waited, overlapped = (segment.exposed["tp"] for segment in clock.run(step))
>>> overlapped < waited
True
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache, partial
from itertools import chain, compress, cycle, repeat
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from tpviz.core.step import (
    RING_SHIFT,
    Blocks,
    Collective,
    Composite,
    Interned,
    Issue,
    Issues,
    Kernel,
    Part,
    Repeat,
    Step,
    Wait,
)
from tpviz.core.tables import show_seconds

from .queues import Queue, State, Transfer

if TYPE_CHECKING:
    from tpviz.cluster import Cluster, Device
    from tpviz.core.mesh import Mesh

PARTS = ("compute", "bandwidth wait", "latency wait", "bubble")
"""Of a step. The two waits are its exposed communication: kernels wait for bytes, or for hops."""
ONCE = repeat(1)


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


@lru_cache(maxsize=256)
def _transfers(cluster, mesh):
    """`transfer` on a cluster's mesh, asked once for each collective: steps of one layout share
    most of theirs."""
    return cache(partial(transfer, cluster, mesh))


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
    seconds : of a `tpviz.core.step.Kernel`; moved : the `Transfer` of a
    `tpviz.core.step.Collective`.
    """

    def __init__(self, seconds: Callable[[Kernel], float], moved: Callable[[Collective], Transfer]):
        self.seconds, self.moved, self.items_of = seconds, moved, cache(self._items)
        self.now, self.queues, self.items = 0.0, defaultdict(Queue), {}
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
        device, sent = device or cluster.device, _transfers(cluster, mesh)

        def moved(move):
            if move.axis not in parent_axis:
                return sent(*move)
            whole = sent(parent_axis[move.axis], *move[1:])
            return whole._replace(axis=move.axis)

        return cls(lambda kernel: device.time(kernel.flops, kernel.bytes, dtype), moved)

    def run(self, step: Step) -> list[Segment]:
        """The step's segments. A part that takes no time and completes no gradient has none.

        Operations that find their axes idle take as long each time, and leave as much in flight.
        """
        segments: list[Segment] = []
        for item in step.blocks if isinstance(step, Interned) else step:
            if isinstance(item, Part):
                segments += filter(None, self._walk([item]))
            elif isinstance(item, Blocks) and item.count == 1:
                segments += filter(None, self._walk(item.parts))
            else:
                segments += self._repeat(item)
        return segments

    def _repeat(self, item):
        """The segments of `Blocks`, or of a `Repeat`, whose parts are there once. A pass that finds
        all queues as the one before found them takes as long, and so do all that follow: they are
        not run again."""
        once, each = isinstance(item, Repeat), len(item.parts) // max(1, item.count)
        segments, made, found, now = [], [], {}, self.now
        for done in range(item.count):
            before, found = found, {axis: q.ahead(self.now) for axis, q in self.queues.items()}
            start, now = now, self.now
            waited = found if once else item.waited
            if done and all(
                a.recurs(before.get(axis), axis in waited) for axis, a in found.items()
            ):
                left = item.count - done
                for axis, ahead in before.items():
                    self.queues[axis].again(ahead, found[axis], left)
                self.now += left * (now - start)
                segments += made * left if once else _renamed(made, item.parts[done * each :])
                break
            parts = item.parts if once else item.parts[done * each : (done + 1) * each]
            made = self.run(parts) if once else self._walk(parts)
            segments += filter(None, made)
        return segments

    def _walk(self, parts):
        """The `Segment` of each part, None of one that has none."""
        segments: list[Segment | None] = []
        segment, queues = Segment._make, self.queues
        for phase, layer, operations, ready in parts:
            known, start = self.known.get(id(operations)), self.now
            if isinstance(known, list):
                for queue, _, sent, _ in known:
                    queue.put(start, sent)
                segments.append(Segment(phase, layer, ready=ready) if ready else None)
                continue
            if known is None or (known.axes and self._busy(known.axes)):
                known = self._operations(operations)
            compute, exposed, hidden, latency, took, axes, left = known
            for queue, state in left:
                queue.resume(state, start)
            if took <= 0.0 and not ready:
                segments.append(None)
                continue
            self.now = end = start + took
            for axis, queue in queues.items():
                if start < queue.end and start < end and axis not in axes:
                    hidden = {**hidden, axis: queue.between(start, end)}
            segments.append(segment((phase, layer, compute, exposed, hidden, latency, 0.0, ready)))
        return segments

    def _busy(self, axes):
        """Whether anything is in flight on one of them."""
        now = self.now
        for queue in axes.values():
            if queue.end > now:
                return True
        return False

    def _items(self, operation):
        """What to do, in turn: the seconds of a kernel, or (queue, axis, the `Transfer`s that are
        issued, how many are left in flight when kernels go on: None where these do not wait)."""
        if isinstance(operation, Issues):
            moved, of_axis = {move: self.moved(move) for move in set(operation.moves)}, {}
            for move in operation.moves:
                if (sent := moved[move]).seconds:
                    of_axis.setdefault(sent.axis, []).append(sent)
            return tuple((self.queues[axis], axis, sent, None) for axis, sent in of_axis.items())
        if isinstance(operation, Composite):
            return tuple(chain.from_iterable(map(self.items_of, operation.expand())))
        if isinstance(operation, Kernel):
            return (self.seconds(operation),)
        if isinstance(operation, Wait):
            queue = self.queues[operation.axis]
            return ((queue, operation.axis, (), operation.in_flight),)
        issued = isinstance(operation, Issue)
        sent = self.moved(operation.move if issued else operation)
        if not sent.seconds:
            return ()
        return ((self.queues[sent.axis], sent.axis, (sent,), None if issued else 0),)

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


class _Known(NamedTuple):
    """What became of a part's operations. axes : the queues that they use. left : the state, from
    the part's start, of those that it leaves with something in flight, where it found them idle."""

    compute: float
    exposed: dict[str, float]
    hidden: dict[str, float]
    latency: float
    seconds: float
    axes: dict[str, Queue]
    left: list[tuple[Queue, State]]


def _renamed(segments, parts):
    """A pass's segments (None: a part has none) for the parts of the passes that follow."""
    times, kept = len(parts) // len(segments), [segment is not None for segment in segments]
    if not any(kept):
        return ()
    names = [compress(column, cycle(kept)) for column in zip(*parts)]
    columns = [column * times for column in zip(*filter(None, segments))]
    return map(Segment._make, zip(columns[0], names[1], *columns[2:7], names[3]))


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

    def mixed(self, itemsize: int, gradients: float = 4, states: float = 12) -> "Memory":
        """The same where the optimizer has a float32 copy beside its two moments, and gradients are
        added up in float32: 2, 4 and 12 bytes of a parameter, shared out as here (Rajbhandari et
        al. 2020, arXiv 1910.02054, section 3.1). itemsize : bytes of a number here; gradients,
        states : others than these 4 and 12."""
        factors = {"parameters": 2, "gradients": gradients, "optimizer": states / 2}
        return Memory({k: n * factors.get(k, itemsize) / itemsize for k, n in self.items()})


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
