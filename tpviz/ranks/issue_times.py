"""When each rank issued each collective: a table in memory that all ranks of this host share.

A collective starts when its last member has issued it, and every rank must reckon with the same
time. So each rank writes its times into a mapped file. A *slot* is one group (axis and members, or
a pair for messages); in a slot a ring of cells, one per collective. No locks but for making a slot:
every number has one writer, and the sequence number is written last.
"""

import fcntl
import mmap
import os
import tempfile
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

import torch.distributed as dist

from tpviz.core.trace.clocks import refuse_several

from . import board
from .hosts import ONE_NEEDED, host

if TYPE_CHECKING:
    from tpviz.cluster.routes import Link

SLOTS, RING = 256, 1024  # the file is sparse: only what is used takes memory


class Slot:
    """One group: its place in the table, members, axis (a hash of its name) and message shift; the
    number of its next collective, not before ``free``."""

    __slots__ = ("axis", "busy", "free", "index", "link", "members", "next", "shift")

    link: "Link | None"

    def __init__(self, index: int, members: tuple[int, ...], axis: int, shift: int | None):
        self.index, self.members, self.axis, self.shift = index, members, axis, shift
        self.next, self.busy, self.free, self.link = 0, False, 0.0, None


class IssueTimes:
    """The table. Made by all ranks of the world together (a collective call)."""

    def __init__(self):
        self.world_size, rank = dist.get_world_size(), dist.get_rank()
        self.width = 5 + self.world_size  # time, latency, volume, number, how many parts, these
        self.cell = self.width * self.world_size
        self.head = 4 + self.world_size  # count, axis, shift or none, hash, members
        self.stride = self.head + RING * self.cell
        size = 8 * (1 + SLOTS * self.stride)
        path: list[Any] = [None, host()]
        if rank == 0:
            # In the pool's folder: it goes with the ranks, should one of them never come this far.
            handle, path[0] = tempfile.mkstemp(prefix="tpviz-pace-", dir=board.folder)
            os.truncate(handle, size)
            os.close(handle)
        try:
            dist.broadcast_object_list(path, src=0)
            refuse_several({0: path[1], rank: host()}, ONE_NEEDED)
            self.file = self._open(path[0])
            dist.barrier()
        finally:
            if rank == 0:
                os.unlink(path[0])  # pyright: ignore[reportArgumentType]
        self.map = mmap.mmap(self.file.fileno(), size)
        view = memoryview(self.map)
        self.ints, self.floats = view.cast("q"), view.cast("d")
        self.slots, self.by_key = [], {}

    @staticmethod
    def _open(path):
        try:
            return open(path, "r+b")
        except FileNotFoundError:
            raise RuntimeError(
                "emulating a cluster needs all ranks on one host: this rank cannot see the table "
                "that rank 0 made"
            ) from None

    def slot(self, axis: str, members: tuple[int, ...], shift: int | None = None) -> Slot:
        """The slot of a group, made where it is new; the same on every member."""
        key = axis, members, shift is not None
        if key not in self.by_key:
            mark = crc32(repr(key).encode()) + 1
            self.refresh()
            if not self._find(key, mark):
                fcntl.flock(self.file, fcntl.LOCK_EX)
                try:
                    self.refresh()
                    if not self._find(key, mark):
                        self._make(mark, crc32(axis.encode()), members, shift)
                        self.refresh()
                        self._find(key, mark)
                finally:
                    fcntl.flock(self.file, fcntl.LOCK_UN)
        return self.by_key[key]

    def _find(self, key, mark):
        for slot in self.slots:
            if self.ints[self._base(slot.index) + 3] == mark and slot.members == key[1]:
                self.by_key[key] = slot
                return True
        return False

    def _make(self, mark, axis, members, shift):
        index = self.ints[0]
        if index == SLOTS:
            raise RuntimeError(f"an emulated run can follow {SLOTS} groups and pairs, not more")
        base = self._base(index)
        self.ints[base : base + 4] = array("q", [len(members), axis, shift or 0, mark])
        self.ints[base + 4 : base + 4 + len(members)] = array("q", members)
        self.ints[0] = index + 1

    def refresh(self) -> None:
        """Read the slots that other ranks have added."""
        for index in range(len(self.slots), self.ints[0]):
            base = self._base(index)
            size, axis, shift = self.ints[base], self.ints[base + 1], self.ints[base + 2]
            members = tuple(self.ints[base + 4 : base + 4 + size])
            self.slots.append(Slot(index, members, axis, shift or None))

    def post(
        self,
        slot: Slot,
        place: int,
        number: int,
        time: float,
        latency: float,
        volume: float,
        parts: Sequence[int] = (),
    ) -> None:
        """This rank (the ``place``-th member) issues the slot's ``number``-th collective. parts :
        bytes to each member, of an all-to-all that was given these."""
        at = self._cell(slot, number) + self.width * place
        if self.ints[at + 3] > slot.next:  # what stands there has not even begun
            raise RuntimeError(
                f"an emulated run can have {RING} collectives of a group in flight, not more: "
                "wait for some of them"
            )
        self.floats[at], self.floats[at + 1], self.floats[at + 2] = time, latency, volume
        self.ints[at + 4] = len(parts)
        self.ints[at + 5 : at + 5 + len(parts)] = array("q", parts)
        self.ints[at + 3] = number + 1

    def complete(self, slot: Slot, number: int) -> tuple[float, ...] | None:
        """(last arrival, latency, volume) once every member has issued it, else None.

        Where members send unequal parts, the largest counts, unless `parts` says more.
        """
        at, width = self._cell(slot, number), self.width
        end = at + width * len(slot.members)
        numbers = self.ints[at + 3 : end : width].tolist()
        if min(numbers) != number + 1:
            if min(numbers) > number + 1:  # a group of others, not looked at for a whole ring
                slot.next = min(numbers) - 1
            return None
        return tuple(max(self.floats[at + i : end : width]) for i in range(3))

    def parts(self, slot: Slot, number: int) -> list[list[int]]:
        """Bytes from each member to each, of a collective that all have issued with parts; else
        []."""
        at, size = self._cell(slot, number), len(slot.members)
        rows = [at + self.width * place for place in range(size)]
        if any(self.ints[row + 4] != size for row in rows):
            return []
        return [self.ints[row + 5 : row + 5 + size].tolist() for row in rows]

    def _base(self, index):
        return 1 + index * self.stride

    def _cell(self, slot, number):
        return self._base(slot.index) + self.head + number % RING * self.cell
