"""Which collectives belong together across ranks, and which events set the length of a trace.

The walk back from the end through the last arrival at each collective is the classic critical path
of a message-passing trace (as Scalasca finds it for MPI): derived here for collectives whose start
is the issue and whose end is the completion.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tpviz.core.show import Tabular
from tpviz.core.tables import listed, show_seconds

from .columns import UNKNOWN, Event, codes

if TYPE_CHECKING:
    from .table import Trace


def match_collectives(trace: "Trace") -> list[np.ndarray]:
    """Rows of the same collective on its ranks: a list of integer arrays, in order of first issue.

    Rows belong together that have the same group (axis and members), seq and name; a send and a
    recv pair up by group and seq (the runtime writes a message's members as "sender,receiver").
    Where a rank repeats a key, as after a restart, the n-th belongs to the n-th. Rows without
    members or seq stay alone, as do pairs with two senders or two receivers. (On an "unknown" axis
    no members are needed: seq is there in imported traces whose ranks have equal sequences of
    collectives.)
    """
    rows, group = collective_groups(trace)
    return np.split(rows, np.flatnonzero(np.diff(group)) + 1) if len(rows) else []


def last_members(trace: "Trace") -> np.ndarray:
    """For each row of a collective, the row of the member that issued it last (the first of
    several); -1 for other rows."""
    last = np.full(len(trace["start"]), -1)
    if "last" in trace.columns:  # of ranks that share rows not every member has its own
        rows = np.flatnonzero(trace["kind"] == "comm")
        found = rows_of(trace, trace["last"][rows])
        last[rows] = np.where(found >= 0, found, rows)
        return last
    rows, group = collective_groups(trace)
    order = np.lexsort((-trace["start"][rows], group))
    last[rows] = rows[order][np.flatnonzero(np.diff(group, prepend=-1))][group]
    return last


def rows_of(trace: "Trace", ids: np.ndarray) -> np.ndarray:
    """The row of each event's id, -1 where there is none."""
    order = np.argsort(trace["id"], kind="stable")
    if not len(order):
        return np.full(len(ids), -1)
    rows = order[np.searchsorted(trace["id"][order], ids, "right") - 1]
    return np.where(trace["id"][rows] == ids, rows, -1)


def collective_groups(trace: "Trace") -> tuple[np.ndarray, np.ndarray]:
    """(rows, number of the group of each), group after group, as `match_collectives` has them."""
    rows = np.flatnonzero(trace["kind"] == "comm")
    rank, seq, start = (trace[column][rows] for column in ("rank", "seq", "start"))
    members, names = codes(trace["members"][rows]), codes(trace["name"][rows])
    peer = np.isin(names[0], ["send", "recv"])[names[1]]
    what, end = np.where(peer, -1, names[1]), np.where(peer, names[1], -1)
    nobody = (members[0] == "")[members[1]] & (trace["axis"][rows] != UNKNOWN)
    alone = nobody | (seq < 0)
    axis = codes(trace["axis"][rows])[1]  # groups with equal members have axes of their own
    keys = [np.where(alone, np.arange(len(rows)), -1), members[1], axis, seq, what]
    _, turn = runs([*keys, rank, end])
    order, place = runs([*keys, turn])
    group = np.cumsum(place[order] == 0) - 1
    size = np.bincount(group)[group]
    # A message has one sender and one receiver: with two of either, each row stays alone.
    second = (size == 2) & (place[order] == 1)
    twice = np.zeros(len(rows), bool)
    for column in (rank[order], end[order]):
        twice[1:] |= second[1:] & (column[1:] == column[:-1])
    wrong = peer[order] & ((size > 2) | np.bincount(group, twice).astype(bool)[group])
    group = np.cumsum((place[order] == 0) | wrong) - 1
    begins = np.flatnonzero(np.diff(group, prepend=-1))
    if len(rows):
        first = np.minimum.reduceat(start[order], begins)
        by_start = np.argsort(np.lexsort((order[begins], first)))[group]
        again = np.argsort(by_start, kind="stable")
        order, group = order[again], by_start[again]
    return rows[order], group


def runs(keys: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(order that brings equal rows together, each row's index among its equals)."""
    order = np.lexsort(keys[::-1])
    opens = np.zeros(len(order), bool)
    opens[:1] = True
    for key in keys:
        opens[1:] |= np.diff(key[order]) != 0
    count, place = np.arange(len(order)), np.empty(len(order), np.int64)
    place[order] = count - np.maximum.accumulate(np.where(opens, count, 0))
    return order, place


class CriticalPath(Tabular, list[Event]):
    """The events of `critical_path`, in time order: a list that prints as a table."""

    _look, _right = "tpviz-path", (0, 1, 6, 7)

    def spent(self) -> list[tuple[float, float]]:
        """For each event of the path: (seconds before it in which no event of the path runs,
        seconds that it adds). All of them sum to the time from the first start to the last end."""
        now, found = self[0].start if self else 0.0, []
        for event in self:
            gap = max(0.0, event.start - now)
            now += gap
            found.append((gap, max(0.0, event.end - now)))
            now = max(now, event.end)
        return found

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: each event, the time it adds to the path, and the gap
        before it, in which no event of the path ran."""
        rows = [["at", "rank", "lane", "name", "phase", "layer", "time", "gap before"]]
        for event, (gap, own) in zip(self, self.spent()):
            words = event.lane, event.name, event.phase, event.layer
            times = show_seconds(event.start), *map(show_seconds, (own, gap))
            rows.append([times[0], str(event.rank), *words, *times[1:]])
        return rows

    def describe(self) -> str:
        """The path in a sentence: how long it is, and of what, largest first."""
        if not self:
            return "An empty critical path."
        spent, sums = self.spent(), {}
        for event, (gap, own) in zip(self, spent):
            what = {"compute": "computing", "comm": "communication", "copy": "copying"}
            for name, length in ((what.get(event.kind, "waiting"), own), ("gaps", gap)):
                sums[name] = sums.get(name, 0.0) + length
        total, ranks = sum(map(sum, spent)), sorted({event.rank for event in self})
        parts = ", ".join(
            f"{name} {100 * length / total:.1f} %"
            for name, length in sorted(sums.items(), key=lambda part: -part[1])
            if length > 0
        )
        return (
            f"Critical path of {len(self)} events on rank{'s' * (len(ranks) > 1)} "
            f"{listed(list(map(str, ranks)))} over {show_seconds(total)}: {parts}."
        )

    def _above(self):
        return self.describe()

    def _printed(self):
        """The table; of a long path its beginning and its end."""
        head, *rows = self.to_table()
        if len(rows) <= SHOWN:
            return [head, *rows]
        half, more = SHOWN // 2, f"... {len(rows) - SHOWN} more ..."
        return [head, *rows[:half], ["", "", "", more, "", "", "", ""], *rows[-half:]]


SHOWN = 40
"""Most events of a path that are printed; `CriticalPath.to_table` has all."""


def critical_path(trace: "Trace") -> CriticalPath:
    """The chain of events, in time order and across ranks, that decided when the trace ended.

    Found backwards, from the event that ends last (steps are not events here):

    * before a computation comes the previous event of the same rank's program, that is, of its
      computations and waits;
    * a wait stands for the collective it waited for, and is itself on the path only where that is
      unknown;
    * a collective stands for the part of its *last* member, who issued it last and let it begin;
      before it comes what that member's program had last begun before the issue.

    Ranks without any wait events (imported GPU traces) do not say what they wait for: there, what
    comes before a computation is whichever of the rank's computations and collectives ended last
    before it. Returns a `CriticalPath`, a list of `Event`; empty for an empty trace.
    """
    walk = _Walk(trace)
    path, row = [], walk.last()
    visited = set()
    while row is not None and row not in visited:
        visited.add(row)
        path.append(row)
        row = walk.before(row)
    events = list(trace.where(np.array(path[::-1], dtype=int)))
    return CriticalPath(sorted(events, key=lambda event: event.start))


class _Walk:
    """The steps of the walk back; rows are indices into the table, None is the beginning."""

    def __init__(self, trace):
        self.start, self.end, self.rank = trace["start"], trace["end"], trace["rank"]
        self.comm, self.wait = trace["kind"] == "comm", trace["kind"] == "wait"
        sources = rows_of(trace, trace["waits_for"])
        self.waits_for = np.where((sources >= 0) & self.comm[sources], sources, -1)
        self.last_member = last_members(trace)
        compute = np.isin(trace["kind"], ["compute", "copy"])
        self.program = self._by_rank(compute | self.wait, self.start)
        self.finished = self._by_rank(compute | self.comm, self.end)
        self.waiting_ranks = set(np.unique(self.rank[self.wait]).tolist())
        self.events = np.flatnonzero(trace["kind"] != "step")

    def _by_rank(self, mask, times):
        """{rank: (sorted times, their rows)} of the events in the mask."""
        rows = np.flatnonzero(mask)
        rows = rows[np.argsort(times[rows], kind="stable")]
        of_rank = {rank: rows[self.rank[rows] == rank] for rank in np.unique(self.rank[rows])}
        return {rank: (times[rows], rows) for rank, rows in of_rank.items()}

    def last(self):
        """The event on the path that the trace ends with."""
        if not len(self.events):
            return None
        # At equal ends a wait says least: what it waited for ended then too.
        order = np.lexsort((self.wait[self.events], -self.end[self.events]))
        return self.stand_in(self.events[order[0]])

    def stand_in(self, row):
        """The event on the path in place of ``row``."""
        while row is not None and self.wait[row]:
            source = self.waits_for[row]
            if source < 0:
                return row
            if self.end[source] > self.start[row]:
                row = source
                continue
            # A collective that was done before the wait began held up nobody.
            earlier = self.earlier(row)
            if earlier is None:
                return row
            row = earlier
        if row is not None and self.comm[row]:
            last = self.last_member[row]
            return last if self.start[last] > self.start[row] else row
        return row

    def earlier(self, row):
        """What the program of the rank of ``row`` had last begun before ``row`` began."""
        times, rows = self.program.get(self.rank[row], ((), ()))
        index = np.searchsorted(times, self.start[row]) - 1
        return rows[index] if index >= 0 else None

    def before(self, row):
        """The event on the path before the event ``row`` on it."""
        rank = self.rank[row]
        if self.comm[row] or rank in self.waiting_ranks:
            return self.stand_in(self.earlier(row))
        times, rows = self.finished.get(rank, ((), ()))
        index = np.searchsorted(times, self.start[row], "right") - 1
        while index >= 0 and self.start[rows[index]] >= self.start[row]:
            index -= 1
        return self.stand_in(rows[index]) if index >= 0 else None
