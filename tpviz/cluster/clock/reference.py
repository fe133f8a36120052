"""The clock to read: a rank's step, one operation after another (derived).

Kernels run one after another. Each mesh axis is a queue: its collective k ends at
end_k = max(issued_k, end_{k-1}) + t_k, t_k alone on its links, less by `Cluster.queued` where it
waits for the one before. A kernel waits for none unless a `Wait` says so. What kernels wait is
exposed; what else an axis is busy is hidden. `tpviz.cluster.clock.fast` gives the same segments.

>>> from tpviz.core.step import Collective, Kernel, Overlapped, Part
>>> kernel, move = Kernel(3, 0), Collective("tp", "all_reduce", 5)
>>> step = [Part("", "up", (kernel, move)), Part("", "up", (Overlapped(move, kernel),))]
>>> clock = ReferenceClock(lambda k: k.flops, lambda m: Transfer(m.axis, m.payload))
>>> [(s.compute, s.exposed["tp"], s.hidden["tp"]) for s in clock.run(step)]
[(3.0, 5.0, 0.0), (3.0, 2.0, 3.0)]
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tpviz.core.step import Collective, Issue, Kernel, Part, Repeat, Step, Wait, expanded

from .cost import Segment
from .queues import Transfer


class Sent(NamedTuple):
    """A collective on its axis: when it begins and ends, and how many seconds of it are latency."""

    begin: float
    end: float
    latency: float

    def within(self, start: float, end: float) -> float:
        """The part of ``latency`` that falls between start and end, in seconds."""
        seconds = max(0.0, min(self.end, end) - max(self.begin, start))
        return seconds / (self.end - self.begin)


class ReferenceClock:
    """seconds : function from a `Kernel` to its seconds; moved : function from a `Collective` to
    its `Transfer`. `tpviz.cluster.clock.cost.rates` gives both."""

    def __init__(self, seconds: Callable[[Kernel], float], moved: Callable[[Collective], Transfer]):
        self.seconds, self.moved = seconds, moved
        self.now = 0.0
        self.sent: dict[str, list[Sent]] = defaultdict(list)

    def run(self, step: Step) -> list[Segment]:
        """The step's segments. A part that takes no time and completes no gradient has none."""
        segments = map(self._run, _unrolled(step))
        return [segment for segment in segments if segment.seconds or segment.ready]

    def _run(self, part: Part) -> Segment:
        start, compute, latency = self.now, 0.0, 0.0
        for axis, sent in self.sent.items():  # what has ended says nothing any more
            self.sent[axis] = [one for one in sent if one.end > start]
        exposed: dict[str, float] = defaultdict(float)
        for operation in expanded(part.operations):
            if isinstance(operation, Kernel):
                compute += self.seconds(operation)
                self.now += self.seconds(operation)
                continue
            if not isinstance(operation, Wait):
                issued = isinstance(operation, Issue)
                sent = self._issue(operation.move if issued else operation)
                if issued or not sent:
                    continue
            in_flight = operation.in_flight if isinstance(operation, Wait) else 0
            before = self.sent[operation.axis]
            before = before[: max(0, len(before) - in_flight)]
            end = max([self.now, *(one.end for one in before)])
            latency += sum(one.latency * one.within(self.now, end) for one in before)
            exposed[operation.axis] += end - self.now
            self.now = end
        hidden = {
            axis: sum((one.end - one.begin) * one.within(start, self.now) for one in sent)
            - exposed[axis]
            for axis, sent in self.sent.items()
        }
        return Segment(
            part.phase, part.layer, compute, dict(exposed), hidden, latency, 0.0, part.ready
        )

    def _issue(self, move: Collective) -> bool:
        """Put it on its axis's queue; False on an axis of one rank, which has nothing to send."""
        axis, seconds, latency, queued = self.moved(move)
        if not seconds:
            return False
        free = max([0.0, *(one.end for one in self.sent[axis])])
        factor = queued if free > self.now else 1.0
        begin = max(self.now, free)
        self.sent[axis].append(Sent(begin, begin + factor * seconds, factor * latency))
        return True


def _unrolled(step: Step) -> Iterator[Part]:
    for item in step:
        if isinstance(item, Repeat):
            for _ in range(item.count):
                yield from _unrolled(item.parts)
        else:
            yield item
