"""Ring passes of a collective run by itself: reduce-scatter and all-gather, one GPU for all.

Kernels of all compute units copy a chunk a step in pieces: read it, send it, and the neighbour's
piece that comes in is written. A step begins when the one before has arrived whole.
"""

from .dram import COMM, Dram

PIECES = 64
"""Pieces of a chunk: as many as let the link wait for the first read for 1 % of a step."""


class Pass:
    """One pass of ``steps`` steps from ``start`` on. reads : per step, how often a piece is read
    before it is sent (own part and received part). kinds : classes of its reads and writes. cost :
    of a write: that of an update where memory itself adds. last : whether a local sum ends it (two
    reads and a write). Afterwards ``ended`` and ``sent``: (asked, start, end, bytes, to, -1) each.
    """

    def __init__(self, clock, machine, chunk, reads, kinds, start=0.0, cost=1.0, last=False):
        self.clock, self.machine, self.chunk = clock, machine, chunk
        self.reads, self.kinds, self.cost, self.last = reads, kinds, cost, last
        self.memory = Dram(clock, machine, "fifo")
        self.step, self.free, self.arrived, self.written = -1, 0.0, 0, 0
        self.sent, self.ended = [], start
        clock.at(start, self._step, None)

    def _step(self, now, _):
        self.step, self.arrived = self.step + 1, 0
        if self.step == len(self.reads):
            if self.last:
                for kind, times in ((self.kinds[0], 2), (self.kinds[1], 1)):
                    self.memory.ask(now, COMM, kind, times * self.chunk, 1.0, self._written, None)
            return
        for _ in range(PIECES):
            self.memory.ask(now, COMM, self.kinds[0], self.reads[self.step] * self.chunk / PIECES,
                            1.0, self._read, None)

    def _read(self, now, _):
        start = max(now, self.free)
        self.free = start + self.chunk / PIECES / self.machine.link
        self.sent.append((now, start, self.free, self.chunk / PIECES, -1, -1))
        self.clock.at(self.free + self.machine.latency, self._arrive, None)

    def _arrive(self, now, _):
        self.memory.ask(now, COMM, self.kinds[1], self.chunk / PIECES, self.cost, self._written,
                        None)
        self.arrived += 1
        if self.arrived == PIECES:
            self._step(now, None)

    def _written(self, now, _):
        self.ended = now


def reduce_scatter(clock, machine, chunk, ranks, start=0.0, near_memory=False):
    """A ring reduce-scatter of ``ranks`` chunks of ``chunk`` bytes, run by compute units.

    near_memory : what comes in is added in memory, so that a step reads once and nothing is left
    to add at the end.
    """
    steps = ranks - 1
    reads = [1] * steps if near_memory else [1, *[2] * (steps - 1)][:steps]
    return Pass(clock, machine, chunk, reads, ("rs_read", "rs_write"), start,
                machine.update if near_memory else 1.0, last=steps > 0 and not near_memory)


def all_gather(clock, machine, chunk, ranks, start=0.0):
    """A ring all-gather of ``ranks`` chunks of ``chunk`` bytes."""
    return Pass(clock, machine, chunk, [1] * (ranks - 1), ("ag_read", "ag_write"), start)
