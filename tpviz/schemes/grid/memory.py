"""Bytes of a GPT's training step on one rank (derived; tests compare with tracked allocations).

T tokens, H hidden, F MLP width, N heads, i and s the sizes of *inside* and *stream*, in elements.
What autograd keeps of a block, without sequence parallelism (compare Korthikanti et al. 2022, arXiv
2205.05198, equation 2, which has dropout and no fused attention):

    both norms: input (normalised where the stream is cut) and output, 4 T H / s; L2 keeps the
    gathered input, 2 T H + 2 T H / s; one or two statistics a token, one if "rms";
    q, k, v and the output of attention, 4 T H / i; A3: / (i s), and the output gathered, T H / i;
    other kinds of heads `attention_kept`; and one log-sum-exp a row and head;
    before and after GELU, 2 T F / i: the s-fold copies that ATP pays for a thinner stream; gated:
    up and gate, silu(gate) and the product, 4 T F / i; of a pipeline's chunks only those before,
    those after are computed once more in backward.

With sequence parallelism the norms are split by it too. Where documents' outputs are put together
the output of attention is kept once more.
"""

from typing import TYPE_CHECKING

from tpviz.cluster.clock.cost import Memory
from tpviz.schemes.experts.memory import experts_backward, experts_kept
from tpviz.schemes.gpt.memory import (
    attention_kept,
    core_kept,
    dropped,
    mlp_kept,
    statistics,
    twice,
    under_adamw,
)

from .latent import latents_kept
from .step import num_local_parameters

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

    from .layout import Layout


def memory(at: "Layout", w: "GPT", recompute: str = "none", offload: int = 0) -> Memory:
    """The `Memory` of a rank. recompute, offload : of a `Strategy`."""
    size = num_local_parameters(at, w) * w.itemsize
    return under_adamw(size, w.num_tensors, activations(at, w, recompute, offload))


def activations(at: "Layout", w: "GPT", recompute: str = "none", offload: int = 0) -> int:
    """Bytes at the peak: in the loss, in backward of the head, or entering the last block of some
    kind, with what is kept of those before it."""
    T, H, V = w.batch * w.seq, w.hidden, w.vocab // at.i
    item, wide, n = w.itemsize, max(w.itemsize, 4), at.i if at.sp else 1
    stream = T * H // (n * (1 if at.l2 else at.s)) * item
    whole, head_weight = T * H // at.s * item, V * H // at.s * item
    kept, peak, before = 16 * T, 0, 0  # tokens and targets are int64
    for kind, blocks, leave in _leaving_first(w, offload):
        again = dropped_bytes(at, kind, recompute)
        each = block_kept(at, kind) - again
        more = _entered(at, kind) + again * (recompute == "full")
        if leave:  # on the device are a block's, and those of the one before on their way back
            peak = max(peak, 16 * T + max(before, each * (blocks > 1)) + each + more)
            before = each
            continue
        peak = max(peak, kept + before + each + more, kept + blocks * each + more)
        kept, before = kept + blocks * each, 0
    end = stream + T * H // (n * at.s) * item + statistics(w) * T // n * wide  # the last norm
    loss = (3 if at.i == 1 else 2) * T * V * wide + 16 * T
    head = T * V * item + head_weight + (2 * whole + stream if n > 1 else whole)
    peak += stream + w.tied * head_weight + (whole if n > 1 else 0)
    return max(kept + max(end + loss, end + head), peak)


def _leaving_first(w, offload):
    """(kind, how many, whether they leave for the host) of blocks that follow each other."""
    for kind, blocks in w.runs():
        leave = min(blocks, offload)
        offload -= leave
        yield from ((kind, n, left) for n, left in ((leave, True), (blocks - leave, False)) if n)


def _entered(at, w):
    """What backward has for a moment as it enters the MLP of a block."""
    if w.experts:
        return experts_backward(at, w)
    # the gradient; as one function also GELU once more, or what SwiGLU's backward has at once
    rows = w.batch * w.seq * ((5 if w.gated else 2) if at.pipelined else 1)
    return (rows + w.hidden // at.s) * (w.mlp_width // at.i) * w.itemsize


def dropped_bytes(at: "Layout", w: "GPT", recompute: str) -> int:
    """Of `block_kept`, what is not kept from forward on."""
    n = at.i if at.sp else 1
    stream = w.batch * w.seq * w.hidden // (n * (1 if at.l2 else at.s)) * w.itemsize
    core = core_kept(w, at.i * at.s if at.a3 else at.i)
    if at.a3 and not twice(w):  # the layer behind it keeps what it gathers of the output
        core += w.batch * w.seq * w.mixed_features // (at.i * at.s) * w.itemsize
    return dropped(recompute, block_kept(at, w) - stream, core)


def block_kept(at: "Layout", w: "GPT") -> int:
    """Bytes that autograd keeps of one block until its backward; the table above."""
    T, H, Q, n = w.batch * w.seq, w.hidden, w.mixed_features, at.i if at.sp else 1
    item, wide = w.itemsize, max(w.itemsize, 4)
    heads = at.i * at.s if at.a3 else at.i
    norms = 2 * (T * H // (1 if at.l2 else at.s) + T * H // at.s) // n
    core = T * attention_kept(w) // heads + (
        T * Q // at.i if at.a3 else T * Q // heads if twice(w) else 0
    )
    mlp = 0 if w.experts else T * (w.up_features if at.pipelined else mlp_kept(w)) // at.i
    rows = (1 if at.l1 else statistics(w)) * 2 * T // n + T * w.heads // heads
    experts = experts_kept(at, w) if w.experts else 0
    latents = latents_kept(at, w) if w.kv_lora else 0
    return (norms + core + mlp) * item + rows * wide + experts + latents
