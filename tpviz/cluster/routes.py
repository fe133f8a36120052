"""Which ports a group's traffic passes, and what they carry when others send too.

The rule (references: ATP's hierarchical communication matrix as we read it, derived; AxoNN's
division of the NICs by concurrent rings is a special case). For a group on a level that it crosses:
m of its members sit in one unit of the level below, and c groups of the same kind have members in
that unit. It gets min(m p2p, group / c): several rings share what leaves the unit, each through
a NIC of its own. Where units are wired directly to each other, a ring over k units has k - 1 links
to use: min(m (k - 1) p2p, group / c). With ``rings="single"`` min(p2p, group / c). The slowest
level decides. On a torus a ring's hops are routed along the dimensions, and a link is shared by as
many hops as pass it.

*All groups of one axis are active at once*, so c counts them all, always. Groups of other axes
share a port only while they are active: `Link.rate` takes how many.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf, log
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from .description import Cluster
    from .parts import Level


class Port(NamedTuple):
    """One place where traffic is counted: the egress (or ingress) of a unit of devices, such as a
    node, or one directed link of a torus."""

    key: tuple[int, int, int | str]
    capacity: float
    load: int
    """how many flows of the group's own kind pass here when all of them are active"""


class Link(NamedTuple):
    """What a group's collective meets: bytes/s of a rank's port, seconds of a hop, ports.

    limit : bytes/s if nobody else sent anything. family : the first group of its kind; the groups
    of a family are already counted in ``ports``. curve : `Level.curve` of its outermost level.
    """

    bandwidth: float
    latency: float
    limit: float
    ports: tuple[Port, ...]
    family: tuple[int, ...] = ()
    curve: tuple[tuple[float, float], ...] = ()

    def share(self, volume: float) -> float:
        """The share (0 to 1) of the bandwidth that a port reaches with ``volume`` bytes."""
        if not self.curve or volume <= 0:
            return 1.0
        sizes, shares = zip(*self.curve)
        return float(np.interp(log(volume), np.log(sizes), shares))

    def rate(self, others: Mapping[tuple[int, int, int | str], int]) -> float:
        """Bytes/s while flows of other kinds are active: ``others`` {port key: how many}."""
        rate = self.limit
        for key, capacity, load in self.ports:
            rate = min(rate, capacity / (load + others.get(key, 0)))
        return rate


NOWHERE = Link(inf, 0.0, inf, ())
"""The link of a group of one."""


def family(
    members: Iterable[int], world_size: int, shift: int | None = None
) -> list[tuple[int, ...]]:
    """All groups of the same kind as ``members``, which are active at once.

    Members in even steps: the groups of that stride that a row-major mesh of all ranks has. A
    message: every pair of ranks so far apart. Any other group is returned alone.
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


def stride_of(members: Sequence[int]) -> tuple[int, int]:
    """(stride, size) of ranks in even steps; stride 0 where they are not."""
    steps = {b - a for a, b in pairwise(members)}
    step = steps.pop() if len(steps) == 1 else 0
    return max(step, 0), len(members)


class Gate(NamedTuple):
    """One kind of `Port`: a level or dimension, and a direction.

    A port's number is ``place * len(gates) + gate's index``; ``place`` is the first device of its
    unit, or on a torus the device that the link leaves.
    """

    part: int
    inner: int
    way: int | str
    capacity: float


def gates(cluster: "Cluster") -> list[Gate]:
    """Every `Gate` of a cluster: two for each level or dimension, from the inside out."""
    found, inner = [], 1
    for number, part in enumerate(cluster.levels):
        found += [Gate(number, inner, way, part.group) for way in ("out", "in")]
        inner *= part.units
    for number, part in enumerate(cluster.torus):
        found += [Gate(number, 1, step, part.bandwidth * part.links) for step in (1, -1)]
    return found


def level_route(
    cluster: "Cluster", members: Sequence[int], shift: int | None
) -> tuple[float, float, list[int]]:
    """(limit, latency, numbers of the ports passed) on the levels that the group crosses."""
    limit, latency, passes, count = inf, 0.0, [], 2 * len(cluster.levels)
    for number, inner, units in crossings(cluster, members):
        level = cluster.levels[number]
        limit = min(limit, level.p2p * rings(cluster, level, units))
        latency = max(latency, level.latency + level.message * (shift is not None))
        for unit in units:
            way_out = unit * inner * count + 2 * number
            if shift is None:  # a ring goes in and out of each unit
                passes += (way_out, way_out + 1)
            else:  # a message out of the sender's, into the receiver's
                passes.append(way_out + (unit != members[0] // inner))
    return limit, latency, passes


def crossings(
    cluster: "Cluster", members: Iterable[int]
) -> Iterator[tuple[int, int, dict[int, int]]]:
    """Yield (level's index, devices in a unit, {unit: its number of members}) for each place where
    the group spans several units of a level."""
    inner, below = 1, dict.fromkeys(members, 1)  # unit: how many members are in it
    for number, level in enumerate(cluster.levels):
        inside = {}  # unit of this level -> {unit below: its members}
        for unit, count in below.items():
            inside.setdefault(unit // level.units, {})[unit] = count
        yield from ((number, inner, units) for units in inside.values() if len(units) > 1)
        inner *= level.units
        below = {unit: sum(units.values()) for unit, units in inside.items()}


def rings(cluster: "Cluster", level: "Level", units: Mapping[int, int]) -> int:
    """Number of a unit's links that a group uses at once; units : {unit: its number of members}."""
    if cluster.rings == "single":
        return 1
    return min(units.values()) * (len(units) - 1 if level.direct else 1)


def torus_route(
    cluster: "Cluster", members: Sequence[int], shift: int | None
) -> tuple[float, float, list[int]]:
    """As `level_route`, on a torus. A port is listed once for each hop of the ring that passes it.

    Each hop is routed dimension by dimension, the shorter way.
    """
    hops = list(pairwise(members))
    if shift is None:
        hops.append((members[-1], members[0]))
    passes, latency, count = [], 0.0, 2 * len(cluster.torus)
    for source, target in hops:
        inner, place, seconds = 1, source, 0.0
        for number, (size, delay) in enumerate((d.size, d.latency) for d in cluster.torus):
            here, ahead = place // inner % size, (target // inner - place // inner) % size
            step = 1 if ahead <= size // 2 else -1
            gate = 2 * number + (step < 0)
            for _ in range(ahead if step == 1 else size - ahead):
                passes.append(place * count + gate)
                seconds += delay
                there = (here + step) % size
                place, here = place + (there - here) * inner, there
            inner *= size
        latency = max(latency, seconds)
    return inf, latency, passes
