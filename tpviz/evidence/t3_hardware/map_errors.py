"""What is wrong with address maps, in words: for people who write their own.

Nothing is timed: what arrives where follows from the maps alone, whatever comes first.

>>> from .maps import maps
>>> mine = maps("ring_rs", 4)
>>> mine[0][1] = 2, Dma(3, "update", 1)
>>> print(*check(mine), sep="\\n")
rank 0 sends chunk 2 after 1 update of each element, but 2 come: too early, 1 would be left behind
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tpviz.core.checks import one_of
from tpviz.evidence.facts import filled, notes

from .maps import COLLECTIVES, OPS, Dma, Local, Remote

if TYPE_CHECKING:
    from .maps import Rule


def check(maps: "Sequence[Sequence[tuple[int, Rule]]]", collective: str = "ring_rs") -> list[str]:
    """What keeps ``maps`` from being the collective, as a list of sentences; empty if nothing does.

    maps : per rank a list of (chunk, rule). collective : of `COLLECTIVES`, for what is computed and
    where it is to end; its own maps are one way among others. Wrong are chunks that never complete
    or are triggered too early, ranks that wait for each other, parts that are missing or
    overwritten, and chunks that end at a rank that is not their owner.
    """
    goal = COLLECTIVES[one_of("collective", collective, tuple(COLLECTIVES))]
    if not isinstance(maps, (list, tuple)):
        return [f"maps={maps!r} is no list with a map for each rank"]
    wrong = [line for rank, row in enumerate(maps) for line in _strangers(rank, row, len(maps))]
    if wrong:
        return wrong
    flow = _Flow([dict(row) for row in maps], goal)
    ends, rings = [], []
    for chunk in range(flow.ranks):
        held, ring = flow.run(chunk)
        ends += _ends(flow, chunk, held)
        rings += ring
    lines = [*_counts(flow), *_overwritten(flow)]
    return lines + (rings or ends)


class _Flow:
    """What comes to each (rank, chunk) and what is there when it is complete."""

    def __init__(self, rules, goal):
        self.rules, self.goal, self.ranks = rules, goal, len(rules)
        self.coming = defaultdict(list)
        for rank, row in enumerate(rules):
            for chunk, rule in row.items():
                if self.sends(rank, chunk):
                    self.coming[rule.to, chunk].append(rank)

    def computes(self, rank, chunk):
        """Whether a rank's GEMM makes a part of a chunk."""
        return self.goal.computes == "all" or rank == chunk

    def sends(self, rank, chunk):
        """Whether something of it goes to another rank."""
        rule = self.rules[rank][chunk]
        return isinstance(rule, Dma) or (isinstance(rule, Remote) and self.computes(rank, chunk))

    def stays(self, rank, chunk):
        """Whether what it makes is stored in its own memory."""
        return self.computes(rank, chunk) and not isinstance(self.rules[rank][chunk], Remote)

    def run(self, chunk):
        """(per rank the ranks whose parts it holds in the end, as bits; the rings, in words).

        No part gets anywhere twice: a rank sends a chunk to one other rank at most.
        """
        rules = [row[chunk] for row in self.rules]
        held = [0] * self.ranks
        for rank, rule in enumerate(rules):
            if self.computes(rank, chunk):
                held[rule.to if isinstance(rule, Remote) else rank] |= 1 << rank
        awaited = Counter(rule.to for rule in rules if isinstance(rule, Dma))
        ready = [rank for rank in range(self.ranks) if not awaited[rank]]
        for rank in ready:  # grows
            rule = rules[rank]
            if isinstance(rule, Dma):
                held[rule.to] |= held[rank]
                awaited[rule.to] -= 1
                if not awaited[rule.to]:
                    ready.append(rule.to)
        return held, list(_rings(chunk, rules, set(range(self.ranks)) - set(ready)))


def _rings(chunk, rules, left):
    """Ranks that are left over wait for themselves, each through the one that it sends to."""
    while left:
        ring = [min(left)]
        while (to := rules[ring[-1]].to) != ring[0]:
            ring.append(to)
        left -= set(ring)
        yield (f"chunk {chunk}: {_ranks(ring)} wait for each other's updates in a ring: deadlock")


