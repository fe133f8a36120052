"""What each rank of `contention` does: pairs of a GEMM alone and one under all-reduces."""

import os
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tpviz.ranks.devices import badge

SIZES = {"cpu": 1024, "cuda": 4096}
"""On a CPU long enough to span several of the system's time slices: a shorter GEMM is often over
before the thread that moves the bytes gets a core, and seems not to be slowed."""
PAYLOADS = {"cpu": 2**24, "cuda": 2**26}


def time_rank(size: int | None, dtype: str, payload: int | None, repeats: int) -> dict[str, Any]:
    """One rank's pairs, and what it runs on."""
    device = os.environ.get("TPVIZ_DEVICE", "cpu")
    size, payload = size or SIZES[device], payload or PAYLOADS[device]
    a = torch.randn(size, size, device=device).to(getattr(torch, dtype))
    b, out = a.clone(), torch.empty_like(a)
    data = torch.zeros(-(-payload // 4), device=device)
    gemm = lambda: torch.mm(a, b, out=out)
    count = _enough(gemm, data, device)
    alone, under, in_flight = [], [], []
    for number in range(2 + repeats):
        _together(device)
        single = _lasts(gemm, device)
        _together(device)
        works = [dist.all_reduce(data, async_op=True) for _ in range(count)]
        beside = _lasts(gemm, device)
        going = not works[-1].is_completed()  # pyright: ignore[reportOptionalMemberAccess]
        for work in works:
            work.wait()  # pyright: ignore[reportOptionalMemberAccess]
        if number >= 2:
            alone.append(single)
            under.append(beside)
            in_flight.append(going)
    cores = len(os.sched_getaffinity(0))
    what = torch.cuda.get_device_name() if device == "cuda" else f"{cores} cores"
    return {
        "alone": alone,
        "under": under,
        "in_flight": np.mean(in_flight),
        "size": size,
        "dtype": dtype,
        "payload": 4 * data.numel(),
        "collectives": count,
        "badge": badge(device),
        "machine": f"{what}, {dist.get_world_size()} ranks",
    }


def _enough(gemm, data, device):
    """How many all-reduces outlast a GEMM three times over; the same on every rank."""
    gemm()
    dist.all_reduce(data)
    _together(device)
    longest = max(_lasts(gemm, device) for _ in range(3))
    _together(device)
    start = time.perf_counter()
    for _ in range(3):
        dist.all_reduce(data)
    _together(device)
    each = (time.perf_counter() - start) / 3
    count = torch.tensor([3 * longest / each], device=data.device)
    dist.all_reduce(count, op=dist.ReduceOp.MAX)
    return max(1, int(np.ceil(count.item())))


def _together(device):
    """All ranks, with nothing of theirs in flight."""
    if device == "cuda":
        torch.cuda.synchronize()
    dist.barrier()


def _lasts(gemm, device):
    """Seconds of one GEMM; on a GPU by its own stream's clock."""
    if device == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        gemm()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3
    start = time.perf_counter()
    gemm()
    return time.perf_counter() - start
