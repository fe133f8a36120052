"""As `misconceptions`, of notebook 14: each was written before its message was known."""

from math import exp, log, log2

import solutions_context as right
import solutions_context_ring as ring
import torch
import torch.distributed as dist


# --- numbers ---
def merge_by_softmax_of_outputs(one, sum_one, other, sum_other):
    """The weights of the outputs themselves."""
    a, b = exp(one), exp(other)
    return (a * one + b * other) / (a + b), right.cp_merge(one, sum_one, other, sum_other)[1]


def merge_in_base_two(one, sum_one, other, sum_other):
    most = max(sum_one, sum_other)
    both = most + log2(2 ** (sum_one - most) + 2 ** (sum_other - most))
    return one * 2 ** (sum_one - both) + other * 2 ** (sum_other - both), both


def merge_weights_exchanged(one, sum_one, other, sum_other):
    out, both = right.cp_merge(other, sum_one, one, sum_other)
    return out, both


def merge_log_of_two(one, sum_one, other, sum_other):
    """As if the blocks had equally large sums."""
    return right.cp_merge(one, sum_one, other, sum_other)[0], max(sum_one, sum_other) + log(2)


def positions_of_two_halves(kind, rank, cp, seq):
    """Chunk r of each half."""
    if kind == "ring":
        return right.cp_positions(kind, rank, cp, seq)
    size = seq // (2 * cp)
    return [chunk * size + i for chunk in (rank, cp + rank) for i in range(size)]


def positions_from_one(kind, rank, cp, seq):
    return [place + 1 for place in right.cp_positions(kind, rank, cp, seq)]


def positions_late_chunk_first(kind, rank, cp, seq):
    own = right.cp_positions(kind, rank, cp, seq)
    half = len(own) // 2
    return own if kind == "ring" else own[half:] + own[:half]


def flops_of_backward(kind, rank, cp, seq, hidden):
    mine, uneven = right.cp_flops(kind, rank, cp, seq, hidden)
    return 2.5 * mine, uneven


def flops_of_earlier_ranks(kind, rank, cp, seq, hidden):
    """Without the rank's own block."""
    mine, uneven = right.cp_flops(kind, rank, cp, seq, hidden)
    square = 4 * (seq / cp) ** 2 * hidden
    return (rank * square, uneven) if kind == "ring" else (mine, uneven)


def flops_own_rank_over_the_mean(kind, rank, cp, seq, hidden):
    mine, _ = right.cp_flops(kind, rank, cp, seq, hidden)
    return mine, (rank + 0.5) / (cp / 2) if kind == "ring" else 1


def flops_ratio_of_whole_blocks(kind, rank, cp, seq, hidden):
    mine, _ = right.cp_flops(kind, rank, cp, seq, hidden)
    return mine, cp / ((cp + 1) / 2) if kind == "ring" else 1


def bytes_of_the_whole_sequence(kind, cp, tokens, hidden, heads, kv_heads):
    return right.cp_bytes(kind, cp, tokens * cp, hidden, heads, kv_heads)


def bytes_of_one_hop(kind, cp, tokens, hidden, heads, kv_heads):
    forward, backward = right.cp_bytes(kind, cp, tokens, hidden, heads, kv_heads)
    if kind == "ulysses":
        return forward, backward
    return forward / (cp - 1), forward / (cp - 1) * 3


def bytes_with_what_stays(kind, cp, tokens, hidden, heads, kv_heads):
    forward, backward = right.cp_bytes(kind, cp, tokens, hidden, heads, kv_heads)
    if kind == "ring":
        return forward, backward
    return forward * cp / (cp - 1), backward * cp / (cp - 1)


def bytes_gradients_as_far_as_keys(kind, cp, tokens, hidden, heads, kv_heads):
    forward, backward = right.cp_bytes(kind, cp, tokens, hidden, heads, kv_heads)
    return (forward, 3 * forward) if kind == "ring" else (forward, backward)


def bytes_backward_twice(kind, cp, tokens, hidden, heads, kv_heads):
    forward, _ = right.cp_bytes(kind, cp, tokens, hidden, heads, kv_heads)
    return forward, 2 * forward


