"""The exercises of notebook 13 on address maps: data with the destination of each store, run by the
simulated hardware."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tpviz.evidence.t3_hardware import Dma, Gemm, Local, Machine, Remote, check, maps, simulate

from .formula import Asked, Formula, NoAnswer, listed

if TYPE_CHECKING:
    from tpviz.evidence.t3_hardware import SimResult

RULES = {2: Remote, 3: Dma, 1: Local}
"""Fields of each rule: ranks return plain tuples."""
FAULTS = 3
"""The maximum number reported at once."""
SLOWER = 1.02
"""Up to this many times the time of the collective's own maps is right."""
IDEAS = {
    "too early": "Count what an element gets there: a store of the rank's own GEMM, if its stores "
    "stay, and one from each rank that sends it.",
    "never completes": "Who should send it there? Count the ranks that do, and the own store.",
    "over what else comes there": "A store replaces what is in memory, an update adds to it.",
    "use Local": "The order ends with the chunk that a rank keeps: which one begins it?",
    "would stay there": "With Remote nothing is kept or forwarded: only a rank to which no part of "
    "the chunk comes, the first on its way, may use it.",
}
"""{words of a fault: the idea that is missing}."""
WORDS = {
    "ring_rs": "a ring reduce-scatter",
    "direct_rs": "a direct reduce-scatter",
    "ring_ag": "a ring all-gather",
    "all_to_all": "an all-to-all",
}


def small(ranks: int) -> tuple[Gemm, Machine]:
    """A GEMM of four tiles a chunk, of whole numbers, and a machine with few workgroups at once."""
    return Gemm(32, 8 * ranks, 16, tile=(8, 8), wavefronts=2), Machine(cus=1, latency=20e-9)


def partials(ranks: int, seed: int = 0) -> list[np.ndarray]:
    """Per rank an m x n array of whole numbers: sums are exact in any order."""
    gemm, rng = small(ranks)[0], np.random.default_rng(seed)
    return [rng.integers(-99, 100, (gemm.m, gemm.n)).astype(np.float32) for _ in range(ranks)]


def result(parts: Sequence[np.ndarray], run: "SimResult") -> np.ndarray:
    """The result of a `SimResult`'s collective on these parts, as in `SimResult.values`."""
    owner = np.empty((run.gemm.m, run.gemm.n), int)
    height, width = run.gemm.tile
    for row, column, chunk in zip(run.tiles.row, run.tiles.column, run.tiles.chunk):
        owner[row * height : (row + 1) * height, column * width : (column + 1) * width] = chunk
    if run.collective == "all_to_all":
        return np.stack(parts)
    if run.collective == "ring_ag":
        return np.stack([np.choose(owner, parts)] * run.ranks)
    return sum(parts)  # pyright: ignore[reportReturnType]


def read(got: Any) -> tuple[list[list[tuple[int, Dma | Local | Remote]]] | None, str | None]:
    """The maps that a function returned, with rules instead of tuples, or the error."""
    if not listed(got):
        name = got.type if isinstance(got, NoAnswer) else type(got).__name__
        return None, f"your function returned {name}, not a list with one map for each rank."
    rows = []
    for rank, row in enumerate(got):
        if not listed(row):
            return None, f"the map of rank {rank} is {row!r}, not a list of (chunk, rule)."
        for entry in row:
            rule = entry[1] if isinstance(entry, tuple) and len(entry) == 2 else None
            if not (isinstance(rule, tuple) and type(rule) is tuple and len(rule) in RULES):
                return None, (
                    f"in the map of rank {rank} is {entry!r}, not (chunk, rule), as in "
                    '(2, Dma(1, "update", 2)), (2, Remote(1)) or (2, Local(2)).'
                )
        rows.append([(chunk, RULES[len(rule)](*rule)) for chunk, rule in row])
    return rows, None


def _maps_verdict(question, got):
    """The error of maps, or None if they are as good as the collective's own."""
    ranks, goal = question.arguments["ranks"], question.known["collective"]
    mine, problem = read(got)
    if problem is None and len(mine) != ranks:  # pyright: ignore[reportArgumentType]
        problem = f"you returned {len(mine)} maps for {ranks} ranks: each rank has one."  # pyright: ignore[reportArgumentType]
    if problem is None and (wrong := check(mine, goal)):  # pyright: ignore[reportArgumentType]
        more = f" (and {len(wrong) - FAULTS} more)" if len(wrong) > FAULTS else ""
        idea = next((f" {idea}" for words, idea in IDEAS.items() if words in wrong[0]), "")
        problem = f"this is not {WORDS[goal]}: {'; '.join(wrong[:FAULTS])}{more}.{idea}"
    if goal == "ring_ag" and mine and (back := _came_back(mine)):
        problem = back
    problem = problem or _links(mine, goal) or _played(mine, goal)
    return problem and f"for {question}: {problem}"


def _came_back(mine):
    """A chunk of a ring all-gather that is sent to the rank that computed it."""
    for rank, row in enumerate(mine):
        for chunk, rule in row:
            if not isinstance(rule, Local) and rule.to == chunk:
                return (
                    f"rank {rank} sends chunk {chunk} to rank {chunk}, whose GEMM computed it. The "
                    "last rank that gets a chunk keeps it and sends it no further: Local."
                )


def _played_words(answers):
    """The remark on right answers."""
    return f"Right on {len(answers)} questions: on the simulated hardware each result is bit-exact."


def _links(mine, goal):
    """A missing link: in a ring, all but the one to the rank below."""
    if goal.startswith("ring"):
        for rank, row in enumerate(mine):
            for chunk, rule in row:
                below = (rank - 1) % len(mine)
                if not isinstance(rule, Local) and rule.to != below:
                    return (
                        f"rank {rank} sends chunk {chunk} to rank {rule.to}, but in this ring "
                        f"its only link is to rank {below}. A chunk of any other rank goes around "
                        "the ring, and each rank on its way forwards it."
                    )


