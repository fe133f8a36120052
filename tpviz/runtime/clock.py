"""When something happened: the host's clock on CPU, events in the stream on CUDA.

A CUDA launch returns before the work runs, so a host clock around it would time the launch. A stamp
is therefore a float on CPU and a `torch.cuda.Event` on CUDA; `resolve` turns either into seconds of
``time.perf_counter``, which is one clock for all processes of a host.
"""

import time
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import torch.distributed as dist


class HostClock:
    """Stamps are seconds of ``time.perf_counter``."""

    now = staticmethod(time.perf_counter)

    @staticmethod
    def completion(work: "dist.Work") -> None:
        """None: completion on the host is seen by whoever waits, or by the future's callback."""

    @staticmethod
    def resolve(stamp: float) -> float:
        return stamp


class CudaClock:
    """Stamps are CUDA events; an anchor seen by device and host ties them to the host's clock."""

    def __init__(self):
        torch.cuda.synchronize()
        self.anchor = self.now()
        self.anchor.synchronize()
        self.zero = time.perf_counter()
        self.side = torch.cuda.Stream()

    @staticmethod
    def now() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def completion(self, work: "dist.Work") -> torch.cuda.Event:
        """A stamp at the end of ``work`` (NCCL): a side stream waits for it, no other does."""
        with torch.cuda.stream(self.side):
            work.wait()
            return self.now()

    def resolve(self, stamp: torch.cuda.Event | float) -> float:
        if isinstance(stamp, float):
            return stamp
        stamp.synchronize()  # pyright: ignore[reportAttributeAccessIssue]
        return self.zero + self.anchor.elapsed_time(stamp) / 1e3  # pyright: ignore[reportArgumentType]


def clock() -> HostClock | CudaClock:
    """The clock for this process: CUDA's once CUDA is in use, else the host's."""
    return CudaClock() if torch.cuda.is_available() and torch.cuda.is_initialized() else HostClock()