def limit_of_heads_alone(heads, kv_heads, tp, seq, ranks):
    """The sequence is left out."""
    ulysses = max(n for n in range(1, ranks + 1) if kv_heads % (tp * n) == 0)
    return ulysses, right.cp_limit(heads, kv_heads, tp, seq, ranks)[1]


def limit_of_zigzag_by_heads(heads, kv_heads, tp, seq, ranks):
    ulysses, zigzag = right.cp_limit(heads, kv_heads, tp, seq, ranks)
    both = [n for n in range(1, ranks + 1) if seq % (2 * n) == 0 and kv_heads % (tp * n) == 0]
    return ulysses, max(both) if zigzag else 1


def limit_of_a_token(heads, kv_heads, tp, seq, ranks):
    ulysses, _ = right.cp_limit(heads, kv_heads, tp, seq, ranks)
    return ulysses, min(ranks, seq // 2)


# --- ranks ---
def ring_without_scale(q, k, v):
    return ring.cp_ring(q * q.shape[1] ** 0.5, k, v)


def ring_of_values_alone(q, k, v):
    """The keys stay at home."""

    def around(own, to):
        for whose, (_, values) in ring._around(own, to):
            yield whose, torch.stack((k, values))

    return ring._ring(q, k, v, around=around)


def ring_averaged(q, k, v):
    rank, half = dist.get_rank(), len(q) // 2
    out, times = torch.zeros_like(q), torch.zeros_like(q[:, :1])
    for whose, own in ring._around(torch.stack((k, v))):
        rows, columns, masked = ring._half(rank, whose, half)
        out[rows] += ring._block(q[rows], *own[:, columns], masked)[0]
        times[rows] += 1
    return out / times


def ring_one_hop_short(q, k, v):
    around = lambda own, to: ring._hops(own, to, dist.get_world_size() - 1)
    return ring._ring(q, k, v, around=around)


def ring_by_distance(q, k, v):
    """Each block straight from the rank that has it."""

    def around(own, to):
        n, rank = dist.get_world_size(), dist.get_rank()
        for step in range(n):
            coming, works = own, []
            if step:
                coming, after = torch.empty_like(own), (rank + to * step) % n
                works = [dist.isend(own, after), dist.irecv(coming, (rank - to * step) % n)]
            for work in works:
                work.wait()
            yield (rank - to * step) % n, coming

    return ring._ring(q, k, v, around=around)


RIGHT = {}
WRONG = {
    "cp_merge": [
        (merge_by_softmax_of_outputs, "your weights are exponentials of the outputs"),
        (merge_in_base_two, "you computed with base 2"),
        (merge_weights_exchanged, "the weights are exchanged"),
        (merge_log_of_two, "log-sum-exp of two equal blocks"),
    ],
    "cp_positions": [
        (positions_of_two_halves, "mirror image of the first one"),
        (positions_from_one, "you count from 1"),
        (positions_late_chunk_first, "the chunks are exchanged"),
    ],
    "cp_flops": [
        (flops_of_backward, "that is backward"),
        (flops_of_earlier_ranks, "the blocks on the diagonal are missing"),
        (flops_own_rank_over_the_mean, r"that is rank \d+ over the mean"),
        (flops_ratio_of_whole_blocks, "your ratio counts blocks on the diagonal whole"),
    ],
    "cp_bytes": [
        (bytes_of_the_whole_sequence, "a rank has 1/. of them"),
        (bytes_of_one_hop, "that is one hop"),
        (bytes_with_what_stays, "it keeps its own part"),
        (bytes_gradients_as_far_as_keys, "one more than the keys"),
        (bytes_backward_twice, "does not send twice as much"),
    ],
    "cp_limit": [
        (limit_of_heads_alone, "share the sequence too"),
        (limit_of_zigzag_by_heads, "zigzag cuts no heads"),
        (limit_of_a_token, "chunks must be equally long"),
    ],
    "cp_ring": [
        (ring_without_scale, "not divided by sqrt"),
        (ring_of_values_alone, "the keys are always the rank's own"),
        (ring_averaged, "the outputs of blocks are averaged"),
        (ring_one_hop_short, "hops are too few"),
        (ring_by_distance, "which is no neighbour"),
    ],
}
