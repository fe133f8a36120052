"""Unmodified PyTorch programs, each the same on any backend: what the recorder is tested on.

Each takes nothing, runs inside a rank, and returns plain results to compare; `recorded` runs one
under `tv.record` and returns (results, trace).
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.torch_version import TorchVersion

HIDDEN, BATCH = 16, 8


def mlp(layers=2, bias=True):
    torch.manual_seed(0)
    sizes = [
        m
        for _ in range(layers)
        for m in (
            nn.Linear(HIDDEN, 4 * HIDDEN, bias=bias),
            nn.GELU(),
            nn.Linear(4 * HIDDEN, HIDDEN, bias=bias),
        )
    ]
    return nn.Sequential(*sizes).double()


def data(rank=0):
    return torch.randn(
        BATCH, HIDDEN, generator=torch.Generator().manual_seed(rank + 1), dtype=torch.float64
    )


def numbers(model):
    full = [
        p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
        for p in model.parameters()
    ]
    return [g.detach().clone() for g in full]


def dtensor_tp():
    """Megatron-style tensor parallelism of an MLP by DTensor."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = mlp(1)
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

    def step():
        loss = model(data().requires_grad_()).square().mean()
        loss.backward()
        return loss

    return step, lambda: numbers(model)


def ddp():
    """DistributedDataParallel with one bucket."""
    model = nn.parallel.DistributedDataParallel(mlp())

    def step():
        loss = model(data(dist.get_rank())).square().mean()
        loss.backward()
        return loss

    return step, lambda: numbers(model)


def fsdp2():
    """fully_shard on each layer and the root: ZeRO-3."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    model = mlp()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)

    def step():
        loss = model(data(dist.get_rank())).square().mean()
        loss.backward()
        return loss

    return step, lambda: numbers(model)


def one_f_one_b(microbatches=4):
    """A pipeline of one Linear per rank, Schedule1F1B."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    layer = nn.Linear(HIDDEN, HIDDEN).double()
    stage = PipelineStage(layer, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, microbatches, loss_fn=lambda y, t: (y - t).square().mean())

    def step():
        losses = []
        inputs = (data(),) if rank == 0 else ()
        schedule.step(*inputs, target=data(9) if rank == size - 1 else None, losses=losses)
        return torch.stack(losses).mean() if losses else torch.zeros(())

    return step, lambda: numbers(layer)


PROGRAMS = {"dtensor_tp": dtensor_tp, "ddp": ddp, "fsdp2": fsdp2}
# torch 2.9's pipelining sends 8 bytes where it receives 4, so that gloo ends the process.
PIPELINES = TorchVersion(torch.__version__) >= (2, 10)
if PIPELINES:
    PROGRAMS["one_f_one_b"] = one_f_one_b


def plainly(name):
    """Three steps without a recorder: (loss, gradients)."""
    step, results = PROGRAMS[name]()
    for _ in range(3):
        loss = step()
    return loss.item(), results()


def recorded(name):
    """The same, the third step recorded: (loss, gradients, trace, CommDebugMode's counts)."""
    import tpviz as tv

    step, results = PROGRAMS[name]()
    step(), step()
    with tv.record() as rec, rec.step():
        loss = step()
    return loss.item(), results(), rec.trace


def dtensor_counts():
    """What torch's own CommDebugMode counts in one DTensor step: {collective: count}."""
    from torch.distributed.tensor.debug import CommDebugMode

    step, _ = dtensor_tp()
    step()
    with CommDebugMode() as counted:
        step()
    return {str(op): n for op, n in counted.get_comm_counts().items() if n}
