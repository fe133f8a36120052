"""Bytes of a GPT's training step on one rank (derived; tests compare with tracked allocations).

T tokens, H hidden, F MLP width, V vocabulary, N heads, n = parts of the matrices, all in elements.
What autograd keeps of a block, without sequence parallelism (compare Korthikanti et al. 2022,
arXiv 2205.05198, equation 2, which has dropout and no fused attention):

    both norms: input and output, 4 T H, and two statistics a token each, one if "rms";
    q, k, v and the output of attention, 4 T H / n, `attention_kept` for other kinds, and one
    log-sum-exp a row and head;
    before and after GELU, 2 T F / n; gated: up and gate, silu(gate) and the product, 4 T F / n.

With sequence parallelism the first are split too, and the output of attention is kept once more, in
the order in which the sequence is scattered.
"""

from typing import TYPE_CHECKING

from tpviz.cost import Memory

if TYPE_CHECKING:
    from tpviz.workload import GPT


def num_local_parameters(w: "GPT", parts: int = 1) -> int:
    """Parameters of a rank that has 1/``parts`` of the matrices, and of the biases of qkv and
    up."""
    biases = w.bias * (w.qkv_features + w.up_features)
    divided = (2 - w.tied) * w.vocab * w.hidden + w.layers * (w.block_matrices + biases)
    return divided // parts + num_whole_parameters(w)


def num_whole_parameters(w: "GPT") -> int:
    """Those that every rank has: norms, positions, and the biases of out and down."""
    rest = (not w.rotary) * w.seq + w.bias * 2 * w.layers
    return (num_norm_parameters(w) + rest) * w.hidden


def num_norm_parameters(w: "GPT") -> int:
    """Those of all norms, in ``hidden``."""
    return (2 * w.layers + 1) * len(w.norm_shapes(""))


def memory(w: "GPT", parts: int = 1, split: bool = False, recompute: str = "none") -> Memory:
    """The `Memory` of such a rank under AdamW: two moments, and 4 bytes a tensor to count steps.

    split : activations between the matrices are split by sequence. recompute : of a `Strategy`.
    """
    size, tensors = num_local_parameters(w, parts) * w.itemsize, w.num_tensors
    return Memory(
        parameters=size,
        gradients=size,
        optimizer=2 * size + 4 * tensors,
        activations=activations(w, parts, split, recompute),
    )


def of_step(found: Memory, w: "GPT", local: "GPT") -> Memory:
    """A microbatch's `Memory` with the tokens and targets of the whole batch, which are int64."""
    found["activations"] += 16 * w.seq * (w.batch - local.batch)
    return found


def activations(w: "GPT", parts: int = 1, split: bool = False, recompute: str = "none") -> int:
    """Bytes at the peak: in the loss, in backward of the head, or entering the last block."""
    T, H, F, V = w.batch * w.seq, w.hidden, w.mlp_width // parts, w.vocab // parts
    item, wide, n = w.itemsize, max(w.itemsize, 4), parts if split else 1
    stream, whole, head_weight = T * H // n * item, T * H * item, V * H * item
    block = block_kept(w, parts, split)
    stays = block - dropped(recompute, block - stream, core_kept(w, parts, split))
    kept = 16 * T + w.layers * stays  # tokens and targets are int64
    end = 2 * stream + statistics(w) * T // n * wide  # the last norm
    loss = (3 if parts == 1 else 2) * T * V * wide + 16 * T
    # the input's gradient; with split the gathered input too, and the gradient's part
    head = T * V * item + head_weight + (2 * whole + stream if n > 1 else whole)
    enters = stream + w.tied * head_weight + (T + H) * F * item + (whole if n > 1 else 0)
    enters += (block - stays) * (recompute == "full")
    return kept + max(end + loss, end + head, enters)


def block_kept(w: "GPT", parts: int = 1, split: bool = False) -> int:
    """Bytes that autograd keeps of one block until its backward; the table above."""
    T, H, n = w.batch * w.seq, w.hidden, parts if split else 1
    wide, again = max(w.itemsize, 4), H if n > 1 else 0
    elements = 4 * T * H // n + T * (attention_kept(w) + again + mlp_kept(w)) // parts
    return elements * w.itemsize + (2 * statistics(w) * T // n + T * w.heads // parts) * wide


def dropped(recompute: str, all_but_input: int, core: int) -> int:
    """Of bytes that backward of a block needs, those that are not kept from forward on."""
    return {"none": 0, "selective": core, "full": all_but_input}[recompute]


def attention_kept(w: "GPT") -> int:
    """Features of a token that backward of attention and of out needs: those of qkv, the copies
    in between, and the output."""
    return w.qkv_features + copied(w) + w.hidden


def copied(w: "GPT") -> int:
    """Features of a token that attention's core keeps besides: queries that share keys once more
    (in a row), turned ones and their keys."""
    again = w.rotary or w.num_kv_heads < w.heads
    return again * w.hidden + w.rotary * w.num_kv_heads * w.head_size


def core_kept(w: "GPT", parts: int = 1, split: bool = False) -> int:
    """Bytes of a block that attention's core alone keeps: such copies, with ``split`` the output in
    its own order, and the log-sum-exps."""
    numbers = copied(w) + (w.hidden if split and parts > 1 else 0)
    item, wide = w.itemsize, max(w.itemsize, 4)
    return w.batch * w.seq * (numbers * item + w.heads * wide) // parts


def mlp_kept(w: "GPT") -> int:
    """Features of a token that backward of the activation and of down needs."""
    return (4 if w.gated else 2) * w.mlp_width


def statistics(w: "GPT") -> int:
    """Numbers of a token that a norm computes: mean and deviation, or the deviation alone."""
    return 2 if w.norm == "layer" else 1
