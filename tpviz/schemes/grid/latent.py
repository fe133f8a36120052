"""Latent attention on a layout of one axis as data, and what a rank has and keeps of it (derived).

With T tokens, i ranks of the axis *inside*, L features of all latents and of the shared key: under
``sp`` a rank computes the latents of T / i tokens, which are gathered, T L numbers, and whose
gradients are reduce-scattered; else each computes them all, and gradients of T L numbers are
all-reduced. Where queries come from the stream, that layer is as `step` has ``qkv``.
"""

from typing import TYPE_CHECKING, Any

from tpviz.core.step import Operation
from tpviz.schemes.gpt.kernels import gemm
from tpviz.schemes.gpt.step import downs, ups

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

    from .layout import Layout


def num_matrices(w: "GPT") -> int:
    """Elements of a block's projections up, which are cut over *inside*."""
    return sum(k * n for k, n in ups(w))


def num_whole(w: "GPT") -> int:
    """Parameters of a block that each rank has whole: projections down, norms of latents."""
    return sum(k * n for k, n in downs(w)) + (w.q_lora or 0) + (w.kv_lora or 0)


def latent_features(w: "GPT") -> int:
    """Features of a token from which heads are computed: of the latents, and the shared key."""
    return (w.q_lora or 0) + w.shared_features


def pieces(at: Any, w: "GPT") -> tuple[list[Operation], list[Operation]]:
    """(forward, backward) from the normed stream to queries, keys and values. at : the `step`
    pieces of the layout around."""
    layout, item, T = at.at, w.itemsize, at.tokens
    own, moved = T // (layout.i if layout.sp else 1), T * latent_features(w) * item
    shared = lambda half: at.move(layout.inside, half if layout.sp else "all_reduce", moved)
    to_heads = [(k, n // layout.i) for k, n in ups(w)]
    of_stream = [] if w.q_lora else [(w.hidden, w.query_features)]
    alone = to_heads[len(of_stream) :]
    forward = [
        *(operation for layer in of_stream for operation in at.first(*layer, bias=False)),
        *(gemm(own, k, n, item) for k, n in downs(w)),
        *(shared("all_gather") if layout.sp else ()),
        *(gemm(T, k, n, item) for k, n in alone),
    ]
    backward = [
        *_back(at, T, alone),
        *shared("reduce_scatter"),
        *_back(at, own, downs(w)),
        *(operation for layer in of_stream for operation in at.first_back(*layer)),
    ]
    return forward, backward


def _back(at, tokens, layers):
    """Gradients of layers that send nothing, the last one first."""
    return [
        operation
        for k, n in reversed(layers)
        for operation in (
            gemm(tokens, n, k, at.item),
            *at.under([], gemm(n, tokens, k, at.item)),
        )
    ]


def latents_kept(at: "Layout", w: "GPT") -> int:
    """Bytes that autograd keeps of the way from the stream to the projections up: what both norms
    take, their statistics, and what the projections up take, of whole sequences."""
    T, own = w.batch * w.seq, w.batch * w.seq // (at.i if at.sp else 1)
    given = latent_features(w) if at.i > 1 else (w.q_lora or 0) + (w.kv_lora or 0)
    numbers = own * latent_features(w) + T * given
    return numbers * w.itemsize + own * (1 + bool(w.q_lora)) * max(w.itemsize, 4)