def _is_whole(value, low, ranks=np.inf):
    """1.0 and True are no ranks, chunks or counts, though they equal some."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return whole and low <= value < ranks


def _strangers(rank, row, ranks):
    """Entries that are of no map of so many ranks."""
    if not isinstance(row, (list, tuple)):
        yield f"the map of rank {rank} is {row!r}, not a list of (chunk, rule)"
        return
    seen = Counter()
    for entry in row:
        if not isinstance(entry, (list, tuple)) or len(entry) != 2:
            yield f"rank {rank}: {entry!r} is not (chunk, rule)"
        elif not _is_whole(entry[0], 0, ranks):
            yield f"rank {rank}: there is no chunk {entry[0]!r}, they are 0 to {ranks - 1}"
        else:
            seen[entry[0]] += 1
            yield from _odd(rank, *entry, ranks)  # pyright: ignore[reportCallIssue]
    for chunk in sorted(set(range(ranks)) - set(seen)):
        yield f"rank {rank} has no rule for chunk {chunk}"
    for chunk, times in seen.items():
        if times > 1:
            yield f"rank {rank} has {times} rules for chunk {chunk}: give one"


def _odd(rank, chunk, rule, ranks):
    """What is no rule for a rank among so many."""
    where = f"rank {rank}, chunk {chunk}"
    if not isinstance(rule, (Remote, Dma, Local)):
        yield f"{where}: {rule!r} is no rule: use Remote, Dma or Local"
        return
    if not isinstance(rule, Local):
        if not _is_whole(rule.to, 0, ranks):
            yield f"{where}: there is no rank {rule.to!r}, they are 0 to {ranks - 1}"
        elif rule.to == rank:
            yield f"{where}: it is sent to rank {rank} itself"
        if rule.op not in OPS:
            yield f"{where}: op={rule.op!r} is neither 'update' nor 'store'"
    if not isinstance(rule, Remote) and not _is_whole(rule.updates, 1):
        yield f"{where}: updates={rule.updates!r} must be a whole number from 1"


def _say(heading, **facts):
    return filled(notes(__file__)[heading], **facts)


def _counts(flow):
    """Too many or too few updates for what a rule waits for."""
    for rank, row in enumerate(flow.rules):
        for chunk, rule in row.items():
            coming, place = flow.coming[rank, chunk], {"rank": rank, "chunk": chunk}
            if isinstance(rule, Remote):
                if coming:
                    yield _say("kept", **place, to=rule.to, ranks=_ranks(coming))
                elif not flow.computes(rank, chunk):
                    yield f"rank {rank} does not compute chunk {chunk}: Remote sends nothing"
                continue
            if flow.goal.many and isinstance(rule, Dma):
                yield _say("by DMA", **place)
                continue
            total = flow.stays(rank, chunk) + len(coming)
            if flow.goal.many:  # a buffer for each source, each written once
                total = min(total, 1)
            counts = {"updates": _updates(rule.updates), "total": total}
            if rule.updates > total:
                comes = "comes" if total == 1 else "come"
                yield _say("never completes", **place, **counts, comes=comes)
            elif rule.updates < total:
                does = "sends" if isinstance(rule, Dma) else "calls complete"
                left = total - rule.updates
                yield _say("too early", **place, **counts, does=does, left=left)


def _overwritten(flow):
    """Stores instead of updates, and the reverse."""
    for rank, row in enumerate(flow.rules):
        for chunk, rule in row.items():
            if not flow.sends(rank, chunk):
                continue
            there = len(flow.coming[rule.to, chunk]) + flow.stays(rule.to, chunk)
            if flow.goal.sums and rule.op == "store" and there > 1:
                yield _say("over what comes", rank=rank, chunk=chunk, to=rule.to)
            elif not flow.goal.sums and rule.op == "update":
                yield _say("nothing is summed", rank=rank, chunk=chunk, to=rule.to)


def _ends(flow, chunk, held):
    """What is where in the end, against what should be."""
    if flow.goal.ends == "all":
        for rank in range(flow.ranks):
            yield from _missing(held[rank], [chunk], rank, chunk)
        return
    for rank in range(flow.ranks):
        local = isinstance(flow.rules[rank][chunk], Local)
        if rank == chunk and not local:
            yield f"rank {rank} sends chunk {chunk} away, which is its own: use Local"
        elif rank == chunk:
            yield from _missing(held[rank], range(flow.ranks), rank, chunk)
        elif local and held[rank]:
            yield f"chunk {chunk} ends at rank {rank}: its owner is rank {chunk}"


def _missing(held, wanted, rank, chunk):
    """Nothing else can be wrong: a part has one rule on each rank, so one way, and ends once."""
    missing = [r for r in wanted if not held >> r & 1]
    if missing:
        yield f"rank {rank}, chunk {chunk}: the part of {_ranks(missing)} never gets there"


def _updates(number):
    return "1 update" if number == 1 else f"{number} updates"


def _ranks(ranks):
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
