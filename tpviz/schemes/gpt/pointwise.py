"""The memory-bound kernels of a GPT: what they pass over, and how long that takes (derived).

Norms, activations, biases and residual sums, rotary turns, the two ends, the sum of gradients over
microbatches: kernels that do next to no arithmetic. A step's data and a capture hold the kernels
that carry FLOPs; these here are spread over them, in proportion to their FLOPs (`spread`), so that
`predict`, `simulate` and an emulated run take as long for them, under every schedule, whatever is
recomputed. A rank's sum is exact by the table below; where in a block they run is not followed.

Passes are reads and writes of a whole tensor, by kernel. x is a tensor of the residual stream (a
token's h numbers), q queries and keys, a the MLP's width, u what its first layer gives (a, or 2a if
gated), z the logits, S S the scores of a head; backward behind the stroke:

=================  ===========================  =====================================
                   eager: PyTorch's operators   fused: Megatron-LM, Transformer Engine
=================  ===========================  =====================================
LayerNorm          2x | 3x, 2x                  2x | 3x
RMSNorm            2x 1x 2x 2x | as often       2x | 3x
joining a branch   3x, a bias apart 2x | 3x     3x | 3x
biases' gradients  | 1 of each output           | none: part of a GEMM
packing q, k, v    | 2 2 of the three           | none: in place
GELU               2a | 3a                      2a | 3a
SwiGLU             2a 3a | 3a 3a 3a             3a | 5a
rotary             2q 4q 2q 3q | the same       2q | 2q
scores             2 2 2 | 3 2 2 (of S S)       2 | 3
experts' rows      2r 2r | 2r 2r                the same; between ranks as many more
experts' scores    2e 1e | 2e 3e                the same
loss               3z | 1z 3z                   1z | 2z
tokens' rows       2x, positions 3x | 2x        the same
=================  ===========================  =====================================

Eager counts follow the operators that PyTorch calls, fused ones those projects' kernels: each
tensor read or written once in a kernel. In 16 bits an eager loss casts to float32 and back, one
kernel more each way; and gradients are added up in float32: 10 bytes a parameter and microbatch,
where it is three passes otherwise. Scores count only where attention="softmax", with the passes of
its GEMMs over them: 2 | 4 more. No dropout. r are the rows that a rank chooses for, k of each
token: copied in the order of their experts, and added up; between ranks sorted once more on either
side, since they arrive by rank. e are the router's scores in float32: softmax and choice.
"""

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from tpviz.schemes.experts.cut import ExpertCut

from .kernels import linear
from .step import downs, kernels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpviz.cluster import Device
    from tpviz.core.workload import GPT


RMS = 2 * (2, 1, 2, 2)
"""Passes of an eager RMSNorm, forward and backward."""


class Held(NamedTuple):
    """What a rank has of one microbatch.

    workload : that of the microbatch. parts : of its matrices, how many ranks share one. stream,
    inside : the shares of tensors between layers, and within attention and MLP, that the rank's
    kernels pass over. blocks : how many it has of each kind, as `GPT.kinds`. ends : whether it has
    the embedding, and the head. shards : ranks that share the sum of gradients, 0 where there is
    none to build.
    """

    workload: "GPT"
    parts: int
    stream: float
    inside: float
    blocks: "tuple[tuple[GPT, int], ...]"
    ends: tuple[bool, bool] = (True, True)
    shards: int = 0


@lru_cache(maxsize=4096)
def spread(device: "Device", held: Held, waiting: float = 0.0) -> "Device":
    """The device with the seconds of a rank's memory-bound kernels, and those by which attention
    takes longer than its FLOPs in a GEMM, spread over the FLOPs of its other ones.

    The host launches kernels ahead of the device, so ``launch`` bounds a microbatch as a whole: it
    takes at least as long as to launch all its kernels and to check all its collectives, and what
    that adds is spread as well. waiting : seconds of a microbatch in which the device waits for
    collectives, while the host goes on. Those of a rank without other kernels, a stage with the
    embedding alone, are left out.
    """
    free, dtype = device.pointwise == "free", held.workload.dtype
    alone = replace(device, pointwise="free", launch=free * device.launch)
    gemms, others = gemms_of(held), [] if free else list(passes(device, held))
    took = lambda gemms: sum(n * alone.time(flops, size, dtype) for n, flops, size in gemms)
    computing = took(gemms_of(held, device.attention_factor))
    seconds = sum(count * alone.time(0, size) for count, size in others)
    launching = device.launch * sum(count for count, *_ in (*gemms, *others))
    if held.parts > 1 and held.ends != (True, True):
        launching += device.check * held.parts * collectives(held)
    seconds = max(seconds, (launching - computing - waiting) * (not free)) + computing - took(gemms)
    total = sum(count * flops for count, flops, _ in gemms)
    return replace(alone, spread=seconds / total if total else 0.0)


def passes(device: "Device", held: Held) -> "Iterator[tuple[int, float]]":
    """Yield (number of kernels, bytes that each moves) of a rank's microbatch: the table above."""
    w, fused = held.workload, device.pointwise == "fused"
    item, half, number = w.itemsize, w.itemsize == 2, max(w.itemsize, 4)
    x, z = _stream(held, w), w.batch * w.seq * w.vocab * held.inside
    norm, loss = (2, 3), (item, 2 * item)
    if not fused:
        norm = RMS if w.norm == "rms" else (2, 3, 2)
        loss = (*half * (6,), 3 * number, number, 3 * number, *half * (6,))
    summed = (10 if half else 3 * item) / (held.parts * held.shards) if held.shards else 0
    if summed:
        yield sum(held.ends), w.vocab * w.hidden * summed
    for kind, blocks in held.blocks:
        yield from ((blocks * n, size) for n, size in _of_block(device, held, kind, norm, summed))
    if held.ends[0]:
        yield from ((1, n * x) for n in (*(2, 2), *(() if w.rotary else (3,))))
    if held.ends[1]:
        yield from ((1, n * x) for n in norm)
        yield from ((1, n * z) for n in loss)


