"""The exercises of notebook 06 on address maps: data that tell each store where to go, played by
the simulated hardware."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..schemes.t3.hardware import Dma, Gemm, Local, Machine, Remote, check, maps, simulate
from .formula import Asked, Formula, NoAnswer, listed

if TYPE_CHECKING:
    from ..schemes.t3.hardware import SimResult

RULES = {2: Remote, 3: Dma, 1: Local}
"""Fields of each rule: what ranks hand over are plain tuples."""
FAULTS = 3
"""At most so many are told at once."""
SLOWER = 1.02
"""As many times as long as with the collective's own maps is as good."""
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
    """What the collective of a `SimResult` is to leave of these parts, as `SimResult.values` has
    it."""
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
    """The maps that a function returned, with rules in place of tuples, or what is wrong."""
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
    """What is wrong with maps, or None where they are as good as the collective's own."""
    ranks, goal = question.arguments["ranks"], question.known["collective"]
    mine, problem = read(got)
    if problem is None and len(mine) != ranks:  # pyright: ignore[reportArgumentType]
        problem = f"you returned {len(mine)} maps for {ranks} ranks: each rank has one."  # pyright: ignore[reportArgumentType]
    if problem is None and (wrong := check(mine, goal)):  # pyright: ignore[reportArgumentType]
        more = f" (and {len(wrong) - FAULTS} more)" if len(wrong) > FAULTS else ""
        problem = f"this is not {WORDS[goal]}: {'; '.join(wrong[:FAULTS])}{more}."
    problem = problem or _links(mine, goal) or _played(mine, goal)
    return problem and f"for {question}: {problem}"


def _played_words(answers):
    """What was played."""
    return (
        f"Right on {len(answers)} questions: played by the simulated hardware, each result "
        f"is right to the bit."
    )


def _links(mine, goal):
    """A link that is not there: in a ring, all but the one to the rank below."""
    if goal.startswith("ring"):
        for rank, row in enumerate(mine):
            for chunk, rule in row:
                below = (rank - 1) % len(mine)
                if not isinstance(rule, Local) and rule.to != below:
                    return (
                        f"rank {rank} sends chunk {chunk} to rank {rule.to}, but in this ring "
                        f"its only link is to rank {below}."
                    )


def _played(mine, goal):
    """What simulated hardware says: the result, to the bit, and the time."""
    ranks = len(mine)
    (gemm, machine), parts = small(ranks), partials(ranks)
    runs = [
        simulate(gemm, ranks, machine, "t3", goal, "full", parts, maps=rules)
        for rules in (mine, maps(goal, ranks))
    ]
    if not np.array_equal(runs[0].values, result(parts, runs[0])):  # pyright: ignore[reportArgumentType]
        return "played with whole numbers, it does not come out as one process computes it."
    for rank in range(ranks):
        sent, least = (sum(row[3] for row in run.logs[rank]["sent"]) for run in runs)
        if sent > least:
            return f"it comes out right, but rank {rank} sends {sent} bytes where {least} will do."
        moved, least = (
            sum(run.drams[rank].values()) - run.drams[rank]["gemm_read"] for run in runs
        )
        if moved > least:
            return (
                f"it comes out right, but {moved} bytes of results go through the memory of rank "
                f"{rank} where {least} will do. What needs nothing from anybody need not stay."
            )
    mine_s, best = (run.rs_end for run in runs)
    if mine_s > SLOWER * best:
        first = next(row[0][0] for row in mine)
        return (
            f"it comes out right, but takes {mine_s / best:.2f} times as long as it could "
            f"(simulated). The order of a map is the order of computing: rank 0 begins with "
            f"chunk {first}. What can leave at once, and what does the next rank wait for?"
        )


RING_STARTER = """from tpviz.schemes.t3.hardware import Dma, Local, Remote


def t3_ring_maps(ranks):
    def own(rank):  # in the order in which the rank computes
        return [(chunk, Dma((rank - 1) % ranks, "update", 1)) for chunk in range(ranks)]

    return [own(rank) for rank in range(ranks)]"""


def _draw_ring(rng):
    sizes = [4, 2, *rng.choice([3, 5, 6, 7, 8], 2, replace=False).tolist()]
    return [Asked((n,), f"{n} ranks", {"collective": "ring_rs"}) for n in sizes]


RING = Formula(
    title="Program the ring: where does each store go?",
    prompt="A GEMM's stores can be told where to go, its code stays as it is. Write the address "
    "maps of a ring reduce-scatter: rank r sends to r - 1 only, chunk c ends summed at rank c. "
    "Return for each rank a list of (chunk, rule) in the order in which it computes. `Remote(to, "
    '"update")`: the store goes to rank `to` and is added there. `Dma(to, "update", updates)`: the '
    "store stays, and when each element has had so many stores and updates, what is there is sent "
    "to `to` and added there. `Local(updates)`: it stays, and is complete after so many. Your maps "
    "are checked, then played by the simulated hardware, and the result must be right to the bit.",
    starter=RING_STARTER,
    concept="Follow one chunk around the ring: who begins, who passes on, who keeps? Each of them "
    "has another rule for it.",
    principle="The first chunk of a rank needs nothing from anybody: Remote. Those after it have "
    "one store and one update: Dma with 2. The last is the rank's own: Local with 2.",
    answer='`to = (r - 1) % n`; `[((r + 1) % n, Remote(to, "update"))] + [((r + 1 + j) % n, '
    'Dma(to, "update", 2)) for j in range(1, n - 1)] + [(r, Local(2))]`.',
    success="This is all that T3 asks of software: a library writes these maps once for each "
    "collective, and GEMMs do not know.",
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
    prompt='The same for three others. "direct_rs": all ranks are linked to each other, chunk c '
    'ends summed at rank c; nothing is to be read and sent on. "all_to_all": chunk c of '
    "every rank ends at rank c, not summed: each source has a buffer of its own there, "
    'written once. "ring_ag": rank r\'s GEMM computes chunk r alone, and all ranks are to '
    'end with all chunks; rank r sends to r - 1 only. Here op is "update" where something '
    'is summed and "store" where not. Return the maps, as in `t3_ring_maps`.',
    starter="""from tpviz.schemes.t3.hardware import Dma, Local, Remote


def t3_other_maps(collective, ranks):
    def own(rank):
        others = [(rank + 1 + j) % ranks for j in range(ranks - 1)]
        return [(c, Remote(c, "update")) for c in others] + [(rank, Local(1))]
    return [own(rank) for rank in range(ranks)]""",
    concept="How many stores and updates does an element of a chunk get on its owner? On a rank "
    "that passes it on? That is the number to wait for.",
    principle="Direct: every store but the own goes to its owner, who gets one from each rank. "
    "All-to-all: the same, stored, and each buffer is written once. Gather: one store comes "
    "and is sent on, but not by the last rank of its way.",
    answer='direct_rs: `Remote(c, "update")` for others, `(r, Local(ranks))`. all_to_all: '
    '`Remote(c, "store")`, `(r, Local(1))`. ring_ag: `((r + j) % n, Dma((r - 1) % n, '
    '"store", 1)) for j in range(n - 1)`, then `((r - 1) % n, Local(1))`.',
    success="Direct sums read nothing back from memory, but owners add as many numbers as there "
    "are ranks, in the order they come: the last bits may change from run to run.",
    draw=_draw_other,
    verdict=_maps_verdict,
    measured=_played_words,
)
