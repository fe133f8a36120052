"""The exercises of notebook 11 on the choice of a grid: those of known schemes, told apart by the
collectives of a step, and the best one for a batch by the papers' model of communication."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from tpviz.cluster import Cluster, clusters
from tpviz.core.tables import show_seconds
from tpviz.core.trace import Ledger
from tpviz.core.workload import GPT
from tpviz.schemes.axonn.models import paper_models
from tpviz.schemes.axonn.paper import fitting, seconds_by_axis
from tpviz.schemes.axonn.rates import of_cluster
from tpviz.schemes.axonn.strategy import AxoNN

from .axonn import GRID, strategy_of
from .causes import same
from .formula import Asked, ChoiceQuestion, Formula, listed
from .told import told


# --- axonn_special ---
def special(scheme: str, ranks: int, node: int) -> tuple[int, int, int, int]:
    """The grid (x, y, z, data) of ``ranks`` that is the scheme; ``node``: ranks of a node."""
    side = int(ranks**0.5)
    return {
        "Megatron-LM": (ranks, 1, 1, 1),
        "FSDP": (1, 1, ranks, 1),
        "DDP": (1, 1, 1, ranks),
        "HSDP": (1, 1, node, ranks // node),
        "2D": (side, side, 1, 1),
        "Megatron-LM + DDP": (node, 1, 1, ranks // node),
    }[scheme]


@lru_cache(maxsize=1)
def _small():
    return GPT(layers=2, hidden=64, heads=16, seq=16, batch=16, vocab=64)


def sent(grid: Sequence[int]) -> Ledger:
    """The ledger of a step on this grid; raises ValueError where sizes do not divide."""
    return strategy_of(grid).ledger(_small())


def _draw_special(rng):
    for scheme in rng.permutation(list(WHY)).tolist():
        sizes = [
            (ranks, node)
            for ranks in (8, 16)
            for node in (2, 4, 8)
            if ranks != node**2
            and ranks > node  # a node is not as large as their number
            and (scheme != "2D" or ranks == 16)
        ]
        ranks, node = sizes[int(rng.integers(len(sizes)))]
        yield Asked((scheme, ranks, node), f"{scheme} on {ranks} ranks, {node} a node")


_TEXTS = told("axonn_special")
WHY = _TEXTS.pop("why")


def _special_wrong(question, got):
    scheme, ranks, _ = question.arguments.values()
    if len(got) != 4 or any(size < 1 or size != int(size) for size in got):
        return SPECIAL.say("you returned a grid is four", question=question, got=got)
    got = tuple(map(int, got))
    if got[0] * got[1] * got[2] * got[3] != ranks:
        return SPECIAL.say("grid does not have ranks", question=question, got=got, ranks=ranks)
    if scheme == "Megatron-LM" and same(got, (1, ranks, 1, 1)):
        mine, want = (sent(grid).total()[2] for grid in (got, question.answer))
        return SPECIAL.say("with y alone every first layer", question=question, ratio=mine / want)
    words = f"for {question}: {WHY[scheme]}"
    try:
        return SPECIAL.say("step on your grid sends", words=words, sends=_words(sent(got)))
    except ValueError as error:
        return f"{words} And {error}."


def _words(ledger):
    """All phases together: "10 x all_reduce on x"."""
    counts = Counter()
    for row in ledger:
        counts[f"{row.collective} on {row.axis.removesuffix('_ahead')}"] += row.count
    return ", ".join(f"{count} x {what}" for what, count in counts.items())


SPECIAL = Formula(**_TEXTS, draw=_draw_special, solution=special, wrong=_special_wrong)


# --- axonn_grid_for ---
LEAST = 16
"""Ranks that x y z must have at least, as in the authors' launch script for 20B."""


def grid_times(cluster: Cluster, workload: GPT, least: int = LEAST) -> dict[tuple[int, ...], float]:
    """{(x, y, z, data): seconds of communication} of all grids that fit, by the papers' model."""
    grids = fitting(AxoNN.space(workload, cluster.size), workload)
    return {
        tuple(getattr(s, axis) for axis in GRID): s.communication(workload, cluster)
        for s in grids
        if s.x * s.y * s.z >= least
    }


def _draw_grid_for(rng):
    cases = (
        (clusters.perlmutter(8), 4),
        (clusters.perlmutter(8), 1024),
        (clusters.frontier(8), 8),
        (clusters.frontier(8), 512),
    )
    for number in rng.permutation(len(cases)).tolist():
        cluster, batch = cases[number]
        words = f"batch={batch} on {cluster.size} devices of {cluster.name}"
        yield Asked((cluster, replace(paper_models()["20B"], batch=batch), LEAST), words)


def _no_grid(question, got):
    if listed(got):
        return GRID_FOR.say(
            "is none of the grids x",
            question=question,
            got=got,
            count=len(question.known),
            size=question.arguments["cluster"].size,
            LEAST=LEAST,
            first=next(iter(question.known)),
        )


def _grid_wrong(question, got):
    cluster, w, _ = question.arguments.values()
    by_axis = seconds_by_axis(strategy_of(got), w, of_cluster(cluster, cluster.size))
    axis = max(by_axis, key=by_axis.__getitem__)
    what = {"z": "weights and gradients", "data": "gradients"}.get(axis, "activations")
    return GRID_FOR.say(
        "of it are on for which bytes grow",
        time=show_seconds(by_axis[axis]),
        axis=axis,
        what=what,
        w=w,
    )


GRID_FOR = ChoiceQuestion(
    **told("axonn_grid_for"),
    kind="a grid (x, y, z, data)",
    draw=_draw_grid_for,
    solution=grid_times,
    wrong=_grid_wrong,
    missing=_no_grid,
)
