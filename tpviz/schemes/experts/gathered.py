"""Tokens that all ranks of experts get: an all-gather there, a reduce-scatter back.

Each rank has the rows of all tokens of its group, computes its own experts on those that chose
them, weighs the results, and adds them up by token; what the ranks have of a token is then summed
to where it came from. Nobody needs to know how many rows go where, and uneven choices send no more
than even ones. `tpviz.schemes.experts.paper` says where it sends less.

T tokens of a rank, k experts of each, H features; n ranks; R rows that a rank computes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tpviz.schemes.collectives import Group, gather_first, scatter_first

from .travel import Turns, Way, finished, travelling

Picked = tuple[Tensor, Sequence[int], Tensor | None]
"""(of each row that a rank computes, expert after expert, the choice among all n T k; how many rows
are of each expert; whether a row stands for a choice at all, None: all do)."""


class AddUp(torch.autograd.Function):
    """(R, H) -> (n T, H): the rows of each token added up. ``index_add`` would keep the rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, tokens: Tensor, number: int) -> Tensor:
        ctx.tokens = tokens
        return rows.new_zeros(number, rows.shape[1]).index_add_(0, tokens, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad.index_select(0, ctx.tokens), None, None


def on_all_ranks(
    x: Tensor,
    weights: Tensor,
    numbers: Tensor,
    group: Group,
    pick: Callable[[Tensor], Picked],
    computed: Callable[[Tensor, Sequence[int]], Tensor],
) -> Turns:
    """x (T, H) -> the weighted sum (T, H) of its experts' results. weights : (T, k), whose gradient
    comes back. numbers : (T, ...) whole ones that are sent along, of which all ranks' (n T, ...)
    are given to ``pick``. Gives way while rows go there, and while sums come back."""
    k = weights.shape[1]
    gather, scatter = (
        lambda rows, start=start: start(rows, group) for start in (gather_first, scatter_first)
    )
    told = Way(
        lambda of: gather(torch.cat([of, numbers.to(of.dtype)], -1)),
        lambda grad: scatter(grad[:, :k]),
    )
    of_all = finished(travelling(weights, told, group))
    rows = yield from travelling(x, Way(gather, scatter), group)
    choices, loads, real = pick(of_all[:, k:].long())
    tokens = choices // k
    shares = of_all[:, :k].flatten()[choices].unsqueeze(1)
    shares = shares if real is None else shares * real.unsqueeze(1)
    y = computed(rows.index_select(0, tokens), loads) * shares.to(rows.dtype)
    y: Any = AddUp.apply(y, tokens, len(rows))
    return (yield from travelling(y, Way(scatter, gather), group))
