"""The exercises of notebook 06 on numbers: what a sum after a GEMM costs, in which order its chunks
are computed, and when it pays to hide it."""

from typing import Any

from ..schemes.t3.tiles import order
from .formula import Formula, Question, same

NOTEBOOK = "06_t3"
TERA, GIGA = 1e12, 1e9

# --- t3_share ---


def share(
    tokens: int, hidden: int, k: int, ranks: int, flops: float, link: float
) -> tuple[float, float]:
    """(bytes that a rank sends, part of the time that it takes), derived."""
    sent = 2 * (ranks - 1) / ranks * tokens * hidden * 2
    sums = sent / link
    return sent, sums / (2 * tokens * hidden * k / flops + sums)


def _make_share(rng):
    questions = []
    for ranks in (4, 8, 16):
        hidden = 1024 * int(rng.integers(2, 12))
        asked = {
            "tokens": 1024 * int(rng.integers(1, 17)),
            "hidden": hidden,
            "k": hidden * int(rng.choice([1, 4])) // ranks,
            "ranks": ranks,
            "flops": int(rng.integers(60, 200)) * TERA,
            "link": int(rng.integers(50, 250)) * GIGA,
        }
        questions.append(Question(asked, share(**asked)))
    return questions


def _share_wrong(question, got):
    tokens, hidden, k, n, flops, link = question.arguments.values()
    (sent, part), words = question.answer, f"for {question}: "
    if len(got) != 2:
        return None
    if same(got[0], sent / 2):
        return (
            f"{words}you have the bytes of one of the two. The reduce-scatter leaves each rank "
            "one chunk, and the all-gather sends as many bytes again."
        )
    if same(got[0], 2 * tokens * hidden * 2):
        return f"{words}a rank's own chunk stays: n - 1 of {n} chunks are sent, twice."
    if same(got[0], 2 * (n - 1) * tokens * hidden * 2):
        return f"{words}a chunk is 1/{n} of the output, and the ring takes n - 1 steps."
    if not same(got[0], sent):
        return f"{words}a rank sends {sent:g} bytes, you have {got[0]:g}; a number has 2."
    alone, gemm = sent / link, 2 * tokens * hidden * k / flops
    if same(got[1], alone / gemm):
        return f"{words}the bytes are right; the part is of all the time, GEMM and sum."
    if same(got[1], alone / (gemm / 2 + alone)):
        return f"{words}the bytes are right; a multiply-add is two FLOPs."
    return (
        f"{words}the bytes are right; their time is {alone:.4g} s, the GEMM's {gemm:.4g}, so "
        f"the part is {part:.4g}, not {got[1]:.4g}."
    )


SHARE = Formula(
    name="t3_share",
    title="How much of a sublayer is its sum?",
    notebook=NOTEBOOK,
    prompt="Commit a guess first: of a GEMM whose output is summed over 8 ranks, is the sum 10 % "
    "of the time, or 50 %? Each of `ranks` ranks multiplies [tokens, k] by [k, hidden] at "
    "`flops` FLOP/s; the outputs, 2 bytes a number, are summed by a ring reduce-scatter and "
    "gathered again by a ring all-gather, on links of `link` bytes/s in each direction "
    "(no latency). Return (bytes that a rank sends, part of the time that reduce-scatter "
    "and all-gather take if nothing is hidden).",
    starter="""def t3_share(tokens, hidden, k, ranks, flops, link):
    sent = tokens * hidden * 2
    return sent, sent / link""",
    hints=(
        "In a step of a ring each rank sends one chunk to its neighbour. How many steps, how large "
        "is a chunk?",
        "n - 1 steps of 1/n of the output, twice. The GEMM takes 2 tokens hidden k FLOPs.",
        "`sent = 4 * (ranks - 1) / ranks * tokens * hidden`, `sums = sent / link`, `return sent, "
        "sums / (sums + 2 * tokens * hidden * k / flops)`.",
    ),
    success="Rows and columns of the output cancel out of the part: only k, the ranks and the "
    "machine matter. The hidden size is still there in k (hidden / N in OP, four times "
    "that in FC-2). More ranks make k smaller, and the sum no smaller.",
    make=_make_share,
    needs=None,
    checks=(_share_wrong,),
)


# --- t3_order ---


def _make_order(rng):
    sizes = [4, *rng.choice(range(2, 13), 3, replace=False).tolist()]
    asked = [(int(rng.integers(n - 1)), n) for n in sizes]
    return [
        Question({"rank": r, "ranks": n}, tuple(order(r, n)), f"rank {r} of {n}") for r, n in asked
    ]


def _order_wrong(question, got):
    rank, n = question.arguments.values()
    words = f"for {question} you return {', '.join(f'{c:g}' for c in got)}"
    if sorted(got) != list(range(n)):
        return f"{words}: that is not each of the chunks 0 to {n - 1} once."
    if got[-1] != rank:
        return (
            f"{words}: rank {rank} keeps chunk {rank}, so that one has to be the last; what is "
            "computed earlier is sent on."
        )
    above, theirs = (rank + 1) % n, order((rank + 1) % n, n)
    for j, chunk in enumerate(got[:-1]):
        there = theirs.index(chunk)
        if there == n - 1:
            if j:
                return (
                    f"{words}: chunk {chunk} is rank {above}'s own, so nothing of it ever "
                    f"comes from there: rank {rank} begins it, at position 0, not {j}."
                )
        elif there + 1 != j:
            return (
                f"{words}. Rank {above} computes chunk {chunk} at position {there}, and sends "
                f"it to rank {rank}, which needs it at position {there + 1}, not {j}."
            )


