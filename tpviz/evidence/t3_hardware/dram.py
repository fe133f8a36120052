"""Events on one clock, and a memory that serves two streams: the GEMM's and communication's.

Requests wait in their stream; the arbiter lets them into a queue of some entries, which is served
in order. Within the GEMM's stream reads go before stores, as write queues do. Reads and plain
writes cost their bytes, updates more (near-memory compute). While both streams are queued rows are
opened for each in turn, and the memory is slower by the same factor for all (assumed: an update
reads and writes its row, each slowed). So arbitration matters by how often both are queued: always
in plain T3's turns; in MCA only what was let in below the threshold before the GEMM asked.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .machine import Machine

CLASSES = (
    "gemm_read",
    "gemm_write",
    "rs_read",
    "rs_write",
    "update_local",
    "update_incoming",
    "dma_read",
    "ag_read",
    "ag_write",
)
"""What memory traffic is counted as."""
READ, STORE, COMM = 0, 1, 2


class EventClock:
    """Calls functions at their times, in order; equal times in the order asked."""

    def __init__(self):
        self.heap, self.asked, self.now = [], 0, 0.0

    def at(self, time: float, function: Callable[[float, Any], object], argument: Any) -> None:
        """Call ``function(time, argument)`` then."""
        self.asked += 1
        heappush(self.heap, (time, self.asked, function, argument))

    def run(self) -> float:
        """Until nothing is left; returns the last time."""
        heap = self.heap
        while heap:
            self.now, _, function, argument = heappop(heap)
            function(self.now, argument)
        return self.now


class Dram:
    """One GPU's memory. policy : see `machine.POLICIES`.

    log : per request served (class, seconds asked, seconds served, bytes, stream). bytes : per
    class, in all. busy : seconds. limit : MCA's threshold in entries.
    """

    def __init__(self, clock: EventClock, machine: "Machine", policy: str):
        self.clock, self.policy = clock, policy
        self.waiting = (deque(), deque(), deque())
        self.queue, self.queued, self.counts = deque(), 0, [0, 0]
        self.room, self.entry = machine.queue * machine.entry, machine.entry
        self.rates = 1 / (machine.dram * machine.efficiency), 1 / (machine.dram * machine.mixed)
        self.starvation, self.limit = machine.starvation, inf
        self.turns = [0.0, 0.0]
        self.serving, self.busy, self.log = False, 0.0, []
        self.bytes = dict.fromkeys(CLASSES, 0)

    def ask(
        self,
        now: float,
        stream: int,
        kind: str,
        bytes: float,
        cost: float,
        done: Callable[[float, Any], object],
        argument: Any,
    ) -> None:
        """Serve ``bytes`` and then call ``done(time, argument)``. stream : READ, STORE or COMM."""
        if stream == COMM:
            if not self.waiting[COMM]:
                self.turns[1] = max(self.turns)
        elif not self.waiting[READ] and not self.waiting[STORE]:
            self.turns[0] = max(self.turns)
        self.waiting[stream].append((now, stream, kind, bytes, cost, done, argument))
        if self.queued < self.room:
            self._admit(now)
            if not self.serving:
                self._serve(now)

    def _admit(self, now):
        while self.queued < self.room:
            stream = self._choose(now)
            if stream is None:
                return
            request = self.waiting[stream].popleft()
            side = stream == COMM
            self.turns[side] += request[3]
            self.queue.append(request)
            self.queued += request[3]
            self.counts[side] += 1

    def _choose(self, now):
        """The stream whose first request is next, None if none may be let in."""
        reads, stores, comm = self.waiting
        gemm = READ if reads else STORE if stores else None
        if not comm:
            if self.policy == "fifo" and reads and stores and stores[0][0] < reads[0][0]:
                return STORE
            return gemm
        if self.policy == "mca":
            starved = now - comm[0][0] >= self.starvation
            if gemm is not None and not starved:
                return gemm
            return COMM if starved or self.queued < self.limit * self.entry else None
        if gemm is None:
            return COMM
        if self.policy == "fifo":
            heads = [(w[0][0], stream) for stream, w in enumerate(self.waiting) if w]
            return min(heads)[1]
        return COMM if self.turns[1] < self.turns[0] else gemm

    def _serve(self, now):
        if self.queue:
            self.serving = True
            request = self.queue.popleft()
            both = self.counts[0] > 0 and self.counts[1] > 0
            seconds = request[3] * request[4] * self.rates[both]
            self.busy += seconds
            self.clock.at(now + seconds, self._served, request)
        else:
            self.serving = False

    def _served(self, now, request):
        asked, stream, kind, bytes, _, done, argument = request
        self.queued -= bytes
        self.counts[stream == COMM] -= 1
        self.bytes[kind] += bytes
        self.log.append((kind, asked, now, bytes, stream))
        self._admit(now)
        self._serve(now)
        done(now, argument)
