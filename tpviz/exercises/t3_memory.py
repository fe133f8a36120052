"""The exercises of notebook 06 on the memory: what a sum reads and writes there, how large the
tracker has to be, and whom the memory serves first. Times and records are simulated."""

from dataclasses import replace

from ..schemes.t3.hardware import Dma, Gemm, Machine, maps, simulate
from .atp_choices import Choice
from .formula import Formula, Question, same
from .t3 import NOTEBOOK

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


def _make_traffic(rng):
    n = int(rng.integers(5, 17))
    middle = int(rng.integers(2, n - 1)), int(rng.integers(1, n - 1))
    asked = [
        ("kernel", 0),
        ("kernel", 1),
        ("kernel", middle[0]),
        ("kernel", n),
        ("t3", 0),
        ("t3", middle[1]),
        ("t3", n - 1),
    ]
    return [
        Question(dict(zip(("how", "step", "ranks"), (how, step, n))), traffic(how, step, n))
        for how, step in asked
    ]


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
    name="t3_traffic",
    title="What goes through memory?",
    notebook=NOTEBOOK,
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
    hints=(
        "Who needs the number next, and is it the GPU's own kernel, its DMA, or nobody?",
        "Kernel: the first step has no partial sum to read yet. T3: the first position stays "
        "nowhere, the middle ones get two updates and are read once, the last is never read.",
        "kernel: (0, ranks), (1, 1), (2, 1) ..., (2, 1). t3: (0, 0), (1, 2) ..., (0, 2).",
    ),
    success="In all (2N - 1) chunks are read by a kernel and N - 2 by T3, 2.5 times fewer with 8 "
    "GPUs and 2.2 with 16, as notes on the paper report; written are 2N and 2N - 2.",
    make=_make_traffic,
    needs=None,
    checks=(_traffic_wrong,),
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


def _make_tracker(rng):
    questions = []
    # a stage is less, or more, than a chunk
    for cus, waves in zip((4, 32), rng.permutation([1, 2]).tolist()):
        tile = ((128, 128), (128, 64))[int(rng.integers(2))]
        gemm = Gemm(1024, 1024, int(rng.choice([256, 512])), tile=tile, wavefronts=waves)
        machine = Machine(cus=cus, tracker_records=int(rng.choice([2, 4])))
        ranks = int(rng.choice([4, 8]))
        counted = 2 * (tile[0] // waves) * tile[1]
        words = f"{gemm!r} on {ranks} GPUs, {cus} compute units, {machine.tracker_records} records"
        asked = {"gemm": gemm, "ranks": ranks, "machine": machine}
        known = {"peak": simulate(gemm, ranks, machine, "t3").tracker.peak}
        questions.append(Question(asked, (counted, fewest_sets(**asked)), words, known))
    return questions


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
    name="t3_tracker",
    title="How large is the tracker?",
    notebook=NOTEBOOK,
    prompt="The tracker counts the updates of each part of a tile (a tile of `gemm.tile` has "
    "`gemm.wavefronts` of them, cut along its rows), in a ring reduce-scatter. Return "
    "(count, sets): the number of updates of single elements at which a part in the middle "
    "of its way is sent on; and the smallest power of two of sets, of "
    "`machine.tracker_records` parts each, with which no update ever waits for a record. "
    "`from tpviz.schemes.t3.hardware import simulate`; `simulate(gemm, ranks, machine, "
    '"t3").tracker` has `.peak`, the most parts under way at once, and `.stalls`; '
    "`dataclasses.replace(machine, tracker_sets=64)` is a machine with 64 sets.",
    starter="""def t3_tracker(gemm, ranks, machine):
    rows, columns = gemm.tile
    return rows * columns, 1""",
    hints=(
        "How many updates does one element get before it may go? How many elements has a part? And "
        "how long is a part under way: from its first update to its last.",
        "Two for each element. A partial sum may come before the own store, so parts of all chunks "
        "that are under way have a record: play it, and look at the peak.",
        "`count = 2 * rows * columns // gemm.wavefronts`; `sets = 1`, `while simulate(gemm, ranks, "
        'replace(machine, tracker_sets=sets), "t3").tracker.stalls: sets *= 2`.',
    ),
    success="The paper's tracker has 256 entries in 19 kB (read in notes on it). What happens when "
    "it is full is not known; here the update waits.",
    make=_make_tracker,
    needs=None,
    checks=(_tracker_wrong,),
)


# --- t3_policy ---

POLICIES = ("round_robin", "fifo", "mca")


def policy_times(gemm: Gemm, ranks: int, machine: Machine) -> dict[str, float]:
    """{policy: simulated seconds}."""
    return {
        policy: simulate(gemm, ranks, replace(machine, policy=policy), "t3").seconds
        for policy in POLICIES
    }


def _make_policy(rng):
    """A GEMM that is shorter than its sum, and two that are longer and read much."""
    questions = []
    for k, cus, dram in ((128, 80, 1e12), (1024, 20, 2e11), (1024, 20, 4e11)):
        gemm = Gemm(2048, 2048 if cus == 80 else 1024, k, wavefronts=1)
        machine = Machine(
            cus=cus,
            dram=dram,
            llc=1 << 20 if cus == 20 else 16 << 20,
            link=1e9 * int(rng.integers(145, 156)),
        )
        asked = {"gemm": gemm, "ranks": 8, "machine": machine}
        times = policy_times(**asked)
        words = (
            f"a GEMM of {gemm.m} x {gemm.n} x {gemm.k} on GPUs of {cus} compute units and "
            f"{dram / 1e9:g} GB/s"
        )
        questions.append(Question(asked, min(times, key=times.get), words, times))  # pyright: ignore[reportCallIssue, reportArgumentType]
    return [questions[i] for i in rng.permutation(len(questions)).tolist()]


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
    name="t3_policy",
    title="Whom does the memory serve first?",
    notebook=NOTEBOOK,
    prompt="GEMM and communication share one memory. For a `gemm` whose sum T3 hides on a "
    f"`machine`, return the policy of the memory, one of {POLICIES}, with which it takes "
    "least time (simulated; within 1 % is right): both in turn, whoever came first, or "
    "T3-MCA, the GEMM first and communication while few requests are queued. "
    "`dataclasses.replace(machine, policy=p)` is a machine with another one, `simulate(gemm, "
    'ranks, machine, "t3").seconds` its time. Guess first: is one the best everywhere?',
    starter="""def t3_policy(gemm, ranks, machine):
    return "fifo"  # whoever came first""",
    hints=(
        "Who is late, the GEMM or the communication? The one that is late should not wait.",
        'Alone (config "ideal"), `.gemm_end` and `.rs_end` say which is longer. The policy that '
        "favours the shorter one costs time.",
        "`from tpviz.schemes.t3.hardware import simulate`; return the policy of the smallest "
        '`simulate(gemm, ranks, replace(machine, policy=p), "t3").seconds`.',
    ),
    success="T3-MCA favours the GEMM, which is right for large GEMMs that read much; where the sum "
    "is what is late it costs. The paper chooses its threshold by how much a GEMM reads.",
    make=_make_policy,
    needs=None,
    checks=(_policy_wrong,),
    kind="a policy",
    unit="(simulated)",
)
