"""The bytes of rows between ranks where a router has chosen: exact, from its choices.

A formula does not know what a router will choose, and takes even loads. Once the choices are known,
as those of one process, every rank's bytes are.
"""

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from tpviz.core.mesh import Mesh
from tpviz.core.step import Collective, Issue, expanded, flat
from tpviz.core.trace.ledger import Ledger
from tpviz.schemes.pipeline.staged import Staged
from tpviz.schemes.pipeline.step import rank_step
from tpviz.schemes.strategy import seen_by, step_of

from .step import ROWS

SHARING = ("dp", "replicate", "shard", "reshard", "across", "within", "ep")
"""Axes that share the batch around and over experts, outer first."""

if TYPE_CHECKING:
    from tpviz.core.workload import GPT
    from tpviz.schemes.strategy import Strategy


def ledger_given(
    strategy: "Strategy", w: "GPT", rank: int, choices: np.ndarray, ledger: Ledger
) -> Ledger:
    """The ``ledger`` of a rank with the bytes of its rows after these ``choices``, int64 (blocks
    with experts, batch, seq, top_k), of the whole workload."""
    mixtures = filter(w.has_experts, range(w.layers))
    moved = dict(zip(mixtures, rows_moved(strategy, w, rank, choices).tolist()))
    passes = Counter[str]()
    times_each = 2 * getattr(strategy, "microbatches", strategy.accumulation)
    cut = getattr(strategy, "inside", strategy).local(seen_by(strategy, w, rank)).cut
    times_each *= cut.halves if cut else 1
    for part, times in flat(_step(strategy, seen_by(strategy, w, rank), rank)):
        moves = sum(_is_rows(operation) for operation in expanded(part.operations))
        if moves:  # there or back: both of a layer's ways, in all microbatches, are its rows
            passes[part.phase] += times * moves * moved[int(part.layer.split(".")[1])]
    size = w.hidden * w.itemsize
    exact = {phase: total * size // times_each for phase, total in passes.items()}
    return Ledger(
        tuple(
            row._replace(payload_bytes=exact[row.phase], wire_bytes=exact[row.phase])
            if row.collective == ROWS
            else row
            for row in ledger.rows
        )
    )


def rows_moved(strategy: "Strategy", w: "GPT", rank: int, choices: np.ndarray) -> np.ndarray:
    """The rows that a rank sends to others and gets from them, forward; (blocks with experts,)."""
    mesh, inside = Mesh(strategy.axes), getattr(strategy, "inside", strategy)
    local = inside.local(seen_by(strategy, w, rank))
    cut, coords = local.cut, mesh.coords(rank)
    if cut is None or cut.ep == 1:
        return np.zeros(len(choices), int)
    places, each = cut.places(local), w.experts // cut.ep
    owner, me = choices // each, coords["ep"]
    shares = {axis: mesh.axes[axis] for axis in SHARING if axis in mesh.axes}
    rows = np.arange(w.batch).reshape(*shares.values(), -1)

    def of(index):
        own = rows[tuple({**coords, "ep": index}[axis] for axis in shares)]
        return owner[:, own][:, :, places]

    sent = (of(me) != me).sum((1, 2, 3))
    others = (of(other) == me for other in range(cut.ep) if other != me)
    return sent + sum(found.sum((1, 2, 3)) for found in others)


def _step(strategy, w, rank):
    if isinstance(strategy, Staged):
        return rank_step(strategy, w, strategy.place_of(rank))
    return step_of(strategy, w)


def _is_rows(operation):
    move = operation.move if isinstance(operation, Issue) else operation
    return isinstance(move, Collective) and move.collective == ROWS
