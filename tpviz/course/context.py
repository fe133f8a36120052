"""The exercises of notebook 14 on numbers: two blocks of attention made one, which tokens a rank
has, its FLOPs and bytes, the limits of each kind, and the fastest on a cluster (predicted)."""

from collections.abc import Mapping
from functools import lru_cache
from math import exp, log, log1p
from typing import Any

from tpviz.cluster import Cluster, Level, clusters
from tpviz.core.workload import GPT
from tpviz.schemes.context.sequence import SequenceCut
from tpviz.schemes.context.strategy import Context
from tpviz.schemes.megatron.strategy import Megatron
from tpviz.schemes.strategy import Strategy
from tpviz.verbs.predict import predict

from .formula import Asked, ChoiceQuestion, Formula
from .told import told


# --- cp_merge ---
def merged(one: float, sum_one: float, other: float, sum_other: float) -> tuple[float, float]:
    """(output, log-sum-exp) of two blocks; the larger sum is taken out, so no exp overflows."""
    most = max(sum_one, sum_other)
    both = most + log1p(exp(-abs(sum_one - sum_other)))
    return one * exp(sum_one - both) + other * exp(sum_other - both), both


def _merge_mistakes(one, sum_one, other, sum_other):
    _, both = merged(one, sum_one, other, sum_other)
    a, b, most = exp(sum_one - both), exp(sum_other - both), max(sum_one, sum_other)
    return {
        "outputs are added": (one + other, ...),
        "outputs are averaged": ((one + other) / 2, ...),
        "weights are the sums": ((one * sum_one + other * sum_other) / (sum_one + sum_other), ...),
        "weights are exchanged": (one * b + other * a, ...),
        "old is not rescaled": (one + other * b, ...),
        "new is not rescaled": (one * a + other, ...),
        "weights do not add up": (one * exp(sum_one - most) + other * exp(sum_other - most), ...),
        "weights are the outputs'": (merged(one, one, other, other)[0], ...),
        "base is e": _in_base_two(one, sum_one, other, sum_other),
        "logarithms are added": (..., sum_one + sum_other),
        "sums differ": (..., most + log(2)),
        "larger of the two": (..., most),
        "mean of the two": (..., (sum_one + sum_other) / 2),
    }


def _in_base_two(one, sum_one, other, sum_other):
    out, both = merged(one, sum_one * log(2), other, sum_other * log(2))
    return out, both / log(2)


def _draw_merge(rng):
    """The last one has scores whose exp no float holds."""
    for level in (0.0, 2.0, float(rng.integers(900, 1000))):
        sums = (level + rng.uniform(0.5, 3, 2)).round(3).tolist()
        one, other = rng.uniform(-2, 2, 2).round(3).tolist()
        yield one, sums[0], other, sums[1]


MERGE = Formula(
    **told("cp_merge"),
    draw=_draw_merge,
    parts=("output", "log-sum-exp"),
    solution=merged,
    mistakes=_merge_mistakes,
)


