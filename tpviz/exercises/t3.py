"""The exercises of notebook 06 on numbers: what an all-reduce after a GEMM costs, in which order
its chunks are computed, when it pays to hide it, what it reads and writes in memory, how large the
tracker has to be, and whom the memory serves first. Records and policies are simulated."""

from dataclasses import replace

from ..schemes.t3.hardware import Dma, Gemm, Machine, maps, simulate
from ..schemes.t3.tiles import order
from .formula import Asked, Choice, Formula, same

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
    title="How much of a sublayer is its sum?",
    prompt="Commit a guess first: of a GEMM whose output is summed over 8 ranks, is the sum 10 % "
    "of the time, or 50 %? Each of `ranks` ranks multiplies [tokens, k] by [k, hidden] at "
    "`flops` FLOP/s; the outputs, 2 bytes a number, are summed by a ring reduce-scatter and "
    "gathered again by a ring all-gather, on links of `link` bytes/s in each direction "
    "(no latency). Return (bytes that a rank sends, part of the time that reduce-scatter "
    "and all-gather take if nothing is hidden).",
    starter="""def t3_share(tokens, hidden, k, ranks, flops, link):
    sent = tokens * hidden * 2
    return sent, sent / link""",
    concept="In a step of a ring each rank sends one chunk to its neighbour. How many steps, how "
    "large is a chunk?",
    principle="n - 1 steps of 1/n of the output, twice. The GEMM takes 2 tokens hidden k FLOPs.",
    answer="`sent = 4 * (ranks - 1) / ranks * tokens * hidden`, `sums = sent / link`, `return "
    "sent, sums / (sums + 2 * tokens * hidden * k / flops)`.",
    success="Rows and columns of the output cancel out of the part: only k, the ranks and the "
    "machine matter. The hidden size is still there in k (hidden / N in OP, four times "
    "that in FC-2). More ranks make k smaller, and the sum no smaller.",
    draw=_draw_share,
    solution=share,
    wrong=_share_wrong,
)


# --- t3_order ---
def _draw_order(rng):
    sizes = [4, *rng.choice(range(2, 13), 3, replace=False).tolist()]
    for n in sizes:
        rank = int(rng.integers(n - 1))
        yield Asked((rank, n), f"rank {rank} of {n}")


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
    title="In which order does a rank compute its chunks?",
    prompt="The output is cut into `ranks` chunks; chunk c is to end, summed, on rank c. Rank r "
    "sends to rank r - 1 and hears from r + 1 (modulo the number of ranks). Return the "
    "chunks in the order in which `rank` computes its part of them, so that each partial "
    "sum comes in while the rank computes its own part, one chunk after the sender did.",
    starter="""def t3_order(rank, ranks):
    return list(range(ranks))  # all in the same order?""",
    concept="Which chunk does a rank keep? Which chunk can it send without having heard anything?",
    principle="Rank r's own chunk is the last. It begins with the chunk that has the longest way, "
    "to the rank that is its neighbour against the ring.",
    answer="`return [(rank + 1 + j) % ranks for j in range(ranks)]`.",
    success="What is at position j of a rank is at position j + 1 of the one below: nobody waits "
    "but for the link. T3 gets it by another order of workgroups; the GEMM's code is the same.",
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
    title="When does it pay?",
    prompt="Each of `ranks` ranks multiplies [tokens, k] by [k, hidden] at `flops` FLOP/s; then "
    "comes a ring reduce-scatter, then a ring all-gather, over links of `link` bytes/s, "
    "`itemsize` bytes a number; latency and memory are left out. T3 hides reduce-scatter "
    "and GEMM under each other, the all-gather comes after. Return three numbers: x, the "
    "GEMM's time over the reduce-scatter's; the speedup (of all three) that hiding gives; "
    "and the k for which it is largest.",
    starter="""def t3_pays(k, ranks, flops, link, itemsize):
    x = k * link / flops
    return x, x + 1, k""",
    concept="Write down three times, in units of the reduce-scatter's. Which of them are one after "
    "the other, before and after?",
    principle="2 tokens hidden k / flops over (n-1)/n tokens hidden itemsize / link; (x + 1 + 1) "
    "over (max(x, 1) + 1); the largest is at x = 1.",
    answer="`x = 2 * k * link * ranks / (itemsize * (ranks - 1) * flops)`, `return x, (x + 2) / "
    "(max(x, 1) + 1), k / x`.",
    success="1.5 is the most there is, and only where GEMM and sum are equally long. Long GEMMs "
    "have little to hide, short ones hide little: T3 does not help a slow link.",
    draw=_draw_pays,
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
    n = int(rng.integers(5, 17))
    middle = int(rng.integers(2, n - 1)), int(rng.integers(1, n - 1))
    steps = {"kernel": (0, 1, middle[0], n), "t3": (0, middle[1], n - 1)}
    return [(how, step, n) for how, asked in steps.items() for step in asked]