def _stream(held, w):
    """Bytes of a rank's tensor between layers."""
    return w.batch * w.seq * w.hidden * held.stream * w.itemsize


def _of_block(device, held, w, norm, summed):
    """[(number of kernels, bytes)] of a block. norm : passes of one. summed : bytes that a number
    of a gradient takes to be added up, 0 where there is none."""
    k, x, tokens = kernels(w), _stream(held, w), w.batch * w.seq
    wide, inside = 2 * w.hidden, held.inside * w.itemsize  # FLOPs of a number between layers
    up, a = (inside * kernel.flops / wide for kernel in (k.up[0], k.down[0]))
    qkv, turned = tokens * w.qkv_features * inside, tokens * inside * turned_features(w)
    scores = w.batch * w.pairs * w.heads * inside * (device.attention == "softmax")
    activation, turn, softmax = (3, 5) if w.gated else (2, 3), (2, 2), (2, 3)
    join, packing, biases, fused = (3, 3), (), (), device.pointwise == "fused"
    if not fused:
        activation = (2, 3, 3, 3, 3) if w.gated else (2, 3)
        join = (*join, 2) if w.bias and held.parts > 1 else join
        biases = (qkv, x, up, x) * w.bias
        packing = (2, 2)
        turn, softmax = 2 * (2, 4, 2, 3), (2, 2, 2, 3, 2, 2)
    matrices = sum(layer[0].flops for layer in (k.qkv, k.out, k.up, k.down)) / (2 * tokens)
    rows = _of_experts(held, w) if w.experts else []
    if w.experts:  # of gradients those of the rank's experts are built, not of a token's
        own = w.experts * held.parts / (_cut(held, w).ep * _cut(held, w).etp)
        matrices += (own - w.top_k) * w.hidden * (w.up_features + w.mlp_width)
    # of latents, each with an RMSNorm
    latents = [tokens * w.itemsize * (n or 0) * held.stream for n in (w.q_lora, w.kv_lora)]
    return [
        *((2, n * x) for n in (*norm, *join)),
        *((1, n * a) for n in activation),
        *((1, n * turned) for n in turn if w.rotary),
        *((1, n * scores) for n in (*softmax, 2, 4) if scores),
        *((1, n * qkv) for n in packing),
        *((1, size) for size in biases),
        *rows,
        *((1, n * latent) for latent in latents for n in ((2, 3) if fused else RMS) if latent),
        *([(4, matrices / 4 * summed)] if summed else ()),
        *((1, k * n * summed * held.parts) for k, n in downs(w) if summed),
    ]


def _of_experts(held, w):
    """[(number of kernels, bytes)] of the rows of a block with experts, and of its scores."""
    cut, tokens = _cut(held, w), w.batch * w.seq
    rows = tokens * w.top_k * w.hidden * w.itemsize / cut.parts
    scores = tokens * w.experts * max(w.itemsize, 4) / cut.parts
    return [(8 if cut.ep > 1 else 4, 2 * rows), *((1, n * scores) for n in (2, 1, 2, 3))]


def _cut(held, w):
    return w.cut or ExpertCut(1, held.parts, held.parts)


def collectives(held: Held) -> int:
    """How many collectives a rank's microbatch has where every matrix is split (derived).

    Forward and backward of a block have four all-reduces. Under sequence parallelism each is a
    reduce-scatter and an all-gather, and the inputs of two layers are gathered once more. Three
    all-reduces of the loss.
    """
    block, embedding, head = (10, 2, 3) if held.stream < 1 else (4, 1, 1)
    first, last = held.ends
    return sum(n for _, n in held.blocks) * block + first * embedding + last * (head + 3)


def work(device: "Device", held: Held) -> list[tuple[int, float, float]]:
    """[(number of kernels, FLOPs, bytes)] of all kernels of a rank's microbatch."""
    others = ((count, 0.0, size) for count, size in passes(device, held))
    return [*gemms_of(held, device.attention_factor), *others]


def gemms_of(held: Held, attention: float = 1) -> "list[tuple[int, float, float]]":
    """[(number of kernels, FLOPs, bytes)] of the GEMMs and attention of a rank's microbatch;
    attention : a factor of its FLOPs, for a GEMM as long as it."""
    n, share, found = held.parts, held.stream, []
    for w, blocks in held.blocks:
        k = kernels(w)
        core = [one._replace(flops=attention * one.flops) for one in k.core]
        layers = (k.qkv, core, k.out, k.up, k.down)
        found += [(blocks, of.flops / n, of.bytes / n) for layer in layers for of in layer]
        # the projections down are of the rank's tokens
        sizes = (linear(w.batch * w.seq, *layer, w.itemsize, bias=False) for layer in downs(w))
        found += [(blocks, share * of.flops, share * of.bytes) for layer in sizes for of in layer]
    head = kernels(held.workload).head if held.ends[1] else ()
    return found + [(1, kernel.flops / n, kernel.bytes / n) for kernel in head]


def turned_features(w: "GPT") -> int:
    """Features of a token that rotary positions turn: of queries and keys."""
    if w.kv_lora:
        return (w.heads + 1) * (w.rope_dim or 0)
    return (w.qkv_features + w.query_features) // 2
