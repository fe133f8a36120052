"""The exercises of notebook 15 on numbers: a router's weights, the busiest rank, bytes, whose
gradients are added up over what, and parts of experts under tensor parallelism."""

from math import exp

from tpviz.core.routing import Routing

from .formula import Formula
from .told import told


# --- moe_weights ---
def weights(scores: tuple[float, ...], k: int) -> tuple[float, ...]:
    """The weight of each expert, 0 where it is not chosen."""
    of_all = [exp(score) for score in scores]
    chosen = sorted(of_all)[-k:]
    total = sum(chosen) if k > 1 else sum(of_all)
    return tuple(one / total if one in chosen else 0.0 for one in of_all)


def _weights_mistakes(scores, k):
    sizes = [exp(score) for score in scores]
    total, chosen = sum(sizes), sorted(sizes)[-k:]
    kept = lambda values: tuple(v if s in chosen else 0.0 for v, s in zip(values, sizes))
    of = lambda sizes: [size / sum(kept(sizes)) for size in sizes]
    least = sorted(sizes)[:k]
    return {
        "not scaled": kept([size / total for size in sizes]),
        "one is always 1": kept([size / sum(chosen) for size in sizes]),
        "all are weighed": tuple(size / total for size in sizes),
        "equal weights": kept([1 / k] * len(sizes)),
        "scores are weights": kept(of(scores)) if sum(kept(scores)) else None,
        "exponentials alone": kept(sizes),
        "least are chosen": tuple(s / sum(least) if s in least else 0.0 for s in sizes),
        "sigmoid": kept(of([size / (1 + size) for size in sizes])),
        "chosen alone": tuple(one / sum(chosen) for one in chosen[::-1]),
    }


def _draw_weights(rng):
    for experts, k in ((4, 2), (4, 1), (int(rng.integers(5, 8)), 3)):
        yield tuple(rng.permutation([*range(-9, 20)])[:experts] / 10), k


WEIGHTS = Formula(
    **told("moe_weights"), draw=_draw_weights, solution=weights, mistakes=_weights_mistakes
)


# --- moe_busiest ---
def busiest(counts: tuple[int, ...], ep: int) -> tuple[int, float]:
    """(rows of the busiest rank, these over the mean of all ranks)."""
    each = len(counts) // ep
    rows = [sum(counts[i : i + each]) for i in range(0, len(counts), each)]
    return max(rows), max(rows) * ep / sum(rows)