ORDER = Formula(
    name="t3_order",
    title="In which order does a rank compute its chunks?",
    notebook=NOTEBOOK,
    prompt="The output is cut into `ranks` chunks; chunk c is to end, summed, on rank c. Rank r "
    "sends to rank r - 1 and hears from r + 1 (modulo the number of ranks). Return the "
    "chunks in the order in which `rank` computes its part of them, so that each partial "
    "sum comes in while the rank computes its own part, one chunk after the sender did.",
    starter="""def t3_order(rank, ranks):
    return list(range(ranks))  # all in the same order?""",
    hints=(
        "Which chunk does a rank keep? Which chunk can it send without having heard anything?",
        "Rank r's own chunk is the last. It begins with the chunk that has the longest way, to the "
        "rank that is its neighbour against the ring.",
        "`return [(rank + 1 + j) % ranks for j in range(ranks)]`.",
    ),
    success="What is at position j of a rank is at position j + 1 of the one below: nobody waits "
    "but for the link. T3 gets it by another order of workgroups; the GEMM's code is the "
    "same.",
    make=_make_order,
    needs=None,
    checks=(_order_wrong,),
)


# --- t3_pays ---


def pays(
    k: int, ranks: int, flops: float, link: float, itemsize: int
) -> tuple[float, float, float]:
    """(GEMM's time over the reduce-scatter's, the speedup of hiding it, the k with the largest), of
    a GEMM with a ring reduce-scatter and all-gather after it. Derived: latency, memory left out."""
    x = 2 * k * link * ranks / (itemsize * (ranks - 1) * flops)
    return x, (x + 2) / (max(x, 1) + 1), k / x


def _make_pays(rng):
    questions = []
    for x, itemsize in zip((0.3, 1.1, 3.0), rng.permutation([2, 4, 4]).tolist()):
        n = int(rng.choice([4, 8, 16]))
        flops, link = int(rng.integers(60, 400)) * TERA, int(rng.integers(30, 400)) * GIGA
        k = round(x * rng.uniform(0.8, 1.6) * itemsize * (n - 1) * flops / (2 * link * n))
        asked: dict[str, Any] = dict(
            zip(("k", "ranks", "flops", "link", "itemsize"), (k, n, flops, link, itemsize))
        )
        questions.append(Question(asked, pays(**asked)))
    return questions


def _pays_wrong(question, got):
    _, n, _, _, itemsize = question.arguments.values()
    if len(got) != 3:
        return None
    (x, speedup, best), words = question.answer, f"for {question}: "
    for wrong, why in (
        (1 / x, "x is the GEMM's time over the sum's, you have the sum's over the GEMM's."),
        (x * itemsize / 2, f"a number has {itemsize} bytes here."),
        (x * (n - 1) / n, "a rank sends (n - 1)/n of the output, not all of it."),
        (x / 2, "a multiply-add is two FLOPs; or did you count the all-gather in x?"),
    ):
        if same(got[0], wrong) and not same(wrong, x):
            return words + why
    if not same(got[0], x):
        return f"{words}x is {x:.4g}, you have {got[0]:.4g}: in which unit is each time?"
    for wrong, why in (
        (
            (x + 1) / max(x, 1),
            "you left out the all-gather, which comes after it and hides under nothing",
        ),
        ((x + 2) / max(x, 2), "the all-gather is not hidden: it needs all of the sum"),
        ((x + 2) / (x + 1), "where the sum is longer than the GEMM, the sum is what remains"),
    ):
        if same(got[1], wrong) and not same(wrong, speedup):
            return f"{words}x is right, but {why}."
    if not same(got[1], speedup):
        return (
            f"{words}x is right. Times in sums: before {x:.4g} + 1 + 1, after max({x:.4g}, 1) "
            f"+ 1, so the speedup is {speedup:.4g}, not {got[1]:.4g}."
        )
    return (
        f"{words}x and the speedup are right. It is largest where GEMM and sum take equally "
        f"long, at k = {best:.6g}; you have {got[2]:.6g}."
    )


PAYS = Formula(
    name="t3_pays",
    title="When does it pay?",
    notebook=NOTEBOOK,
    prompt="Each of `ranks` ranks multiplies [tokens, k] by [k, hidden] at `flops` FLOP/s; then "
    "comes a ring reduce-scatter, then a ring all-gather, over links of `link` bytes/s, "
    "`itemsize` bytes a number; latency and memory are left out. T3 hides reduce-scatter "
    "and GEMM under each other, the all-gather comes after. Return three numbers: x, the "
    "GEMM's time over the reduce-scatter's; the speedup (of all three) that hiding gives; "
    "and the k for which it is largest.",
    starter="""def t3_pays(k, ranks, flops, link, itemsize):
    x = k * link / flops
    return x, x + 1, k""",
    hints=(
        "Write down three times, in units of the reduce-scatter's. Which of them are one after the "
        "other, before and after?",
        "2 tokens hidden k / flops over (n-1)/n tokens hidden itemsize / link; (x + 1 + 1) over "
        "(max(x, 1) + 1); the largest is at x = 1.",
        "`x = 2 * k * link * ranks / (itemsize * (ranks - 1) * flops)`, `return x, (x + 2) / "
        "(max(x, 1) + 1), k / x`.",
    ),
    success="1.5 is the most there is, and only where GEMM and sum are equally long. Long GEMMs "
    "have little to hide, short ones hide little: T3 does not help a slow link.",
    make=_make_pays,
    needs=None,
    checks=(_pays_wrong,),
)
