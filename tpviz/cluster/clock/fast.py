"""The clock in use: results of `tpviz.cluster.clock.reference`, without rerunning repeats.

Operations that find their axes idle take as long each time; a pass through blocks that finds all
queues as the one before found them takes as long, and so do those that follow.

>>> from tpviz import Mesh, clusters
>>> from tpviz.core.step import Collective, Kernel, Overlapped, Part
>>> kernel, move = Kernel(10**9, 0), Collective("tp", "all_reduce", 1_000_000)
>>> step = [Part("forward", "up", (kernel, move)), Part("", "up", (Overlapped(move, kernel),))]
>>> clock = Clock.of(clusters.nvswitch(4), Mesh({"tp": 4}), "float32")
>>> waited, overlapped = (segment.exposed["tp"] for segment in clock.run(step))
>>> overlapped < waited
True
"""

from collections import defaultdict
from collections.abc import Callable
from functools import cache
from itertools import chain, compress, cycle
from typing import Any, NamedTuple

from tpviz.core.step import (
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

from .cost import Segment, rates
from .queues import Queue, State, Transfer


class Clock:
    """A rank's step on a clock: kernels one after another, and a queue for every axis (derived).

    Collective k of an axis ends at end_k = max(issued_k, end_{k-1}) + t_k, alone on its links; t_k
    is less where it waits for the one before and `Cluster.queued` says so. seconds : function from
    a `tpviz.core.step.Kernel` to its seconds; moved : function from a `tpviz.core.step.Collective`
    to its `Transfer`.
    """

    def __init__(self, seconds: Callable[[Kernel], float], moved: Callable[[Collective], Transfer]):
        self.seconds, self.moved, self.items_of = seconds, moved, cache(self._items)
        self.now, self.queues, self.items = 0.0, defaultdict(Queue), {}
        self.known: dict[int, _Known | list[Any]] = {}
        """{id of operations: what they do where their axes are idle; or their items, where kernels
        wait for none of them, as for the reductions of buckets, of which there are hundreds}."""

    @classmethod
    def of(cls, *cluster: Any, **options: Any) -> "Clock":
        """The clock of a cluster. Takes the arguments of `tpviz.cluster.clock.cost.rates`."""
        return cls(*rates(*cluster, **options))

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
