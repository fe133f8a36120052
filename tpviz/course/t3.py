"""The exercises of notebook 13 on numbers: the cost of an all-reduce after a GEMM, the order of its
chunks, when hiding it pays, its memory traffic, and memory arbitration. Policies are simulated."""

from dataclasses import replace
from functools import partial

from tpviz.evidence.t3_hardware import Dma, Gemm, Machine, maps, simulate
from tpviz.schemes.t3.tiles import order

from .causes import same
from .formula import Asked, ChoiceQuestion, Formula
from .told import told

TERA, GIGA = 1e12, 1e9


# --- t3_share ---
def share(
    tokens: int, hidden: int, k: int, ranks: int, flops: float, link: float
) -> tuple[float, float]:
    """(bytes that a rank sends, part of the time that it takes), derived."""
    sent = 2 * (ranks - 1) / ranks * tokens * hidden * 2
    sums = sent / link
    return sent, sums / (2 * tokens * hidden * k / flops + sums)


def _draw_share(rng):
    for ranks in (4, 8, 16):
        hidden = 1024 * int(rng.integers(2, 12))
        tokens = 1024 * int(rng.integers(1, 17))
        k = hidden * int(rng.choice([1, 4])) // ranks
        flops, link = int(rng.integers(60, 200)) * TERA, int(rng.integers(50, 250)) * GIGA
        yield tokens, hidden, k, ranks, flops, link


def _share_wrong(question, got):
    tokens, hidden, k, n, flops, link = question.arguments.values()
    (sent, part), words = question.answer, f"for {question}: "
    if len(got) != 2:
        return None
    if same(got[0], sent / 2):
        return SHARE.say("you have the bytes", words=words)
    if same(got[0], 2 * tokens * hidden * 2):
        return SHARE.say("rank's own chunk stays", words=words, n=n)
    if same(got[0], 2 * (n - 1) * tokens * hidden * 2):
        return SHARE.say("a chunk", words=words, n=n)
    if same(got[0], 2 * sent):
        return SHARE.say("number has 2 bytes not", words=words)
    if not same(got[0], sent):
        return None
    alone, gemm = sent / link, 2 * tokens * hidden * k / flops
    if same(got[1], alone / gemm):
        return SHARE.say("fraction is of gemm", words=words)
    if same(got[1], alone / (gemm / 2 + alone)):
        return SHARE.say("multiply-add is two flops", words=words)
    for wrong, why in (
        (1 - part, SHARE.say("the fraction")),
        (100 * part, SHARE.say("fraction is from 0")),
        (alone / (2 * gemm + alone), SHARE.say("multiply-add is two flops not")),
        (alone / (gemm / n + alone), SHARE.say("each of the ranks does all", n=n)),
        (alone / 2 / (gemm + alone), SHARE.say("reduce-scatter and all-gather both count")),
        (alone / max(gemm, alone), SHARE.say("nothing is hidden so the two")),
        (alone, SHARE.say("asked for is a fraction")),
    ):
        if same(got[1], wrong):
            return SHARE.say("right", words=words, why=why)
    if same(got[1], part / 2 / (1 - part / 2)):
        return SHARE.say("both halves take time reduce-scatter", words=words)
    return None


SHARE = Formula(
    **told("t3_share"),
    draw=_draw_share,
    parts=("bytes", "fraction"),
    solution=share,
    wrong=_share_wrong,
)


# --- t3_order ---
def _draw_order(rng):
    sizes = [4, *rng.choice(range(2, 13), 3, replace=False).tolist()]
    for n in sizes:
        rank = int(rng.integers(n > 2, n - 1))  # rank 0's own first is the order 0 to n - 1
        yield Asked((rank, n), f"rank {rank} of {n}")


