"""What recording itself takes, measured once in a process."""

import functools
import time

import torch

from .compute import KernelHook


@functools.cache
def kernel_cost() -> float:
    """Seconds that recording adds to one kernel, on a one-element product; not while recording."""
    x = torch.ones(1, 1)
    plain = _seconds_each(lambda: x @ x)
    with KernelHook(time.perf_counter, [].append):
        return max(0.0, _seconds_each(lambda: x @ x) - plain)


def _seconds_each(function, times=300):
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(times):
            function()
        best = min(best, (time.perf_counter() - start) / times)
    return best
