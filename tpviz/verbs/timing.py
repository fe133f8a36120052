"""What `calibrate` does on each rank: time collectives, messages, GEMMs and copies, all at once."""

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tpviz.cluster.routes import family
from tpviz.runtime.devices import badge, inner_kind
from tpviz.runtime.launch import progress as report
from tpviz.runtime.recorder import record
from tpviz.schemes.collectives import gather_first, scatter_first

if TYPE_CHECKING:
    from tpviz.cluster import Cluster

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
WARMUP = 2
COPY_BYTES = {"cpu": 2**25, "cuda": 2**28}


def time_rank(
    axes: list[tuple[int, int]], sizes: list[int], repeats: int, dtypes: list[str], gemm: int | None
) -> dict[str, Any]:
    """{"points": {(kind, collective, bytes): [[start, end], ...]}, "gemm": {dtype: s}, ...}.

    axes : (stride, size) keys of `Cluster.table`; a point's kind is such a key, or "message" for
    pairs of neighbours. bytes : of the full tensor. Times are seconds on this host's clock.
    """
    device, total = os.environ.get("TPVIZ_DEVICE", "cpu"), len(axes) + 2
    points = _points(axes, sizes, total, device, partial(_times, repeats=repeats, device=device))
    compute = {dtype: _gemm(dtype, gemm, repeats, device) for dtype in dtypes}
    copy = _copy(repeats, device)
    report(total, total, "GEMMs and copies")
    return {"points": points, "gemm": compute, "copy": copy, **_machine(device)}


def time_paced_rank(
    axes: list[tuple[int, int]], sizes: list[int], repeats: int, cluster: "Cluster"
) -> dict[str, Any]:
    """The "points" of an emulated cluster, in times of the lane clock, and how "late" the run was.

    Its device is described, not measured.
    """
    device, total = os.environ.get("TPVIZ_DEVICE", "cpu"), len(axes) + 1
    with record(cluster=cluster) as recorder:
        points = _points(axes, sizes, total, device, partial(_steps, recorder, repeats=repeats))
    return {"points": points, "late": recorder.trace.meta["late"], "host": os.uname().nodename}


def _points(axes, sizes, total, device, times):
    """{(kind, collective, bytes): ``times`` of a call} for all kinds and sizes."""
    points = {}
    for done, key in enumerate(axes, 1):
        group = _my_group(*key)
        for collective in COLLECTIVES:
            for size in sizes:
                call, payload = _collective(collective, group, size, device)
                points[key, collective, payload] = times(call)
        report(done, total, f"groups of {key[1]}, {key[0]} apart")
    for size in sizes:
        call, payload = _message(size, device)
        points["message", "send", payload] = times(call)
    report(len(axes) + 1, total, "messages")
    return points


def _my_group(stride, size):
    """Make every group of the kind, on every rank; the one this rank is in."""
    mine, here = None, dist.get_rank()
    for members in family(range(0, stride * size, stride), dist.get_world_size()):
        group = dist.new_group(list(members))
        mine = group if here in members else mine
    return mine


def _collective(name, group, size, device):
    """(a function that runs it, bytes of the full tensor): ``size`` rounded up to equal parts."""
    ranks = dist.get_world_size(group)
    part = torch.zeros(-(-size // (4 * ranks)), device=device)
    full = torch.zeros(ranks * part.numel(), device=device)
    calls = {
        "all_reduce": lambda: dist.all_reduce(full, group=group),
        "all_gather": lambda: gather_first(part, group, full)[1].wait(),
        "reduce_scatter": lambda: scatter_first(full, group, part)[1].wait(),
    }
    return calls[name], 4 * full.numel()


def _message(size, device):
    """(a function that sends from every even rank to the next one, bytes); an odd one out rests."""
    here, world = dist.get_rank(), dist.get_world_size()
    data = torch.zeros(-(-size // 4), device=device)
    call = lambda: None
    if here % 2:
        call = lambda: dist.recv(data, here - 1)
    elif here + 1 < world:
        call = lambda: dist.send(data, here + 1)
    return call, 4 * data.numel()


def _times(call, repeats, device):
    """[[start, end], ...] of ``repeats`` calls, every one begun together with all other ranks."""
    found = []
    for number in range(WARMUP + repeats):
        dist.barrier()
        _finish(device)
        start = time.perf_counter()
        call()
        _finish(device)
        if number >= WARMUP:
            found.append([start, time.perf_counter()])
    return found


def _steps(recorder, call, repeats):
    """The same on the lane clock of an emulated run, which all ranks begin a step on together."""
    for _ in range(WARMUP + repeats):
        with recorder.step():
            call()
    return [[start, end] for _, start, end in recorder.steps[-repeats:]]


def _finish(device):
    if device == "cuda":
        torch.cuda.synchronize()


def _gemm(dtype, size, repeats, device):
    """FLOP/s of square GEMMs on this rank while all others compute too."""
    size = size or (512 if device == "cpu" else 4096)
    a = torch.randn(size, size, device=device).to(getattr(torch, dtype))
    b, out = a.clone(), torch.empty_like(a)
    return 2 * size**3 / _median(_times(lambda: torch.mm(a, b, out=out), repeats, device))


def _copy(repeats, device):
    """Bytes/s read and written by a copy on this rank while all others copy too."""
    source = torch.zeros(COPY_BYTES[device] // 4, device=device)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES[device] / _median(_times(lambda: target.copy_(source), repeats, device))


def _median(times):
    lasted = sorted(end - start for start, end in times)
    return lasted[len(lasted) // 2]


def _machine(device):
    """What this rank runs on: host, device, bytes of memory that are its share, who moves bytes."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    cores = len(os.sched_getaffinity(0))
    name, where = f"rank (1/{ranks} of {cores} cores)", f"{cores} cores"
    memory, share = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), ranks
    if device == "cuda":
        gpus = min(torch.cuda.device_count(), ranks)
        name, where, share = torch.cuda.get_device_name(), f"{gpus} GPUs", -(-ranks // gpus)
        memory = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        name += f", shared by {share} ranks" if share > 1 else ""
    moved = "NCCL" if device == "cuda" and inner_kind() == "nccl" else "gloo"
    return {
        "host": os.uname().nodename,
        "device": name,
        "memory": memory / share,
        "words": f"{where}, {moved}",
        "badge": badge(device),
    }
