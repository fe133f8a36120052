"""The linear layer of every tensor-parallel scheme, as autograd functions on plain collectives.

One function serves all layouts: `Linear` contracts over one axis of the mesh and spreads over the
other. A group of one rank sends nothing, which gives Megatron-LM's conjugate operators f and g
(Shoeybi et al. 2019, arXiv 1909.08053): its first layers only spread, so backward sums the input's
gradient (f), its second layers only contract, so forward sums the output (g). Under sequence
parallelism (Korthikanti et al. 2022, arXiv 2205.05198) both sums become reduce-scatters, and
all-gathers come before. ATP's column order is (contract d2, spread d1) for first layers, its row
order (contract d1, spread d2): layouts of the authors' released code; the attention variants A1 and
A3 are those of its examples. Features are the last dim. n, m = ranks of the groups.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from torch.autograd.graph import get_gradient_edge

from tpviz.core.labels import label
from tpviz.schemes.collectives import Group, gather_first, own_of, scatter_first
from tpviz.schemes.operators import defer_wgrad, later, linear_gradients

_Found = TypeVar("_Found")


class LinearSharding(NamedTuple):
    """How a linear layer's input comes and its output goes.

    contract, spread : groups of the axes with the input's and the output's features.
    gather : dim (0 or -1) along which the input is cut over ``spread`` too; None where it is not.
    scatter : likewise for the output and ``contract``.
    chunks, dim : parts of the input, and along which dim; "tokens" for all but the last.
    hidden : whether the input gradient's all-reduce overlaps the weight's gradient.
    back : parts of the batch in which the input's gradient is computed and all-reduced, each part's
    all-reduce under the next one's GEMM; only without ``gather``.
    """

    contract: Group
    spread: Group
    gather: int | None = None
    scatter: int | None = None
    chunks: int = 1
    dim: int | Literal["tokens"] = 0
    hidden: bool = True
    back: int = 1


# -- collectives along any dim, started at once: each gives what to call for the result ------------
def gathering(x: torch.Tensor, dim: int, group: Group) -> Callable[[], torch.Tensor]:
    """Start to all-gather x along ``dim``; returns a function that waits for it."""
    at = dim % x.dim()
    out, work = gather_first(x.unsqueeze(0) if at else x, group)

    def finish():
        work.wait()
        return out.movedim(0, at).flatten(at, at + 1) if at else out

    return finish


def summing(x: torch.Tensor, dim: int | None, group: Group) -> Callable[[], torch.Tensor]:
    """Start to sum x, which may be overwritten, over the ranks: an all-reduce if ``dim`` is None,
    else a reduce-scatter along it. Returns the function that waits for the result."""
    if dim is None:
        out, work = x, dist.all_reduce(x, group=group, async_op=True)
    elif dim == 0:
        out, work = scatter_first(x, group)
    else:
        out, work = scatter_first(x.unflatten(-1, (group.size(), -1)).movedim(-2, 0), group)

    def finish():
        work.wait()  # pyright: ignore[reportOptionalMemberAccess]
        return out.squeeze(0) if dim == -1 else out

    return finish


def parts(
    x: torch.Tensor, way: LinearSharding
) -> tuple[Sequence[torch.Tensor], Callable[[list[torch.Tensor]], torch.Tensor]]:
    """(the chunks of x, the function that joins the results of all chunks)."""
    if way.chunks == 1:
        return [x], lambda results: results[0]
    if way.dim == "tokens":
        shape, rows = x.shape[:-1], x.flatten(0, -2)
        return rows.chunk(way.chunks), lambda results: torch.cat(results).unflatten(0, shape)
    return x.chunk(way.chunks, way.dim), lambda results: torch.cat(results, way.dim)  # pyright: ignore[reportArgumentType]


# -- the layer -----------------------------------------------------------------------------------
class Products:
    """The three matrix products of a linear layer; subclasses may change their layouts."""

    forward = staticmethod(F.linear)
    input = staticmethod(torch.matmul)
    weight = staticmethod(linear_gradients)


def both_gradients(
    way: LinearSharding,
    of_input: Callable[[], torch.Tensor] | None,
    of_weight: Callable[[], _Found],
) -> tuple[torch.Tensor | None, _Found]:
    """(input gradient, result of ``of_weight``). The input gradient is all-reduced over
    ``way.spread``, during ``of_weight`` if ``way.hidden``. of_input : None if no input gradient is
    needed."""
    grad_x = of_input() if of_input else None
    if not of_input or way.spread.size() == 1:
        return grad_x, of_weight()
    finish = summing(grad_x, way.gather, way.spread)  # pyright: ignore[reportArgumentType]
    if way.hidden:
        found = of_weight()
        return finish(), found
    return finish(), of_weight()


class Linear(torch.autograd.Function):
    """y = x W^T, W (out, in) cut both ways: summed over ``contract``; bias only where there is no
    sum, else the caller adds it once. ``products`` makes the three products.

    With chunks the all-reduce of one part is in flight during the next part's GEMM; all are waited
    for at the end, and results are those without chunks. Backward: the input's gradient is
    all-reduced over ``spread`` while the weight's is computed, which a pipeline may leave for later
    (`tpviz.schemes.operators.deferred_wgrad`). ``again`` gives the weight anew for that, else it is
    kept. summed : if not, nothing is sent forward and the result is this rank's partial sum, or its
    part of that, where only the graph is needed.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        way: LinearSharding,
        again: Callable[[], torch.Tensor] | None = None,
        products: Any = Products,
        summed: bool = True,
    ) -> torch.Tensor:
        ctx.way, ctx.again, ctx.products, ctx.bias = way, again, products, bias
        ctx.later = later() if weight.is_leaf and weight.requires_grad else None
        whole = gathering(x, way.gather, way.spread)() if way.gather is not None else x
        ctx.save_for_backward(x if way.gather == 0 else whole, None if again else weight)
        if way.contract.size() == 1:
            return products.forward(whole, weight, bias)
        if not summed:
            y = products.forward(whole, weight)
            return y if way.scatter is None else own_of(y, way.contract, way.scatter).clone()
        pieces, join = parts(whole, way)
        sums = []
        for number, piece in enumerate(pieces):
            with label(chunk=number if len(pieces) > 1 else -1):
                y = products.forward(piece, weight)
                sums.append(summing(y, way.scatter, way.contract))
        return join([finish() for finish in sums])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        way, products, (x, weight) = ctx.way, ctx.products, ctx.saved_tensors
        weight = ctx.again() if ctx.again else weight
        if way.scatter is not None:
            grad = gathering(grad, way.scatter, way.contract)()
        grad = grad.contiguous()
        again = gathering(x, 0, way.spread) if way.gather == 0 else None

        def of_input():
            nonlocal x
            grad_x = products.input(grad, weight)
            x = again() if again else x
            return grad_x

        def of_weight():
            if ctx.later is not None:
                return defer_wgrad(ctx.later, x, grad, weight, ctx.bias)
            return products.weight(x, grad, ctx.needs_input_grad[2])

        if way.back > 1:
            rows = grad.chunk(way.back)
            sums = [summing(products.input(part, weight), None, way.spread) for part in rows]
            grad_weight, grad_bias = of_weight()
            grad_x = torch.cat([finish() for finish in sums])
        else:
            grad_x, (grad_weight, grad_bias) = both_gradients(way, of_input, of_weight)
        return grad_x, grad_weight, grad_bias, None, None, None, None


