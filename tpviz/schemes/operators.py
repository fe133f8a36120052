"""Autograd functions on plain collectives that several schemes use.

Shapes: first dim of an activation = tokens, or sequence where it is gathered or scattered; n =
ranks of the group.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from tpviz.core.labels import label

from .collectives import Group, gather_first, own_of, scatter_first


def linear_gradients(
    x: torch.Tensor, grad: torch.Tensor, bias: bool, turned: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A linear layer's gradients of weight, (out, in) or ``turned`` (in, out), and bias or None."""
    x_2d, grad_2d = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    found = x_2d.t() @ grad_2d if turned else grad_2d.t() @ x_2d
    return found, grad_2d.sum(0) if bias else None


# where layers that run now are to note their weights' gradients, if they are
_later: "list[WgradStash] | None" = None


@contextmanager
def deferred_wgrad(later: "list[WgradStash] | None") -> Iterator[None]:
    """Layers that run inside compute only input gradients in backward. For their weight gradients
    they append to ``later`` what `make_gradients` needs.

    Qi et al. 2023 (zero bubble, arXiv 2401.10241).
    """
    global _later
    before, _later = _later, later
    try:
        yield
    finally:
        _later = before


def later() -> "list[WgradStash] | None":
    """The list of `deferred_wgrad` in force, or None."""
    return _later


class WgradStash(NamedTuple):
    """What a linear layer's deferred weight gradient needs: input, output gradient, parameters.
    turned : whether the weight is (in, out) and not (out, in)."""

    x: torch.Tensor
    grad: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    turned: bool = False


def make_gradients(later: list[WgradStash], paths: Mapping[int, str]) -> None:
    """Compute the deferred gradients in order, add them to ``.grad`` and empty the list.

    later : `WgradStash`s. paths : {id of a weight: its layer's name}, for the trace's labels.
    """
    for x, grad, weight, bias, turned in later:
        with label(layer=paths.get(id(weight), "")):
            _add_gradients((weight, bias), linear_gradients(x, grad, bias is not None, turned))
    later.clear()


def _add_gradients(parameters, gradients):
    """The first of a step by autograd, which is slower: what follows memory learns from it that
    this is a gradient."""
    for parameter, found in zip(parameters, gradients):
        if found is not None and parameter.grad is not None:
            parameter.grad.add_(found)
        elif found is not None:
            torch.autograd.backward(parameter, found)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """y = x W^T + b; torch's own, unless `deferred_wgrad` defers the weight gradients."""
    if _may_wait(weight, bias):
        return LocalLinear.apply(x, weight, bias)
    return torch.nn.functional.linear(x, weight, bias)


def addmm(bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """b + x W, as ``torch.addmm``, for layers whose weight is (in, out); as `linear` else."""
    if bias.dim() == 1 and _may_wait(weight, bias):
        return LocalLinear.apply(x, weight, bias, True)
    return torch.addmm(bias, x, weight)


def _may_wait(*parameters):
    """Whether gradients of these are to come later: of what is computed, or frozen, they cannot."""
    return _later is not None and all(
        p is None or (p.is_leaf and p.requires_grad) for p in parameters
    )


class LocalLinear(torch.autograd.Function):
    """y = x W^T + b, ``turned`` x W + b; its weight gradients are deferred (`deferred_wgrad`)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        turned: bool = False,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias, ctx.later, ctx.turned = bias, later(), turned
        return torch.nn.functional.linear(x, weight.t() if turned else weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        weight_gradients(ctx, x, grad, weight, ctx.turned)
        return grad @ (weight.t() if ctx.turned else weight), None, None, None


def weight_gradients(
    ctx: Any, x: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, turned: bool = False
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The gradients of (weight, bias) of a linear layer; (None, None) if they are deferred."""
    if ctx.later is None:
        return linear_gradients(x, grad, ctx.bias is not None)
    return defer_wgrad(ctx.later, x, grad, weight, ctx.bias, turned)


def defer_wgrad(
    later: list[WgradStash],
    x: torch.Tensor,
    grad: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    turned: bool = False,
) -> tuple[None, None]:
    """Append a `WgradStash` to ``later``; returns (None, None) in place of the two gradients."""
    # x without its graph: that has this layer's node, which has the list: a circle of which the
    # collector sees one half
    later.append(WgradStash(x.detach(), grad, weight, bias, turned))
    return None, None


class Reduce(torch.autograd.Function):
    """Sum the partial results of all ranks; the gradient passes. Works in place.

    g of Shoeybi et al. 2019 (arXiv 1909.08053).
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        dist.all_reduce(x, group=group)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return grad, None


class ReduceScatter(torch.autograd.Function):
    """Each rank keeps its shard of the sum along the first dim; gradients are gathered.

    g under sequence parallelism (Korthikanti et al. 2022, arXiv 2205.05198). summed : if False,
    nothing is sent and the shard is that of x; only the autograd graph counts.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, summed: bool = True) -> torch.Tensor:
        ctx.group = group
        if not summed:
            return own_of(x, group).clone()
        out, work = scatter_first(x, group)
        work.wait()
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        out, work = gather_first(grad, ctx.group)
        work.wait()
        return out, None, None