def _order_wrong(question, got):
    rank, n = question.arguments.values()
    words = f"for {question} you return {', '.join(f'{c:g}' for c in got)}"
    above, below = (rank + 1) % n, (rank - 1) % n
    say = partial(ORDER.say, words=words, rank=rank, above=above, below=below)
    if sorted(got) != list(range(n)):
        return say("each of the chunks 0", last=n - 1)
    if got == tuple(range(n)):
        return say("then all ranks begin with chunk")
    down = tuple((rank - 1 - j) % n for j in range(n))
    if got == down:
        return say("ring runs the other way", first=order(rank, n)[0])
    if got[-1] != rank:
        return say("rank keeps chunk")
    theirs = order(above, n)
    for j, chunk in enumerate(got[:-1]):
        there, facts = theirs.index(chunk), {"chunk": chunk, "j": j}
        if there == n - 1:
            if j:
                return say("chunk is rank 's own", **facts)
        elif there + 1 != j:
            return say("rank computes chunk at position", there=there, needed=there + 1, **facts)


ORDER = Formula(
    **told("t3_order"),
    draw=_draw_order,
    solution=lambda rank, ranks: tuple(order(rank, ranks)),
    wrong=_order_wrong,
)


# --- t3_pays ---
def pays(
    k: int, ranks: int, flops: float, link: float, itemsize: int
) -> tuple[float, float, float]:
    """(GEMM's time over the reduce-scatter's, the speedup of hiding it, the k with the largest), of
    a GEMM with a ring reduce-scatter and all-gather after it. Derived: latency, memory left out."""
    x = 2 * k * link * ranks / (itemsize * (ranks - 1) * flops)
    return x, (x + 2) / (max(x, 1) + 1), k / x


def _draw_pays(rng):
    for x, itemsize in zip((0.3, 1.1, 3.0), rng.permutation([2, 4, 4]).tolist()):
        n = int(rng.choice([4, 8, 16]))
        flops, link = int(rng.integers(60, 400)) * TERA, int(rng.integers(30, 400)) * GIGA
        k = round(x * rng.uniform(0.8, 1.6) * itemsize * (n - 1) * flops / (2 * link * n))
        yield k, n, flops, link, itemsize


def _pays_wrong(question, got):
    k, n, _, _, itemsize = question.arguments.values()
    if len(got) != 3:
        return None
    (x, speedup, _), words = question.answer, f"for {question} "
    for wrong, why in (
        (1 / x, PAYS.say("inverse it is the gemm's")),
        (x * itemsize / 2, PAYS.say("right for numbers of 2 bytes", itemsize=itemsize)),
        (x * (n - 1) / n, PAYS.say("as if a rank sent its")),
        (x / 2, PAYS.say("half of x")),
    ):
        if same(got[0], wrong) and not same(wrong, x):
            return f"{words}you return x = {got[0]:.4g}, {why}"
    if not same(got[0], x):
        return None
    words += PAYS.say("x is right but a speedup", got=got) + " "
    for wrong, why in (
        ((x + 1) / max(x, 1), PAYS.say("leaves out the all-gather which comes")),
        ((x + 2) / max(x, 2), PAYS.say("hides the all-gather too which needs")),
        ((x + 2) / (x + 1), PAYS.say("has all of the gemm's time")),
        (1 / speedup, PAYS.say("is the inverse")),
        (1.0, "says that nothing is gained"),
        (speedup - 1, PAYS.say("is what is gained")),
        ((x + 2) / 2, PAYS.say("hides the whole gemm also where")),
        ((x + 2) / max(x, 1), PAYS.say("leaves the all-gather out")),
        ((x + 1) / (max(x, 1) + 1), PAYS.say("counts the all-gather with t3 alone")),
        ((x + 2) / (min(x, 1) + 1), PAYS.say("keeps the shorter of the two")),
    ):
        if same(got[1], wrong) and not same(wrong, speedup):
            return f"{words}{why}."
    if not same(got[1], speedup):
        return None
    if same(x * got[2] / k, 2):
        return PAYS.say("right but the best k", question=question)
    return PAYS.say(
        "right it is largest where gemm", question=question, got=got, x_there=x * got[2] / k
    )


