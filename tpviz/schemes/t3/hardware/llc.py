"""The last-level cache, in panels: a slice along k of what one row or column of tiles reads.

A panel that several workgroups ask for while it is under way is read once. The cache keeps what
fits; outputs that are stored through it push panels out, T3's go around it (so the paper).
"""

from collections import OrderedDict
from random import Random


class Panel:
    """Some bytes that are there, or under way while ``waiting`` lists those who need them."""

    __slots__ = ("bytes", "waiting")

    def __init__(self, bytes):
        self.bytes, self.waiting = bytes, []


class Cache:
    """Panels by key, ``capacity`` bytes in all. random : drop any (seeded), else the least recent.
    """

    def __init__(self, capacity, random=False):
        self.capacity, self.used = capacity, 0
        self.held = OrderedDict()
        self.random = Random(0) if random else None

    def get(self, key):
        """The `Panel` of a key, or None."""
        panel = self.held.get(key)
        if panel is not None:
            self.held.move_to_end(key)
        return panel

    def put(self, key, bytes):
        """Keep a new `Panel`; drops others until it fits. One larger than all is not kept."""
        panel = Panel(bytes)
        if bytes > self.capacity:
            return panel
        while self.used + bytes > self.capacity:
            self.used -= self._drop().bytes
        self.held[key] = panel
        self.used += bytes
        return panel

    def _drop(self):
        if self.random is None:
            return self.held.popitem(last=False)[1]
        # near the old end, so that finding it is quick: any of the older half
        steps = self.random.randrange(max(len(self.held) // 2, 1))
        for place, key in enumerate(self.held):
            if place == steps:
                return self.held.pop(key)
        raise AssertionError("an empty cache has nothing to drop")
