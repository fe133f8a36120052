"""When something happened: the clocks of recorders.

A CUDA launch returns before the work runs, so a host clock around it would time the launch. A stamp
is therefore a float on CPU and a `torch.cuda.Event` on CUDA; `resolve` turns either into seconds of
``time.perf_counter``, which is one clock for all processes of a host.
"""

import time
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch
import torch.distributed as dist

ANCHORS = 5


class HostClock:
    """The host's: stamps are seconds of ``time.perf_counter``."""

    now: Callable[[], Any] = staticmethod(time.perf_counter)

    def seen(self) -> Any:
        """A stamp for an event that the host has just observed."""
        return self.now()

    def completion(self, work: dist.Work) -> Any:
        """None: the end of ``work`` is stamped by whoever waits, or by the future's callback."""

    def resolve(self, stamp: Any) -> float:
        """The stamp in seconds."""
        return stamp


class OrderClock(HostClock):
    """A clock whose stamps 0, 1, 2, ... give only the order of events, not times."""

    def __init__(self):
        self.moment = 0

    def now(self) -> float:
        """The next stamp."""
        self.moment += 1
        return float(self.moment - 1)


class CudaClock(HostClock):
    """Stamps are CUDA events; an anchor seen by device and host ties them to the host's clock: of
    `ANCHORS` the one that the host knows best, in the middle of when it can have been."""

    def __init__(self):
        torch.cuda.synchronize()
        _, self.zero, self.anchor = min((self._anchor() for _ in range(ANCHORS)), key=itemgetter(0))
        self.side = torch.cuda.Stream()

    def _anchor(self):
        before, event = time.perf_counter(), self.now()
        event.synchronize()
        after = time.perf_counter()
        return after - before, (before + after) / 2, event

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seen(self) -> float:
        return time.perf_counter()

    def completion(self, work: dist.Work) -> torch.cuda.Event:
        """A stamp at the end of ``work`` (NCCL): a side stream waits for it, no other does."""
        with torch.cuda.stream(self.side):
            work.wait()
            return self.now()

    def resolve(self, stamp: torch.cuda.Event | float) -> float:
        if not isinstance(stamp, torch.cuda.Event):
            return stamp
        stamp.synchronize()
        return self.zero + self.anchor.elapsed_time(stamp) / 1e3


def host_or_device_clock() -> HostClock:
    """The clock for this process: CUDA's once CUDA is in use, else the host's."""
    return CudaClock() if torch.cuda.is_available() and torch.cuda.is_initialized() else HostClock()
