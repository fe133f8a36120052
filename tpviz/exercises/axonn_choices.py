"""The exercises of notebook 04 that are choices: a grid that is a known scheme, a grid for a batch.

Known schemes are told apart by what a step of each grid sends; grids for a batch by the papers'
model of communication.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .. import clusters
from ..cost import show_seconds
from .atp_choices import Choice
from .axonn import GRID, NOTEBOOK, strategy_of
from .formula import Formula, NoAnswer, Question, same

if TYPE_CHECKING:
    from ..cluster import Cluster
    from ..trace import Ledger
    from ..workload import GPT

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
    from ..workload import GPT

    return GPT(layers=2, hidden=64, heads=16, seq=16, batch=16, vocab=64)


def sent(grid: Sequence[int]) -> "Ledger":
    """The ledger of a step on this grid; raises ValueError where sizes do not divide."""
    return strategy_of(grid).ledger(_small())


def _make_special(rng):
    questions = []
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
        asked = {"scheme": scheme, "ranks": ranks, "node": node}
        words = f"{scheme} on {ranks} ranks, {node} a node"
        questions.append(Question(asked, special(scheme, ranks, node), words))
    return questions


WHY = {
    "Megatron-LM": "It gathers no weights, and every rank has the whole batch.",
    "FSDP": "All ranks share one copy of the weights: nothing is left to be data's.",
    "DDP": "Each rank has a whole model, and only gradients are summed.",
    "HSDP": "Weights are in pieces within a node, and nodes are copies of each other.",
    "2D": "Every weight is cut along both dims, nothing is in pieces.",
    "Megatron-LM + DDP": "A node is one copy of the model, cut by features.",
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
            f"for {question}: with y alone every first layer has a sum forward, of 3 h and 4 h "
            f"features: {mine / want:.2g} times the bytes. Megatron-LM cuts the outputs of "
            "first layers."
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
    name="axonn_special",
    title="Which grid is which scheme?",
    notebook=NOTEBOOK,
    prompt="AxoNN's grid has many schemes at its edges. Return the grid (x, y, z, data) of `ranks` "
    "ranks, `node` of them in each node, that splits the model as `scheme` does: "
    '"Megatron-LM" (1D tensor parallelism), "FSDP" (all weights in pieces), "HSDP" '
    '(pieces within a node, copies between nodes), "DDP", "2D" (a square of tensor '
    'parallelism), "Megatron-LM + DDP" (tensor parallelism within a node).',
    starter="""def axonn_special(scheme, ranks, node):
    return {"DDP": (1, 1, 1, ranks), "FSDP": (1, 1, node, ranks // node)}.get(
        scheme, (ranks, 1, 1, 1)
    )""",
    hints=(
        "x and y cut features, z cuts a block into pieces and the batch, data only the batch.",
        "Ask of each scheme: are weights gathered (z)? Are whole models copied (data)? Are "
        "activations summed in forward (x, y)?",
        "Megatron-LM (ranks, 1, 1, 1), FSDP (1, 1, ranks, 1), HSDP (1, 1, node, ranks // node), "
        "DDP (1, 1, 1, ranks), 2D (r, r, 1, 1) with r the root of ranks, Megatron-LM + DDP (node, "
        "1, 1, ranks // node).",
    ),
    success="One program, six schemes; and everything between them.",
    make=_make_special,
    needs=None,
    checks=(_special_wrong,),
)


# --- axonn_grid_for ---

LEAST = 16
"""Ranks that x y z must have at least, as in the authors' launch script for 20B."""


def grid_times(
    cluster: "Cluster", workload: "GPT", least: int = LEAST
) -> dict[tuple[int, ...], float]:
    """{(x, y, z, data): seconds of communication} of all grids that fit, by the papers' model."""
    from ..schemes.axonn.paper import fitting
    from ..schemes.axonn.strategy import AxoNN

    grids = fitting(AxoNN.space(workload, cluster.size), workload)
    return {
        tuple(getattr(s, axis) for axis in GRID): s.communication(workload, cluster)
        for s in grids
        if s.x * s.y * s.z >= least
    }


def _make_grid_for(rng):
    from ..schemes.axonn.models import paper_models

    cases = (
        (clusters.perlmutter(8), 4),
        (clusters.perlmutter(8), 1024),
        (clusters.frontier(8), 8),
        (clusters.frontier(8), 512),
    )
    questions = []
    for number in rng.permutation(len(cases)).tolist():
        cluster, batch = cases[number]
        w = replace(paper_models()["20B"], batch=batch)
        times = grid_times(cluster, w)
        asked = {"cluster": cluster, "workload": w, "least": LEAST}
        words = f"batch={batch} on {cluster.size} devices of {cluster.name}"
        questions.append(Question(asked, min(times, key=times.get), words, times))  # pyright: ignore[reportCallIssue, reportArgumentType]
    return questions


@dataclass(frozen=True, repr=False)
class GridChoice(Choice):
    """A `Choice` that names no list of grids: there are many."""

    def judge(self, question: Question, got: Any) -> str | None:
        """What is wrong with a grid, or None where its time is near the least."""
        if got in question.known or isinstance(got, NoAnswer) or not isinstance(got, tuple):
            return super().judge(question, got)
        return (
            f"for {question}: {got} is none of the {len(question.known)} grids (x, y, z, data) "
            f"of {question.arguments['cluster'].size} ranks with x y z >= {LEAST} whose sizes "
            f"divide, such as {next(iter(question.known))}; the batch must divide by z data."
        )


def _grid_wrong(question, got):
    from ..schemes.axonn.paper import seconds_by_axis
    from ..schemes.axonn.rates import of_cluster

    cluster, w, _ = question.arguments.values()
    by_axis = seconds_by_axis(strategy_of(got), w, of_cluster(cluster, cluster.size))
    axis = max(by_axis, key=by_axis.get)  # pyright: ignore[reportCallIssue, reportArgumentType]
    what = {
        "x": "activations",
        "y": "activations",
        "z": "weights and gradients",
        "data": "gradients",
    }[axis]
    return (
        f"{show_seconds(by_axis[axis])} of it go over {axis}, for {what}. What grows with the "
        f"batch, and what does not? Here it is {w.batch} sequences."
    )


GRID_FOR = GridChoice(
    name="axonn_grid_for",
    title="The best grid for a small batch and a large one",
    notebook=NOTEBOOK,
    prompt="A model of 20B parameters, on 32 devices of Perlmutter or 64 of Frontier, with a batch "
    "for fine-tuning or one for pretraining. Return the grid (x, y, z, data) of all devices "
    "with the least time of communication by the papers' model as we read it, "
    "`tv.AxoNN(...).communication(workload, cluster)`; x y z must be at least `least` (the "
    "memory of a device), and sizes must divide: batch by z data. Within 1 % is right.",
    starter="""def axonn_grid_for(cluster, workload, least):
    return 4, 1, cluster.size // 4, 1  # tensor parallelism in a node, the rest in pieces?""",
    hints=(
        "x and y move activations, which grow with the tokens; z and data move weights, which do "
        "not.",
        "The authors' rule: a small batch uses x and y, a large one z and data. A small batch "
        "leaves no choice: z data must divide it.",
        "`for s in tv.AxoNN.space(workload, cluster.size)`: skip it if s.x * s.y * s.z < least or "
        "`s.check(workload)` raises ValueError; take the least `s.communication(workload, "
        "cluster)`.",
    ),
    success="The model knows no latency and hides nothing, and large batches find z and data "
    "nearly alike: so the authors run the first few of its list.",
    make=_make_grid_for,
    needs=None,
    checks=(_grid_wrong,),
    kind="a grid (x, y, z, data)",
)
