"""Answers to the exercises on context parallelism: right ones, and wrong ones with the hint they
get."""

from math import exp, log

import torch

import tpviz as tv

# --- cp_merge ---


def cp_merge(one, sum_one, other, sum_other):
    most = max(sum_one, sum_other)
    both = most + log(exp(sum_one - most) + exp(sum_other - most))
    return one * exp(sum_one - both) + other * exp(sum_other - both), both


def merge_by_torch(one, sum_one, other, sum_other):
    sums = torch.tensor([sum_one, sum_other], dtype=torch.float64)
    weights = sums.softmax(0)
    return float(weights @ torch.tensor([one, other], dtype=torch.float64)), sums.logsumexp(0)


def merge_mean(one, sum_one, other, sum_other):
    return (one + other) / 2, cp_merge(one, sum_one, other, sum_other)[1]


def merge_added(one, sum_one, other, sum_other):
    return one + other, cp_merge(one, sum_one, other, sum_other)[1]


def merge_old_not_rescaled(one, sum_one, other, sum_other):
    both = cp_merge(one, sum_one, other, sum_other)[1]
    return one + other * exp(sum_other - both), both


def merge_by_sums(one, sum_one, other, sum_other):
    total = sum_one + sum_other
    return (one * sum_one + other * sum_other) / total, total


def merge_larger(one, sum_one, other, sum_other):
    return cp_merge(one, sum_one, other, sum_other)[0], max(sum_one, sum_other)


def merge_overflows(one, sum_one, other, sum_other):
    a, b = torch.tensor([sum_one, sum_other]).exp()
    return (one * a + other * b) / (a + b), (a + b).log()


# --- cp_positions ---


def cp_positions(kind, rank, cp, seq):
    if kind == "ring":
        size = seq // cp
        return list(range(rank * size, (rank + 1) * size))
    size = seq // (2 * cp)
    return [c * size + i for c in (rank, 2 * cp - 1 - rank) for i in range(size)]


def positions_by_chunks(kind, rank, cp, seq):
    chunks = torch.arange(seq).chunk(cp if kind == "ring" else 2 * cp)
    mine = [rank] if kind == "ring" else [rank, -1 - rank]
    return torch.cat([chunks[c] for c in mine])


def positions_contiguous(kind, rank, cp, seq):
    return cp_positions("ring", rank, cp, seq)


def positions_striped(kind, rank, cp, seq):
    return list(range(seq))[rank::cp]


def positions_of_cp_chunks(kind, rank, cp, seq):
    if kind == "ring":
        return cp_positions(kind, rank, cp, seq)
    size = seq // (2 * cp)
    return [c * size + i for c in (rank, cp - 1 - rank) for i in range(size)]


def positions_mirrored(kind, rank, cp, seq):
    own = cp_positions(kind, rank, cp, seq)
    half = len(own) // 2
    return own if kind == "ring" else own[:half] + own[: half - 1 : -1]


# --- cp_flops ---


def cp_flops(kind, rank, cp, seq, hidden):
    square = 4 * (seq / cp) ** 2 * hidden
    if kind == "zigzag":
        return cp / 2 * square, 1
    return (rank + 0.5) * square, (2 * cp - 1) / cp


def flops_by_blocks(kind, rank, cp, seq, hidden):
    chunks = {r: [r] if kind == "ring" else [r, 2 * cp - 1 - r] for r in range(cp)}
    size = seq / cp / len(chunks[0])
    work = [4 * size**2 * hidden * sum(c + 0.5 for c in own) for own in chunks.values()]
    return work[rank], max(work) * cp / sum(work)


def flops_whole_diagonal(kind, rank, cp, seq, hidden):
    work = [4 * (seq / cp) ** 2 * hidden * (r + 1) for r in range(cp)]
    return (work[rank], 2 * cp / (cp + 1)) if kind == "ring" else (work[rank], 1)


