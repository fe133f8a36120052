"""Bytes of a GPT's training step on one rank (derived; tests compare with tracked allocations).

T tokens, H hidden, F MLP width, V vocabulary, N heads, n = parts of the matrices, all in elements.
What autograd keeps of a block, without sequence parallelism (compare Korthikanti et al. 2022,
arXiv 2205.05198, equation 2, which has dropout and no fused attention):

    both LayerNorms: input and output, 4 T H, and two statistics a token each;
    q, k, v and the output of attention, 4 T H / n, and one log-sum-exp a row and head;
    before and after GELU, 2 T F / n.

With sequence parallelism the first are split too, and the output of attention is kept once more, in
the order in which the sequence is scattered.
"""


def states(numel, tensors, itemsize):
    """(parameters, gradients, optimizer) of AdamW on ``numel`` numbers: one, one, two copies.

    Besides, 4 bytes for the step counter of each tensor.
    """
    size = numel * itemsize
    return size, size, 2 * size + 4 * tensors


def activations(w, parts=1, split=False):
    """Bytes at the peak: where the loss is, or where backward enters the last block."""
    T, H, F, V = w.batch * w.seq, w.hidden, w.mlp_ratio * w.hidden // parts, w.vocab // parts
    item, wide, n = w.itemsize, max(w.itemsize, 4), parts if split else 1
    stream = T * H // n * item  # one tensor between the matrices
    block = block_kept(w, parts, split)
    kept = 16 * T + w.layers * block  # tokens and targets are int64
    end = 2 * stream + 2 * T // n * wide  # the last LayerNorm
    logits = T * V * wide
    loss = kept + end + (3 if parts == 1 else 2) * logits + 16 * T
    whole = T * H * item
    head_weight = V * H * item
    head = kept + end + T * V * item + whole + head_weight
    enters = kept + stream + w.tied * head_weight + (T + H) * F * item + stream * split * (n - 1)
    return max(loss, head, enters)


def block_kept(w, parts=1, split=False):
    """Bytes that autograd keeps of one block until its backward; the table above."""
    T, H, F, n = w.batch * w.seq, w.hidden, w.mlp_ratio * w.hidden // parts, parts if split else 1
    wide = max(w.itemsize, 4)
    elements = 4 * T * H // n + (4 + (split and parts > 1)) * T * H // parts + 2 * T * F
    return elements * w.itemsize + (4 * T // n + T * w.heads // parts) * wide
