"""Two halves of a microbatch through the same layers, each one's sums under the other's kernels.

Merak's sub-pipelined tensor parallelism (Lai et al. 2023; its released code's levels and phase
order). A transformer block is two parts, attention and MLP, each behind a LayerNorm and before a
sum over tp. Of every half-microbatch ("sub") a part is cut where something is sent:

    base -> + bias of the part before -> x, kept for the residual -> norm -> n | part -> p

Forward: p is summed over tp while the other sub computes; x plus the sum is the next part's base.
Backward visits the subs the other way round: the part's gives n's gradient, which is summed over tp
while the other sub computes; the norm's and the residual's then give that of base. At level 2 a
block is such a run of two parts, and is over when its sums are; at level 3 all blocks that follow
each other are one run.

A sum's handle and its tensor are kept together, and the tensor is used after the wait: autograd
must not be asked for a ``.grad`` that is being summed.
"""

import torch
import torch.distributed as dist

SUBS = 2
"""Halves: more are not in Merak."""


def run(blocks, x):
    """x (B, S, H) through transformer blocks whose tensor-parallel layers are bare."""
    return Run.apply(x, blocks, torch.is_grad_enabled())


def parts(blocks):
    """(norm, part, its last layer) of each part of the blocks, in order."""
    for block in blocks:
        yield block.norm1, block.attention, block.attention.out
        yield block.norm2, block.mlp, block.mlp.down


class Cut:
    """A sub in one part: tensors with a graph of their own before and behind its norm's output."""

    __slots__ = ("base", "leaf", "n", "p", "x")

    def __init__(self, base, bias, norm, part):
        self.base = base.requires_grad_()
        self.x = self.base if bias is None else self.base + bias
        self.n = norm(self.x) if norm else None
        self.leaf = self.n.detach().requires_grad_() if norm else None
        self.p = part(self.leaf) if norm else None


class Sum:
    """A tensor that is being added up over a group, or is not sent at all."""

    def __init__(self, tensor, group):
        self.tensor = tensor
        self.work = dist.all_reduce(tensor, group=group, async_op=True) if group else None

    def wait(self):
        if self.work:
            self.work.wait()
        return self.tensor


class Run(torch.autograd.Function):
    """The forward and backward of `run`; parameters' gradients are added to ``.grad``."""

    @staticmethod
    def forward(ctx, x, blocks, graph):
        ctx.parts = list(parts(blocks))
        bases, sums, cuts = [half.detach() for half in x.chunk(SUBS)], {}, []
        bias = None
        with torch.set_grad_enabled(graph):
            for norm, part, last in ctx.parts:
                for sub, base in enumerate(bases):
                    if sub in sums:  # of the part before; the other sub's is still under way
                        base = base + sums.pop(sub).wait()
                    cut = Cut(base.detach(), bias, norm, part)
                    bases[sub] = cut.x.detach()
                    sums[sub] = Sum(cut.p.detach(), None if last.unsummed else last.group)
                    cuts.append(cut if graph else None)
                bias = last.bias
            ends = [Cut((base + sums[sub].wait()).detach(), bias, None, None)
                    for sub, base in enumerate(bases)]
        if graph:
            ctx.cuts, ctx.ends = cuts, ends
        return torch.cat([end.x.detach() for end in ends])

    @staticmethod
    def backward(ctx, grad):
        subs = len(ctx.ends)
        grads, sums = list(grad.contiguous().chunk(SUBS)), {}
        for sub, end in enumerate(ctx.ends):
            torch.autograd.backward(end.x, grads[sub])
            grads[sub] = end.base.grad
        for number in reversed(range(len(ctx.parts))):
            group = ctx.parts[number][2].group
            for sub in reversed(range(subs)):
                if sub in sums:
                    grads[sub] = _through_norm(*sums.pop(sub), grads[sub])
                cut = ctx.cuts[number * subs + sub]
                torch.autograd.backward(cut.p, grads[sub])
                sums[sub] = cut, Sum(cut.leaf.grad, group)
        for sub in reversed(range(subs)):
            grads[sub] = _through_norm(*sums.pop(sub), grads[sub])
        return torch.cat(grads), None, None


def _through_norm(cut, total, residual):
    """The gradient of a part's base, from that of its norm's output and what goes around it."""
    torch.autograd.backward([cut.x, cut.n], [residual, total.wait()])
    return cut.base.grad