def _busiest_mistakes(counts, ep):
    each, all_rows = len(counts) // ep, sum(counts)
    rows = [sum(counts[i : i + each]) for i in range(0, len(counts), each)]
    dealt, hot = max(sum(counts[i::ep]) for i in range(ep)), counts.index(max(counts))
    return {
        "hottest expert alone": (max(counts), ...),
        "experts are dealt out": (dealt, ...),
        "rank of the hottest expert": (rows[hot // each], ...),
        "mean of the ranks": (all_rows / ep, ...),
        "all rows": (all_rows, ...),
        "hottest expert over the mean": (..., max(counts) * len(counts) / all_rows),
        "hottest expert over a rank": (..., max(counts) * ep / all_rows),
        "busiest over the least": (..., max(rows) / min(rows)),
        "mean over the busiest": (..., all_rows / ep / max(rows)),
        "share of all": (..., max(rows) / all_rows),
        "busiest over the mean expert": (..., max(rows) * len(counts) / all_rows),
    }


def _draw_busiest(rng):
    for ep, each in ((4, 2), (2, 4), (int(rng.choice([4, 8])), 4)):
        routing = Routing(float(rng.uniform(0.3, 1.2)), int(rng.integers(1000)))
        yield tuple(routing.counts(ep * each, 2, 32 * int(rng.integers(8, 30))).tolist()), ep


BUSIEST = Formula(
    **told("moe_busiest"),
    draw=_draw_busiest,
    parts=("busiest rank's rows", "ratio"),
    solution=busiest,
    mistakes=_busiest_mistakes,
)


# --- moe_bytes ---
def sent(tokens: int, k: int, hidden: int, ep: int) -> tuple[float, float]:
    """Bytes that a rank sends in forward for one MLP in bfloat16: (by dispatch and combine, by an
    all-gather of tokens and a reduce-scatter of results)."""
    row = 2 * hidden
    return 2 * tokens * k * row * (ep - 1) / ep, 2 * tokens * row * (ep - 1)


def _bytes_mistakes(tokens, k, hidden, ep):
    rows, whole = sent(tokens, k, hidden, ep)
    return {
        "one way": (rows / 2, ...),
        "own rows are sent": (rows * ep / (ep - 1), ...),
        "one expert a token": (rows / k, ...),
        "backward too": (2 * rows, ...),
        "of all ranks": (rows * ep, ...),
        "to one rank": (rows / (ep - 1), ...),
        "gather alone": (..., whole / 2),
        "ring of one part": (..., whole / ep),
        "copies are gathered": (..., whole * k),
        "own part is sent": (..., whole * ep / (ep - 1)),
        "gather's backward too": (..., 2 * whole),
    }


def _draw_bytes(rng):
    for ep, k in ((4, 2), (8, 6), (int(rng.choice([16, 32])), int(rng.choice([3, 5, 7])))):
        yield 512 * int(rng.integers(2, 20)), k, 256 * int(rng.integers(2, 20)), ep


BYTES = Formula(
    **told("moe_bytes"),
    draw=_draw_bytes,
    parts=("dispatch and combine", "all-gather and reduce-scatter"),
    solution=sent,
    mistakes=_bytes_mistakes,
)


# --- moe_gradients ---
def summed(dp: int, cp: int, ep: int) -> tuple[int, int, int]:
    """(ranks over which a router's gradient is added up, an expert's, what divides an expert's)."""
    return dp * cp * ep, dp * cp, dp * cp * ep


def _gradients_mistakes(dp, cp, ep):
    return {
        "router as an expert": (dp * cp, ..., ...),
        "router over dp alone": (dp, ..., ...),
        "router over ep alone": (ep, ..., ...),
        "router without cp": (dp * ep, ..., ...),
        "router over dp and ep alone": (cp * ep, ..., ...),
        "expert over ep too": (..., dp * cp * ep, ...),
        "expert over ep alone": (..., ep, ...),
        "expert without cp": (..., dp, ...),
        "expert without dp": (..., cp, ...),
        "expert nowhere": (..., 1, ...),
        "divided by the ranks of the sum": (..., ..., dp * cp),
        "divided by ep": (..., ..., ep),
        "divided by dp": (..., ..., dp),
        "divided twice by ep": (..., ..., dp * cp * ep**2),
        "not divided": (..., ..., 1),
    }


def _draw_gradients(rng):
    for sizes in ((2, 3, 4), (5, 2, 8), (3, 4, 16)):
        dp, cp, ep = (int(size) for size in rng.permutation(sizes))
        yield dp, cp, ep


GRADIENTS = Formula(
    **told("moe_gradients"),
    draw=_draw_gradients,
    parts=("ranks of the router's sum", "ranks of an expert's sum", "divisor"),
    solution=summed,
    mistakes=_gradients_mistakes,
)


# --- moe_parts ---
def parts(
    experts: int, hidden: int, width: int, tokens: int, tp: int, ep: int, etp: int
) -> tuple[float, float]:
    """(numbers in a rank's parts of experts, tokens for which it sends rows)."""
    return experts / ep * 2 * hidden * width / etp, tokens * etp / tp


def _parts_mistakes(experts, hidden, width, tokens, tp, ep, etp):
    mine, own = parts(experts, hidden, width, tokens, tp, ep, etp)
    return {
        "experts are not spread": (mine * ep, ...),
        "one matrix": (mine / 2, ...),
        "tp cuts experts": (mine * etp / tp, ...) if etp == 1 else None,
        "etp is left out": (mine * etp, ...) if etp > 1 else None,
        "one expert": (mine * ep / experts, ...),
        "tokens are whole": (..., tokens) if etp == 1 else None,
        "tokens are cut by etp": (..., tokens / tp) if etp > 1 else None,
        "tokens are cut by ep": (..., own / ep),
        "tokens of all ranks": (..., own * ep),
    }


def _draw_parts(rng):
    for experts, ep, tp in ((8, 4, 2), (16, 2, 4), (64, 8, 8)):
        sizes = 128 * int(rng.integers(4, 20)), 384 * int(rng.integers(3, 20))
        tokens, etp = tp * 256 * int(rng.integers(2, 9)), int(rng.choice([1, tp]))
        yield experts, *sizes, tokens, tp, ep, etp


PARTS = Formula(
    **told("moe_parts"),
    draw=_draw_parts,
    parts=("numbers of experts", "tokens"),
    solution=parts,
    mistakes=_parts_mistakes,
)