def _played(mine, goal):
    """The simulated hardware's verdict: the result, bit-exact, and the time."""
    ranks = len(mine)
    (gemm, machine), parts = small(ranks), partials(ranks)
    runs = [
        simulate(gemm, ranks, machine, "t3", goal, "full", parts, maps=rules)
        for rules in (mine, maps(goal, ranks))
    ]
    if not np.array_equal(runs[0].values, result(parts, runs[0])):  # pyright: ignore[reportArgumentType]
        return "simulated with whole numbers, the result differs from one process."
    for rank in range(ranks):
        sent, least = (sum(row[3] for row in run.logs[rank]["sent"]) for run in runs)
        if sent > least:
            return f"the result is right, but rank {rank} sends {sent} bytes where {least} will do."
        moved, least = (
            sum(run.drams[rank].values()) - run.drams[rank]["gemm_read"] for run in runs
        )
        if moved > least:
            return (
                f"the result is right, but {moved} bytes of results go through the memory of rank "
                f"{rank} where {least} will do. A chunk that needs no update need not stay."
            )
    mine_s, best = (run.rs_end for run in runs)
    if mine_s > SLOWER * best:
        first = next(row[0][0] for row in mine)
        return (
            f"the result is right, but takes {mine_s / best:.2f} times as long as possible "
            "(simulated). The order of a map is the order of computing: rank 0 begins with chunk "
            f"{first}. Which chunk can be sent at once, and which does the next rank wait for?"
        )


RING_STARTER = """from tpviz.evidence.t3_hardware import Dma, Local, Remote


def t3_ring_maps(ranks):
    def own(rank):  # in the order in which the rank computes
        return [(chunk, Dma((rank - 1) % ranks, "update", 1)) for chunk in range(ranks)]

    return [own(rank) for rank in range(ranks)]"""


def _draw_ring(rng):
    sizes = [4, 2, *rng.choice([3, 5, 6, 7, 8], 2, replace=False).tolist()]
    return [Asked((n,), f"{n} ranks", {"collective": "ring_rs"}) for n in sizes]


RING = Formula(
    title="Program the ring: the destination of each store",
    prompt="Address maps redirect a GEMM's stores; its code is unchanged. Write the address maps "
    "of a ring reduce-scatter: rank r sends to r - 1 only, the reduced chunk c ends on rank c. "
    "Return for each rank a list of (chunk, rule) in the order in which it computes. `Remote(to, "
    '"update")`: the store goes to rank `to` and is added there. `Dma(to, "update", '
    "updates)`: the store stays, and when each element has had so many stores and updates, it is "
    "sent to `to` and added there. `Local(updates)`: it stays, and is complete after so many. "
    "Your maps are checked, then run on the simulated hardware, and the result must be bit-exact.",
    starter=RING_STARTER,
    concept="Follow one chunk around the ring: which rank begins it, which forward it, which "
    "keeps it? Each has a different rule for it.",
    principle="The first chunk of a rank waits for no update: Remote. Those after it have one "
    "store and one update: Dma with 2. The last is the rank's own: Local with 2.",
    shape="For each rank `ranks` pairs (chunk, rule) in the order of `t3_order`. Three rules: "
    "of the first pair, of those in the middle, of the last.",
    success="T3 needs no more software: a library writes these maps once for each collective, and "
    "GEMMs are unchanged.",
    draw=_draw_ring,
    verdict=_maps_verdict,
    measured=_played_words,
)


def _draw_other(rng):
    names = rng.permutation(["direct_rs", "ring_ag", "all_to_all"]).tolist()
    return [
        Asked((name, n), f"{WORDS[name]} of {n} ranks", {"collective": name})
        for name in names
        for n in (4, int(rng.choice([2, 3, 5, 6, 7])))
    ]


OTHER = Formula(
    title="Other collectives by the same rules",
    prompt='Write maps for three others. "direct_rs": all ranks are linked to each other, the '
    'reduced chunk c ends on rank c; nothing may be read and forwarded. "all_to_all": chunk c '
    "of every rank ends on rank c, not reduced: each source has its own buffer there, written "
    'once. "ring_ag": rank r\'s GEMM computes only chunk r, and all ranks must end with all '
    'chunks; rank r sends to r - 1 only. Here op is "update" where chunks are reduced and '
    '"store" elsewhere. Return the maps, as in `t3_ring_maps`.',
    starter="""from tpviz.evidence.t3_hardware import Dma, Local, Remote


def t3_other_maps(collective, ranks):
    def own(rank):
        others = [(rank + 1 + j) % ranks for j in range(ranks - 1)]
        return [(c, Remote(c, "update")) for c in others] + [(rank, Local(1))]
    return [own(rank) for rank in range(ranks)]""",
    concept="How many stores and updates does an element of a chunk get on its owner? On a rank "
    "that forwards it? That is the number to wait for.",
    principle="Direct: every store but the own goes to its owner, who gets one from each rank. "
    "All-to-all: the same, stored, and each buffer is written once. Gather: one store arrives and "
    "is forwarded, except by the last rank.",
    shape="A list of pairs (chunk, rule) for each rank of each collective. Two of the three "
    "collectives need one rule for chunks of others and one for the own chunk.",
    success="A direct reduce-scatter reads nothing back from memory, but owners add as many "
    "numbers as there are ranks, in order of arrival: the last bits may vary between runs.",
    draw=_draw_other,
    verdict=_maps_verdict,
    measured=_played_words,
)
