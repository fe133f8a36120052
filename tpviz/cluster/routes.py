"""Which ports a group's traffic passes, and what they carry when others send too.

The rule (references: ATP's hierarchical communication matrix as we read it, derived; AxoNN's
division of the NIC by concurrent rings is a special case). For a group on a level that it crosses:
m of its members sit in one unit of the level below, and c groups of the same kind have members in
that unit. It gets min(m p2p, group / c): several rings share what leaves the unit. With
``rings="single"`` min(p2p, group / c). On a torus a ring's hops are routed along the dimensions, and
a link is shared by as many groups as pass it.

*All groups of one axis are active at once*, so c counts them all, always. Groups of other axes share
a port only while they are active: `Link.rate` takes how many.
"""

from collections import Counter
from typing import NamedTuple


class Port(NamedTuple):
    """One place that traffic passes: a unit's way out (or in), or one directed link of a torus."""

    key: tuple
    capacity: float
    load: int
    """how many flows of the group's own kind pass here when all of them are active"""


class Link(NamedTuple):
    """What a group's collective meets: bytes/s of a rank's port, seconds of a hop, ports."""

    bandwidth: float
    latency: float
    limit: float
    ports: tuple

    def rate(self, others):
        """Bytes/s while flows of other kinds are active: ``others`` {port key: how many}."""
        rate = self.limit
        for key, capacity, load in self.ports:
            rate = min(rate, capacity / (load + others.get(key, 0)))
        return rate


def family(members, world_size, shift=None):
    """All groups of the same kind as ``members``, which are active at once.

    Members in even steps: the groups of that stride that a row-major mesh of all ranks has.
    A message: every pair of ranks so far apart. Others stand alone.
    """
    members = tuple(members)
    if shift is not None:
        return [
            (rank, rank + shift) for rank in range(world_size) if 0 <= rank + shift < world_size
        ]
    stride, size = stride_of(members)
    block = (stride or 0) * size
    if not block or world_size % block or members[0] % block >= stride:
        return [members]
    return [
        tuple(range(start + i, start + i + block, stride))
        for start in range(0, world_size, block)
        for i in range(stride)
    ]


def stride_of(members):
    """(stride, size) of ranks in even steps; stride 0 where they are not."""
    steps = {b - a for a, b in zip(members, members[1:])}
    return (steps.pop() if len(steps) == 1 else 0), len(members)


def links_of(cluster, members, world_size, shift):
    """The `Link` of one group, by the cluster's rule or its table."""
    if len(members) == 1:
        return Link(float("inf"), 0.0, float("inf"), ())
    routes = _torus_routes if cluster.torus else _level_routes
    limit, latency, own = routes(cluster, members, shift)
    loads = Counter()
    for group in family(members, world_size, shift):
        if group == tuple(members):
            loads.update(own.keys())
        else:
            loads.update(routes(cluster, group, shift)[2].keys())
    ports = tuple(Port(key, capacity, loads[key]) for key, capacity in own.items())
    bandwidth = min([limit, *(capacity / load for _, capacity, load in ports)])
    key = stride_of(members) if shift is None else None
    latency = cluster.latencies.get(key, latency)
    if key in cluster.table:  # measured with all of its kind active, so sharing is in it
        bandwidth = limit = cluster.table[key]
        ports = tuple(Port(key, bandwidth * load, load) for key, _, load in ports)
    return Link(bandwidth, latency, limit, ports)


def _level_routes(cluster, members, shift):
    """(limit, latency, {port: capacity}) on the levels that the group crosses."""
    limit, latency, ports, inner = float("inf"), 0.0, {}, 1
    for number, level in enumerate(cluster.levels):
        outer = inner * level.units
        in_unit = Counter(rank // inner for rank in members)
        spanned = Counter(unit * inner // outer for unit in in_unit)
        crossing = {unit: m for unit, m in in_unit.items() if spanned[unit * inner // outer] > 1}
        if crossing:
            rings = min(crossing.values()) if cluster.rings == "multi" else 1
            limit, latency = min(limit, rings * level.p2p), max(latency, level.latency)
            for unit in crossing:
                ways = _ways(shift, unit == members[0] // inner)
                ports |= {(number, unit, way): level.group for way in ways}
        inner = outer
    return limit, latency, ports


def _ways(shift, is_sender):
    """A ring goes in and out of each unit; a message out of the sender's, into the receiver's."""
    if shift is None:
        return ("out", "in")
    return ("out",) if is_sender else ("in",)


def _torus_routes(cluster, members, shift):
    """(limit, latency, {port: capacity}): each hop of the ring routed dimension by dimension."""
    hops = list(zip(members, members[1:])) + ([] if shift is not None else
                                              [(members[-1], members[0])])
    passes, latency = Counter(), 0.0
    for source, target in hops:
        inner, place, seconds = 1, source, 0.0
        for number, dimension in enumerate(cluster.torus):
            here = place // inner % dimension.size
            ahead = (target // inner - place // inner) % dimension.size
            step = 1 if ahead <= dimension.size // 2 else -1
            for _ in range(ahead if step == 1 else dimension.size - ahead):
                passes[number, place, step] += 1
                seconds += dimension.latency
                there = (here + step) % dimension.size
                place += (there - here) * inner
                here = there
            inner *= dimension.size
        latency = max(latency, seconds)
    ports = {
        key: cluster.torus[key[0]].bandwidth * cluster.torus[key[0]].links / times
        for key, times in passes.items()
    }
    return float("inf"), latency, ports