WHY = {
    ("kernel", "first"): "all N chunks of the GEMM's output are written, nothing is read",
    ("kernel", "second"): "the own part of one chunk is read and sent; what comes in is written",
    ("kernel", "middle"): "what came in before and the own part are read, and their sum is sent; "
    "what comes in is written",
    ("kernel", "last"): "what came in last and the own part are read, and their sum is written",
    ("t3", "first"): "its stores go to the next GPU (r - 1), nothing stays here",
    ("t3", "middle"): "the own store and the update from GPU r + 1 are written (added in memory), "
    "and the sum is read once, to be sent",
    ("t3", "last"): "the own store and the update from GPU r + 1 are written (added in memory), "
    "and that is the result: nobody reads it",
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
            f"{words}. Near-memory compute adds where the number is: an update is no read of "
            f"the GPU's. In this position {WHY[how, where]}."
        )
    return f"{words}. In this step {WHY[how, where]}."


TRAFFIC = Formula(
    title="What goes through memory?",
    prompt="Account for one GPU of `ranks`, in chunks (1/ranks of its output), (read, written). "
    'how = "kernel": step 0, the GEMM writes its output; steps 1 to ranks - 1, a kernel '
    "does the steps of a ring reduce-scatter: reads what it sends, adding its own part to "
    "what came in the step before, and what comes in is written; step `ranks`, the last "
    'partial sum is added to the own part, and written. how = "t3": step j is position j '
    "of the order of computing, 0 to ranks - 1, and all that ever happens to that chunk "
    "here, by the maps of the ring: stores to a neighbour's memory are its, an update of "
    "memory counts as a write, a DMA reads. The all-gather is the same in both.",
    starter="""def t3_traffic(how, step, ranks):
    if step == 0:
        return 0, ranks
    return 2, 1  # read both parts, write the sum""",
    concept="Who needs the number next, and is it the GPU's own kernel, its DMA, or nobody?",
    principle="Kernel: the first step has no partial sum to read yet. T3: the first position stays "
    "nowhere, the middle ones get two updates and are read once, the last is never read.",
    answer="kernel: (0, ranks), (1, 1), (2, 1) ..., (2, 1). t3: (0, 0), (1, 2) ..., (0, 2).",
    success="In all (2N - 1) chunks are read by a kernel and N - 2 by T3, 2.5 times fewer with 8 "
    "GPUs and 2.2 with 16, as notes on the paper report; written are 2N and 2N - 2.",
    draw=_draw_traffic,
    solution=traffic,
    wrong=_traffic_wrong,
)


# --- t3_tracker ---
MOST = 512


