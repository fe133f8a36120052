"""As `misconceptions`, of notebook 15: each was written before its message was known."""

from math import exp

import solutions_experts as right
import torch
import torch.distributed as dist


# --- numbers ---
def weights_of_sigmoids(scores, k):
    sizes = [1 / (1 + exp(-score)) for score in scores]
    kept = [size if size in sorted(sizes)[-k:] else 0 for size in sizes]
    return [size / sum(kept) for size in kept]


def weights_of_the_least(scores, k):
    sizes = [exp(score) for score in scores]
    kept = [size if size in sorted(sizes)[:k] else 0 for size in sizes]
    return [size / sum(kept) for size in kept]


def weights_undivided(scores, k):
    return [exp(score) if score in sorted(scores)[-k:] else 0 for score in scores]


def busiest_to_the_least(counts, ep):
    rows = torch.tensor(counts).view(ep, -1).sum(1)
    return rows.max(), rows.max() / rows.min()


def busiest_inverted(counts, ep):
    rows, ratio = right.moe_busiest(counts, ep)
    return rows, 1 / ratio


def busiest_everything(counts, ep):
    return sum(counts), right.moe_busiest(counts, ep)[1]


def bytes_and_backward(tokens, k, hidden, ep):
    rows, whole = right.moe_bytes(tokens, k, hidden, ep)
    return 2 * rows, whole


def bytes_of_everybody(tokens, k, hidden, ep):
    rows, whole = right.moe_bytes(tokens, k, hidden, ep)
    return ep * rows, whole


def bytes_of_gathered_copies(tokens, k, hidden, ep):
    rows, whole = right.moe_bytes(tokens, k, hidden, ep)
    return rows, k * whole


def bytes_as_if_tokens_were_all(tokens, k, hidden, ep):
    return right.moe_bytes(tokens, k, hidden, ep)[0], 4 * tokens * hidden * (ep - 1) / ep


def gradients_of_replicas(dp, cp, ep):
    return dp, dp, dp


def gradients_of_experts_stay(dp, cp, ep):
    return dp * cp * ep, 1, dp * cp * ep


def gradients_once_more_by_ep(dp, cp, ep):
    return dp * cp * ep, dp * cp, dp * cp * ep * ep


def gradients_added_up(dp, cp, ep):
    return dp * cp * ep, dp * cp, 1


def parts_everywhere(experts, hidden, width, tokens, tp, ep, etp):
    own, mine = right.moe_parts(experts, hidden, width, tokens, tp, ep, etp)
    return own * ep, mine


def parts_tokens_cut(experts, hidden, width, tokens, tp, ep, etp):
    return right.moe_parts(experts, hidden, width, tokens, tp, ep, etp)[0], tokens / tp


def parts_tokens_over_ep(experts, hidden, width, tokens, tp, ep, etp):
    own, mine = right.moe_parts(experts, hidden, width, tokens, tp, ep, etp)
    return own, mine / ep


# --- ranks ---
def dispatch_mean(x, experts, weights, mine):
    return right._dispatch(x, experts, weights, mine, join=lambda results, w: results.mean(1))


def dispatch_weights_scaled(x, experts, weights, mine):
    return right.moe_dispatch(x, experts, weights / weights.sum(1, keepdim=True), mine)


def dispatch_weights_sorted(x, experts, weights, mine):
    order = experts.flatten().argsort(stable=True)
    return right.moe_dispatch(x, experts, weights.flatten()[order].view_as(weights), mine)


def dispatch_to_the_first_expert(x, experts, weights, mine):
    return right._dispatch(x, experts, weights, mine, whose=torch.zeros_like)


def dispatch_first_choice(x, experts, weights, mine):
    return right.moe_dispatch(x, experts, weights * torch.tensor([1, 0]), mine)


def dispatch_in_the_family(x, experts, weights, mine):
    """Never past the rank."""
    own = 2 * dist.get_rank() + experts % 2
    return right.moe_dispatch(x, own, weights, mine)


RIGHT = {}
WRONG = {
    "moe_weights": [
        (weights_of_sigmoids, "took a sigmoid"),
        (weights_of_the_least, "chose the smallest"),
        (weights_undivided, "divide them by a sum"),
    ],
    "moe_busiest": [
        (busiest_to_the_least, "over the least busy rank"),
        (busiest_inverted, "the mean over the busiest"),
        (busiest_everything, "the rows of all ranks"),
    ],
    "moe_bytes": [
        (bytes_and_backward, "backward is not asked for"),
        (bytes_of_everybody, r"what all \d+ ranks send together"),
        (bytes_of_gathered_copies, "brings each token once"),
        (bytes_as_if_tokens_were_all, "parts of this size through every rank"),
    ],
    "moe_gradients": [
        (gradients_of_replicas, "have one too"),
        (gradients_of_experts_stay, "an expert has copies"),
        (gradients_once_more_by_ep, "ep is there once"),
        (gradients_added_up, "is no mean"),
    ],
    "moe_parts": [
        (parts_everywhere, r"spread over \d+ ranks"),
        (parts_tokens_cut, "all send the rows of all tokens"),
        (parts_tokens_over_ep, "of one rank of ep already"),
    ],
    "moe_dispatch": [
        (dispatch_mean, "mean of a token's two results"),
        (dispatch_weights_scaled, "to be taken as they are"),
        (dispatch_weights_sorted, "weights are in the order of the experts"),
        (dispatch_to_the_first_expert, "computed by its expert 0"),
        (dispatch_first_choice, "the second of a token's two experts is missing"),
        (dispatch_in_the_family, "without the rank"),
    ],
}
