"""Work that a captured program does again and again alike: done twice, then its record is repeated.

A program says of a part of its work that it is one of several alike (`tpviz.core.labels.repeated`).
The second's rows, and what it allocates and frees, stand for those that follow; these give tensors
of the same shapes. Which tensors, given or received, are freed in a record and which by the program
around it is seen in the step before the recorded one.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tpviz.core import labels

from . import backend
from .clock import OrderClock
from .memory import KINDS, MemoryHook
from .operations import PEER, flat

if TYPE_CHECKING:
    from .recorder import Recorder

    class _Capturing(Recorder):
        """A recorder as captures have it: the only kind that a tape listens to."""

        clock: OrderClock
        memory: MemoryHook


@contextmanager
def repeating() -> Iterator[None]:
    """Inside, what a program says to be alike is done twice, before a recorder listens once."""
    tapes, fates, depth = {}, {}, 0

    def done(work, args):
        nonlocal depth
        depth += 1
        try:
            return work(*args)
        finally:
            depth -= 1

    def repeater(what, number, work, args):
        first = 0 if backend.recorder is None else 1
        key = what, first
        if number < first:
            return done(work, args)
        if number > first and key in tapes:
            return tapes[key].repeat(list(flat(args)), fates[what])
        tape = tapes[key] = Tape(backend.recorder)
        tape.end(result := done(work, args))
        if first == 0:
            fates[what] = [Fate(t, lambda: depth > 0) for t in flat((args, result))]
        return result

    labels.set_repeater(repeater)
    try:
        yield
    finally:
        labels.set_repeater(None)


class Fate:
    """Whether a tensor's storage was freed within a record; ``inside()`` tells if one runs now."""

    def __init__(self, tensor: torch.Tensor, inside: Callable[[], bool]):
        self.in_record, self.inside = False, inside
        self.storage = weakref.ref(tensor.untyped_storage(), self._freed)

    def _freed(self, _):
        self.in_record = self.inside()


class Tape:
    """The record of some work: between its making and `end`. ``listener``: the recorder or None."""

    listener: "_Capturing"  # or None
    kernels: list[Any]  # it and the next four: rows, as the recorder has them
    comms: list[Any]
    waits: list[Any]
    marks: list[Any]
    samples: list[Any]

    def __init__(self, listener: "Recorder | None"):
        self.listener = listener  # pyright: ignore[reportAttributeAccessIssue]
        self.groups = [
            g for g in dist.distributed_c10d._world.pg_map if isinstance(g, backend.TracedGroup)
        ]
        self.counts = [dict(g.counts) for g in self.groups]
        self.begin = self._place()

    def _place(self):
        """How far everything is: stamps, rows, bytes."""
        if self.listener is None:
            return None
        of = self.listener
        parts = of.kernels, of.comms, of.waits, of.phases.marks, of.memory.samples
        return of.clock.moment, [*map(len, parts)], [of.memory.totals[kind] for kind in KINDS]

    def end(self, result: Sequence[torch.Tensor] | None) -> None:
        """The work is done; result: its tensors, if it gives some."""
        self.given = None if result is None else [(t.shape, t.dtype, t.device) for t in result]
        self.issued = [
            {key: n - before.get(key, -1) for key, n in g.counts.items()}
            for g, before in zip(self.groups, self.counts)
        ]
        if self.listener is None:
            return
        of, (self.moment, start, self.level) = self.listener, self.begin  # pyright: ignore[reportGeneralTypeIssues]
        moment, stop, level = self._place()  # pyright: ignore[reportGeneralTypeIssues]
        self.lasts, self.change = moment - self.moment, [b - a for a, b in zip(self.level, level)]
        self.kernels, self.comms, self.waits, self.marks, self.samples = (
            rows[a:b]
            for rows, a, b in zip(
                (of.kernels, of.comms, of.waits, of.phases.marks, of.memory.samples), start, stop
            )
        )
        self.first_kernel = start[0]

    def repeat(
        self, given: Sequence[torch.Tensor], fates: Sequence[Fate]
    ) -> tuple[torch.Tensor, ...] | None:
        """Record the same once more; the result, as the work gives it.

        given : tensors that the work takes. fates : of each of these, then of the result's.
        """
        if self.listener is not None:
            self._rows()
            self._bytes(t for t, fate in zip(given, fates) if fate.in_record)
        for group, more in zip(self.groups, self.issued):
            for key, count in more.items():
                group.counts[key] = group.counts.get(key, -1) + count
        return None if self.given is None else tuple(self._made(fates[len(given) :]))

    def _rows(self):
        of, copies = self.listener, {}
        late, microbatch = of.clock.moment - self.moment, labels.current().microbatch
        more = len(of.kernels) - self.first_kernel
        sequence = torch._C._autograd._get_sequence_nr()  # pyright: ignore[reportAttributeAccessIssue]

        def here(where):
            return (*where[:3], microbatch, *where[4:])

        of.phases.marks += [(n + more, sequence, *state) for n, _, *state in self.marks]
        for operator, start, end, task, node, label, *what in self.kernels:
            label = label._replace(microbatch=microbatch)
            of.kernels.append((operator, start + late, end + late, task, node, label, *what))
        for row in self.comms:
            collective, start, end, where, payload, members, axis, seq, *more = row
            seq += self._later(axis, (members, collective in PEER))
            times, group = (start + late, end + late), (payload, members, axis, seq, *more)
            copies[id(row)] = [collective, *times, here(where), *group]
        of.comms += copies.values()
        of.waits += [
            (copies[id(row)], start + late, end + late, here(where))
            for row, start, end, where in self.waits
        ]

    def _later(self, axis, key):
        """How many collectives of a group were issued since this was recorded."""
        group, counts = next(
            (g, counts)
            for g, counts in zip(self.groups, self.counts)
            if g.axis == axis and key in g.counts
        )
        return group.counts[key] - counts.get(key, -1)

    def _bytes(self, given):
        """What is allocated and freed, ``given`` in a later record; and time goes on."""
        of, memory = self.listener, self.listener.memory
        late, present = of.clock.moment - self.moment, [memory.totals[kind] for kind in KINDS]
        a, b, c, d = (now - before for now, before in zip(present, self.level))
        memory.samples += [
            (stamp + late, a + one, b + two, c + three, d + four)
            for stamp, one, two, three, four in self.samples
        ]
        memory.totals = {k: now + more for k, now, more in zip(KINDS, present, self.change)}
        of.clock.moment += self.lasts
        for t in given:
            memory.live.pop(id(t.untyped_storage()), None)

    def _made(self, fates):
        """New tensors, allocated in the record."""
        memory = self.listener and self.listener.memory
        for (shape, dtype, device), fate in zip(self.given, fates):  # pyright: ignore[reportArgumentType]
            if memory is None:
                yield torch.empty(shape, dtype=dtype, device=device)
            else:
                yield memory.unseen(shape, dtype, device, counted=not fate.in_record)