PAYS = Formula(
    **told("t3_pays"),
    draw=_draw_pays,
    parts=("x", "speedup", "best k"),
    solution=pays,
    wrong=_pays_wrong,
)


# --- t3_traffic ---
def traffic(how: str, step: int, ranks: int) -> tuple[int, int]:
    """(chunks read, chunks written) in a GPU's memory; derived, tested against the simulation."""
    if how == "t3":
        rules = maps("ring_rs", ranks)[0]
        stays = step > 0
        return int(isinstance(rules[step][1], Dma)), 2 * stays
    if step == 0:
        return 0, ranks
    return (1 if step == 1 else 2), 1


def _draw_traffic(rng):
    asked = []
    for n in rng.choice(range(5, 17), 2, replace=False).tolist():  # no one size is the answer
        middle = int(rng.integers(2, n - 1)), int(rng.integers(1, n - 1))
        steps = {"kernel": (0, 1, middle[0], n), "t3": (0, middle[1], n - 1)}
        asked += [(how, step, n) for how, places in steps.items() for step in places]
    return asked


_TRAFFIC = told("t3_traffic")
WHY = _TRAFFIC.pop("why")


def _traffic_wrong(question, got):
    how, step, n = question.arguments.values()
    where = (
        "first"
        if step == 0
        else "last"
        if step == (n if how == "kernel" else n - 1)
        else ("second" if how == "kernel" and step == 1 else "middle")
    )
    reads, writes = question.answer
    words = f"for {question} you return {tuple(got)!r}"
    if len(got) == 2 and same(tuple(got), (writes, reads)) and reads != writes:
        return TRAFFIC.say("reads come first then writes", words=words)
    if how == "t3" and where != "first" and len(got) == 2 and got[0] > reads:
        return TRAFFIC.say(
            "near-memory compute adds inside the memory", words=words, why=WHY[f"{how} {where}"]
        )
    return f"{words}. In this step {WHY[how + ' ' + where]}."


TRAFFIC = Formula(**_TRAFFIC, draw=_draw_traffic, solution=traffic, wrong=_traffic_wrong)


# --- t3_policy ---
POLICIES = ("round_robin", "fifo", "mca")


def policy_times(gemm: Gemm, ranks: int, machine: Machine) -> dict[str, float]:
    """{policy: simulated seconds}."""
    return {
        policy: simulate(gemm, ranks, replace(machine, policy=policy), "t3").seconds
        for policy in POLICIES
    }


def _draw_policy(rng):
    """A GEMM that is shorter than its reduce-scatter, and two that are longer and read much."""
    asked = []
    for k, cus, dram in ((128, 80, 1e12), (1024, 20, 2e11), (1024, 20, 4e11)):
        gemm = Gemm(2048, 2048 if cus == 80 else 1024, k, wavefronts=1)
        machine = Machine(
            cus=cus,
            dram=dram,
            llc=1 << 20 if cus == 20 else 16 << 20,
            link=1e9 * int(rng.integers(145, 156)),
        )
        words = POLICY.say("gemm of x x", gemm=gemm, cus=cus, rate=dram / 1e9)
        asked.append(Asked((gemm, 8, machine), words))
    return [asked[i] for i in rng.permutation(len(asked)).tolist()]


def _policy_wrong(question, got):
    gemm, ranks, machine = question.arguments.values()
    alone = simulate(gemm, ranks, machine, "ideal")
    x = alone.gemm_end / alone.rs_end
    if x > 1:
        return POLICY.say("alone the gemm takes times", x=x)
    words = POLICY.say("alone the gemm takes", x=x)
    if got == "mca":
        return POLICY.say("and here it waits", words=words)
    return POLICY.say("in turns both are always queued", words=words)


POLICY = ChoiceQuestion(
    **told("t3_policy", POLICIES=POLICIES),
    kind="a policy",
    unit="(simulated)",
    draw=_draw_policy,
    solution=policy_times,
    wrong=_policy_wrong,
)
