"""Replays captured programs on a virtual clock: every rank its list of kernels, issues and waits.

A collective begins when its last member has issued it and the previous one of the same group (axis
and members) has ended; the cluster says how long it lasts, and how much less where it had to wait
for that. Each rank runs ahead on its own until it waits for something unfinished; collectives begin
and end in the order of the clock.
"""

import heapq
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from tpviz.core.trace.members import members_text

from . import deadline
from .flows import Flows, PortPass

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.cluster.routes import Link

    from .cores import Cores


class GroupTransfer:
    """One collective (or message) of a group: who has issued it, when it began and ended."""

    __slots__ = ("bytes", "end", "last", "missing", "name", "queue", "ready", "waiting")

    def __init__(self, queue: "GroupQueue", name: str, size: int, bytes: int):
        self.queue, self.name, self.missing, self.bytes = queue, name, size, bytes
        self.ready, self.end, self.waiting, self.last = -1.0, None, [], None


class GroupQueue:
    """The collectives of one process group: they run one at a time in the order issued.

    passes : the `flows.PortPass`es of its link, if this queue represents several equal ones.
    """

    __slots__ = ("axis", "busy", "factor", "kind", "link", "members", "next", "passes", "transfers")

    def __init__(
        self,
        axis: str,
        members: tuple[int, ...],
        kind: Hashable,
        link: "Link",
        factor: float,
        passes: Sequence[PortPass] | None = None,
    ):
        self.axis, self.members, self.kind, self.link = axis, members, kind, link
        self.factor, self.passes = factor, passes
        self.transfers, self.next, self.busy = [], 0, False

    def __lt__(self, other):  # heaps compare on equal times
        return (self.axis, self.members) < (other.axis, other.members)


