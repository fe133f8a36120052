"""Linear layers with collectives fused into their GEMMs, as autograd functions.

T3 fuses the four reduce-scatters of a block: after the second layer of a pair forward, after the
gradient of the first layer's input backward (Pati et al. 2024: OP, FC-2; FC-1, IP). The first two
classes are the paper's: the reduced shards are gathered at once and activations are the same on
every rank. The other two are our extension: activations stay split by sequence (Korthikanti et al.
2022), and the gather feeds the GEMM that needs it.

Shapes: x (..., in), weight (out, in), first dims of activations tokens, or sequence where they are
split; n = ranks.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear

from tpviz.schemes.collectives import gather_first
from tpviz.schemes.operators import later, weight_gradients

from .tiles import whole_chunk

if TYPE_CHECKING:
    from .ring import Ring


class RowOnRing(torch.autograd.Function):
    """y = sum over ranks of x W^T, on every rank. ring : the `ring.Ring`."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, ring: "Ring") -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias, ctx.later = None, later()
        whole, work = gather_first(ring.reduce_scatter(x.flatten(0, -2), weight.t()), ring.group)
        work.wait()
        return whole.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        return grad @ weight, weight_gradients(ctx, x, grad, weight)[0], None


class Column(torch.autograd.Function):
    """y = x W^T + b, x the same on all ranks; backward all-reduces the gradient of x.

    The all-gather of the reduced shards overlaps the weight gradient's GEMM.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, ring: "Ring"
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.ring, ctx.bias, ctx.later = ring, bias, later()
        return linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        own = ctx.ring.reduce_scatter(grad.flatten(0, -2), weight)
        whole, work = gather_first(own, ctx.ring.group)
        of_weight, of_bias = weight_gradients(ctx, x, grad, weight)
        work.wait()
        return whole.view_as(x), of_weight, of_bias, None


class SplitRow(torch.autograd.Function):
    """y = the rank's shard of the reduced x W^T; backward gathers its gradient into the GEMM."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, ring: "Ring") -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.ring, ctx.bias, ctx.later = ring, None, later()
        own = ring.reduce_scatter(x.flatten(0, -2), weight.t())
        return own.view(-1, *x.shape[1:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, whole = x.new_empty(x.shape), grad.new_empty(*x.shape[:-1], weight.shape[0])
        for rows, piece in ctx.ring.gathered(grad.flatten(0, -2)):
            whole.flatten(0, -2)[rows] = piece
            of_x.flatten(0, -2)[rows] = piece @ weight
        return of_x, weight_gradients(ctx, x, whole, weight)[0], None


class SplitColumn(torch.autograd.Function):
    """y = x W^T + b, x split by sequence: gathered into the GEMM, and again into the weight's
    gradient, not kept."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, ring: "Ring"
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.ring = ring
        y = x.new_empty(ring.size * x.shape[0], *x.shape[1:-1], weight.shape[0])
        for rows, piece in ring.gathered(x.flatten(0, -2)):
            y.flatten(0, -2)[rows] = linear(piece, weight, bias)
        return y

    @staticmethod
    def backward(
        ctx: Any, grad: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, None]:
        x, weight = ctx.saved_tensors
        grad_2d, of_weight = grad.flatten(0, -2), None
        own = ctx.ring.reduce_scatter(grad_2d, weight)
        # In whole chunks: each piece adds to the whole weight gradient, so more pieces cost more.
        for rows, piece in ctx.ring.gathered(x.flatten(0, -2), whole_chunk):
            part = grad_2d[rows].t() @ piece
            of_weight = part if of_weight is None else of_weight.add_(part)
        of_bias = grad_2d.sum(0) if ctx.needs_input_grad[2] else None
        return own.view_as(x), of_weight, of_bias, None
