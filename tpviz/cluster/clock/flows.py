"""Transfers in flight, and how fast each goes while others share its ports.

A transfer is silent for its latency, then sends its volume at `Link.rate`: groups of its own kind
are always counted as active (that is the cluster's rule), those of other axes while they send. The
simulator and the pacer both keep their clock here, so they agree by construction.
"""

import heapq
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tpviz.cluster.routes import Link


class Flow:
    """One transfer: seconds of latency, bytes of volume, its link and the kind it belongs to."""

    __slots__ = (
        "end",
        "kind",
        "left",
        "link",
        "owner",
        "passes",
        "rate",
        "start",
        "updated",
        "version",
    )

    def __init__(
        self,
        owner: Any,
        kind: Hashable,
        link: "Link",
        passes: "Sequence[PortPass]",
        latency: float,
        volume: float,
        start: float,
    ):
        self.owner, self.kind, self.link, self.passes = owner, kind, link, passes
        self.left, self.start, self.end = volume, start + latency, None
        self.rate, self.updated, self.version = 0.0, self.start, 0


class SharedPort:
    """Who sends through a port: {flow: None}, how many they are, and how many of each kind."""

    __slots__ = ("count", "flows", "kinds")

    def __init__(self):
        self.flows, self.count, self.kinds = {}, 0, Counter()


class PortPass(NamedTuple):
    """How a flow meets a port of its link: its own kind is not counted among the others there.

    A flow may stand for several that are alike: ``all`` of them pass the port, ``own`` of these
    are of the same kind. key : of the link's port.
    """

    key: Hashable
    port: SharedPort
    kind: Hashable
    own: int = 1
    all: int = 1


class Flows:
    """All transfers of a cluster on one clock. ``contention=False``: as if each axis were alone."""

    def __init__(self, contention: bool = True):
        self.contention = contention
        self.heap, self.number = [], count()
        self.ports, self.of_link = {}, {}  # key -> Port; of a link once, for it has many

    def add(
        self,
        owner: Any,
        kind: Hashable,
        link: "Link",
        latency: float,
        volume: float,
        start: float,
        passes: Sequence[PortPass] | None = None,
    ) -> Flow:
        """Begin a transfer at ``start`` (s); `step` returns it when it ends.

        passes : in place of the link's own, for a flow that represents several.
        """
        flow = Flow(owner, kind, link, passes or self.passes(link, kind), latency, volume, start)
        if not self.contention or not link.ports:
            end = flow.start + (volume / link.bandwidth if volume else 0.0)
            heapq.heappush(self.heap, (end, next(self.number), flow, -1))
        else:
            heapq.heappush(self.heap, (flow.start, next(self.number), flow, 0))
        return flow

    def passes(self, link: "Link", kind: Hashable) -> list[PortPass]:
        """How flows of a kind meet the ports of their link."""
        if (id(link), kind) not in self.of_link:  # hashing a link would hash all its ports
            ports = [
                (port.key, self.ports.setdefault(port.key, SharedPort())) for port in link.ports
            ]
            self.of_link[id(link), kind] = link, [PortPass(*port, kind) for port in ports]
        return self.of_link[id(link), kind][1]

    def next_time(self) -> float | None:
        """The time (s) of the next event, or None if there is none."""
        return self.heap[0][0] if self.heap else None

    def step(self) -> Flow | None:
        """Advance to the next event; returns the flow that it ends, or None."""
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
        for _, port, kind, own, all in flow.passes:
            port.flows[flow] = None
            port.count += all
            port.kinds[kind] += own
        self._set_rate(flow, time)
        for other in touched:
            self._set_rate(other, time)

    def _finish(self, flow, time):
        flow.end = time
        for _, port, kind, own, all in flow.passes:
            port.flows.pop(flow, None)
            port.count -= all
            port.kinds[kind] -= own
        for other in self._others(flow):
            self._set_rate(other, time)

    def _others(self, flow):
        """Flows of other kinds that share a port with this one."""
        return {
            other: None
            for _, port, kind, _, _ in flow.passes
            if port.count > port.kinds[kind]
            for other in port.flows
            if other.kind != flow.kind
        }

    def _set_rate(self, flow, time):
        flow.left -= flow.rate * max(0.0, time - flow.updated)
        others = {
            key: n for key, port, kind, _, _ in flow.passes if (n := port.count - port.kinds[kind])
        }
        flow.rate = flow.link.rate(others) if others else flow.link.bandwidth
        flow.updated = max(flow.updated, time)
        flow.version += 1
        end = flow.updated + max(0.0, flow.left) / flow.rate
        heapq.heappush(self.heap, (end, next(self.number), flow, flow.version))
