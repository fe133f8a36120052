"""The tracker: counts the updates of each part of a tile, and says when the last one is there.

A table of sets, found by the low bits of the tile's number; a record lives from a part's first
update to its last. Where a set has no record free, the update waits until one is (a stall); what
the paper does then is not known. Ranks whose records are all held by parts that wait for the next
rank's could wait for each other for ever: once nothing moves, a part whose updates are all there
goes past the full table (ours; there is one, since the first parts to be sent wait for nobody).

>>> table = Table(sets=1, records=1)
>>> table.admit(0, "a", 2, now=0.0), table.admit(0, "b", 2, now=1.0)
(True, False)
>>> table.count(0, "a"), table.count(0, "a"), table.peak
(False, True, 1)
"""

from collections import defaultdict
from collections.abc import Hashable


class Table:
    """sets x records of update counters. peak : most records that were live at once. stalls : how
    many updates had to wait. spilled : how many parts went past the full table. counts : per part
    the updates that it got. changes : (seconds, +1 or -1) of records."""

    def __init__(self, sets: int, records: int):
        self.sets, self.records = sets, records
        self.used = defaultdict(int)
        self.left, self.counts = {}, defaultdict(int)
        self.live = self.peak = self.stalls = self.spilled = 0
        self.changes = []

    def full(self, place: int) -> bool:
        """Whether a set has no record free."""
        return self.used[place] >= self.records

    def admit(
        self, tile: int, part: Hashable, threshold: int, now: float, spill: bool = False
    ) -> bool:
        """Whether a new part gets a record; spill : it does, past the table."""
        place = tile % self.sets
        if self.full(place) and not spill:
            return False
        self.spilled += spill
        self.used[place] += 1
        self.left[part] = threshold
        self.live += 1
        self.peak = max(self.peak, self.live)
        self.changes.append((now, 1))
        return True

    def count(self, tile: int, part: Hashable, now: float = 0.0) -> bool:
        """One update is in memory; True if it is the last, which frees the record."""
        self.counts[part] += 1
        self.left[part] -= 1
        if self.left[part]:
            return False
        del self.left[part]
        self.used[tile % self.sets] -= 1
        self.live -= 1
        self.changes.append((now, -1))
        return True
