"""Transfers in flight, and how fast each goes while others share its ports.

A transfer is silent for its latency, then sends its volume at `Link.rate`: groups of its own kind
are always counted as active (that is the cluster's rule), those of other axes while they send. The
simulator and the pacer both keep their clock here, so they agree by construction.
"""

import heapq
from collections import defaultdict
from itertools import count


class Flow:
    """One transfer: seconds of latency, bytes of volume, its link and the kind it belongs to."""

    __slots__ = ("end", "kind", "left", "link", "owner", "rate", "start", "updated", "version")

    def __init__(self, owner, kind, link, latency, volume, start):
        self.owner, self.kind, self.link = owner, kind, link
        self.left, self.start, self.end = volume, start + latency, None
        self.rate, self.updated, self.version = 0.0, self.start, 0


class Flows:
    """All transfers of a cluster on one clock. ``contention=False``: as if each axis were alone."""

    def __init__(self, contention=True):
        self.contention = contention
        self.heap, self.number = [], count()
        self.on_port = defaultdict(dict)  # port key -> {flow: None}, those sending now

    def add(self, owner, kind, link, latency, volume, start):
        """A transfer begins at ``start`` (s); `next_end` will give it back when it is done."""
        flow = Flow(owner, kind, link, latency, volume, start)
        if not self.contention or not link.ports:
            end = flow.start + (volume / link.bandwidth if volume else 0.0)
            heapq.heappush(self.heap, (end, next(self.number), flow, -1))
        else:
            heapq.heappush(self.heap, (flow.start, next(self.number), flow, 0))
        return flow

    def next_time(self):
        """When something happens next (s), or None."""
        return self.heap[0][0] if self.heap else None

    def step(self):
        """Let the next thing happen; the flow that ended by it, or None."""
        time, _, flow, version = heapq.heappop(self.heap)
        if version == -1:
            flow.end = time
            return flow
        if version != flow.version:
            return None  # its rate has changed since this end was foreseen
        if version == 0:
            self._begin(flow, time)
            return None
        self._finish(flow, time)
        return flow

    def _begin(self, flow, time):
        touched = self._others(flow)
        for port in flow.link.ports:
            self.on_port[port.key][flow] = None
        self._set_rate(flow, time)
        for other in touched:
            self._set_rate(other, time)

    def _finish(self, flow, time):
        flow.end = time
        for port in flow.link.ports:
            del self.on_port[port.key][flow]
        for other in self._others(flow):
            self._set_rate(other, time)

    def _others(self, flow):
        """Flows of other kinds that share a port with this one."""
        return {
            other: None
            for port in flow.link.ports
            for other in self.on_port[port.key]
            if other.kind != flow.kind
        }

    def _set_rate(self, flow, time):
        flow.left -= flow.rate * max(0.0, time - flow.updated)
        others = {}
        for port in flow.link.ports:
            sharing = self.on_port[port.key]
            if len(sharing) > 1:
                n = sum(other.kind != flow.kind for other in sharing)
                if n:
                    others[port.key] = n
        flow.rate = flow.link.rate(others) if others else flow.link.bandwidth
        flow.updated = max(flow.updated, time)
        flow.version += 1
        end = flow.updated + max(0.0, flow.left) / flow.rate
        heapq.heappush(self.heap, (end, next(self.number), flow, flow.version))
