"""Labels a program may put on its own work: phase, layer, microbatch, chunk.

A scheme labels its phase and layer; the recorder reads the current label. Without a recorder this
costs one tuple. This module imports nothing, so schemes stay free of tracing.

>>> with label(layer="block.0", chunk=1):
...     current()
Label(phase='', layer='block.0', microbatch=-1, chunk=1)
"""

from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar


class Label(NamedTuple):
    """What the code now running works on; empty string or -1 means "not said"."""

    phase: str = ""
    layer: str = ""
    microbatch: int = -1
    chunk: int = -1


_Result = TypeVar("_Result")
_current = Label()


def current() -> Label:
    """The label in force. One rank is one process, and autograd's threads must see it: a global."""
    return _current


@contextmanager
def label(**fields: str | int) -> Generator[None, None, None]:
    """Label everything issued in the ``with`` block; fields not given keep their value.

    Parameters: ``phase`` ("forward", "backward", "sync", "recompute", "optimizer"), ``layer``
    (str), ``microbatch`` and ``chunk`` (int). Raises ``ValueError`` on an unknown field.
    """
    global _current
    previous = _current
    _current = previous._replace(**fields)
    try:
        yield
    finally:
        _current = previous


_repeater: Callable[..., Any] | None = (
    None  # who listens to `repeated`: (what, number, work, args) -> the result
)


def set_repeater(repeater: Callable[..., Any] | None) -> None:
    """Set the function that `repeated` passes its calls to; None: `repeated` runs its work."""
    global _repeater
    _repeater = repeater


def repeated(what: Hashable, number: int, work: Callable[..., _Result], *args: Any) -> _Result:
    """The result of ``work(*args)``, None or a tuple of tensors. ``number`` counts the calls with
    the same ``what``. Calls from number 1 on do the same work at other places, so a recorder (see
    `set_repeater`) may copy the record of one instead of running it."""
    if _repeater is None:
        return work(*args)
    return _repeater(what, number, work, args)
