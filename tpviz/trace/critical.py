"""Which collectives belong together across ranks, and which events set the length of a trace.

The walk back from the end through the last arrival at each collective is the classic critical path
of a message-passing trace (as Scalasca finds it for MPI): derived here for collectives whose start
is the issue and whose end is the completion.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict

import numpy as np


def match_collectives(trace):
    """Rows of the same collective on its ranks: a list of integer arrays, in order of first issue.

    Rows belong together that have the same members, seq and name; a send and a recv pair up by
    members and seq (the runtime writes a message's members as "sender,receiver"). Where a rank
    repeats a key, as after a restart, the n-th belongs to the n-th. Rows without members or seq
    stay alone, as do pairs with two senders or two receivers.
    """
    groups, seen = defaultdict(list), defaultdict(int)
    for row in np.flatnonzero(trace["kind"] == "comm").tolist():
        rank, name = int(trace["rank"][row]), str(trace["name"][row])
        members, seq = str(trace["members"][row]), int(trace["seq"][row])
        peer = name in ("send", "recv")
        if not members or seq < 0:
            groups["alone", row].append(row)
            continue
        key = (members, seq, "message" if peer else name)
        turn = seen[key, rank, name if peer else ""]
        seen[key, rank, name if peer else ""] += 1
        groups[(*key, turn)].append(row)
    found = [part for rows in groups.values() for part in _consistent(trace, rows)]
    return sorted(found, key=lambda rows: (trace["start"][rows].min(), rows[0]))


def last_members(trace):
    """{row of a collective: row of the member that issued it last}."""
    if "last" in trace.columns:  # of ranks that share rows not every member has its own
        row_of = {i: row for row, i in enumerate(trace["id"].tolist())}
        last = trace["last"].tolist()
        return {row: row_of.get(last[row], row)
                for row in np.flatnonzero(trace["kind"] == "comm").tolist()}
    start, found = trace["start"].tolist(), {}
    for rows in map(np.ndarray.tolist, match_collectives(trace)):
        found.update(dict.fromkeys(rows, max(rows, key=start.__getitem__)))
    return found


def _consistent(trace, rows):
    """The rows as one group, or each alone if a message would have two of the same end."""
    rows = np.array(rows)
    message = trace["name"][rows[0]] in ("send", "recv")
    if message and (
        len(rows) > 2
        or len(set(trace["name"][rows].tolist())) < len(rows)
        or len(set(trace["rank"][rows].tolist())) < len(rows)
    ):
        return [rows[i : i + 1] for i in range(len(rows))]
    return [rows]


def critical_path(trace):
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
    before it. Returns a list of `Event`; empty for an empty trace.
    """
    walk = _Walk(trace)
    path, row = [], walk.last()
    visited = set()
    while row is not None and row not in visited:
        visited.add(row)
        path.append(row)
        row = walk.before(row)
    events = list(trace.where(np.array(path[::-1], dtype=int)))
    return sorted(events, key=lambda event: event.start)


class _Walk:
    """The steps of the walk back; rows are indices into the table, None is the beginning."""

    def __init__(self, trace):
        self.start, self.end = trace["start"].tolist(), trace["end"].tolist()
        self.kind, self.rank = trace["kind"].tolist(), trace["rank"].tolist()
        row_of = {i: row for row, i in enumerate(trace["id"].tolist())}
        sources = [row_of.get(i) for i in trace["waits_for"].tolist()]
        self.waits_for = [r if r is not None and self.kind[r] == "comm" else None for r in sources]
        self.last_member = last_members(trace)
        self.program = self._by_rank(("compute", "wait"), self.start)
        self.finished = self._by_rank(("compute", "comm"), self.end)
        self.waiting_ranks = {r for r, kind in zip(self.rank, self.kind) if kind == "wait"}

    def _by_rank(self, kinds, times):
        """{rank: (sorted times, their rows)} of the events of these kinds."""
        lists = defaultdict(lambda: ([], []))
        for row in sorted(range(len(times)), key=times.__getitem__):
            if self.kind[row] in kinds:
                of_times, of_rows = lists[self.rank[row]]
                of_times.append(times[row])
                of_rows.append(row)
        return lists

    def last(self):
        """The event on the path that the trace ends with."""
        rows = [row for row, kind in enumerate(self.kind) if kind != "step"]
        # At equal ends a wait says least: what it waited for ended then too.
        end = max(rows, key=lambda row: (self.end[row], self.kind[row] != "wait"), default=None)
        return self.stand_in(end)

    def stand_in(self, row):
        """The event on the path in place of ``row``."""
        while row is not None and self.kind[row] == "wait":
            source = self.waits_for[row]
            if source is None:
                return row
            if self.end[source] > self.start[row]:
                row = source
                continue
            # A collective that was done before the wait began held up nobody.
            earlier = self.earlier(row)
            if earlier is None:
                return row
            row = earlier
        if row is not None and self.kind[row] == "comm":
            last = self.last_member[row]
            return last if self.start[last] > self.start[row] else row
        return row

    def earlier(self, row):
        """What the program of the rank of ``row`` had last begun before ``row`` began."""
        times, rows = self.program[self.rank[row]]
        index = bisect_left(times, self.start[row]) - 1
        return rows[index] if index >= 0 else None

    def before(self, row):
        """The event on the path before the event ``row`` on it."""
        rank = self.rank[row]
        if self.kind[row] == "comm" or rank in self.waiting_ranks:
            return self.stand_in(self.earlier(row))
        times, rows = self.finished[rank]
        index = bisect_right(times, self.start[row]) - 1
        while index >= 0 and self.start[rows[index]] >= self.start[row]:
            index -= 1
        return self.stand_in(rows[index]) if index >= 0 else None
