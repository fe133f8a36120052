"""A moment at which a capture or a replay in the current context gives up.

>>> with until(0.0):
...     check()
Traceback (most recent call last):
tpviz.cluster.clock.deadline.OutOfTime
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import thread_time

_moment = ContextVar("moment", default=float("inf"))


class OutOfTime(Exception):
    """The moment has come."""


@contextmanager
def until(moment: float) -> Iterator[None]:
    """Inside, `check` raises `OutOfTime` from ``moment`` on, by `time.thread_time`."""
    token = _moment.set(moment)
    try:
        yield
    finally:
        _moment.reset(token)


def check_pace(start: float, done: int, whole: int) -> None:
    """The same where ``done`` of ``whole`` equal pieces took since ``start``, and the others would
    not be done in time at twice that pace."""
    now = thread_time()
    if now + (now - start) / max(done, 1) * (whole - done) * (done > 0) / 2 > _moment.get():
        raise OutOfTime


def check() -> None:
    """Raise `OutOfTime` if it is time to give up."""
    if thread_time() > _moment.get():
        raise OutOfTime
