"""The last-level cache, in panels: a slice along k of what one row or column of tiles reads.

A panel that several workgroups request while it is in flight is read once. The cache keeps what
fits; outputs that are stored through it push panels out, T3's go around it (so the paper).
"""

from collections import OrderedDict
from collections.abc import Hashable
from itertools import islice
from random import Random
from typing import Any


class CachedBytes:
    """Some bytes that are cached, or in flight while ``waiting`` lists those who need them."""

    __slots__ = ("bytes", "waiting")

    def __init__(self, bytes: float):
        self.bytes = bytes
        self.waiting: list[Any] | None = []


class Cache:
    """Panels by key, ``capacity`` bytes in all.

    policy : "lru" drops the panel used longest ago, and so loses all of a working set that is gone
    through in turn and is a little too large; "nru" any of the older half (from a fixed seed), as
    caches do that only know what was not used recently.
    """

    def __init__(self, capacity: int, policy: str = "nru"):
        self.capacity, self.used = capacity, 0
        self.held = OrderedDict()  # oldest use first
        self.random = Random(0) if policy == "nru" else None

    def get(self, key: Hashable) -> CachedBytes | None:
        """The `CachedBytes` of a key, or None."""
        panel = self.held.get(key)
        if panel is not None:
            self.held.move_to_end(key)
        return panel

    def put(self, key: Hashable, bytes: float) -> CachedBytes:
        """Keep a new `CachedBytes`; drops others until it fits. One larger than all is not kept."""
        panel = CachedBytes(bytes)
        if bytes > self.capacity:
            return panel
        while self.used + bytes > self.capacity:
            older = self.random.randrange((len(self.held) + 1) // 2) if self.random else 0
            self.used -= self.held.pop(next(islice(self.held, older, None))).bytes
        self.held[key] = panel
        self.used += bytes
        return panel
