"""Copies between a device's memory and its host's: their names, and who watches them.

A scheme that copies tells the `Watcher`, if there is one; recorders put themselves here. Each
direction has a queue of its own, as a link that works both ways at once has, and is named like an
axis of a mesh, which no mesh can have: its group is the rank alone.
"""

from typing import Any, Protocol

TO_HOST, FROM_HOST = "to-host", "from-host"
HOST = TO_HOST, FROM_HOST
"""The directions, where collectives have the axis of a mesh."""
COPY = "copy"
"""What is counted on them, where collectives have names."""


class Watcher(Protocol):
    """Records copies: `departed` gives a row that `arrived` and `awaited` take."""

    def departed(self, way: str, size: int) -> Any:
        """A copy of ``size`` bytes one ``way`` of `HOST` begins."""
        ...

    def stamp(self) -> Any:
        """Now, on the clock of the recording."""
        ...

    def arrived(self, row: Any) -> None:
        """The last of its bytes is there, in whatever thread or stream this is."""
        ...

    def awaited(self, row: Any, start: Any) -> None:
        """Compute needs them: it was blocked from ``start`` until now."""
        ...


watcher: Watcher | None = None
"""That of this process."""


def watch(by: Watcher | None) -> None:
    """Have copies watched ``by`` this; None: by nobody."""
    global watcher
    watcher = by
