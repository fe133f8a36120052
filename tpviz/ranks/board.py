"""The status board: one line of text per rank, readable while the rank is stuck.

A rank waiting in a collective cannot answer questions, so it writes what it is about to do into a
memory-mapped file first, and the parent reads that file when something goes wrong. One slot is
``SLOT`` bytes: the time of writing (float64, ``time.perf_counter``, one clock for all processes of
a host), then UTF-8 text, then zeros. There is no lock: a torn read gives a garbled line in an
error message, while a lock would cost every collective.
"""

import mmap
import os
import struct
from time import perf_counter

SLOT = 256
_TIME = struct.Struct("d")
_ROOM = SLOT - _TIME.size - 1

folder = None  # of this rank's pool, which removes it with everything in it; None outside of pools
_slot = None


def mapped(path: str | os.PathLike[str], size: int = 0) -> mmap.mmap:
    """The file at ``path`` in memory; with a size, in bytes, it is made anew and empty."""
    with open(path, "w+b" if size else "r+b") as file:
        if size:  # all of it now: on a full disk, touching a missing page kills the process
            os.posix_fallocate(file.fileno(), 0, size)
        return mmap.mmap(file.fileno(), 0)


def attach(path: str | os.PathLike[str], rank: int) -> None:
    """Let ``write`` in this process fill slot ``rank`` of the board file at ``path``."""
    global folder, _slot
    folder = os.path.dirname(path)
    _slot = memoryview(mapped(path))[rank * SLOT : (rank + 1) * SLOT]


def write(text: str) -> None:
    """Say what this rank is doing now; no effect in a process without a board (about 1 µs)."""
    if _slot is None:
        return
    data = _TIME.pack(perf_counter()) + text.encode()[:_ROOM] + b"\0"
    _slot[: len(data)] = data


def finish() -> None:
    """Record that this rank has finished, keeping its last text, whose sizes errors may quote."""
    if _slot is not None:
        last = bytes(_slot[_TIME.size :]).partition(b"\0")[0].decode(errors="ignore")
        write(f"finished after {last}")


class Board:
    """The parent's side of the file: made empty here, read at any time.

    Parameters
    ----------
    path : where to make the file (``world_size * SLOT`` bytes).
    world_size : number of ranks.
    """

    def __init__(self, path: str | os.PathLike[str], world_size: int):
        self.path = os.fspath(path)
        self._map = mapped(path, world_size * SLOT)

    def read(self, rank: int) -> tuple[str, float]:
        """``(text, seconds since it was written)``; ``("", inf)`` if the rank never wrote."""
        slot = self._map[rank * SLOT : (rank + 1) * SLOT]
        (written,) = _TIME.unpack_from(slot)
        if not written:
            return "", float("inf")
        text = slot[_TIME.size :].partition(b"\0")[0].decode(errors="ignore")
        return text, max(0.0, perf_counter() - written)

    def close(self) -> None:
        """Close the file; the pool removes it with its directory."""
        self._map.close()


def spoken(text: str, age: float) -> str:
    """A rank's text and its age in seconds as part of a sentence: ``"waiting 5.0 s in ..."``."""
    if not text:
        return "starting"
    verb, _, rest = text.partition(" ")
    if verb == "waiting":
        return f"waiting {age:.1f} s {rest}"
    if verb == "finished":
        return f"finished {age:.1f} s ago"
    if verb == "running":
        return f"no collective, {text} for {age:.1f} s"
    return f"{'issued' if verb == 'issuing' else verb} {rest} {age:.1f} s ago".replace("  ", " ")
