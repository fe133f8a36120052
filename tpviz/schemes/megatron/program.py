"""The tensor-parallel GPT, module by module beside `tpviz.schemes.gpt.model`, and a rank's program.

Shapes as in `layers`; N/n heads a rank, D = H/N.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tpviz.schemes.gpt.model import Heads, Norm, Residual, activation
from tpviz.schemes.gpt.program import Program, load_parts
from tpviz.schemes.gpt.vocabulary import ParallelEmbedding, cross_entropy

from .layers import ColumnParallelLinear, RowParallelLinear

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.strategy import Strategy
    from tpviz.workload import GPT

    from .strategy import Megatron


class ParallelAttention(nn.Module):
    """Causal attention with N/n whole heads on each rank."""

    def __init__(self, w: "GPT", group: "dist.ProcessGroup", sp: bool, chunks: int, **kw: Any):
        super().__init__()
        self.heads, self.sequence_first = Heads(w, **kw), sp
        self.qkv = ColumnParallelLinear(w.hidden, w.qkv_features, group, sp, w.bias, **kw)
        self.out = RowParallelLinear(w.hidden, w.hidden, group, sp, chunks, w.bias, **kw)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.heads(self.qkv(x), self.sequence_first))


class ParallelMLP(nn.Module):
    """Up by columns, the activation, down by rows."""

    def __init__(self, w: "GPT", group: "dist.ProcessGroup", sp: bool, chunks: int, **kw: Any):
        super().__init__()
        self.activation = activation(w)
        self.up = ColumnParallelLinear(w.hidden, w.up_features, group, sp, w.bias, **kw)
        self.down = RowParallelLinear(w.mlp_width, w.hidden, group, sp, chunks, w.bias, **kw)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.activation(self.up(x)))


class ParallelBlock(Residual):
    """The block of a rank; the norms are on every rank."""

    def __init__(self, w: "GPT", group: "dist.ProcessGroup", sp: bool, chunks: int, **kw: Any):
        super().__init__()
        self.norm1 = Norm(w, **kw)
        self.attention = ParallelAttention(w, group, sp, chunks, **kw)
        self.norm2 = Norm(w, **kw)
        self.mlp = ParallelMLP(w, group, sp, chunks, **kw)


class MegatronGPT(nn.Module):
    """The reference GPT with its matrices split over ``group``; the same parameter names."""

    def __init__(
        self, workload: "GPT", group: "dist.ProcessGroup", sp: bool, chunks: int = 1, **kw: Any
    ):
        super().__init__()
        w = workload
        self.group, self.sp = group, sp
        self.embed = ParallelEmbedding(w, group, sp, **kw)
        self.blocks = nn.ModuleList(
            ParallelBlock(w, group, sp, chunks, **kw) for _ in range(w.layers)
        )
        self.norm = Norm(w, **kw)
        self.head = ColumnParallelLinear(w.hidden, w.vocab, group, sp, bias=False, **kw)
        if w.tied:
            self.head.weight = self.embed.token.weight

    def forward(self, tokens_BS: torch.Tensor, targets_BS: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy of the batch, the same scalar on every rank."""
        x = self.embed(tokens_BS)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if logits.dtype == torch.bfloat16:
            logits = logits.float()
        return cross_entropy(logits, targets_BS.t() if self.sp else targets_BS, self.group)


def build(
    strategy: "Megatron",
    workload: "GPT",
    mesh: "DeviceMesh",
    dtype: torch.dtype | None,
    device: str | torch.device,
    **options: Any,
) -> Program:
    """This rank's `Program`, on a ``DeviceMesh`` that has a tp axis."""
    sp = strategy.sp and strategy.tp > 1
    module = MegatronGPT(
        workload,
        mesh.get_group("tp"),
        sp,
        strategy.chunks,
        dtype=dtype or getattr(torch, workload.dtype),
        device=device,
    )
    return program_of(strategy, module, mesh, workload, **options)


def program_of(
    strategy: "Strategy", module: MegatronGPT, mesh: "DeviceMesh", workload: "GPT", **options: Any
) -> Program:
    """The `Program` of a `MegatronGPT`, filled with this rank's part of the initial values."""
    splits = strategy.splits(workload)
    load_parts(module, workload, splits, mesh)
    program = Program(workload, module, mesh, splits, **options)
    program.partial, program.partial_axis = strategy.partial(workload), "tp"  # pyright: ignore[reportAttributeAccessIssue]
    program.sequence_first = module.sp
    program.output_splits = [(2, "tp")]
    program.input_splits = [(0, "tp")] if module.sp else []
    return program
