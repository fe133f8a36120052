"""Answers to the exercises on experts: right ones, and wrong ones with the hint they get."""

from math import exp

import torch
import torch.distributed as dist

# --- moe_weights ---


def moe_weights(scores, k):
    sizes = [exp(score) for score in scores]
    least = sorted(sizes)[-k]
    chosen = [size if size >= least else 0 for size in sizes]
    total = sum(chosen if k > 1 else sizes)
    return [size / total for size in chosen]


def weights_by_torch(scores, k):
    of_all = torch.tensor(scores, dtype=torch.float64).softmax(0)
    top = of_all.topk(k)
    values = top.values / top.values.sum() if k > 1 else top.values
    return torch.zeros_like(of_all).scatter(0, top.indices, values)


def weights_not_scaled(scores, k):
    of_all = torch.tensor(scores, dtype=torch.float64).softmax(0)
    top = of_all.topk(k)
    return torch.zeros_like(of_all).scatter(0, top.indices, top.values)


def weights_of_all(scores, k):
    return torch.tensor(scores, dtype=torch.float64).softmax(0)


def weights_always_scaled(scores, k):
    found = weights_not_scaled(scores, k)
    return found / found.sum()


def weights_by_score(scores, k):
    chosen = [score if score in sorted(scores)[-k:] else 0 for score in scores]
    return [score / sum(chosen) for score in chosen]


# --- moe_busiest ---


def moe_busiest(counts, ep):
    each = len(counts) // ep
    rows = [sum(counts[rank * each : (rank + 1) * each]) for rank in range(ep)]
    return max(rows), max(rows) / (sum(rows) / ep)


def busiest_by_torch(counts, ep):
    rows = torch.tensor(counts, dtype=torch.float64).view(ep, -1).sum(1)
    return rows.max(), rows.max() / rows.mean()


def busiest_expert(counts, ep):
    return max(counts), moe_busiest(counts, ep)[1]


def busiest_of_dealt_experts(counts, ep):
    return max(sum(counts[rank::ep]) for rank in range(ep)), moe_busiest(counts, ep)[1]


def busiest_ratio_of_experts(counts, ep):
    return moe_busiest(counts, ep)[0], max(counts) * len(counts) / sum(counts)


def busiest_share(counts, ep):
    rows, ratio = moe_busiest(counts, ep)
    return rows, ratio / ep


# --- moe_bytes ---


def moe_bytes(tokens, k, hidden, ep):
    row = 2 * hidden
    return 2 * tokens * k * row * (ep - 1) / ep, 2 * tokens * row * (ep - 1)


def bytes_by_ledger(tokens, k, hidden, ep):
    import tpviz as tv
    from tpviz.schemes.experts.paper import row_bytes

    w = tv.GPT(1, hidden, 8, tokens, 1, dtype="bfloat16", experts=2 * k, top_k=k)
    return row_bytes(w, ep), row_bytes(w, ep) * ep / k


def bytes_of_dispatch(tokens, k, hidden, ep):
    rows, whole = moe_bytes(tokens, k, hidden, ep)
    return rows / 2, whole


def bytes_with_own_rows(tokens, k, hidden, ep):
    return 4 * tokens * k * hidden, moe_bytes(tokens, k, hidden, ep)[1]


def bytes_of_gather(tokens, k, hidden, ep):
    rows, whole = moe_bytes(tokens, k, hidden, ep)
    return rows, whole / 2


def bytes_of_one_expert(tokens, k, hidden, ep):
    rows, whole = moe_bytes(tokens, 1, hidden, ep)
    return rows, whole


# --- moe_gradients ---


def moe_gradients(dp, cp, ep):
    ranks = dp * cp * ep
    return ranks, ranks // ep, ranks


def gradients_divided_by_the_sum(dp, cp, ep):
    return dp * cp * ep, dp * cp, dp * cp


def gradients_of_experts_over_ep(dp, cp, ep):
    return (dp * cp * ep,) * 3


def gradients_of_the_router_as_experts(dp, cp, ep):
    return dp * cp, dp * cp, dp * cp * ep


def gradients_without_cp(dp, cp, ep):
    return dp * cp * ep, dp, dp * cp * ep


