"""Attention over a sequence that is cut over ranks."""

import math

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from zoo import ITEM, RANKS, data, program
from zoo_experts import Exchange

SENTENCES, HEADS, SEQ, DEPTH = 2, 4, 16, 4
LOCAL = SENTENCES * HEADS * SEQ // RANKS * DEPTH * ITEM  # bytes of a rank's q, k or v


def _own_qkv():
    whole = (data(i, SENTENCES, HEADS, SEQ, DEPTH) for i in range(3))
    return [t.chunk(RANKS, 2)[dist.get_rank()].clone().requires_grad_() for t in whole]


def _attend(attention):
    q, k, v = _own_qkv()

    def step():
        for t in (q, k, v):
            t.grad = None
        loss = attention(q, k, v).square().sum()
        loss.backward()
        return loss

    return step, lambda: [q.grad, k.grad, v.grad]


def _softmax(q, k, v):
    return (q @ k.transpose(-1, -2) / math.sqrt(DEPTH)).softmax(-1) @ v


class _Ring(torch.autograd.Function):
    """Keys and values go round; backward gathers them."""

    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        rank, kv = dist.get_rank(), torch.stack([k, v])
        top = torch.full(q.shape[:-1], -math.inf, dtype=q.dtype)
        total, out = torch.zeros_like(top), torch.zeros_like(q)
        for hop in range(RANKS):
            works, coming = [], torch.empty_like(kv)
            if hop < RANKS - 1:
                works = dist.batch_isend_irecv(
                    [
                        dist.P2POp(dist.isend, kv, (rank + 1) % RANKS),
                        dist.P2POp(dist.irecv, coming, (rank - 1) % RANKS),
                    ]
                )
            scores = q @ kv[0].transpose(-1, -2) / math.sqrt(DEPTH)
            higher = torch.maximum(top, scores.amax(-1))
            weights, shrink = (scores - higher[..., None]).exp(), (top - higher).exp()
            total, top = total * shrink + weights.sum(-1), higher
            out = out * shrink[..., None] + weights @ kv[1]
            for work in works:
                work.wait()
            kv = coming
        return out / total[..., None]

    @staticmethod
    def backward(ctx, gradient):
        q, k, v = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        parts = [[torch.empty_like(t) for _ in range(RANKS)] for t in (k, v)]
        for own, gathered in zip((k, v), parts):
            dist.all_gather(gathered, own.detach())
        with torch.enable_grad():
            whole = [torch.cat(p, 2).requires_grad_() for p in parts]
            out = _softmax(q, *whole)
        gradients_ = torch.autograd.grad(out, (q, *whole), gradient)
        own = [torch.empty_like(k), torch.empty_like(v)]
        for out, whole in zip(own, gradients_[1:]):
            dist.reduce_scatter(out, [c.contiguous() for c in whole.chunk(RANKS, 2)])
        return gradients_[0], *own


# k and v take three hops; backward gathers both and reduces both gradients.
@program(
    {
        ("world", "send"): (RANKS - 1, (RANKS - 1) * 2 * LOCAL),
        ("world", "recv"): (RANKS - 1, (RANKS - 1) * 2 * LOCAL),
        ("world", "all_gather"): (2, 2 * RANKS * LOCAL),
        ("world", "reduce_scatter"): (2, 2 * RANKS * LOCAL),
    },
    emulated_tolerance=1e-12,
)
def ring_attention():
    """Context parallelism by batched messages and an online softmax."""
    return _attend(_Ring.apply)


@program(
    {
        ("cp", "all_gather"): (2, 2 * RANKS * LOCAL),
        ("cp", "reduce_scatter"): (2, 2 * RANKS * LOCAL),
    },
    emulated_tolerance=1e-12,
)
def gathered_context():
    """Context parallelism as Llama 3 was trained: k and v gathered, by functional collectives."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,), mesh_dim_names=("cp",))

    def attention(q, k, v):
        k, v = (functional.all_gather_tensor_autograd(t, 2, mesh) for t in (k, v))
        return _softmax(q, k, v)

    return _attend(attention)


# q, k, v and the output, forward and backward; each is a rank's local tensor, less its own part.
@program({("world", "all_to_all_v"): (8, 8 * LOCAL * (RANKS - 1) // RANKS)})
def ulysses():
    """DeepSpeed-Ulysses: from a part of the sequence to a part of the heads and back."""

    def swap(t, give, take):
        """Dimension ``give`` is cut into a part for each rank, theirs are joined along ``take``."""
        parts = torch.stack(t.chunk(RANKS, give))
        return torch.cat(list(Exchange.apply(parts, [1] * RANKS, [1] * RANKS)), take)

    return _attend(lambda q, k, v: swap(_softmax(*(swap(t, 1, 2) for t in (q, k, v))), 2, 1))
