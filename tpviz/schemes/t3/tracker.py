"""The tracker and its triggers in software: updates of each tile are counted, the last one acts.

In T3's hardware the memory controller counts a tile's updates and starts the DMA programmed for it
(Pati et al. 2024, section 4). Here `map_tile` is the programming, `update` the op-and-store; how
many updates a tile has is `paper.updates_per_element`.

>>> tracker, sent = Tracker(), []
>>> tracker.map_tile("tile", 2, sent.append)
>>> tracker.update("tile", 3); tracker.update("tile", 4)
>>> sent, len(tracker)
([7], 0)
"""

from collections.abc import Callable, Hashable
from operator import iadd
from typing import Any


class Tracker:
    """Tiles that have not had all of their updates; ``len`` says how many have had one or more."""

    def __init__(self):
        self._mapped, self._held = {}, {}

    def map_tile(self, tile: Hashable, updates: int, trigger: Callable[[Any], object]) -> None:
        """Call ``trigger(sum)`` once the tile has had ``updates`` updates."""
        self._mapped[tile] = updates, trigger

    def update(self, tile: Hashable, value: Any) -> None:
        """Store the tile's first update, add others to it (in place); the last one triggers.

        Two updates add up to the same bits whichever comes first. Raises ``RuntimeError`` for a
        tile that is not mapped, or had its updates.
        """
        if tile not in self._mapped:
            raise RuntimeError(f"tile {tile!r} is not mapped, or has had all of its updates")
        updates, trigger = self._mapped[tile]
        count, total = self._held.pop(tile, (0, None))
        total = value if total is None else iadd(total, value)
        if count + 1 < updates:
            self._held[tile] = count + 1, total
            return
        del self._mapped[tile]
        trigger(total)

    def __len__(self):
        return len(self._held)

    def finish(self) -> None:
        """Raise ``RuntimeError`` if a tile still waits for an update."""
        if self._mapped:
            raise RuntimeError(f"tiles that never had all of their updates: {[*self._mapped][:8]}")
