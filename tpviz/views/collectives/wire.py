"""`Wire`: a rank's buffer in chunks, and steps in which chunks are sent, received and added.

An algorithm says within each step what this rank sends and what it gets; when the step ends, all of
it is started (`torch.distributed.isend` and `irecv`) and waited for. What is received waits aside
until the step is over, so a chunk may be sent and added to in one step.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist

from tpviz.core.labels import label
from tpviz.ranks.recorder import Recorder

REDUCE, COPY = "reduce", "copy"


class Wire:
    """This rank's end of a collective on the default group.

    buffer: a tensor whose first dim is the chunk. recorder: the active `Recorder`, which gets one
    step for each of ours, or None. ``notes`` collects the first number of every chunk, before the
    first step and after each.
    """

    def __init__(self, buffer: torch.Tensor, recorder: Recorder | None = None):
        self.buffer, self.recorder = buffer, recorder
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.chunks = buffer.shape[0]
        self.notes = [self._look()]
        self._sends, self._gets = [], []

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step of the algorithm; its messages travel when the block ends."""
        with self.recorder.step() if self.recorder else nullcontext():
            yield
            self._travel()
        self.notes.append(self._look())

    def send(self, chunk: int, to: int, phase: str = COPY) -> None:
        """Send a chunk to rank ``to`` (counted round the ring: n is rank 0 again)."""
        self._sends.append((chunk % self.chunks, to % self.size, phase))

    def receive(self, chunk: int, source: int, phase: str = COPY) -> None:
        """Put what rank ``source`` sends in the place of a chunk, or (phase "reduce") add it."""
        self._gets.append((chunk % self.chunks, source % self.size, phase))

    def _travel(self):
        works, arrived = [], []
        for chunk, source, phase in self._gets:
            with label(chunk=chunk, phase=phase):
                arrived.append(torch.empty_like(self.buffer[chunk]))
                works.append(dist.irecv(arrived[-1], source))
        for chunk, to, phase in self._sends:
            with label(chunk=chunk, phase=phase):
                works.append(dist.isend(self.buffer[chunk], to))
        for work in works:
            work.wait()
        for (chunk, _, phase), block in zip(self._gets, arrived):
            self.buffer[chunk] = self.buffer[chunk] + block if phase == REDUCE else block
        self._sends, self._gets = [], []

    def _look(self):
        return self.buffer[:, 0].tolist()
