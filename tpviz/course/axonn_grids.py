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


WHY = {
    "Megatron-LM": "It gathers no weights, and every rank has the whole batch.",
    "FSDP": "All ranks share one copy of the weights, so data has one rank.",
    "DDP": "Each rank has a whole model, and only gradients are all-reduced.",
    "HSDP": "Weights are sharded within a node, and nodes are replicas of each other.",
    "2D": "Every weight is sharded along both dims, and z is 1.",
    "Megatron-LM + DDP": "A node is one replica of the model, sharded by features.",
}


def _special_wrong(question, got):
    scheme, ranks, _ = question.arguments.values()
    if len(got) != 4 or any(size < 1 or size != int(size) for size in got):
        return f"for {question} you returned {got}; a grid is four sizes (x, y, z, data)."
    got = tuple(map(int, got))
    if got[0] * got[1] * got[2] * got[3] != ranks:
        return f"for {question}: the grid {got} does not have {ranks} ranks."
    if scheme == "Megatron-LM" and same(got, (1, ranks, 1, 1)):
        mine, want = (sent(grid).total()[2] for grid in (got, question.answer))
        return (
            f"for {question}: with y alone every first layer all-reduces 3 h and 4 h features in "
            f"forward: {mine / want:.2g} times the bytes. Megatron-LM shards the outputs of first "
            "layers."
        )
    words = f"for {question}: {WHY[scheme]}"
    try:
        return f"{words} A step on your grid sends {_words(sent(got))}."
    except ValueError as error:
        return f"{words} And {error}."


def _words(ledger):
    """All phases together: "10 x all_reduce on x"."""
    counts = Counter()
    for row in ledger:
        counts[f"{row.collective} on {row.axis.removesuffix('_ahead')}"] += row.count
    return ", ".join(f"{count} x {what}" for what, count in counts.items())


SPECIAL = Formula(
    title="Which grid is which scheme?",
    prompt="AxoNN's grid includes many schemes as special cases. Return the grid (x, y, z, data) "
    "of `ranks` ranks, `node` of them in each node, that splits the model as `scheme` does: "
    '"Megatron-LM" (1D tensor parallelism), "FSDP" (all weights sharded), "HSDP" (shards '
    'within a node, replicas across nodes), "DDP", "2D" (a square of tensor parallelism), '
    '"Megatron-LM + DDP" (tensor parallelism within a node).',
    starter="""def axonn_special(scheme, ranks, node):
    return {"DDP": (1, 1, 1, ranks), "FSDP": (1, 1, node, ranks // node)}.get(
        scheme, (ranks, 1, 1, 1)
    )""",
    concept="x and y shard features, z shards a block and the batch, data only the batch.",
    principle="Ask of each scheme: are weights gathered (z)? Are whole models replicated (data)? "
    "Are activations all-reduced in forward (x, y)?",
    shape="As the starter, a dict {scheme: grid} with six entries; the sizes of each multiply "
    "to `ranks`.",
    success="One program covers six schemes and their combinations.",
    draw=_draw_special,
    solution=special,
    wrong=_special_wrong,
)


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
        return (
            f"for {question}: {got} is none of the {len(question.known)} grids (x, y, z, data) "
            f"of {question.arguments['cluster'].size} ranks with x y z >= {LEAST} whose sizes "
            f"divide, such as {next(iter(question.known))}; the batch must divide by z data."
        )


def _grid_wrong(question, got):
    cluster, w, _ = question.arguments.values()
    by_axis = seconds_by_axis(strategy_of(got), w, of_cluster(cluster, cluster.size))
    axis = max(by_axis, key=by_axis.__getitem__)
    what = {"z": "weights and gradients", "data": "gradients"}.get(axis, "activations")
    return (
        f"{show_seconds(by_axis[axis])} of it are on {axis}, for {what}. Which bytes grow with "
        f"the batch, and which do not? Here it is {w.batch} sequences."
    )


GRID_FOR = ChoiceQuestion(
    title="The best grid for a small batch and a large one",
    prompt="A model of 20B parameters, on 32 devices of Perlmutter or 64 of Frontier, with a batch "
    "for fine-tuning or one for pretraining. Return the grid (x, y, z, data) of all devices "
    "with the least time of communication by the papers' model as we read it, "
    "`tv.AxoNN(...).communication(workload, cluster)`; x y z must be at least `least` (the "
    "memory of a device), and sizes must divide: batch by z data. Within 1 % is right.",
    starter="""def axonn_grid_for(cluster, workload, least):
    return 4, 1, cluster.size // 4, 1  # tensor parallelism in a node, the rest in pieces?""",
    concept="x and y move activations, which grow with the tokens; z and data move weights, which "
    "do not.",
    principle="The authors' rule: a small batch uses x and y, a large one z and data. A small "
    "batch limits z and data, whose product must divide it.",
    shape="A loop over `tv.AxoNN.space(workload, cluster.size)` that skips what is too small "
    "and what `.check(workload)` refuses, and keeps the minimum. A strategy has `.x`, "
    "`.y`, `.z` and `.data`.",
    success="The model ignores latency and overlap, and for large batches z and data are nearly "
    "equal: so the authors run the first few grids of the ranking.",
    kind="a grid (x, y, z, data)",
    draw=_draw_grid_for,
    solution=grid_times,
    wrong=_grid_wrong,
    missing=_no_grid,
)