class Engine:
    """One replay. programs : per rank a list of operations, each one of

    ("kernel", seconds), ("issue", queue, name, bytes), ("wait", k) for the rank's k-th issue,
    ("align",) until every rank is there, and ("mark",), which does nothing. Where a rank stands for
    others an issue goes on with (side, count): which of its groups the queue is, and how many of
    the queue's members issue with it. Afterwards ``times[rank]`` has (start, end) per operation: of
    an issue, when it was issued and when its transfer ended. ranks : their numbers. cores : what
    all of them share, each rank standing for itself. Raises ``RuntimeError`` on a deadlock.
    """

    def __init__(
        self,
        cluster: "Cluster",
        programs: Sequence[Sequence[tuple[Any, ...]]],
        contention: bool = True,
        ranks: Sequence[int] | None = None,
        cores: "Cores | None" = None,
    ):
        self.cluster, self.programs, self.cores = cluster, programs, cores
        self.ranks = range(len(programs)) if ranks is None else ranks
        self.contention, self.starting = contention, []
        self.flows = Flows(contention or cores is not None)
        self.clock = [0.0] * len(programs)
        self.at = [0] * len(programs)
        self.issued = [[] for _ in programs]
        self.places = [{} for _ in programs]  # side of a queue -> how many this rank issued on it
        self.times = [[] for _ in programs]
        self.aligning = []

    def run(self) -> list[list[tuple[float, float]]]:
        """Replay to the end; returns ``times``."""
        for rank in range(len(self.programs)):
            self._advance(rank)
        while True:
            deadline.check()
            starting = self.starting[0][0] if self.starting else None
            upcoming = self.flows.next_time()
            if starting is not None and (upcoming is None or starting <= upcoming):
                time, queue = heapq.heappop(self.starting)
                self._begin(queue, time)
            elif upcoming is not None:
                flow = self.flows.step()
                if flow is None:
                    continue
                if isinstance(flow.owner, GroupTransfer):
                    self._ended(flow.owner, flow.end)
                else:
                    self._computed(flow.owner, flow.start, flow.end)
            else:
                break
        stuck = [rank for rank, at in enumerate(self.at) if at < len(self.programs[rank])]
        if stuck:
            raise RuntimeError(self._deadlock(stuck))
        return self._resolved()

    def _advance(self, rank: int):
        """Run a rank's operations until it waits for something that has not ended."""
        program, times, issued = self.programs[rank], self.times[rank], self.issued[rank]
        clock, at, places = self.clock[rank], self.at[rank], self.places[rank]
        size = len(program)
        while at < size:
            operation = program[at]
            what = operation[0]
            if what == "kernel":
                if self.cores and operation[1]:
                    self.clock[rank], self.at[rank] = clock, at
                    link, passes = self.cores.kernel(rank)
                    self.flows.add(rank, rank, link, 0.0, operation[1], clock, passes)
                    return
                start = clock
                clock += operation[1]
                times.append((start, clock))
            elif what == "issue":
                transfer = self._arrive(operation, places, clock, (rank, len(issued)))
                issued.append(transfer)
                times.append((clock, transfer))
            elif what == "wait":
                transfer = issued[operation[1]]
                if transfer.end is None:
                    transfer.waiting.append(rank)
                    break
                start = clock
                clock = max(clock, transfer.end)
                times.append((start, clock))
            elif what == "align":
                self.clock[rank], self.at[rank] = clock, at
                self.aligning.append(rank)
                if len(self.aligning) == len(self.programs):
                    self._align()
                return
            else:
                times.append((clock, clock))
            at += 1
        self.clock[rank], self.at[rank] = clock, at

    def _computed(self, rank, start, end):
        """A rank's kernel has ended, on cores that it may have had to share."""
        self.times[rank].append((start, end))
        self.clock[rank], self.at[rank] = end, self.at[rank] + 1
        self._advance(rank)

    def _align(self):
        """All ranks are here: they go on together, from the last one's time."""
        ranks, self.aligning = self.aligning, []
        together = max(self.clock)
        for rank in ranks:
            self.clock[rank] = together
            self.times[rank].append((together, together))
            self.at[rank] += 1
        for rank in ranks:
            self._advance(rank)

    def _arrive(self, operation, places, clock, who):
        _, queue, name, bytes, *alike = operation
        side, count = alike or (queue, 1)
        place = places.get(side, 0)
        places[side] = place + 1
        if place == len(queue.transfers):
            queue.transfers.append(GroupTransfer(queue, name, len(queue.members), bytes))
        transfer = queue.transfers[place]
        transfer.missing -= count
        if bytes > transfer.bytes:  # ranks may send unequal parts; the busiest port decides
            transfer.bytes = bytes
        if clock > transfer.ready:
            transfer.ready, transfer.last = clock, who
        if not transfer.missing:
            self._try_next(queue, 0.0)
        return transfer

    def _try_next(self, queue, free):
        """Plan the start of the group's next transfer, if everybody has issued it."""
        if queue.busy or queue.next >= len(queue.transfers):
            return
        transfer = queue.transfers[queue.next]
        if not transfer.missing:
            queue.busy = True
            heapq.heappush(self.starting, (max(transfer.ready, free), queue))

    def _begin(self, queue, time):
        transfer = queue.transfers[queue.next]
        name = "send" if transfer.name == "recv" else transfer.name
        hops, volume = self.cluster.collective_cost(
            name, transfer.bytes, len(queue.members), queue.link
        )
        latency, factor = hops * queue.link.latency, queue.factor
        queued = self.cluster.queued if time > transfer.ready else 1.0  # waits for the one before
        latency, volume = latency * factor * queued, volume * factor * queued
        link, passes = queue.link, queue.passes
        if self.cores:
            link, passes = self.cores.transfer(queue, self.flows, self.contention, queued)
            if self.cores.share:  # hops take cores, too
                latency, volume = 0.0, volume + latency * link.bandwidth
        self.flows.add(transfer, queue.kind, link, latency, volume, time, passes)

    def _ended(self, transfer, time):
        transfer.end = time
        queue = transfer.queue
        queue.next, queue.busy = queue.next + 1, False
        self._try_next(queue, time)
        for rank in transfer.waiting:
            self._advance(rank)

    def _resolved(self):
        return [[(a, _end_of(a, b)) for a, b in times] for times in self.times]

    def _deadlock(self, stuck: list[int]):
        lines = []
        for rank in stuck[:8]:
            operation = self.programs[rank][self.at[rank]]
            number = self.ranks[rank]
            if operation[0] == "align":
                lines.append(f"rank {number} waits for all to begin a step")
                continue
            transfer = self.issued[rank][operation[1]]
            queue, place = transfer.queue, transfer.queue.transfers.index(transfer)
            lines.append(
                f"rank {number} waits in {transfer.name} #{place} on axis {queue.axis} of ranks "
                f"{members_text(queue.members)}, {self._missing(transfer)}"
            )
        more = f"; and {len(stuck) - 8} more ranks" if len(stuck) > 8 else ""
        return "the program never ends: " + "; ".join(lines) + more

    def _missing(self, transfer):
        """Who of its members never issues a transfer; how many, where ranks stand for others."""
        there = {self.ranks[rank] for rank, own in enumerate(self.issued) if transfer in own}
        missing = [member for member in transfer.queue.members if member not in there]
        if len(missing) != transfer.missing:
            return f"which {transfer.missing} of them never issue"
        if not missing:
            return "behind one that never ends"
        if len(missing) == 1:
            return f"which rank {missing[0]} never issues"
        return f"which ranks {members_text(missing)} never issue"


def _end_of(start, end):
    """A transfer's end; one that some member never issued, and nobody waits for, has no length."""
    if not isinstance(end, GroupTransfer):
        return end
    return start if end.end is None else end.end
