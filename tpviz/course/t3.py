"""The exercises of notebook 13 on numbers: the cost of an all-reduce after a GEMM, the order of its
chunks, when hiding it pays, its memory traffic, and memory arbitration. Policies are simulated."""

from dataclasses import replace

from tpviz.evidence.t3_hardware import Dma, Gemm, Machine, maps, simulate
from tpviz.schemes.t3.tiles import order

from .causes import same
from .formula import Asked, ChoiceQuestion, Formula

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
        return (
            f"{words}you have the bytes of one of the two. The reduce-scatter leaves each rank "
            "one chunk, and the all-gather sends as many bytes again."
        )
    if same(got[0], 2 * tokens * hidden * 2):
        return f"{words}a rank's own chunk stays: n - 1 of {n} chunks are sent, twice."
    if same(got[0], 2 * (n - 1) * tokens * hidden * 2):
        return f"{words}a chunk is 1/{n} of the output, and the ring takes n - 1 steps."
    if same(got[0], 2 * sent):
        return f"{words}a number has 2 bytes, not 4."
    if not same(got[0], sent):
        return None
    alone, gemm = sent / link, 2 * tokens * hidden * k / flops
    if same(got[1], alone / gemm):
        return f"{words}the bytes are right; the fraction is of GEMM and all-reduce time."
    if same(got[1], alone / (gemm / 2 + alone)):
        return f"{words}the bytes are right; a multiply-add is two FLOPs."
    for wrong, why in (
        (1 - part, "the fraction is that of the all-reduce, not of the GEMM"),
        (100 * part, "a fraction is from 0 to 1, not in per cent"),
        (alone / (2 * gemm + alone), "a multiply-add is two FLOPs, not four"),
        (alone / (gemm / n + alone), f"each of the {n} ranks does all of this GEMM: k is its own"),
        (alone / 2 / (gemm + alone), "reduce-scatter and all-gather both count in the fraction"),
        (alone / max(gemm, alone), "nothing is hidden, so the two times add up"),
        (alone, "asked for is a fraction of the time, not the seconds"),
    ):
        if same(got[1], wrong):
            return f"{words}the bytes are right, but {why}."
    if same(got[1], part / 2 / (1 - part / 2)):
        return f"{words}the bytes are right; both halves take time, reduce-scatter and all-gather."
    return None


