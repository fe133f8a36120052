"""The cores of each host, which its ranks share: a kernel takes one, a collective a part of one for
each of its ranks, from its first hop on.

Where they are asked for more than there are, all go slower alike (processor sharing: what a fair
scheduler does on average; Kleinrock 1976). A collective was measured with all its members moving
bytes, so what these take of the cores is in its bandwidth: only what others take slows it down.

>>> four = Cores(2, 0.0, 4)
>>> four.kernel(0)[0].rate({}), four.kernel(0)[0].rate({CORES: 3})
(1.0, 0.5)
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from tpviz.cluster.routes import Link
from tpviz.cluster.routes import Port as PortOf

from .flows import Flows, PortPass, SharedPort

if TYPE_CHECKING:
    from tpviz.cluster import Cluster

    from .engine import GroupQueue

CORES = "cores"
"""The key of the port that all kernels of the first host pass; of others with its number."""


class Cores:
    """``count`` cores of each host; ``share`` : of a core, for each rank of a collective;
    ``ranks`` : of a host."""

    def __init__(self, count: int, share: float, ranks: int):
        self.count, self.share, self.ranks, self.known = count, share, ranks, {}
        self.ports: dict[int, SharedPort] = defaultdict(SharedPort)  # of each host

    @classmethod
    def of(cls, cluster: "Cluster", world_size: int) -> "Cores | None":
        """The cores that the ranks of a cluster share; None where there are enough for all."""
        busiest = min(cluster.per_host, world_size) * (1 + cluster.core_share)
        if not cluster.cores or cluster.cores >= busiest:
            return None
        return cls(cluster.cores, cluster.core_share, cluster.per_host)

    def _host(self, rank):
        return rank // self.ranks

    def kernel(self, rank: int) -> tuple[Link, list[PortPass]]:
        """(link, passes) of a rank's kernels, whose volume are their seconds on a core."""
        if rank not in self.known:
            self.known[rank] = self._way(
                Link(1.0, 0.0, 1.0, ()), {self._host(rank): 1}, ("kernel", rank)
            )
        return self.known[rank]

    def transfer(
        self, queue: "GroupQueue", flows: Flows, contention: bool, queued: float
    ) -> tuple[Link, list[PortPass]]:
        """(link, passes) of a queue's transfers: its own, where links are shared, and the cores.

        queued : how many times as long one takes as alone; its work on the cores is the same.
        """
        key = queue, queued
        if key not in self.known:
            link = queue.link if contention else queue.link._replace(ports=())
            own = (queue.passes or flows.passes(link, queue.kind)) if link.ports else []
            members = Counter(map(self._host, queue.members))
            taken = {host: self.share * n / queued for host, n in members.items() if self.share}
            self.known[key] = self._way(link, taken, queue.kind, own) if taken else (link, own)
        return self.known[key]

    def _way(
        self, link: Link, of_hosts: dict[int, float], kind: Hashable, own: Sequence[PortPass] = ()
    ):
        """What takes so many cores of each host, at the link's full rate while there are enough."""
        passes = [*own]
        for host, taken in of_hosts.items():
            key = f"{CORES}{host or ''}"
            port = PortOf(key, link.bandwidth * max(self.count, taken), taken)  # pyright: ignore[reportArgumentType]
            link = link._replace(ports=(*link.ports, port))
            passes.append(PortPass(key, self.ports[host], kind, taken, taken))  # pyright: ignore[reportArgumentType]
        return link, passes