# --- moe_parts ---


def moe_parts(experts, hidden, width, tokens, tp, ep, etp):
    own = 2 * hidden * width * experts // ep
    return (own, tokens // tp) if etp == 1 else (own / tp, tokens)


def parts_always_cut(experts, hidden, width, tokens, tp, ep, etp):
    own, mine = moe_parts(experts, hidden, width, tokens, tp, ep, etp)
    return (own / tp if etp == 1 else own), mine


def parts_never_cut(experts, hidden, width, tokens, tp, ep, etp):
    return 2 * hidden * width * experts / ep, tokens * etp / tp


def parts_all_tokens(experts, hidden, width, tokens, tp, ep, etp):
    return moe_parts(experts, hidden, width, tokens, tp, ep, etp)[0], tokens


def parts_of_one_matrix(experts, hidden, width, tokens, tp, ep, etp):
    own, mine = moe_parts(experts, hidden, width, tokens, tp, ep, etp)
    return own / 2, mine


# --- moe_dispatch ---


def _exchange(rows, send, receive):
    out = rows.new_empty((sum(receive), *rows.shape[1:]))
    dist.all_to_all_single(out, rows, receive, send)
    return out


def moe_dispatch(x, experts, weights, mine):
    n, chosen = dist.get_world_size(), experts.flatten()
    order = chosen.argsort(stable=True)
    counts = chosen.bincount(minlength=2 * n)
    known = torch.empty_like(counts)
    dist.all_to_all_single(known, counts)
    send, receive = (of.view(n, 2).sum(1).tolist() for of in (counts, known))
    rows = _exchange(x[order // 2], send, receive)
    whose, y = torch.arange(2).repeat(n).repeat_interleave(known), torch.empty_like(rows)
    for expert in range(2):
        y[whose == expert] = torch.relu(rows[whose == expert] @ mine[expert])
    results = torch.empty(len(order), x.shape[1])
    results[order] = _exchange(y, receive, send)
    return (results.view(-1, 2, x.shape[1]) * weights[..., None]).sum(1)


def _dispatch(x, experts, weights, mine, own=None, back=None, join=None, padding=0, whose=None):
    """With parts of it in another way. own: experts -> what is sent for; back: (results as they
    came, order) -> token by token; join: (results [T, 2, H], weights) -> [T, H]."""
    n, chosen = dist.get_world_size(), experts.flatten()
    order = chosen.argsort(stable=True)
    sent = chosen[order]
    parts = [x[order // 2][sent // 2 == rank] for rank in range(n)]
    numbers = [sent[sent // 2 == rank] % 2 for rank in range(n)]
    counts = torch.tensor([len(part) for part in parts])
    known = torch.empty_like(counts)
    dist.all_to_all_single(known, counts)
    send, receive = counts.tolist(), known.tolist()
    room = len(chosen)
    if padding:
        padded = torch.zeros(n, room, x.shape[1])
        for rank, part in enumerate(parts):
            padded[rank, : len(part)] = part
        rows = _exchange(padded.flatten(0, 1), [room] * n, [room] * n).view(n, room, -1)
        rows = torch.cat([of[:number] for of, number in zip(rows, receive)])
    else:
        rows = _exchange(torch.cat(parts), send, receive)
    of = _exchange(torch.cat(numbers), send, receive)
    of = whose(of) if whose else of
    y = torch.empty_like(rows)
    for expert in range(2):
        y[of == expert] = torch.relu(rows[of == expert] @ mine[expert])
    came = _exchange(y, receive, send)
    results = back(came, order) if back else came[order.argsort()]
    results = results.view(-1, 2, x.shape[1])
    return join(results, weights) if join else (results * weights[..., None]).sum(1)


def dispatch_with_numbers(x, experts, weights, mine):
    """Each row with its expert's number, in a message of its own."""
    return _dispatch(x, experts, weights, mine)


def dispatch_with_both(x, experts, weights, mine):
    """Every row through both experts of the rank, and the right one is kept."""
    n, chosen = dist.get_world_size(), experts.flatten()
    order = chosen.argsort(stable=True)
    counts = chosen.bincount(minlength=2 * n)
    known = torch.empty_like(counts)
    dist.all_to_all_single(known, counts)
    send, receive = (of.view(n, 2).sum(1).tolist() for of in (counts, known))
    rows = _exchange(x[order // 2], send, receive)
    whose = torch.arange(2).repeat(n).repeat_interleave(known)
    both = torch.relu(rows @ mine)
    y = both[whose, torch.arange(len(rows))]
    results = _exchange(y, receive, send)[order.argsort()]
    return (results.view(-1, 2, x.shape[1]) * weights[..., None]).sum(1)


def dispatch_without_weights(x, experts, weights, mine):
    return _dispatch(x, experts, weights, mine, join=lambda results, w: results.sum(1))


def dispatch_not_put_back(x, experts, weights, mine):
    return _dispatch(x, experts, weights, mine, back=lambda came, order: came)


def dispatch_sorted_twice(x, experts, weights, mine):
    return _dispatch(x, experts, weights, mine, back=lambda came, order: came[order])


def dispatch_as_they_came(x, experts, weights, mine):
    return _dispatch(x, experts, weights, mine, whose=lambda of: of.sort().values)


def dispatch_padded(x, experts, weights, mine):
    return _dispatch(x, experts, weights, mine, padding=1)


def dispatch_gathered(x, experts, weights, mine):
    """All tokens to all ranks, and results added up."""
    n, rank = dist.get_world_size(), dist.get_rank()
    whole = []
    for own in (x, experts, weights):
        parts = [torch.empty_like(own) for _ in range(n)]
        dist.all_gather(parts, own)
        whole.append(torch.cat(parts))
    x_all, chosen, w = whole
    y = torch.zeros_like(x_all)
    for expert in range(2):
        share = (w * (chosen == 2 * rank + expert)).sum(1, keepdim=True)
        y += share * torch.relu(x_all @ mine[expert])
    dist.all_reduce(y)
    return y.chunk(n)[rank]


RIGHT = {
    "moe_weights": [moe_weights, weights_by_torch],
    "moe_busiest": [moe_busiest, busiest_by_torch],
    "moe_bytes": [moe_bytes, bytes_by_ledger],
    "moe_gradients": [moe_gradients],
    "moe_parts": [moe_parts],
    "moe_dispatch": [moe_dispatch, dispatch_with_numbers],
}
WRONG = {
    "moe_weights": [
        (weights_not_scaled, "chosen probabilities are not scaled"),
        (weights_of_all, "softmax of all experts"),
        (weights_always_scaled, "with k = 1 the weight is the probability"),
        (weights_by_score, "divided the scores by their sum"),
    ],
    "moe_busiest": [
        (busiest_expert, "a rank has several experts"),
        (busiest_of_dealt_experts, "deal experts out like cards"),
        (busiest_ratio_of_experts, "the hottest expert over the mean expert"),
        (busiest_share, "share of all rows"),
    ],
    "moe_bytes": [
        (bytes_of_dispatch, "rows are sent there and results back"),
        (bytes_with_own_rows, "own experts stay"),
        (bytes_of_gather, "that is the all-gather alone"),
        (bytes_of_one_expert, r"once for each of its \d+ experts"),
    ],
    "moe_gradients": [
        (gradients_divided_by_the_sum, "times too large"),
        (gradients_of_experts_over_ep, "mixes experts"),
        (gradients_of_the_router_as_experts, "the router's gradient as an expert's"),
        (gradients_without_cp, "which has seen other tokens"),
    ],
    "moe_parts": [
        (parts_always_cut, "with etp = 1 experts are whole"),
        (parts_never_cut, "ranks share each expert"),
        (parts_all_tokens, "chooses for its part of the tokens"),
        (parts_of_one_matrix, "an expert has two matrices"),
    ],
    "moe_dispatch": [
        (dispatch_without_weights, "without their weights"),
        (dispatch_not_put_back, "sorted by expert, and you take them"),
        (dispatch_sorted_twice, "sort the results once more"),
        (dispatch_as_they_came, "meets the wrong expert"),
        (dispatch_with_both, "times the products that it needs"),
        (dispatch_padded, "send no padding"),
        (dispatch_gathered, "go to every rank"),
    ],
}
