"""What one step of Megatron-LM's tensor parallelism sends, exactly (derived).

With A = B s h bytes per element, L layers and n = tp ranks:

without sp: 2L + 1 all-reduces of A forward (attention, MLP of each block; the embedding) and as
many backward (qkv, up of each block; the head);
with sp: each becomes a reduce-scatter and an all-gather of A. Backward, the input of each
column-parallel layer is gathered once more, which keeps activations at 1/n (Korthikanti et al.
2022, section 4.2.2), and the gradients of what is replicated (LayerNorm, output biases, positions)
are summed once, in one piece.
"""

from tpviz.trace import Ledger


def ledger(workload, tp, sp):
    """The `Ledger` of one step of one rank."""
    w = workload
    activations = w.batch * w.seq * w.hidden * w.itemsize
    pairs = 2 * w.layers + 1
    loss = 2 * tp * w.batch * w.seq * max(w.itemsize, 4)  # every rank's two numbers per token
    entries = [("tp", "all_gather", "forward", 1, loss, tp)]
    if not sp:
        return Ledger.of(entries + [("tp", "all_reduce", phase, pairs, activations, tp)
                                    for phase in ("forward", "backward")])
    replicated = (w.seq + 6 * w.layers + 2) * w.hidden * w.itemsize
    return Ledger.of(entries + [
        ("tp", "all_gather", "forward", pairs, activations, tp),
        ("tp", "reduce_scatter", "forward", pairs, activations, tp),
        ("tp", "all_gather", "backward", 2 * pairs, activations, tp),
        ("tp", "reduce_scatter", "backward", pairs, activations, tp),
        ("tp", "all_reduce", "sync", 1, replicated, tp),
    ])
