"""How far each rank's clock is ahead of rank 0's: clocks of hosts are compared by ping-pong.

In a world of several clocks (`tpviz.ranks.hosts`) the first rank of each plays ping-pong with rank
0, before and after a job: of the shortest round trip, the answer was given in the middle, half the
trip early or late at most. `Trace.merge` makes one time line of that.

    offsets.meet()                           # on every rank, once
    offsets.begin()                          # as a job begins
    with tv.record() as rec: ...             # rec.trace has offsets.offset() in its meta
    offsets.end()                            # as it ends, before traces are sent
"""

import time
from typing import Any

import torch
import torch.distributed as dist

from .hosts import host, hosts_of_world

TRIPS = 10  # at least, and as many as fit into
SECONDS = 0.1  # for each host; a world that serves call after call takes none

_firsts: dict[str, int] = {}  # of this job's world: {mark of a clock: first rank that reads it}
_reference = ""  # mark of rank 0's
_offset: dict[str, Any] = {}  # of this rank, see `compare`
_over = False  # whether the job's last comparison was made


def meet() -> None:
    """A world has met: learn whose clock each rank reads.

    A collective call of the default group, as are `begin`, `compare` and `end`.
    """
    global _reference
    _firsts.clear()
    hosts = hosts_of_world()
    for rank, (_, clock) in hosts.items():
        _firsts.setdefault(clock, rank)
    _reference = hosts[0][1]


def begin(seconds: float | None = SECONDS) -> None:
    """A job begins in a world that has met: forget what was compared for the job before, and
    compare clocks anew; with None for the seconds, its last comparison serves this job too."""
    global _offset, _over
    last = _offset.get("moments", [])[-1:] if seconds is None else []
    _offset, _over = {"to": _reference, "moments": last}, False
    if seconds is not None:
        compare(seconds)


def end() -> None:
    """All that a job records is recorded: compare clocks a last time, for whoever says so first."""
    global _over
    if not _over:
        _over = True
        compare()


def compare(seconds: float = SECONDS) -> None:
    """Compare the clocks of the world with rank 0's once more; nothing where there is one clock.

    What `offset` gave before has the new moment too, so that a job's traces, which are sent after
    it, know how its clock ran while they were recorded.
    """
    if len(_firsts) < 2:
        return
    found: list[Any] = [None]
    rank, (_, mine) = dist.get_rank(), host()
    if rank == 0:
        found = [{clock: _ask(first, seconds) for clock, first in _firsts.items() if first}]
    elif rank == _firsts[mine]:
        _answer()
    dist.broadcast_object_list(found, src=0)
    if mine in found[0]:
        _offset["moments"].append(found[0][mine])


def offset() -> dict[str, Any]:
    """How far this rank's clock is ahead, as ``trace.meta["offsets"]`` has it: {"to": mark of rank
    0's, "moments": [{"time", "ahead", "error"}, ...]} (s); empty where nothing was compared."""
    return _offset if _offset.get("moments") else {}


def _ask(rank: int, seconds: float) -> dict[str, float]:
    """What the shortest round trip to a rank says of its clock."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    more, read = (torch.ones(1, dtype=torch.float64, device=device) for _ in range(2))
    trips, end = [], time.perf_counter() + seconds
    while more:
        if len(trips) + 1 >= TRIPS and time.perf_counter() > end:
            more.zero_()  # the last one
        sent = time.perf_counter()
        dist.send(more, rank)
        dist.recv(read, rank)
        theirs, back = float(read), time.perf_counter()
        trips.append((back - sent, theirs, theirs - (sent + back) / 2))
    trip, theirs, ahead = min(trips)
    return {"time": theirs, "ahead": ahead, "error": trip / 2}


def _answer():
    """Rank 0's counterpart: tell the time until it asks no more."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    more, mine = (torch.ones(1, dtype=torch.float64, device=device) for _ in range(2))
    asked = True
    while asked:
        dist.recv(more, 0)
        asked = bool(more)  # on a GPU this waits until it has come
        dist.send(mine.fill_(time.perf_counter()), 0)
