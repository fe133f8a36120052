"""Which ranks do the same at the same time, so that one stands for all (derived).

Ranks, the queues of their groups, the ports that these pass and the kinds of traffic at each port
are coloured by what they are; then again and again by the colours that they meet, until no colour
splits. That is colour refinement: of one colour, all have equally many neighbours of every colour.
So what one rank of a colour waits for, and who shares its ports, is the same for all of them, and
by induction over time their clocks are equal. A straggler or a slow link has a colour of its own,
which spreads to whoever waits for it.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .flows import PortPass, SharedPort

if TYPE_CHECKING:
    from .engine import GroupQueue


class Alike:
    """Groups ranks into classes with the same timing. kinds : per rank, its program (any hashable).
    sides : per rank, the `engine.GroupQueue` of each of its groups. ``model[rank]`` is the first
    rank of the rank's class; ``ranks`` are these first ranks."""

    def __init__(
        self,
        kinds: Iterable[Hashable],
        sides: "Sequence[Sequence[GroupQueue]]",
        contention: bool = True,
    ):
        self.sides, self.queues = sides, list(dict.fromkeys(q for own in sides for q in own))
        number = {queue: at for at, queue in enumerate(self.queues)}
        self.edges = (
            np.array(
                [
                    (rank, side, number[queue])
                    for rank, own in enumerate(sides)
                    for side, queue in enumerate(own)
                ],
                np.int64,
            )
            .reshape(-1, 3)
            .T
        )
        self._find_ports(contention)
        self._refine(_numbered([(kind, *_repeats(own)) for kind, own in zip(kinds, sides)]))
        _, first, inverse = np.unique(self.rank, return_index=True, return_inverse=True)
        self.model = first[inverse].tolist()
        self.ranks = sorted(first.tolist())
        self._stand()

    def _find_ports(self, contention):
        """The ports of all queues, and a booth for each kind of traffic at a port."""
        kinds, ports, booths, found = {}, {}, {}, []
        for at, queue in enumerate(self.queues if contention else ()):
            kind = kinds.setdefault(queue.kind, len(kinds))  # hashed once: it has all members
            for place, (key, capacity, load) in enumerate(queue.link.ports):
                port = ports.setdefault(key, len(ports))
                booth = booths.setdefault((port, kind), len(booths))
                found.append((at, booth, port, place, hash((capacity, load))))
        self.passing = np.array(found, np.int64).reshape(-1, 5).T
        self.count = len(ports), len(booths)

    def _refine(self, rank):
        what = [
            (q.axis, q.kind[2], *q.link[:3], q.link.curve, q.factor, len(q.members))  # pyright: ignore[reportIndexIssue]
            for q in self.queues
        ]
        ports, booths = self.count
        colours = [rank, _numbered(what), np.zeros(booths, int), np.zeros(ports, int)]
        (who, side, queue), (user, booth, port, _, load) = self.edges, self.passing
        sizes = None
        while sizes != [int(c.max(initial=-1)) for c in colours]:
            sizes = [int(c.max(initial=-1)) for c in colours]
            ranks, queues, stalls, gates = colours
            colours = [
                _coloured(ranks, (who, _mixed(queues[queue], side))),
                _coloured(
                    queues, (queue, _mixed(ranks[who], side)), (user, _mixed(stalls[booth], load))
                ),
                _coloured(stalls, (booth, _mixed(queues[user], load, gates[port]))),
                _coloured(gates, (port, _mixed(stalls[booth], queues[user], load))),
            ]
        self.rank, self.queue, self.booth, self.port = colours

    def _stand(self):
        """For each colour of queues the first of them, how many of its members issue together, and
        how its colour meets the ports."""
        _, first = np.unique(self.queue, return_index=True)
        self.stands = {int(self.queue[at]): self.queues[at] for at in first}
        mine = np.isin(self.edges[2], first)
        who, side, queue = self.edges[:, mine]
        self.together = Counter(
            zip(self.queue[queue].tolist(), self.rank[who].tolist(), side.tolist())
        )
        user, booth, port, place, _ = self.passing
        users = self.queue[user]
        own = Counter(zip(users.tolist(), self.booth[booth].tolist()))
        all = Counter(zip(users.tolist(), self.port[port].tolist()))
        booths, ports = np.bincount(self.booth), np.bincount(self.port)
        made, found = {}, {}
        for row in np.flatnonzero(np.isin(user, first)).tolist():
            colour, stall, gate = (
                int(users[row]),
                int(self.booth[booth[row]]),
                int(self.port[port[row]]),
            )
            passes = found.setdefault(colour, {})
            if (gate, stall) not in passes:
                seen = any(other == gate for other, _ in passes)
                passes[gate, stall] = PortPass(
                    self.queues[user[row]].link.ports[place[row]].key,
                    made.setdefault(gate, SharedPort()),
                    stall,
                    own[colour, stall] // booths[stall],
                    0 if seen else all[colour, gate] // ports[gate],
                )
        for colour, passes in found.items():
            queue, kept = self.stands[colour], {p.key for p in passes.values()}
            queue.passes, queue.kind = list(passes.values()), colour
            queue.link = queue.link._replace(
                ports=tuple(p for p in queue.link.ports if p.key in kept)
            )

    def of(self, rank: int) -> "list[tuple[GroupQueue, int, int]]":
        """For each group of the rank: (the queue that represents it, the index of the group, the
        number of its members that issue together)."""
        own, mine = self.sides[rank], self.edges[0] == rank
        colours = self.queue[self.edges[2][mine]].tolist()
        me = int(self.rank[rank])
        return [
            (self.stands[colour], first, self.together[colour, me, side])
            for side, (colour, first) in enumerate(zip(colours, _repeats(own)))
        ]


def _repeats(own):
    """Which of a rank's groups have the same queue."""
    first = {}
    return [first.setdefault(queue, side) for side, queue in enumerate(own)]


def _numbered(things):
    """Equal things as equal numbers."""
    known = {}
    return np.array([known.setdefault(thing, len(known)) for thing in things], np.int64)


def _mixed(*columns):
    """One 64-bit hash a row (the finaliser of splitmix64, Steele et al. 2014)."""
    found = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        found = (found + column.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            found = (found ^ (found >> np.uint64(shift))) * np.uint64(factor)
    return found


def _coloured(old, *meetings):
    """New colours from the old ones and, for each meeting (who, hash of what), its sum by who."""
    columns = [old]
    for who, label in meetings:
        sums = np.zeros(len(old), np.uint64)
        np.add.at(sums, who, label)
        columns.append(sums)
    return np.unique(_mixed(*columns), return_inverse=True)[1].reshape(-1)
