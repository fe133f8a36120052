"""A moment at which a capture or a replay in the current context gives up.

>>> with until(0.0):
...     check()
Traceback (most recent call last):
tpviz.cluster.clock.deadline.OutOfTime
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tpviz.core.here import thread_time

_moment = ContextVar("moment", default=float("inf"))


class OutOfTime(Exception):
    """The deadline set by `until` has passed."""


@contextmanager
def until(moment: float) -> Iterator[None]:
    """Inside, `check` raises `OutOfTime` once `thread_time` reaches ``moment`` (s)."""
    token = _moment.set(moment)
    try:
        yield
    finally:
        _moment.reset(token)


def check_pace(start: float, done: int, whole: int) -> None:
    """Raise `OutOfTime` if ``done`` of ``whole`` equal pieces of work, begun at ``start``, show
    that the rest would miss the deadline even at twice the speed."""
    now = thread_time()
    if now + (now - start) / max(done, 1) * (whole - done) * (done > 0) / 2 > _moment.get():
        raise OutOfTime


def check() -> None:
    """Raise `OutOfTime` if the deadline has passed."""
    if thread_time() > _moment.get():
        raise OutOfTime
