"""Two halves of a microbatch in the same layers, each one's all-reduces during the other's kernels.

Merak's sub-pipelined tensor parallelism (Lai et al. 2023; its released code's levels and phase
order). A transformer block is two parts, attention and MLP, each behind a LayerNorm and before a
all-reduce over tp. Of every half-microbatch ("sub") a part is split at each collective:

    x -> norm -> n | n -> part -> p

Forward: p is all-reduced over tp while the other sub computes; x, the sum and the part's bias are
the next part's x. Backward visits the subs the other way round: the part's gives n's gradient,
which is all-reduced over tp while its weights' gradients are computed (that is ours) and the other
sub goes on; the norm's and the residual's then give x's. At level 2 a block is such a run of two
parts, and ends with its all-reduces; at level 3 all blocks that follow each other are one run.

An all-reduce's handle and its tensor are kept together, and the tensor is used after the wait:
autograd must not return a ``.grad`` that is being all-reduced.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import get_gradient_edge

from tpviz.schemes.collectives import Group
from tpviz.schemes.operators import WgradStash, deferred_wgrad, later, make_gradients

if TYPE_CHECKING:
    from tpviz.schemes.grid.layers import GridLinear
    from tpviz.schemes.grid.program import GridBlock

SUBS = 2
"""Halves: more are not in Merak."""


def run(
    blocks: "Sequence[GridBlock]", x: torch.Tensor, paths: dict[int, str], summed: bool = True
) -> torch.Tensor:
    """x (B, S, H) through transformer blocks. paths : {id of a weight: its layer's name}. summed :
    whether the last sum is needed."""
    return RunHalves.apply(x, blocks, torch.is_grad_enabled(), paths, summed)


def parts(
    blocks: "Iterable[GridBlock]",
) -> "Iterator[tuple[nn.Module, nn.Module, GridLinear]]":
    """(norm, part, its last layer) of each part of the blocks, in order."""
    for block in blocks:
        yield block.norm1, block.attention, block.attention.out
        yield block.norm2, block.mlp, block.mlp.down


class SubCut:
    """A sub in one part: the leaves before its norm and behind it, and where the graphs that begin
    there end. Only the leaves' numbers are kept, and those that autograd keeps. notes : what the
    part's backward leaves for its weights' gradients."""

    __slots__ = ("leaf", "normed", "notes", "result", "x")

    def __init__(
        self,
        x: torch.Tensor,
        normed: torch.Tensor,
        leaf: torch.Tensor,
        result: torch.Tensor,
        notes: list[WgradStash],
    ):
        self.x, self.leaf, self.notes = x, leaf, notes
        self.normed, self.result = get_gradient_edge(normed), get_gradient_edge(result)


class Sum:
    """A tensor being summed over a group, or not sent at all."""

    def __init__(self, tensor: torch.Tensor, group: Group | None):
        self.tensor = tensor
        self.work = dist.all_reduce(tensor, group=group, async_op=True) if group else None

    def wait(self) -> torch.Tensor:
        if self.work:
            self.work.wait()
        return self.tensor


class RunHalves(torch.autograd.Function):
    """The autograd function of `run`; its backward adds the parameters' gradients to ``.grad``."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        blocks: "Sequence[GridBlock]",
        graph: bool,
        paths: dict[int, str],
        summed: bool = True,
    ) -> torch.Tensor:
        ctx.parts, ctx.cuts = list(parts(blocks)), []
        xs, sums, bias = list(x.detach().chunk(SUBS)), {}, None
        ctx.later, ctx.paths = later(), paths
        for norm, part, last in ctx.parts:
            for sub in range(len(xs)):
                if sub in sums:  # of the part before; the other sub's is still in flight
                    xs[sub] = _added(xs[sub], sums.pop(sub), bias)
                with torch.set_grad_enabled(graph):
                    leaf_x = xs[sub].detach().requires_grad_()
                    normed = norm(leaf_x)
                    leaf, notes = normed.detach().requires_grad_(), []
                    with deferred_wgrad(notes):
                        result = part(leaf, alone=True)
                if graph:
                    ctx.cuts.append(SubCut(leaf_x, normed, leaf, result, notes))
                sent = summed or part is not ctx.parts[-1][1]
                sums[sub] = Sum(result.detach(), last.way.contract if sent else None)
            bias = last.bias
        ctx.subs = len(xs)
        return torch.cat([_added(x, sums[sub], bias) for sub, x in enumerate(xs)])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        sums: dict[int, tuple[SubCut, Sum]]
        grads, sums = list(grad.contiguous().chunk(SUBS)), {}
        for number in reversed(range(len(ctx.parts))):
            last = ctx.parts[number][2]
            for sub in reversed(range(ctx.subs)):
                if sub in sums:
                    grads[sub] = _through_norm(*sums.pop(sub), grads[sub])
                _add_gradient(last.bias, grads[sub])
                cut = ctx.cuts[number * ctx.subs + sub]
                torch.autograd.backward(cut.result, grads[sub])
                sums[sub] = cut, Sum(cut.leaf.grad, last.way.contract)
                _weights(cut.notes, ctx.later, ctx.paths)  # while the all-reduce is in flight
        for sub in reversed(range(ctx.subs)):
            grads[sub] = _through_norm(*sums.pop(sub), grads[sub])
        return torch.cat(grads), None, None, None, None


def _weights(notes, later, paths):
    """The weights' gradients of a part, now, or in the pipeline's own time."""
    if later is None:
        make_gradients(notes, paths)
    else:
        later.extend(notes)


def _added(x, total, bias):
    """The residual stream behind a part: x, its sum and its bias."""
    x = x + total.wait()
    return x if bias is None else x.add_(bias)


def _through_norm(cut, total, residual):
    """The gradient of a part's x, from that of its norm's output and what goes around it."""
    torch.autograd.backward(cut.normed, total.wait())
    return cut.x.grad.add_(residual)


def _add_gradient(bias, grad):
    """Of what was added to the stream once for each row."""
    if bias is None:
        return
    found = grad.flatten(0, -2).sum(0)
    bias.grad = found if bias.grad is None else bias.grad.add_(found)
