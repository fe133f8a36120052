"""A rank's T3 program: Megatron-LM's network with other linear layers in it."""

from typing import TYPE_CHECKING, Any

import torch

from tpviz.mesh import Mesh
from tpviz.schemes.megatron.layers import ColumnParallelLinear, RowParallelLinear
from tpviz.schemes.megatron.program import MegatronGPT, program_of

from .operators import Column, Row, SplitColumn, SplitRow
from .ring import Ring

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.schemes.gpt.program import Program
    from tpviz.workload import GPT

    from .strategy import T3


def build(
    strategy: "T3",
    workload: "GPT",
    mesh: "DeviceMesh",
    dtype: torch.dtype | None,
    device: torch.device | str,
    **options: Any,
) -> "Program":
    """This rank's `Program`, on a ``DeviceMesh`` that has a tp axis."""
    module = MegatronGPT(
        workload,
        mesh.get_group("tp"),
        strategy.split,
        dtype=dtype or getattr(torch, workload.dtype),
        device=device,
    )
    fuse(module, ring_of(strategy, mesh), strategy.split)
    return program_of(strategy, module, mesh, workload, **options)


def fuse(module: "nn.Module", ring: Ring, split: bool) -> None:
    """Give every parallel linear layer of Megatron-LM's its fused operator."""
    column, row = (SplitColumn, SplitRow) if split else (Column, Row)
    for layer in module.modules():
        if isinstance(layer, (ColumnParallelLinear, RowParallelLinear)):
            operator = column if isinstance(layer, ColumnParallelLinear) else row
            layer.fused = lambda *tensors, operator=operator: operator.apply(*tensors, ring)  # pyright: ignore[reportAttributeAccessIssue]


def ring_of(strategy: "T3", mesh: "DeviceMesh") -> Ring:
    """This rank's `Ring`. Two ranks send to each other: with NCCL, which runs the messages of a
    pair one after another, each would wait for the other in one group, so there are two."""
    group, back = mesh.get_group("tp"), None
    if strategy.mode == "sequential":
        return Ring(group, None)
    if group.size() == 2:
        whole = Mesh({axis: mesh.get_group(axis).size() for axis in mesh.mesh_dim_names})  # pyright: ignore[reportOptionalIterable]
        back = whole.second_group("tp", "tp", device_type=mesh.device_type)
    return Ring(group, strategy.tiles, back)