# --- cp_positions ---
def positions(kind: str, rank: int, cp: int, seq: int) -> tuple[int, ...]:
    """The places in the whole sequence of a rank's tokens, in order."""
    cut = SequenceCut(cp, kind)
    return _tokens(cut.chunks(rank), seq // (cp * cut.each))


def _tokens(chunks, size):
    return tuple(chunk * size + token for chunk in chunks for token in range(size))


def _positions_mistakes(kind, rank, cp, seq):
    half, zigzag = seq // (2 * cp), kind == "zigzag"
    pairs = {
        "second chunk is not the": (rank, rank + cp),
        "chunks are counted to cp": (rank, cp - 1 - rank),
        "second chunk is one too far": (rank, 2 * cp - rank),
        "chunks are in the wrong order": (2 * cp - 1 - rank, rank),
    }
    mirror = range(seq - rank * half - 1, seq - (rank + 1) * half - 1, -1)
    return {
        "positions are not shifted": tuple(range(seq // cp)),
        "places are counted from 0": tuple(1 + i for i in positions(kind, rank, cp, seq)),
        "ring's tokens": positions("ring", rank, cp, seq) if zigzag else None,
        "every cp-th token": tuple(range(rank, seq, cp)),
        **{key: _tokens(two, half) if zigzag else None for key, two in pairs.items()},
        "tokens are reversed": (*_tokens((rank,), half), *mirror) if zigzag else None,
    }


def _draw_positions(rng):
    for kind, cp in (("ring", 4), ("zigzag", 4), ("zigzag", int(rng.integers(2, 6)))):
        rank = int(rng.integers(1, cp - (kind == "zigzag" and cp > 2)))
        yield kind, rank, cp, 2 * cp * int(rng.integers(2, 5))


POSITIONS = Formula(
    **told("cp_positions"), draw=_draw_positions, solution=positions, mistakes=_positions_mistakes
)


# --- cp_flops ---
def flops(kind: str, rank: int, cp: int, seq: int, hidden: int) -> tuple[float, float]:
    """(forward FLOPs of a rank's attention, those of the busiest rank over the mean)."""
    square = 4 * (seq / cp) ** 2 * hidden
    if kind == "ring":
        return (rank + 1 / 2) * square, (cp - 1 / 2) / (cp / 2)
    return cp / 2 * square, 1.0


def _flops_mistakes(kind, rank, cp, seq, hidden):
    mine, uneven = flops(kind, rank, cp, seq, hidden)
    square, ring = 4 * (seq / cp) ** 2 * hidden, kind == "ring"
    blocks = rank + 1 if ring else (2 * cp + 1) / 4
    return {
        "diagonal counts whole": (blocks * square, ...),
        "diagonal is left out": ((blocks - (1 if ring else 1 / 2)) * square, ...),
        "attention is causal": (cp * square, ...),
        "whole square is one rank's": (cp**2 * square, ...),
        "triangle is shared by the ranks": (cp / 2 * square, ...) if ring else None,
        "two products": (mine / 2, ...),
        "multiply-add has two": (mine / 4, ...),
        "backward is not asked for": (5 / 2 * mine, ...),
        "chunks of zigzag are half": (4 * mine, ...) if not ring else None,
        "zigzag is even": (..., flops("ring", rank, cp, seq, hidden)[1]) if not ring else None,
        "diagonal is left out of the ratio": (..., 2 * cp / (cp + 1)) if ring else None,
        "busiest over the least": (..., 2 * cp - 1) if ring else None,
        "mean over the busiest": (..., 1 / uneven) if ring else None,
        "rank over the mean": (..., (2 * rank + 1) / cp) if ring else None,
    }


def _draw_flops(rng):
    for kind, cp in (("ring", 4), ("zigzag", 4), ("ring", int(rng.choice([2, 8, 16])))):
        rank = int(rng.integers(0, cp - 1))
        yield kind, rank, cp, cp * 64 * int(rng.integers(3, 40)), 512 * int(rng.integers(2, 17))


FLOPS = Formula(
    **told("cp_flops"),
    draw=_draw_flops,
    parts=("FLOPs", "ratio"),
    solution=flops,
    mistakes=_flops_mistakes,
)


# --- cp_bytes ---
def sent(
    kind: str, cp: int, tokens: int, hidden: int, heads: int, kv_heads: int
) -> tuple[float, float]:
    """(forward, backward) bytes that a rank sends for one attention in bfloat16."""
    keys = hidden * kv_heads / heads
    if kind == "ring":
        message = tokens / cp * 2 * keys
        forward = (cp - 1) * message * 2
        return forward, forward + cp * message * 4
    forward = tokens / cp * (2 * hidden + 2 * keys) * (cp - 1) / cp * 2
    return forward, forward


def _bytes_mistakes(kind, cp, tokens, hidden, heads, kv_heads):
    (forward, backward), ring = sent(kind, cp, tokens, hidden, heads, kv_heads), kind == "ring"
    keys, each = hidden * kv_heads / heads, tokens / cp
    message, mine = each * 2 * keys, each * (2 * hidden + 2 * keys) * 2
    of_all_heads = sent(kind, cp, tokens, hidden, heads, heads)[0]

    def only(of_ring, of_ulysses):
        return of_ring if ring else of_ulysses

    return {
        "last hop is sent in vain": only((cp * message * 2, ...), None),
        "values travel too": only((forward / 2, ...), None),
        "keys have fewer heads": (of_all_heads, ...),
        "number has 2 bytes": (2 * forward, ...),
        "rank sends its own part": (cp * forward, ...),
        "message is of all ranks": only((message * 2, ...), None),
        "part that a rank keeps": only(None, (mine, ...)),
        "part sent to one": only(None, (mine / cp, ...)),
        "queries and results": only(None, (each * (hidden + 2 * keys) * (cp - 1) / cp * 2, ...)),
        "gradients travel too": only((..., forward), None),
        "keys travel again": only((..., cp * message * 4), None),
        "gradients are float32": only((..., forward + cp * message * 2), None),
        "gradients go all the way home": only((..., forward + (cp - 1) * message * 4), None),
        "twice as in other layers": only((..., 2 * forward), (..., 2 * forward)),
        "backward alone is asked for": (..., forward + backward),
    }


def _draw_bytes(rng):
    for kind, share in (("ring", 1), ("ulysses", 4), ("ring", 4), ("ulysses", 1)):
        cp, kv_heads = int(rng.choice([2, 4, 8])), 8 * int(rng.integers(1, 4))
        tokens = cp * 512 * int(rng.integers(2, 20))
        yield kind, cp, tokens, 128 * share * kv_heads, share * kv_heads, kv_heads


BYTES = Formula(
    **told("cp_bytes"),
    draw=_draw_bytes,
    parts=("forward", "backward"),
    solution=sent,
    mistakes=_bytes_mistakes,
)


# --- cp_limit ---
def limits(heads: int, kv_heads: int, tp: int, seq: int, ranks: int) -> tuple[int, int]:
    """(the largest cp for Ulysses, for zigzag), of at most ``ranks`` ranks."""
    return _most(ranks, kv_heads / tp, seq), _most(ranks, seq / 2)


def _most(ranks, *sizes):
    """The largest number that divides all."""
    return max(n for n in range(1, ranks + 1) if all(size % n == 0 for size in sizes))


def _limit_mistakes(heads, kv_heads, tp, seq, ranks):
    return {
        "heads of keys are fewer": (_most(ranks, heads / tp, seq), ...),
        "tp has taken heads": (_most(ranks, kv_heads, seq), ...),
        "sequence is cut as well": (_most(ranks, kv_heads / tp), ...),
        "heads are cut as a whole": (min(ranks, kv_heads // tp), ...),
        "zigzag has two chunks": (..., _most(ranks, seq)),
        "zigzag cuts no heads": (..., _most(ranks, kv_heads / tp, seq / 2)),
        "chunks are as long": (..., min(ranks, seq // 2)),
        "cp and tp multiply": (_most(ranks // tp, kv_heads / tp, seq), ...),
    }


def _draw_limit(rng):
    """Sequences of 3 and 5 times a power of two; in the second, fewer ranks than heads of keys."""
    for share, tp, odd in ((4, 2, 3), (1, 1, 5), (8, 2, 9)):
        kv_heads = tp * int(rng.choice([4, 8, 12] if tp > 1 else [8, 12]))
        ranks = int(rng.choice([16, 24, 48])) if tp > 1 else kv_heads - int(rng.integers(1, 4))
        yield share * kv_heads, kv_heads, tp, odd * int(rng.choice([2, 4, 8, 16])), ranks


LIMIT = Formula(
    **told("cp_limit"),
    draw=_draw_limit,
    parts=("largest cp of Ulysses", "largest cp of zigzag"),
    solution=limits,
    mistakes=_limit_mistakes,
)


# --- cp_kind ---
RANKS = 8
CHOICES: Mapping[str, Strategy] = {
    "tp": Megatron(tp=RANKS, sp=True),
    **{kind: Context(cp=RANKS, kind=kind) for kind in ("ring", "zigzag", "ulysses")},
}


@lru_cache(maxsize=256)
def step_times(cluster: Cluster, workload: GPT) -> dict[str, float]:
    """{choice: predicted seconds of a step}."""
    return {name: predict(s, workload, cluster).step_time for name, s in CHOICES.items()}


def _draw_kind(rng):
    gpu = clusters.nvswitch(RANKS).device
    for rate, seq, kv_heads in ((450, 2048, 32), (450, 32768, 8), (12.5, 65536, 32)):
        rate = round(rate * float(rng.uniform(0.8, 1.2)), 1)
        link = Level("network", RANKS, 1e9 * rate, latency=1e-5)
        size = seq * int(rng.choice([1, 2]))
        w = GPT(4, 4096, 32, size, 1, vocab=1024, dtype="bfloat16", rotary=True, kv_heads=kv_heads)
        cluster = Cluster(f"GPUs with links of {rate:g} GB/s", gpu, (link,))
        words = f"{size:,} tokens, {kv_heads} heads of keys of 32, {cluster.name}"
        yield Asked((cluster, w), words)


def _kind_wrong(question, got):
    best, w, times = question.answer, question.arguments["workload"], question.known
    if got == "ring" and (best == "zigzag" or times["ring"] > 1.2 * times["zigzag"]):
        return KIND.say("last rank of a ring")
    if best == "tp":
        return KIND.say("short sequence", seq=w.seq)
    if got == "tp":
        return KIND.say("tp sends all tokens")
    if best == "ulysses":
        return KIND.say("ring is longer than its blocks")
    return KIND.say("ring is hidden")


KIND: Any = ChoiceQuestion(
    **told("cp_kind", choices=", ".join(map(repr, CHOICES))),
    kind="one of the plans",
    unit="(predicted)",
    draw=_draw_kind,
    solution=step_times,
    wrong=_kind_wrong,
)
