"""A profiled program on gloo, for test_kineto_gloo.py."""

import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.profiler import profile, record_function, schedule

STEPS = 2


def step(weight, group, rank):
    with record_function("forward"):
        hidden = weight @ weight
    work = dist.all_reduce(torch.ones(1000), group=group, async_op=True)
    loss = hidden.softmax(-1).sum()
    work.wait()
    loss.backward()
    half, whole = torch.ones(500), torch.ones(1000)
    dist.all_gather_into_tensor(whole, half, group=group)
    dist.reduce_scatter_tensor(half, whole, group=group)
    if rank == 0:
        dist.send(half, 1)
    else:
        dist.recv(half, 0)
    dist.barrier()


def profiled(folder: Path):
    """On each of two ranks: a profile in ``folder``."""
    with warnings.catch_warnings(action="ignore"):
        _profile(dist.get_rank(), folder)


def _profile(rank, folder):
    group = init_device_mesh("cpu", (2, 1), mesh_dim_names=("tp", "dp")).get_group("tp")
    weight = torch.randn(64, 64, requires_grad=True)
    step(weight, group, rank)  # the first collective sets connections up
    active = schedule(wait=0, warmup=0, active=STEPS, repeat=1)
    with profile(record_shapes=True, schedule=active) as profiler:
        for _ in range(STEPS):
            step(weight, group, rank)
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"rank{rank}.json"))
