"""What backward of a GPT's parts needs, in features of a token or bytes of a block (derived).

Of a whole block: `tpviz.schemes.grid.memory`.
"""

from typing import TYPE_CHECKING

from tpviz.cluster.clock.cost import Memory

if TYPE_CHECKING:
    from tpviz.core.workload import GPT


def under_adamw(size: int, tensors: int, activations: int = 0) -> Memory:
    """The `Memory` of a rank with ``size`` bytes of parameters in so many tensors: two moments, and
    4 bytes a tensor to count steps."""
    states = {"parameters": size, "gradients": size, "optimizer": 2 * size + 4 * tensors}
    return Memory(states, activations=activations)


def of_step(found: Memory, w: "GPT", local: "GPT") -> Memory:
    """A microbatch's `Memory` with the tokens and targets of the whole batch, which are int64."""
    found["activations"] += 16 * w.seq * (w.batch - local.batch)
    return found


def dropped(recompute: str, all_but_input: int, core: int) -> int:
    """The bytes that recomputation frees, of those that a block's backward needs."""
    return {"none": 0, "selective": core, "full": all_but_input}[recompute]


def attention_kept(w: "GPT") -> int:
    """Features of a token that backward of attention and of out needs: those of qkv, the copies
    in between, and the output."""
    more = w.context.kept(w) if w.context else 0
    return w.qkv_features + copied(w) + w.mixed_features + more


def copied(w: "GPT") -> int:
    """Features per token that attention keeps as copies: queries if keys are shared or rotated
    (fused attention needs them contiguous), and rotated keys. From latents, results as wide as keys
    where values are not: those of `attention_kept` are without the zeros."""
    if w.kv_lora:
        return w.query_features * padded(w)
    if w.context and w.context.ring > 1:  # block by block neither
        return 0
    again = w.rotary or w.num_kv_heads < w.heads
    return again * w.query_features + w.rotary * w.num_kv_heads * w.head_size


def padded(w: "GPT") -> bool:
    """Whether values are computed with zeros, which their sum is then copied without."""
    return w.value_size < w.head_size


def twice(w: "GPT") -> bool:
    """Whether attention's output is kept once more: put together of its documents', or exchanged
    for tokens; fused attention's is in the order of its queries, also where sequences are split."""
    again = bool(w.documents) if w.context is None else w.context.exchange[1] > 1
    return again and not padded(w)


def core_kept(w: "GPT", parts: int = 1) -> int:
    """Bytes of a block that attention's core alone keeps: what is `copied`, output that is kept
    `twice`, what sequences over ranks keep, and the log-sum-exps; from latents also what it has of
    queries, keys and values more than they are."""
    numbers = copied(w) + w.query_features * twice(w)
    numbers += w.context.kept(w) if w.context else 0
    if w.kv_lora:
        numbers += 2 * w.query_features - w.heads * w.key_size - w.mixed_features
    item, wide = w.itemsize, max(w.itemsize, 4)
    return w.batch * w.seq * (numbers * item + w.heads * wide) // parts


def mlp_kept(w: "GPT") -> int:
    """Features of a token that backward of the activation and of down needs."""
    return (4 if w.gated else 2) * w.mlp_width


def statistics(w: "GPT") -> int:
    """Statistics per token that a norm keeps: 2 (mean, deviation) or, for RMSNorm, 1."""
    return 2 if w.norm == "layer" else 1
