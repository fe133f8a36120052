"""Where ranks stand in their groups, as numbers, and which of them can never go on.

The board's text is for people. Here each rank keeps, in a file that the caller maps too, how many
collectives of each group it has issued, and in which one its main thread waits. From this the
caller tells a deadlock that is *certain*: a rank waits for another that has finished, or that waits
itself for one that can never come. A rank is never taken for stuck while it, or whoever it waits
for, may still run a line of the job: where it runs user code, waits with a time-out (its own or its
group's), has more threads or callbacks of futures, or receives from anyone.
"""

import hashlib
import os
import threading
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from .board import mapped

# A rank's part of the file, words of 8 bytes: how often it was written, whether the rank waits, for
# what (see `Place`), whether something of the rank may go on unseen; then pairs: a key, a number.
_SERIAL, _WAITS, _KEY, _ANY, _SEQ, _NAME, _PEERS, _UNSEEN, _ROWS = range(9)
_WORDS = 256
_MOST_RANKS = 62  # bits of a word
_PATIENT = timedelta(minutes=30)  # torch's own limit; who asks for less may live on after it

_mine: memoryview | None = None  # this rank's part
_main = 0  # its main thread
_own_threads = 0  # how many it has without those of jobs
_rows: dict[int, int] = {}  # key -> where its number is


def attach(path: str | os.PathLike[str], rank: int, world_size: int) -> None:
    """Let this process write the part of ``rank`` in the file at ``path``."""
    global _mine, _main, _own_threads
    _main, _own_threads = threading.get_ident(), threading.active_count()
    if world_size <= _MOST_RANKS:
        words = memoryview(mapped(path)).cast("q")
        _mine = words[rank * _WORDS : (rank + 1) * _WORDS]


def forget() -> None:
    """All ranks have finished a job: no collective is open, and its groups are gone."""
    if _mine is not None:
        _rows.clear()
        for word in range(_WAITS, _WORDS):
            _mine[word] = 0


def unseen() -> None:
    """From here on, until `forget`, assume that unrecorded code may act for this rank."""
    if _mine is not None:
        _mine[_UNSEEN] = 1


def alone() -> bool:
    """Whether this is the main thread and the job has started no other thread that still runs."""
    if threading.get_ident() != _main:
        return False
    if threading.active_count() <= _own_threads:
        return True  # else tqdm's monitor may be there, which only redraws bars
    return sum(type(t).__name__ != "TMonitor" for t in threading.enumerate()) <= _own_threads


class PendingWait(NamedTuple):
    """What an issued collective waits for."""

    key: int  # of what the peers must have issued
    any_key: int  # with this one a peer may have done so too; 0: there is none
    seq: int  # more than this many must have been issued
    name: int  # another one with this key and seq never ends; 0: names say nothing
    peers: int  # a bit for each


class GroupPlace:
    """The share of one group in this rank's part.

    name, members : the same on all members. timeout : time after which its collectives fail.
    Below half an hour the program may rely on that failure, so no deadlock is reported.
    """

    def __init__(self, name: str, members: Sequence[int], timeout: timedelta | None = None):
        self._name, self._members = name, tuple(members)
        self._patient = timeout is None or timeout >= _PATIENT
        self._entries: dict[Any, list[int]] = {}

    def issue(
        self, collective: str, pair: tuple[int, int] | None = None, tag: int = 0
    ) -> PendingWait | None:
        """Count a collective, or a message of ``pair`` (sender, receiver; of a negative sender:
        anyone); what it waits for, None where that is not known for certain."""
        if _mine is None:
            return None
        what = (collective, *pair, tag) if pair else None
        entry = self._entries.get(what)
        if entry is None:
            entry = self._entries[what] = [0, *self._keys(collective, pair, tag)]
        count, own, theirs, any_key, name, peers = entry
        entry[0] = count + 1
        _count(own, count + 1)
        if not self._patient or (pair and pair[0] < 0):
            return None
        if not pair:
            name = _number(collective)
        return PendingWait(theirs, any_key, count, name, peers)

    def _keys(self, collective, pair, tag):
        """(own key, the peers', their key of messages from anyone, name, peers)."""
        group = f"{self._name} {self._members}"
        if not pair:
            key = _number(group)
            return key, key, 0, 0, sum(1 << rank for rank in self._members)
        anyone = _number(f"{group} anyone")
        if pair[0] < 0:
            return anyone, 0, 0, 0, 0
        send, recv = (_number(f"{group} {kind} {pair} {tag}") for kind in ("send", "recv"))
        if collective == "send":
            return send, recv, anyone, 0, 1 << pair[1]
        return recv, send, 0, 0, 1 << pair[0]


_numbers: dict[str, int] = {}


def _number(text):
    """A number for a text, the same in all processes."""
    if text not in _numbers:
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        _numbers[text] = int.from_bytes(digest, "little") >> 1 or 1
    return _numbers[text]