def flops_of_all_keys(kind, rank, cp, seq, hidden):
    return 4 * seq / cp * seq * hidden, 1


def flops_mean(kind, rank, cp, seq, hidden):
    return 2 * seq**2 * hidden / cp, 1 if kind == "zigzag" else (2 * cp - 1) / cp


def flops_of_one_product(kind, rank, cp, seq, hidden):
    mine, uneven = cp_flops(kind, rank, cp, seq, hidden)
    return mine / 2, uneven


def flops_ratio_to_the_least(kind, rank, cp, seq, hidden):
    return cp_flops(kind, rank, cp, seq, hidden)[0], 1 if kind == "zigzag" else 2 * cp - 1


# --- cp_bytes ---


def cp_bytes(kind, cp, tokens, hidden, heads, kv_heads):
    keys = hidden * kv_heads / heads
    own = tokens / cp
    if kind == "ulysses":
        forward = own * (2 * hidden + 2 * keys) * (cp - 1) / cp * 2
        return forward, forward
    numbers = own * 2 * keys
    return numbers * (cp - 1) * 2, numbers * ((cp - 1) * 2 + cp * 4)


def bytes_by_ledger(kind, cp, tokens, hidden, heads, kv_heads):
    from tpviz.schemes.context.paper import ring_bytes, ulysses_bytes

    w = tv.GPT(1, hidden, heads, tokens, 1, kv_heads=kv_heads, dtype="bfloat16")
    if kind == "ulysses":
        return (ulysses_bytes(w, cp),) * 2
    forward = ring_bytes(w, cp)
    return forward, forward + 2 * forward * cp / (cp - 1)


def bytes_of_all_hops(kind, cp, tokens, hidden, heads, kv_heads):
    forward, backward = cp_bytes(kind, cp, tokens, hidden, heads, kv_heads)
    return (forward * cp / (cp - 1), backward) if kind == "ring" else (forward, backward)


def bytes_of_all_heads(kind, cp, tokens, hidden, heads, kv_heads):
    return cp_bytes(kind, cp, tokens, hidden, heads, heads)


def bytes_of_keys(kind, cp, tokens, hidden, heads, kv_heads):
    forward, backward = cp_bytes(kind, cp, tokens, hidden, heads, kv_heads)
    return (forward / 2, backward / 2) if kind == "ring" else (forward, backward)


def bytes_as_forward(kind, cp, tokens, hidden, heads, kv_heads):
    return (cp_bytes(kind, cp, tokens, hidden, heads, kv_heads)[0],) * 2


def bytes_gradients_alone(kind, cp, tokens, hidden, heads, kv_heads):
    forward, backward = cp_bytes(kind, cp, tokens, hidden, heads, kv_heads)
    return forward, backward - forward if kind == "ring" else backward


def bytes_gradients_of_two_bytes(kind, cp, tokens, hidden, heads, kv_heads):
    forward, backward = cp_bytes(kind, cp, tokens, hidden, heads, kv_heads)
    return forward, (backward + forward) / 2 if kind == "ring" else backward


def bytes_without_results(kind, cp, tokens, hidden, heads, kv_heads):
    forward, backward = cp_bytes(kind, cp, tokens, hidden, heads, kv_heads)
    if kind == "ring":
        return forward, backward
    return (tokens / cp * (hidden + 2 * hidden * kv_heads / heads) * (cp - 1) / cp * 2,) * 2


# --- cp_limit ---


def cp_limit(heads, kv_heads, tp, seq, ranks):
    degrees = range(1, ranks + 1)
    ulysses = [n for n in degrees if kv_heads % (tp * n) == 0 and seq % n == 0]
    return max(ulysses), max(n for n in degrees if seq % (2 * n) == 0)


def limit_of_query_heads(heads, kv_heads, tp, seq, ranks):
    return cp_limit(heads, heads, tp, seq, ranks)


def limit_without_tp(heads, kv_heads, tp, seq, ranks):
    return cp_limit(heads, kv_heads, 1, seq, ranks)


