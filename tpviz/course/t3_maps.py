"""The exercises of notebook 13 on address maps: data with the destination of each store, run by the
simulated hardware."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tpviz.evidence.t3_hardware import Dma, Gemm, Local, Machine, Remote, check, maps, simulate

from .formula import Asked, Formula, NoAnswer, listed
from .told import told

if TYPE_CHECKING:
    from tpviz.evidence.t3_hardware import SimResult

RULES = {2: Remote, 3: Dma, 1: Local}
"""Fields of each rule: ranks return plain tuples."""
FAULTS = 3
"""The maximum number reported at once."""
SLOWER = 1.02
"""Up to this many times the time of the collective's own maps is right."""
_TEXTS = told("t3_ring_maps")
IDEAS = _TEXTS.pop("ideas")
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
        return None, RING.say("your function returned not a list", name=name)
    rows = []
    for rank, row in enumerate(got):
        if not listed(row):
            return None, RING.say("map of rank is not", rank=rank, row=row)
        for entry in row:
            rule = entry[1] if isinstance(entry, tuple) and len(entry) == 2 else None
            if not (isinstance(rule, tuple) and type(rule) is tuple and len(rule) in RULES):
                return None, (RING.say("in the map of rank", rank=rank, entry=entry))
        rows.append([(chunk, RULES[len(rule)](*rule)) for chunk, rule in row])
    return rows, None


def _maps_verdict(question, got):
    """The error of maps, or None if they are as good as the collective's own."""
    ranks, goal = question.arguments["ranks"], question.known["collective"]
    mine, problem = read(got)
    if problem is None and len(mine) != ranks:  # pyright: ignore[reportArgumentType]
        problem = RING.say("you returned maps for ranks", count=len(mine), ranks=ranks)  # pyright: ignore[reportArgumentType]
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
                return RING.say("rank sends chunk to rank whose", rank=rank, chunk=chunk)


def _played_words(answers):
    """The remark on right answers."""
    return RING.say("right on questions", count=len(answers))


def _links(mine, goal):
    """A missing link: in a ring, all but the one to the rank below."""
    if goal.startswith("ring"):
        for rank, row in enumerate(mine):
            for chunk, rule in row:
                below = (rank - 1) % len(mine)
                if not isinstance(rule, Local) and rule.to != below:
                    return RING.say(
                        "rank sends chunk to rank", rank=rank, chunk=chunk, rule=rule, below=below
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
        return RING.say("simulated with whole numbers the result")
    for rank in range(ranks):
        sent, least = (sum(row[3] for row in run.logs[rank]["sent"]) for run in runs)
        if sent > least:
            return RING.say("result is right but rank", rank=rank, sent=sent, least=least)
        moved, least = (
            sum(run.drams[rank].values()) - run.drams[rank]["gemm_read"] for run in runs
        )
        if moved > least:
            return RING.say("result is right but bytes", moved=moved, rank=rank, least=least)
    mine_s, best = (run.rs_end for run in runs)
    if mine_s > SLOWER * best:
        first = next(row[0][0] for row in mine)
        return RING.say("result is right but takes", ratio=mine_s / best, first=first)


def _draw_ring(rng):
    sizes = [4, 2, *rng.choice([3, 5, 6, 7, 8], 2, replace=False).tolist()]
    return [Asked((n,), f"{n} ranks", {"collective": "ring_rs"}) for n in sizes]


RING = Formula(**_TEXTS, draw=_draw_ring, verdict=_maps_verdict, measured=_played_words)


def _draw_other(rng):
    names = rng.permutation(["direct_rs", "ring_ag", "all_to_all"]).tolist()
    return [
        Asked((name, n), f"{WORDS[name]} of {n} ranks", {"collective": name})
        for name in names
        for n in (4, int(rng.choice([2, 3, 5, 6, 7])))
    ]


OTHER = Formula(
    **told("t3_other_maps"), draw=_draw_other, verdict=_maps_verdict, measured=_played_words
)
