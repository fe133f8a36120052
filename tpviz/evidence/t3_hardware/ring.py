"""Ring passes of a collective run by itself: reduce-scatter and all-gather, one GPU for all.

Kernels of all compute units copy a chunk per step in parts: read it, send it, and the part received
from the neighbour is written. A step begins when the previous one has arrived, and lasts as long as
the largest chunk does: in each, some rank sends that one. Bytes are this GPU's own.
"""

from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING

from .dram import COMM, Dram

if TYPE_CHECKING:
    from .dram import EventClock
    from .machine import Machine

PIECES = 64
"""Pieces of a chunk: as many as let the link wait for the first read for 1 % of a step."""


class RingPass:
    """One pass from ``start`` on. sizes : bytes of the chunk sent in each step, then of the one
    received last. reads : per step, how often a part is read before it is sent (own part and
    received part). kinds : classes of its reads and writes. cost : of a write: that of an update
    where memory itself adds. last : whether a local sum ends it (two reads and a write).
    Afterwards ``ended`` and ``sent``: (asked, start, end, bytes, to, -1) each.
    """

    def __init__(
        self,
        clock: "EventClock",
        machine: "Machine",
        sizes: Sequence[float],
        reads: Sequence[int],
        kinds: tuple[str, str],
        start: float = 0.0,
        cost: float = 1.0,
        last: bool = False,
    ):
        self.clock, self.machine, self.sizes, self.slowest = clock, machine, sizes, max(sizes)
        self.reads, self.kinds, self.cost, self.last = reads, kinds, cost, last
        self.memory = Dram(clock, machine, "fifo")
        self.step, self.free, self.arrived = -1, 0.0, 0
        self.sent, self.ended = [], start
        clock.at(start, self._step, None)

    def _step(self, now, _):
        self.step, self.arrived = self.step + 1, 0
        if self.step == len(self.reads):
            if self.last:
                self._ask(now, 0, 2, self.step, self._written)
                self._ask(now, 1, 1, self.step, self._written)
            return
        for _ in range(PIECES):
            self._ask(now, 0, self.reads[self.step] / PIECES, self.step, self._read)

    def _ask(self, now, kind, share, step, done, cost=1.0):
        """Ask for this GPU's bytes, for as long as the largest chunk's take."""
        own = self.sizes[step]
        self.memory.ask(
            now, COMM, self.kinds[kind], share * own, cost * self.slowest / own, done, None
        )

    def _read(self, now, _):
        start = max(now, self.free)
        self.free = start + self.slowest / PIECES / self.machine.link
        self.sent.append((now, start, self.free, self.sizes[self.step] / PIECES, -1, -1))
        self.clock.at(self.free + self.machine.latency, self._arrive, None)

    def _arrive(self, now, _):
        self._ask(now, 1, 1 / PIECES, self.step + 1, self._written, self.cost)
        self.arrived += 1
        if self.arrived == PIECES:
            self._step(now, None)

    def _written(self, now, _):
        self.ended = now


def reduce_scatter(
    clock: "EventClock",
    machine: "Machine",
    chunk: float | Sequence[float],
    ranks: int,
    start: float = 0.0,
    near_memory: bool = False,
) -> RingPass:
    """A ring reduce-scatter of ``ranks`` chunks, run by compute units.

    chunk : bytes of one, or of each, this GPU's own first. near_memory : what comes in is added in
    memory, so that a step reads once and nothing is left to add at the end.
    """
    steps, sizes = ranks - 1, _sizes(chunk, ranks)
    reads = [1] * steps if near_memory else [1, *[2] * (steps - 1)][:steps]
    return RingPass(
        clock,
        machine,
        [*sizes[1:], sizes[0]],
        reads,
        ("rs_read", "rs_write"),
        start,
        machine.update if near_memory else 1.0,
        last=steps > 0 and not near_memory,
    )


def all_gather(
    clock: "EventClock",
    machine: "Machine",
    chunk: float | Sequence[float],
    ranks: int,
    start: float = 0.0,
) -> RingPass:
    """A ring all-gather of ``ranks`` chunks. chunk : as `reduce_scatter` takes it."""
    return RingPass(
        clock, machine, _sizes(chunk, ranks), [1] * (ranks - 1), ("ag_read", "ag_write"), start
    )


def _sizes(chunk: float | Sequence[float], ranks: int) -> list[float]:
    return [chunk] * ranks if isinstance(chunk, Real) else list(chunk)  # pyright: ignore[reportArgumentType, reportReturnType]