def limit_of_one_chunk(heads, kv_heads, tp, seq, ranks):
    return cp_limit(heads, kv_heads, tp, seq, ranks)[0], cp_limit(1, 1, 1, 2 * seq, ranks)[1]


def limit_smaller(heads, kv_heads, tp, seq, ranks):
    return min(ranks, kv_heads // tp), cp_limit(heads, kv_heads, tp, seq, ranks)[1]


# --- cp_kind ---


def cp_kind(cluster, workload):
    plans = {
        "tp": tv.Megatron(tp=8, sp=True),
        **{kind: tv.Context(cp=8, kind=kind) for kind in ("ring", "zigzag", "ulysses")},
    }
    times = {name: tv.predict(plan, workload, cluster).step_time for name, plan in plans.items()}
    return min(times, key=times.get)


def kind_always_ring(cluster, workload):
    return "ring"


def kind_ring_for_zigzag(cluster, workload):
    best = cp_kind(cluster, workload)
    return "ring" if best == "zigzag" else best


def kind_always_zigzag(cluster, workload):
    return "zigzag"


def kind_always_tp(cluster, workload):
    return "tp"


def kind_always_ulysses(cluster, workload):
    return "ulysses"


def kind_all_gather(cluster, workload):
    return "all_gather"


RIGHT = {
    "cp_merge": [cp_merge, merge_by_torch],
    "cp_positions": [cp_positions, positions_by_chunks],
    "cp_flops": [cp_flops, flops_by_blocks],
    "cp_bytes": [cp_bytes, bytes_by_ledger],
    "cp_limit": [cp_limit],
    "cp_kind": [cp_kind],
}
WRONG = {
    "cp_merge": [
        (merge_mean, "you took the mean of the outputs"),
        (merge_added, "you added the two outputs"),
        (merge_old_not_rescaled, "`one` is not rescaled"),
        (merge_by_sums, "your weights are the log-sum-exps"),
        (merge_larger, "the other block's exponentials count too"),
        (merge_overflows, "every number must be finite"),
    ],
    "cp_positions": [
        (positions_contiguous, "those are the tokens of a contiguous ring"),
        (positions_striped, "every .th token, which is a third layout"),
        (positions_of_cp_chunks, "there are 2 cp chunks"),
        (positions_mirrored, "tokens inside a chunk are not"),
    ],
    "cp_flops": [
        (flops_whole_diagonal, "a block on the diagonal counts whole"),
        (flops_of_all_keys, "that is attention to all keys"),
        (flops_mean, "that is the mean over the ranks"),
        (flops_of_one_product, "that is one matrix product"),
        (flops_ratio_to_the_least, "over the least busy rank"),
    ],
    "cp_bytes": [
        (bytes_of_all_hops, "would bring its own ones back"),
        (bytes_of_all_heads, "keys and values have only"),
        (bytes_of_keys, "you counted keys without values"),
        (bytes_as_forward, "backward has more than forward"),
        (bytes_gradients_alone, "those are the gradients alone"),
        (bytes_gradients_of_two_bytes, "gradients are added up in float32"),
        (bytes_without_results, "results come back"),
    ],
    "cp_limit": [
        (limit_of_query_heads, "A rank needs whole heads of keys too"),
        (limit_without_tp, "tp has split the heads already"),
        (limit_of_one_chunk, "divisible by 2 cp"),
        (limit_smaller, "the degree has to divide both numbers"),
    ],
    "cp_kind": [
        (kind_always_ring, "a step is short"),
        (kind_ring_for_zigzag, "last rank of a contiguous ring"),
        (kind_always_zigzag, "a step is short|takes longer than a block"),
        (kind_always_tp, "sends the activations of all tokens"),
        (kind_always_ulysses, "all-to-alls are exposed|a step is short"),
        (kind_all_gather, "which is not one of the plans"),
    ],
}