SHARE = Formula(
    title="How much of a sublayer's time is its all-reduce?",
    prompt="Commit a guess first: for a GEMM with an all-reduce over 8 ranks, is the all-reduce "
    "10 % of the time, or 50 %? Each of `ranks` ranks multiplies [tokens, k] by [k, hidden] at "
    "`flops` FLOP/s; the outputs, 2 bytes a number, go through a ring reduce-scatter and then a "
    "ring all-gather, on links of `link` bytes/s in each direction (no latency). Return (bytes "
    "that a rank sends, fraction of the time that reduce-scatter and all-gather take if nothing "
    "is hidden).",
    starter="""def t3_share(tokens, hidden, k, ranks, flops, link):
    sent = tokens * hidden * 2
    return sent, sent / link""",
    concept="In a step of a ring each rank sends one chunk to its neighbour. How many steps, how "
    "large is a chunk?",
    principle="n - 1 steps of 1/n of the output, twice. The GEMM takes 2 tokens hidden k FLOPs.",
    shape="Two numbers: bytes, and t / (t + g), with t the time that they take and g the GEMM's.",
    success="Rows and columns of the output cancel: only k, the ranks and the machine matter. The "
    "hidden size remains in k (hidden / N in OP, four times that in FC-2). More ranks make k "
    "smaller, but not the all-reduce.",
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
    if sorted(got) != list(range(n)):
        return f"{words}: each of the chunks 0 to {n - 1} must occur once."
    if got == tuple(range(n)):
        return (
            f"{words}: then all ranks begin with chunk 0, and no rank's part of a chunk comes "
            f"after its sender's. Rank {rank} keeps chunk {rank}: which one can it do without?"
        )
    down = tuple((rank - 1 - j) % n for j in range(n))
    if got == down:
        return (
            f"{words}: the ring runs the other way. Rank {rank} "
            f"receives from {(rank + 1) % n} and sends to {(rank - 1) % n}: it begins with chunk "
            f"{order(rank, n)[0]}, which travels furthest, and ends with its own."
        )
    if got[-1] != rank:
        return (
            f"{words}: rank {rank} keeps chunk {rank}, so that one must be last; earlier chunks "
            "are sent on."
        )
    above, theirs = (rank + 1) % n, order((rank + 1) % n, n)
    for j, chunk in enumerate(got[:-1]):
        there = theirs.index(chunk)
        if there == n - 1:
            if j:
                return (
                    f"{words}: chunk {chunk} is rank {above}'s own, so no partial sum of it comes "
                    f"from there: rank {rank} begins it, at position 0, not {j}."
                )
        elif there + 1 != j:
            return (
                f"{words}. Rank {above} computes chunk {chunk} at position {there}, and sends "
                f"it to rank {rank}, which needs it at position {there + 1}, not {j}."
            )


ORDER = Formula(
    title="In which order does a rank compute its chunks?",
    prompt="The output is cut into `ranks` chunks; the reduced chunk c ends on rank c. Rank r "
    "sends to rank r - 1 and receives from r + 1 (modulo the number of ranks). Return the chunks "
    "in the order in which `rank` computes its part of them, so that each partial sum arrives "
    "while the rank computes its own part, one chunk after the sender did.",
    starter="""def t3_order(rank, ranks):
    return list(range(ranks))  # all in the same order?""",
    concept="Which chunk does a rank keep? Which can it send without receiving anything?",
    principle="Rank r's own chunk is the last. It begins with the chunk that travels furthest, to "
    "its other neighbour on the ring.",
    shape="A list over j of one expression modulo `ranks`.",
    success="A chunk at position j of a rank is at position j + 1 of the one below: ranks wait "
    "only for the link. T3 reorders workgroups; the GEMM's code is the same.",
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
        (1 / x, "the inverse. It is the GEMM's time over the reduce-scatter's."),
        (
            x * itemsize / 2,
            f"right for numbers of 2 bytes. A number has {itemsize} bytes here: how does that "
            "change each of the two times?",
        ),
        (x * (n - 1) / n, "as if a rank sent its whole output. Its own chunk stays: (n - 1)/n go."),
        (x / 2, "half of x. A multiply-add is two FLOPs; or did you count the all-gather in x?"),
    ):
        if same(got[0], wrong) and not same(wrong, x):
            return f"{words}you return x = {got[0]:.4g}, {why}"
    if not same(got[0], x):
        return None
    words += f"x is right, but a speedup of {got[1]:.4g} "
    for wrong, why in (
        ((x + 1) / max(x, 1), "leaves out the all-gather, which comes after it and is not hidden"),
        ((x + 2) / max(x, 2), "hides the all-gather too, which needs the whole reduced result"),
        (
            (x + 2) / (x + 1),
            "has all of the GEMM's time and none of the reduce-scatter's. The longer of the two "
            "remains, and here that is not the GEMM",
        ),
        (1 / speedup, "is the inverse: the time without T3 is above, the one with T3 below"),
        (1.0, "says that nothing is gained"),
        (speedup - 1, "is what is gained: the ratio of the times is asked for, 1 where none is"),
        ((x + 2) / 2, "hides the whole GEMM, also where it is the longer one"),
        ((x + 2) / max(x, 1), "leaves the all-gather out of the time with T3"),
        (
            (x + 1) / (max(x, 1) + 1),
            "counts the all-gather with T3 alone: it is there without, too",
        ),
        ((x + 2) / (min(x, 1) + 1), "keeps the shorter of the two: the longer one hides the other"),
    ):
        if same(got[1], wrong) and not same(wrong, speedup):
            return f"{words}{why}."
    if not same(got[1], speedup):
        return None
    if same(x * got[2] / k, 2):
        return (
            f"for {question} x and the speedup are right, but the best k is not where x = 2: the "
            "all-gather comes after the reduce-scatter and is never hidden, so a longer GEMM than "
            "the reduce-scatter hides no more. It is largest where the two take equally long."
        )
    return (
        f"for {question} x and the speedup are right. It is largest where GEMM and reduce-scatter "
        f"take equally long; with k = {got[2]:.6g}, as you return, x would be {x * got[2] / k:.4g}."
    )


PAYS = Formula(
    title="When does fusing pay?",
    prompt="Each of `ranks` ranks multiplies [tokens, k] by [k, hidden] at `flops` FLOP/s; then "
    "comes a ring reduce-scatter, then a ring all-gather, over links of `link` bytes/s, "
    "`itemsize` bytes a number; latency and memory are left out. T3 overlaps reduce-scatter and "
    "GEMM; the all-gather comes after. Return three numbers: x, the GEMM's time over the "
    "reduce-scatter's; the speedup (of all three) that hiding gives; and the k for which it is "
    "largest.",
    starter="""def t3_pays(k, ranks, flops, link, itemsize):
    x = k * link / flops
    return x, x + 1, k""",
    concept="Write down three times, in units of the reduce-scatter's. Which of them run in "
    "sequence, without and with T3?",
    principle="Divide the GEMM's time by the reduce-scatter's: tokens and hidden cancel. "
    "Without T3 three times add up. With it the longer of the first two hides the "
    "shorter, which helps most where they are equal.",
    shape="x, a quotient; a fraction of x alone, with one `max`; and the given k, scaled.",
    success="The maximum is 1.5, and only where GEMM and reduce-scatter are equally long. Long "
    "GEMMs have little to hide, short ones hide little: T3 does not help a slow link.",
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


WHY = {
    ("kernel", "first"): "all N chunks of the GEMM's output are written, none is read",
    ("kernel", "second"): "one chunk's own part is read and sent; the received one is written",
    ("kernel", "middle"): "the last received chunk and the own part are read, their sum is sent; "
    "the next one is written",
    ("kernel", "last"): "the received chunk and the own part are read, their sum is written",
    ("t3", "first"): "its stores go to the next GPU (r - 1), none stay here",
    ("t3", "middle"): "the own store and the update from GPU r + 1 are written (added in memory), "
    "and the sum is read once, to be sent",
    ("t3", "last"): "the own store and the update from GPU r + 1 are written (added in memory), "
    "and that is the result, which is not read",
}


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
        return f"{words}: reads come first, then writes."
    if how == "t3" and where != "first" and len(got) == 2 and got[0] > reads:
        return (
            f"{words}. Near-memory compute adds inside the memory: an update is no read by the "
            f"GPU. In this position {WHY[how, where]}."
        )
    return f"{words}. In this step {WHY[how, where]}."


TRAFFIC = Formula(
    title="Memory traffic of a sublayer",
    prompt="Account for one GPU of `ranks`, in chunks (1/ranks of its output), (read, written). "
    'how = "kernel": step 0, the GEMM writes its output; steps 1 to ranks - 1, a kernel runs '
    "the steps of a ring reduce-scatter: it reads the chunk it sends, adding its own part to the "
    "one received in the previous step, and the received chunk is written; step `ranks`, the last "
    'partial sum is added to the own part, and written. how = "t3": step j is position j of the '
    "order of computing, 0 to ranks - 1, and all accesses to that chunk here, by the maps of the "
    "ring: stores to a neighbour's memory count there, an update of memory counts as a write, a "
    "DMA reads. The all-gather is the same in both.",
    starter="""def t3_traffic(how, step, ranks):
    if step == 0:
        return 0, ranks
    return 2, 1  # read both parts, write the sum""",
    concept="Which unit needs the number next: the GPU's own kernel, its DMA, or none?",
    principle="Kernel: the first step has no partial sum to read yet. T3: the first position is "
    "not stored here, the middle ones get two updates and are read once, the last is never read.",
    shape="A pair of small whole numbers for the first, the middle and the last step of each "
    "`how`; `ranks` itself is in one of them.",
    success="In all (2N - 1) chunks are read by a kernel and N - 2 by T3, 2.5 times fewer with 8 "
    "GPUs and 2.2 with 16, as notes on the paper report; 2N and 2N - 2 are written.",
    draw=_draw_traffic,
    solution=traffic,
    wrong=_traffic_wrong,
)


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
        words = (
            f"a GEMM of {gemm.m} x {gemm.n} x {gemm.k} on GPUs of {cus} compute units and "
            f"{dram / 1e9:g} GB/s"
        )
        asked.append(Asked((gemm, 8, machine), words))
    return [asked[i] for i in rng.permutation(len(asked)).tolist()]


def _policy_wrong(question, got):
    gemm, ranks, machine = question.arguments.values()
    alone = simulate(gemm, ranks, machine, "ideal")
    x = alone.gemm_end / alone.rs_end
    if x > 1:
        return (
            f"Alone the GEMM takes {x:.2g} times as long as the reduce-scatter: the GEMM ends "
            "last, and its reads wait behind communication."
        )
    words = (
        f"Alone the GEMM takes {x:.2g} of the reduce-scatter's time: the communication ends last"
    )
    if got == "mca":
        return f"{words}, and here it waits for the GEMM."
    return f"{words}; in turns both are always queued, when the memory is slower."


POLICY = ChoiceQuestion(
    title="Memory arbitration: which requests come first?",
    prompt="GEMM and communication share one memory. For a `gemm` whose reduce-scatter T3 hides "
    f"on a `machine`, return the policy of the memory, one of {POLICIES}, with which it takes "
    "least time (simulated; within 1 % is right): round robin, first come first served, or "
    "T3-MCA, the GEMM first and communication while few requests are queued. "
    "`dataclasses.replace(machine, policy=p)` is a machine with another one, `simulate(gemm, "
    'ranks, machine, "t3").seconds` its time. Guess first: is one policy best everywhere?',
    starter="""def t3_policy(gemm, ranks, machine):
    return "fifo"  # first come, first served""",
    concept="Which ends last, the GEMM or the communication? That one should not wait.",
    principle='Alone (config "ideal"), `.gemm_end` and `.rs_end` say which is longer. The policy '
    "that favours the shorter one costs time.",
    shape="A minimum over the three names by a simulated time.",
    success="T3-MCA favours the GEMM, which suits large GEMMs that read much; if communication "
    "ends last, it costs. The paper chooses its threshold by how much a GEMM reads.",
    kind="a policy",
    unit="(simulated)",
    draw=_draw_policy,
    solution=policy_times,
    wrong=_policy_wrong,
)
