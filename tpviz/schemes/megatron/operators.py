"""Megatron-LM's conjugate operators as autograd functions on plain collectives.

Shoeybi et al. 2019 (arXiv 1909.08053): f is the identity forward and an all-reduce backward, g the
other way round. Korthikanti et al. 2022 (arXiv 2205.05198), sequence parallelism: f becomes an
all-gather forward and a reduce-scatter backward, g the other way round. f is always followed by a
column-parallel linear layer, so the two are one function here: its backward all-reduces the input's
gradient while the weight's gradient is computed.

Shapes: first dim of an activation = tokens, or sequence where it is gathered or scattered; n =
ranks of the group.
"""

from typing import Any

import torch
import torch.distributed as dist

from tpviz.labels import label
from tpviz.schemes import operators
from tpviz.schemes.collectives import gather_first, scatter_first


class ColumnLinear(torch.autograd.Function):
    """f, then y = x W^T + b with W split by rows: x is whole on every rank.

    With ``chunks`` the all-reduce of a part of the batch overlaps the next part's GEMM.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        group: dist.ProcessGroup,
        chunks: int = 1,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.chunks, ctx.bias, ctx.later = group, chunks, bias, operators.later()
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        parts, works = [], []
        for rows in grad.chunk(ctx.chunks):
            parts.append(rows @ weight)
            works.append(dist.all_reduce(parts[-1], group=ctx.group, async_op=True))
        grad_weight, grad_bias = operators.weight_gradients(ctx, x, grad, weight)
        for work in works:
            work.wait()
        grad_x = parts[0] if len(parts) == 1 else torch.cat(parts)
        return grad_x, grad_weight, grad_bias, None, None


class SequenceColumnLinear(torch.autograd.Function):
    """The same with x split by sequence: gathered forward, and again backward, not kept."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        group: dist.ProcessGroup,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.bias, ctx.later = group, bias, operators.later()
        whole, work = gather_first(x, group)
        work.wait()
        return torch.nn.functional.linear(whole, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        whole, gathering = gather_first(x, ctx.group)
        grad_whole = grad @ weight
        gathering.wait()
        grad_x, scattering = scatter_first(grad_whole, ctx.group)
        grad_weight, grad_bias = operators.weight_gradients(ctx, whole, grad, weight)
        scattering.wait()
        return grad_x, grad_weight, grad_bias, None


class ChunkedRowLinear(torch.autograd.Function):
    """y = x W^T, then g, in parts of the batch: a part's all-reduce overlaps the next GEMM.

    All all-reduces are waited for at the end (references: ATP's chunk-based overlap). Rows are
    independent, so results and backward are those without chunks.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, group: dist.ProcessGroup, chunks: int
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias, ctx.later = None, operators.later()
        parts, works = [], []
        for number, rows in enumerate(x.chunk(chunks)):
            with label(chunk=number):
                parts.append(torch.nn.functional.linear(rows, weight))
                works.append(dist.all_reduce(parts[-1], group=group, async_op=True))
        for work in works:
            work.wait()
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        return grad @ weight, operators.weight_gradients(ctx, x, grad, weight)[0], None, None