class PipelinedMLP(torch.autograd.Function):
    """Up, the activation and down, chunk by chunk: while a chunk of up is summed, the next one's up
    and the one's before down are computed (our extension; the release stops after each layer).

    Backward is that of the two layers without chunks.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        down_weight: torch.Tensor,
        up_weight: torch.Tensor,
        up_bias: torch.Tensor | None,
        up: LinearSharding,
        down: LinearSharding,
        activation: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        ctx.ways, ctx.activation, ctx.biased = (up, down), activation, up_bias is not None
        pieces, join = parts(x, up)
        before, after, inner = [], [], []

        def start(number):
            with label(chunk=number):
                if up.contract.size() == 1:
                    y = F.linear(pieces[number], up_weight, up_bias)
                    return lambda: y
                finish = summing(F.linear(pieces[number], up_weight), None, up.contract)
                return finish if up_bias is None else lambda bias=up_bias: finish() + bias

        def end(number):
            with label(chunk=number):
                inner.append(before[number]())
                y = F.linear(activation(inner[-1]), down_weight)
                after.append(
                    summing(y, None, down.contract) if down.contract.size() > 1 else lambda: y
                )

        for number in range(len(pieces)):
            before.append(start(number))
            if number:
                end(number - 1)
        end(len(pieces) - 1)
        ctx.save_for_backward(x, torch.cat(inner), down_weight, up_weight)
        return join([finish() for finish in after])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (up, down), (x, inner, down_weight, up_weight) = ctx.ways, ctx.saved_tensors
        grad = grad.contiguous().flatten(0, -2)
        grad_inner = grad @ down_weight
        finish = summing(grad_inner, None, down.spread) if down.spread.size() > 1 else None
        with torch.enable_grad():
            active = ctx.activation(inner.requires_grad_())
        before, active = get_gradient_edge(active), active.detach()
        grad_down, _ = linear_gradients(active, grad, bias=False)
        del active
        grad_inner = finish() if finish else grad_inner
        (grad_inner,) = torch.autograd.grad(before, inner, grad_inner)
        grad_x = grad_inner @ up_weight
        finish = summing(grad_x, None, up.spread) if up.spread.size() > 1 else None
        grad_up, grad_bias = linear_gradients(x, grad_inner, ctx.biased)
        grad_x = finish() if finish else grad_x
        return grad_x.view_as(x), grad_down, grad_up, grad_bias, None, None, None


# -- the residual stream ---------------------------------------------------------------------------
class Gather(torch.autograd.Function):
    """All-gathers along a dim, of features unless said; backward keeps this rank's part of the
    (equal) gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, dim: int = -1) -> torch.Tensor:
        ctx.group, ctx.dim = group, dim
        return gathering(x, dim, group)()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return own_of(grad, ctx.group, ctx.dim).contiguous(), None, None


class Cut(torch.autograd.Function):
    """Keeps this rank's part along a dim, of features unless said; backward all-gathers the
    gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, dim: int = -1) -> torch.Tensor:
        ctx.group, ctx.dim = group, dim
        return own_of(x, group, dim).contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return gathering(grad.contiguous(), ctx.dim, ctx.group)(), None, None
