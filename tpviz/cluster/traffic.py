"""The `Link`s of all groups of a mesh axis that communicate at once and so share ports.

Two groups that differ by a shift of whole units of the outermost level (of the last dimension on a
torus) use corresponding ports. So each route is computed in one unit only and shifted to the other
units (derived).
"""

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from .exchanges import seconds
from .routes import NOWHERE, Link, Port, family, gates, level_route, stride_of, torus_route

if TYPE_CHECKING:
    from .description import Cluster


class Traffic:
    """All ``groups`` of a kind on a cluster at once, by the cluster's rule or its table."""

    def __init__(
        self,
        cluster: "Cluster",
        members: tuple[int, ...],
        world_size: int,
        shift: int | None = None,
    ):
        self.cluster, self.shift = cluster, shift
        self.groups = family(members, world_size, shift)
        self.key = stride_of(members) if shift is None else None
        self.gates, self.routes, self.links = gates(cluster), {}, {}
        if len(members) == 1:
            self.links[self.groups[0]] = NOWHERE
            return
        self.alike = self._alike()
        passed = np.concatenate([ports.ravel() for *_, ports in self.alike])
        self.loads = np.bincount(passed, minlength=cluster.size * len(self.gates))

    def _alike(self):
        """For each set of groups that fall alike (their numbers, limit, latency, rows of ports)."""
        last = (*self.cluster.levels, *self.cluster.torus)[-1]
        size = last.size if self.cluster.torus else last.units  # pyright: ignore[reportAttributeAccessIssue]
        unit = self.cluster.size // size
        count, begin, found = len(self.gates), {}, []
        for number, group in enumerate(self.groups):
            begin.setdefault(group[0] % unit, []).append(number)
        for numbers in begin.values():
            first = self.groups[numbers[0]]
            limit, latency, passes = self.routes[first] = self._route(first)
            moves = np.array([[self.groups[number][0] - first[0]] for number in numbers])
            ports = (np.array(passes) + moves * count) % (self.cluster.size * count)
            found.append((numbers, limit, latency, ports))
        return found

    def _route(self, group):
        find = torus_route if self.cluster.torus else level_route
        return find(self.cluster, group, self.shift)

    def slowest(self) -> Link:
        """The `Link` of least bandwidth; among equals, the first of highest latency."""
        if len(self.groups) == 1:
            return self.link(self.groups[0])
        found = []
        for numbers, latency, rates in self._rates():
            at = rates.argmin()
            found.append((rates[at], -latency, numbers[at]))
        return self.link(self.groups[min(found)[-1]])

    def of_senders(self, senders: np.ndarray) -> Iterator[Link]:
        """Yield a `Link` of each bandwidth and latency among the messages of some ranks."""
        asked = np.zeros(len(self.groups), bool)
        asked[senders - self.groups[0][0]] = True
        for numbers, _, rates in self._rates():
            mine = np.flatnonzero(asked[numbers])
            for place in np.unique(rates[mine], return_index=True)[1]:
                yield self.link(self.groups[numbers[mine[place]]])

    def _rates(self):
        """For each set of groups that fall alike (their numbers, latency, rates)."""
        capacity = np.array([gate.capacity for gate in self.gates])
        for numbers, limit, latency, ports in self.alike:
            shared = (capacity[ports % len(capacity)] / self.loads[ports]).min(1)
            rates = np.minimum(limit, shared)
            if self.key in self.cluster.table:
                rates[:] = self.cluster.table[self.key]
            yield numbers, self.cluster.latencies.get(self.key, latency), rates  # pyright: ignore[reportCallIssue, reportArgumentType]

    def link(self, group: tuple[int, ...]) -> Link:
        """The `Link` of one of the groups."""
        if group not in self.links:
            self.links[group] = self._link(*(self.routes.get(group) or self._route(group)))
        return self.links[group]

    def _link(self, limit, latency, passes):
        ports = self._ports(passes)
        shared = min([capacity / load for _, capacity, load in ports])
        bandwidth = min(limit, shared)
        if self.key in self.cluster.table:  # measured with all its kind active: includes sharing
            bandwidth = self.cluster.table[self.key]
            held = shared if shared <= limit else 0.0
            limit, ports = bandwidth, [_as_measured(port, bandwidth, held) for port in ports]
        latency = self.cluster.latencies.get(self.key, latency)  # pyright: ignore[reportCallIssue, reportArgumentType]
        outer = ports[-1].key[0]  # routes pass levels from the inside out
        curve = self.cluster.levels[outer].curve if self.cluster.levels else ()
        return Link(bandwidth, latency, limit, tuple(ports), self.groups[0], curve)

    def _ports(self, passes):
        passes, count, ports = list(dict.fromkeys(passes)), len(self.gates), []
        for number, load in zip(passes, self.loads[passes].tolist()):
            place, gate = divmod(number, count)
            part, inner, way, capacity = self.gates[gate]
            ports.append(Port._make(((part, place // inner, way), capacity, load)))
        return ports

    def exchanged(self, parts: Any, group: tuple[int, ...] | None = None) -> float:
        """Bytes that at the bandwidth of a group's `Link` take as long as an all-to-all, without
        latency. parts : as `exchanges.between` takes them. group None: the slowest group, and link.
        """
        if group is not None:
            limit, _, passes = self.routes.get(group) or self._route(group)
            shared = min(capacity / load for _, capacity, load in self._ports(passes))
            by_rule = min(limit, shared)
            if by_rule == inf:
                return 0.0  # at once, as anything else
            return seconds(self, group, parts) * by_rule
        groups = [self.groups[numbers[rates.argmin()]] for numbers, _, rates in self._rates()]
        slowest = max(self.exchanged(parts, one) / self.link(one).bandwidth for one in groups)
        return slowest * self.slowest().bandwidth if slowest else 0.0

    def crowd(self, part: int) -> float:
        """How many rings of the kind share a link of a torus dimension, at most."""
        passes = np.array(self.routes[self.groups[0]][2])
        mine = passes[passes % len(self.gates) // 2 == part]
        own = np.bincount(mine, minlength=len(self.loads))
        return max((self.loads[mine] / own[mine]).max(), 1) if len(mine) else 1


def _as_measured(port, bandwidth, held):
    """A port where by the rule sharing held the group back (to ``held``) carries what was measured,
    and no port less than that; others keep what the rule says, for the traffic of other axes."""
    key, capacity, load = port
    busiest = capacity / load <= held * (1 + 1e-9)
    return Port(key, bandwidth * load if busiest else max(capacity, bandwidth * load), load)
