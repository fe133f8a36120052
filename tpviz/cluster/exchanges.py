"""What an all-to-all takes, however unequal its parts (derived).

No port can be done before all of its bytes have passed: seconds = max over ports of bytes / rate.
Where every rank has one port out and one in, that is the larger of what a rank sends and what it
gets: the h of an h-relation (Valiant 1990, "A bridging model for parallel computation"), and some
order of the messages reaches it (Gonzalez and Sahni 1976, "Open shop scheduling to minimize finish
time"). Deeper in a cluster, bytes of all pairs that pass a port add up: its congestion (Leighton,
Maggs and Rao 1994, "Packet routing and job-shop scheduling in O(congestion + dilation) steps"). A
pair passes the level on which its ranks first are in one unit, and a torus dimension by dimension.

Rates are those of `routes`: of a unit min(m p2p, group / c), of a rank its own p2p; where units are
wired to each other, of each pair of them m p2p.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .traffic import Traffic

EQUAL, UNEQUAL = "all_to_all", "all_to_all_v"


def between(parts: Any, ranks: int) -> np.ndarray:
    """Bytes from each rank to each other, (ranks, ranks), zero to itself. parts : what broadcasts
    to that: one number, (ranks,) that every rank sends to each, (ranks, 1) that each sends to all.

    >>> between([[8], [16]], 2).tolist()
    [[0.0, 8.0], [16.0, 0.0]]
    """
    sizes = np.array(np.broadcast_to(np.asarray(parts, float), (ranks, ranks)))
    np.fill_diagonal(sizes, 0.0)
    return sizes


def seconds(traffic: "Traffic", members: Sequence[int], parts: Any) -> float:
    """Of the busiest port of a group, without latency, while all groups of its kind do the same.
    parts : as `between` takes them."""
    sizes, ranks = between(parts, len(members)), np.asarray(members)
    find = _on_torus if traffic.cluster.torus else _on_levels
    return max(find(traffic, ranks, sizes), default=0.0)


def _on_levels(traffic, ranks, sizes) -> Iterator[float]:
    cluster, inner = traffic.cluster, 1
    for number, level in enumerate(cluster.levels):
        unit = ranks // inner
        above = unit // level.units
        inner, below = inner * level.units, inner
        here = (above[:, None] == above) & (unit[:, None] != unit)
        if here.any():
            yield from _on_level(traffic, number, below, unit, sizes * here)


def _on_level(traffic, number, inner, unit, sizes) -> Iterator[float]:
    """Seconds of the busiest ports of a level. unit : of each rank; sizes : of pairs that pass."""
    level, single = traffic.cluster.levels[number], traffic.cluster.rings == "single"
    units, index, count = np.unique(unit, return_inverse=True, return_counts=True)
    links, wired = 1 if single else count, level.direct and not single
    for way, of_rank in enumerate((sizes.sum(1), sizes.sum(0))):
        ports = units * inner * len(traffic.gates) + 2 * number + way
        passing = np.bincount(index, of_rank)
        yield (passing * traffic.loads[ports] / level.group).max()
        if not wired:
            yield (passing / (links * level.p2p)).max()
        if not wired and not single:
            yield of_rank.max() / level.p2p
    if wired:
        pairs = np.zeros((len(units), len(units)))
        np.add.at(pairs, (index[:, None], index), sizes)
        yield (pairs / (np.reshape(links, (-1, 1)) * level.p2p)).max()


def _on_torus(traffic, ranks, sizes) -> Iterator[float]:
    """Seconds of each link of the torus that a pair of the group passes."""
    torus, count = traffic.cluster.torus, len(traffic.gates)
    inner, here = 1, np.broadcast_to(ranks[:, None], sizes.shape)
    for number, dimension in enumerate(torus):
        size, at = dimension.size, here // inner % dimension.size
        ahead = (ranks // inner % size - at) % size
        forward, base = ahead <= size // 2, here - at * inner
        loads = np.zeros(traffic.cluster.size * count)
        for hop in range(size // 2 + 1):
            for step, hops in ((1, ahead * forward), (-1, (size - ahead) * ~forward)):
                passes = hops > hop
                place = base + (at + step * hop) % size * inner
                port = place * count + 2 * number + (step < 0)
                np.add.at(loads, port[passes], sizes[passes])
        yield loads.max() * traffic.crowd(number) / (dimension.bandwidth * dimension.links)
        here, inner = base + (ranks // inner % size) * inner, inner * size