def fewest_sets(gemm: Gemm, ranks: int, machine: Machine) -> int:
    """The smallest power of two of sets with which no update waits (simulated). From one that has
    no stalls half as many may have; with stalls fewer never do better."""
    sets = MOST
    while sets > 1 and not stalls(gemm, ranks, machine, sets // 2):
        sets //= 2
    return sets


def stalls(gemm: Gemm, ranks: int, machine: Machine, sets: int) -> int:
    """Updates that wait for a record of the tracker."""
    return simulate(gemm, ranks, replace(machine, tracker_sets=sets), "t3").tracker.stalls


def _draw_tracker(rng):
    # a stage is less, or more, than a chunk
    for cus, waves in zip((4, 32), rng.permutation([1, 2]).tolist()):
        tile = ((128, 128), (128, 64))[int(rng.integers(2))]
        gemm = Gemm(1024, 1024, int(rng.choice([256, 512])), tile=tile, wavefronts=waves)
        machine = Machine(cus=cus, tracker_records=int(rng.choice([2, 4])))
        ranks = int(rng.choice([4, 8]))
        words = f"{gemm!r} on {ranks} GPUs, {cus} compute units, {machine.tracker_records} records"
        known = {"peak": simulate(gemm, ranks, machine, "t3").tracker.peak}
        yield Asked((gemm, ranks, machine), words, known)


def _tracker(gemm, ranks, machine):
    rows, columns = gemm.tile
    return 2 * (rows // gemm.wavefronts) * columns, fewest_sets(gemm, ranks, machine)


def _tracker_wrong(question, got):
    gemm, ranks, machine = question.arguments.values()
    if len(got) != 2:
        return None
    (counted, sets), words, records = question.answer, f"for {question}: ", machine.tracker_records
    if not same(got[0], counted):
        if same(got[0], counted / 2):
            return (
                f"{words}each element gets two: the GPU's own store and its neighbour's "
                f"update. With {got[0]:g} a tile is sent before it is summed."
            )
        if same(got[0], counted * gemm.wavefronts) or same(got[0], 2):
            return (
                f"{words}a part of a tile, one wavefront's, has a counter of its own, which "
                f"counts the updates of all its elements: {counted}, not {got[0]:g}."
            )
        return f"{words}the counter triggers at {counted}, not {got[0]:g}."
    if got[1] < 1 or got[1] != int(got[1]) or int(got[1]) & (int(got[1]) - 1):
        return f"{words}{got[1]:g} sets: the number has to be a power of two."
    if got[1] > sets:
        return f"{words}with {got[1]:g} sets no update waits, but nor does one with {sets}."
    return (
        f"{words}with {got[1]:g} sets {stalls(gemm, ranks, machine, int(got[1]))} updates wait "
        f"(simulated). Up to {question.known['peak']} parts are under way at once, and a set "
        f"holds {records}."
    )


TRACKER = Formula(
    title="How large is the tracker?",
    prompt="The tracker counts the updates of each part of a tile (a tile of `gemm.tile` has "
    "`gemm.wavefronts` of them, cut along its rows), in a ring reduce-scatter. Return (count, "
    "sets): the number of updates of single elements at which a part in the middle of its way is "
    "sent on; and the smallest power of two of sets, of `machine.tracker_records` parts each, with "
    "which no update ever waits for a record. `from tpviz.schemes.t3.hardware import simulate`; "
    '`simulate(gemm, ranks, machine, "t3").tracker` has `.peak`, the most parts under way at once, '
    "and `.stalls`; `dataclasses.replace(machine, tracker_sets=64)` is a machine with 64 sets.",
    starter="""def t3_tracker(gemm, ranks, machine):
    rows, columns = gemm.tile
    return rows * columns, 1""",
    concept="How many updates does one element get before it may go? How many elements has a part? "
    "And how long is a part under way: from its first update to its last.",
    principle="Two for each element. A partial sum may come before the own store, so parts of all "
    "chunks that are under way have a record: play it, and look at the peak.",
    answer="`count = 2 * rows * columns // gemm.wavefronts`; `sets = 1`, `while simulate(gemm, "
    'ranks, replace(machine, tracker_sets=sets), "t3").tracker.stalls: sets *= 2`.',
    success="The paper's tracker has 256 entries in 19 kB (read in notes on it). What happens when "
    "it is full is not known; here the update waits.",
    draw=_draw_tracker,
    solution=_tracker,
    wrong=_tracker_wrong,
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
    """A GEMM that is shorter than its sum, and two that are longer and read much."""
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
            f"Alone the GEMM takes {x:.2g} times as long as the reduce-scatter: what is late "
            "is the GEMM, whose reads wait behind communication."
        )
    words = (
        f"Alone the GEMM takes {x:.2g} of the reduce-scatter's time: what is late is the "
        "communication"
    )
    if got == "mca":
        return f"{words}, and here it waits for the GEMM."
    return f"{words}; in turns both are queued all the time, when the memory is slower."


POLICY = Choice(
    title="Whom does the memory serve first?",
    prompt="GEMM and communication share one memory. For a `gemm` whose sum T3 hides on a "
    f"`machine`, return the policy of the memory, one of {POLICIES}, with which it takes "
    "least time (simulated; within 1 % is right): both in turn, whoever came first, or "
    "T3-MCA, the GEMM first and communication while few requests are queued. "
    "`dataclasses.replace(machine, policy=p)` is a machine with another one, `simulate(gemm, "
    'ranks, machine, "t3").seconds` its time. Guess first: is one the best everywhere?',
    starter="""def t3_policy(gemm, ranks, machine):
    return "fifo"  # whoever came first""",
    concept="Who is late, the GEMM or the communication? The one that is late should not wait.",
    principle='Alone (config "ideal"), `.gemm_end` and `.rs_end` say which is longer. The policy '
    "that favours the shorter one costs time.",
    answer="`from tpviz.schemes.t3.hardware import simulate`; return the policy of the smallest "
    '`simulate(gemm, ranks, replace(machine, policy=p), "t3").seconds`.',
    success="T3-MCA favours the GEMM, which is right for large GEMMs that read much; where the sum "
    "is what is late it costs. The paper chooses its threshold by how much a GEMM reads.",
    kind="a policy",
    unit="(simulated)",
    draw=_draw_policy,
    solution=policy_times,
    wrong=_policy_wrong,
)