class Same(torch.autograd.Function):
    """The same tokens on all ranks of a group, each of which computes a part of the result: what
    comes back through it is added up. first : the sequence is cut over the group, and gathered.

    f of Shoeybi et al. 2019 (arXiv 1909.08053), and of Korthikanti et al. 2022 (arXiv 2205.05198).
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, first: bool) -> torch.Tensor:
        ctx.group, ctx.first = group, first
        if not first:
            return x.view_as(x)
        out, work = gather_first(x, group)
        work.wait()
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if ctx.first:
            out, work = scatter_first(grad, ctx.group)
            work.wait()
            return out, None, None
        grad = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad, group=ctx.group)
        return grad, None, None


class Exchange(torch.autograd.Function):
    """All-to-all: part j of the first dim goes to rank j of the group, and comes from it: (n, ...)
    -> (n, ...). It is its own inverse, and so is its gradient's way."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return _exchanged(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _exchanged(grad, ctx.group), None


def _exchanged(x, group):
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(out, x.contiguous(), group=group)
    return out


class SplitNorm(torch.autograd.Function):
    """LayerNorm, or RMSNorm (``rms``, no bias), of features that lie over a group, None for one
    rank: two numbers a token, or one, are summed, each way.

    Forward sum x and sum x^2, backward those of the scaled gradient, plain and times the normalised
    input (derived); RMSNorm the second of each. float32 at least; the variance is E[x^2] - E[x]^2,
    which loses digits where a token's mean is much larger than its deviation.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        eps: float,
        group: Group | None,
        rms: bool = False,
    ) -> torch.Tensor:
        ctx.group, ctx.rms, ctx.biased = group, rms, bias is not None
        wide = x if x.dtype == torch.float64 else x.float()
        square, *mean = _means(group, wide * wide, *(() if rms else (wide,)))
        for m in mean:
            wide, square = wide - m, square - m * m
        scale = square.clamp_(min=0).add_(eps).rsqrt_()
        normal = (wide * scale).to(x.dtype)
        ctx.save_for_backward(x if rms else normal, weight, scale)  # others may keep x, too
        return normal * weight if bias is None else normal * weight + bias

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        normal, weight, scale = ctx.saved_tensors
        if ctx.rms:
            normal = (normal * scale).to(grad.dtype)
        scaled = (grad * weight).to(scale.dtype)
        along, *mean = _means(ctx.group, scaled * normal, *(() if ctx.rms else (scaled,)))
        for m in mean:
            scaled = scaled - m
        grad_x = (scaled - normal * along).mul_(scale).to(grad.dtype)
        tokens = tuple(range(grad.dim() - 1))
        of_bias = grad.sum(tokens) if ctx.biased else None
        return grad_x, (grad * normal).sum(tokens), of_bias, None, None, None


def _means(group, *terms):
    """The means of the terms over all features, in one sum over the group."""
    if group is None:
        return [term.mean(-1, keepdim=True) for term in terms]
    sums = torch.stack([term.sum(-1, keepdim=True) for term in terms])
    dist.all_reduce(sums, group=group)
    return sums.div_(terms[0].shape[-1] * group.size()).unbind()


class VocabularyCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of logits (T, V/n) split by vocabulary, with one collective.

    Each rank gathers every rank's (log-sum-exp, picked logit) pair, 2 numbers a token, and finishes
    alone (derived; Megatron-LM sends three all-reduces of one number a token).
    """

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, targets: torch.Tensor, group: dist.ProcessGroup
    ) -> torch.Tensor:
        size = logits.shape[-1]
        local = targets - dist.get_rank(group) * size
        inside = (local >= 0) & (local < size)
        local = local.clamp(0, size - 1)
        largest = logits.amax(-1, keepdim=True)
        exponentials = (logits - largest).exp_()
        log_sum = exponentials.sum(-1).log_() + largest.squeeze(-1)
        picked = logits.gather(-1, local.unsqueeze(-1)).squeeze(-1).masked_fill_(~inside, 0)
        pairs, work = gather_first(torch.stack((log_sum, picked)), group)
        work.wait()
        log_sums, picks = pairs.view(-1, 2, targets.numel()).unbind(1)
        log_total = log_sums.logsumexp(0)
        probabilities = exponentials.mul_((largest - log_total.unsqueeze(-1)).exp_())
        ctx.save_for_backward(probabilities, local, inside)
        return (log_total - picks.sum(0)).mean()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        probabilities, local, inside = ctx.saved_tensors
        scale = grad / local.numel()
        grad_logits = probabilities * scale
        grad_logits.scatter_add_(-1, local.unsqueeze(-1), (-scale * inside).unsqueeze(-1))
        return grad_logits, None, None
