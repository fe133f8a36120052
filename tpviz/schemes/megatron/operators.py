"""Megatron-LM's conjugate operators as autograd functions on plain collectives.

Shoeybi et al. 2019 (arXiv 1909.08053): f is the identity forward and an all-reduce backward, g the
other way round. Korthikanti et al. 2022 (arXiv 2205.05198), sequence parallelism: f becomes an
all-gather forward and a reduce-scatter backward, g the other way round. f is always followed by a
column-parallel linear layer, so the two are one function here: its backward all-reduces the input's
gradient while the weight's gradient is computed.

Shapes: first dim of an activation = tokens, or sequence where it is gathered or scattered; n =
ranks of the group.
"""

import torch
import torch.distributed as dist

from tpviz.labels import label
from tpviz.schemes.collectives import gather_first, scatter_first


def linear_gradients(x, grad, bias):
    """A linear layer's gradients of weight (out, in) and bias (out,), None if there is none."""
    grad_2d = grad.view(-1, grad.shape[-1])
    return grad_2d.t() @ x.reshape(-1, x.shape[-1]), grad_2d.sum(0) if bias else None


class ColumnLinear(torch.autograd.Function):
    """f, then y = x W^T + b with W split by rows: x is whole on every rank."""

    @staticmethod
    def forward(ctx, x, weight, bias, group):
        ctx.save_for_backward(x, weight)
        ctx.group = group
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        grad_x = grad @ weight
        work = dist.all_reduce(grad_x, group=ctx.group, async_op=True)
        grad_weight, grad_bias = linear_gradients(x, grad, ctx.needs_input_grad[2])
        work.wait()
        return grad_x, grad_weight, grad_bias, None


class SequenceColumnLinear(torch.autograd.Function):
    """The same with x split by sequence: gathered forward, and again backward, not kept."""

    @staticmethod
    def forward(ctx, x, weight, bias, group):
        ctx.save_for_backward(x, weight)
        ctx.group = group
        whole, work = gather_first(x, group)
        work.wait()
        return torch.nn.functional.linear(whole, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        whole, gathering = gather_first(x, ctx.group)
        grad_whole = grad @ weight
        gathering.wait()
        grad_x, scattering = scatter_first(grad_whole, ctx.group)
        grad_weight, grad_bias = linear_gradients(whole, grad, ctx.needs_input_grad[2])
        scattering.wait()
        return grad_x, grad_weight, grad_bias, None


class Reduce(torch.autograd.Function):
    """g: sum the partial results of all ranks; the gradient passes. Works in place."""

    @staticmethod
    def forward(ctx, x, group):
        dist.all_reduce(x, group=group)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class ChunkedRowLinear(torch.autograd.Function):
    """y = x W^T, then g, in parts of the batch: a part's sum is under way during the next GEMM.

    All sums are waited for at the end (references: ATP's chunk-based overlap). Rows are
    independent, so results are those of one piece, and backward is that of one piece.
    """

    @staticmethod
    def forward(ctx, x, weight, group, chunks):
        ctx.save_for_backward(x, weight)
        parts, works = [], []
        for number, rows in enumerate(x.chunk(chunks)):
            with label(chunk=number):
                parts.append(torch.nn.functional.linear(rows, weight))
                works.append(dist.all_reduce(parts[-1], group=group, async_op=True))
        for work in works:
            work.wait()
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        return grad @ weight, linear_gradients(x, grad, bias=False)[0], None, None


class ReduceScatter(torch.autograd.Function):
    """g under sequence parallelism: each rank keeps its part of the sum, gradients are gathered."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        out, work = scatter_first(x, group)
        work.wait()
        return out

    @staticmethod
    def backward(ctx, grad):
        out, work = gather_first(grad, ctx.group)
        work.wait()
        return out, None


class VocabularyCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of logits (T, V/n) split by vocabulary, with one collective.

    Each rank gathers every rank's (log-sum-exp, picked logit) pair, 2 numbers a token, and finishes
    alone (derived; Megatron-LM sends three all-reduces of one number a token).
    """

    @staticmethod
    def forward(ctx, logits, targets, group):
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
    def backward(ctx, grad):
        probabilities, local, inside = ctx.saved_tensors
        scale = grad / local.numel()
        grad_logits = probabilities * scale
        grad_logits.scatter_add_(-1, local.unsqueeze(-1), (-scale * inside).unsqueeze(-1))
        return grad_logits, None, None