def _count(key, count):
    row = _rows.get(key)
    if row is None:
        row = _ROWS + 2 * len(_rows)
        if row + 1 >= _WORDS:
            return unseen()
        _rows[key] = row
        _mine[row] = key  # pyright: ignore[reportOptionalSubscript]
    _mine[row + 1] = max(count, _mine[row + 1])  # pyright: ignore[reportOptionalSubscript]


def wait(what: PendingWait | None) -> None:
    """Record that this rank now waits for ``what`` and does nothing else until `go`."""
    if _mine is not None and what is not None and alone():
        _mine[_KEY], _mine[_ANY], _mine[_SEQ], _mine[_NAME], _mine[_PEERS] = what
        _mine[_SERIAL] += 1
        _mine[_WAITS] = 1


def go() -> None:
    """Record that the wait has ended."""
    if _mine is not None and _mine[_WAITS] and threading.get_ident() == _main:
        _mine[_WAITS] = 0
        _mine[_SERIAL] += 1


# -- the caller's side -----------------------------------------------------------------------------
class RankPlace(NamedTuple):
    """What one rank has written to the file."""

    serial: int
    waits: PendingWait | None
    unseen: bool
    counts: dict[int, int]  # key -> how many it has issued

    def has_issued(self, wait: PendingWait) -> bool:
        """Whether this rank may have done its part of a collective that another waits for."""
        return self.counts.get(wait.key, 0) > wait.seq or wait.any_key in self.counts

    def denies(self, wait: PendingWait) -> bool:
        """Whether this rank waits in another collective of the group in place of that one."""
        mine = self.waits
        same = mine is not None and (mine.key, mine.seq) == (wait.key, wait.seq)
        return same and mine.name != wait.name  # pyright: ignore[reportOptionalMemberAccess]


class Places:
    """The file in which a pool's ranks write their places, created empty at ``path``."""

    def __init__(self, path: str | os.PathLike[str], world_size: int):
        self._size = world_size if world_size <= _MOST_RANKS else 0
        self._map = mapped(path, 8 * _WORDS * world_size)

    def read(self) -> list[RankPlace]:
        """Where each rank stands now; nothing for worlds that are too large for this."""
        return [self._read(rank) for rank in range(self._size)]

    def _read(self, rank):
        part = self._map[8 * _WORDS * rank : 8 * _WORDS * (rank + 1)]
        words = memoryview(part).cast("q")
        wait = PendingWait(*words[_KEY : _PEERS + 1]) if words[_WAITS] else None
        rows = words[_ROWS:].tolist()
        counts = {key: count for key, count in zip(rows[::2], rows[1::2]) if key}
        return RankPlace(words[_SERIAL], wait, bool(words[_UNSEEN]), counts)

    def close(self) -> None:
        """Close the file; the pool removes it with its directory."""
        self._map.close()


def stuck(places: Sequence[RankPlace], finished: Collection[int]) -> dict[int, list[int]]:
    """Ranks that can never go on -> the ranks for which each of them waits in vain.

    All that may go on do so until nothing changes: what is left waits for each other or for ranks
    that have finished.
    """
    waits = {
        rank: place.waits
        for rank, place in enumerate(places)
        if place.waits and not place.unseen and rank not in finished
    }
    over = {rank for rank in finished if not places[rank].unseen}
    vain = {rank: _lacking(rank, wait, places, over | waits.keys()) for rank, wait in waits.items()}
    while free := [rank for rank, lacking in vain.items() if not lacking]:
        for rank in free:
            del vain[rank]
        left = over | vain.keys()
        vain = {rank: _lacking(rank, waits[rank], places, left) for rank in vain}
    return vain


def _lacking(rank, wait, places, halted):
    """Peers of a waiting rank that are halted and have not done their part, or do another one."""
    return [
        peer
        for peer, place in enumerate(places)
        if wait.peers >> peer & 1
        and peer != rank
        and peer in halted
        and (place.denies(wait) or not place.has_issued(wait))
    ]


class RankWatch:
    """Watches for deadlocks: a state counts as certain if it lasts for ``apart`` seconds.

    places : what has a ``read()`` as `Places` has.
    """

    def __init__(self, places: Any, apart: float = 1.0, every: float = 0.25):
        self._places, self._apart, self._every = places, apart, every
        self._seen: Any = {}
        self._since = self._last = 0.0

    def look(self, finished: Collection[int], now: float) -> dict[int, list[int]]:
        """{rank: ranks it waits for in vain} that is certain at ``now`` (s), as by `stuck`."""
        if now - self._last < self._every:
            return {}
        places, self._last = self._places.read(), now
        vain = stuck(places, finished) if places else {}
        seen = {rank: (places[rank].serial, peers) for rank, peers in vain.items()}
        if seen != self._seen:
            self._seen, self._since = seen, now
        return vain if now - self._since >= self._apart else {}
