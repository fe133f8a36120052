"""How long one step of ATP takes, and what it sends: `step` with times, and counted.

The paper's own kind of estimate, of communication alone, is in `paper`.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from tpviz.cost import Segment, Stretch, Transfer, transfer
from tpviz.schemes.gpt.cost import Step, completes, seconds_of, segments
from tpviz.trace import Ledger

from .step import BLOCK, Chunks, Collective, Operation, Overlapped, Pipeline, step_of

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.mesh import Mesh
    from tpviz.schemes.gpt.kernels import Kernel
    from tpviz.workload import GPT

    from .layout import Layout


def order(at: "Layout") -> dict[str, tuple[str, ...]]:
    """The order of a block's gradients, `completes`: where there is a sum, the bias is after it."""
    kinds = []
    for contracted, spread in ((at.s, at.i), (at.i, at.s)):
        kinds.append("after" if contracted > 1 else "inside" if spread > 1 else "plain")
    ready = completes(*kinds)
    if at.pipelined:  # one function for both layers of the MLP
        up = ready["up_back"] if kinds[0] == "inside" else ("mlp.up.weight", "mlp.up.bias")
        ready |= {"down_back": (), "up_back": ("mlp.down.weight", *up)}
        if kinds[1] == "inside":
            ready["entering"] = ("mlp.down.bias",)
    return ready


def ledger(at: "Layout", w: "GPT") -> Ledger:
    """The `Ledger` of one step of one rank, for a `layout.Layout`."""
    rows, sizes = [], {at.inside: at.i, at.stream: at.s}
    for part, operations in step_of(at, w).items():
        phase = "backward" if part.endswith("_back") else "sync" if part == "sync" else "forward"
        times = w.layers if part in BLOCK else 1
        for operation in operations:
            for move, count in moves(operation):
                rows.append(
                    (
                        move.axis,
                        move.collective,
                        phase,
                        times * count,
                        move.payload,
                        sizes[move.axis],
                    )
                )
    return Ledger.of(rows)


def moves(operation: Operation) -> list[tuple[Collective, int]]:
    """The (`Collective`, how often) of an operation of the step."""
    if isinstance(operation, Collective):
        return [(operation, 1)]
    if isinstance(operation, Overlapped):
        return [(operation.move, 1)]
    if isinstance(operation, Chunks):
        return [(operation.move, operation.count)]
    if isinstance(operation, Pipeline):
        found = operation.first_move, operation.second_move
        return [(move, operation.count) for move in found if move]
    return []


def cost(at: "Layout", w: "GPT", cluster: "Cluster", mesh: "Mesh") -> list[Segment]:
    """The segments of one step of one rank, for a `layout.Layout`."""
    seconds = lru_cache(None)(seconds_of(w, cluster))
    moved = lru_cache(None)(lambda move: transfer(cluster, mesh, *move))
    parts = {part: timed(operations, seconds, moved) for part, operations in step_of(at, w).items()}
    return segments(w, Step(**parts, ready=order(at)))


def timed(
    operations: Iterable[Operation],
    seconds: "Callable[[Kernel], float]",
    moved: Callable[[Collective], Transfer],
) -> Stretch:
    """The `Stretch` of operations; seconds: kernel -> s, moved: `Collective` -> `Transfer`."""
    stretch = Stretch()
    for operation in operations:
        if isinstance(operation, Collective):
            stretch.blocking(moved(operation))
        elif isinstance(operation, Overlapped):
            stretch.covered(moved(operation.move), seconds(operation.kernel))
        elif isinstance(operation, Chunks):
            stretch.chunked(seconds(operation.kernel), moved(operation.move), operation.count)
        elif isinstance(operation, Pipeline):
            _pipeline(stretch, operation, seconds, moved)
        else:
            stretch.kernel(seconds(operation))
    return stretch


def _pipeline(stretch, operation, seconds, moved):
    """up 1, up 2, down 1, up 3, down 2, ...: down waits for its chunk's sum; each sum for its axis.

    Here alone the sums of both axes are under way at once. Links that they share count as free, as
    they do beside data parallelism; `tpviz.simulate` shares them.
    """
    first, first_move, second, second_move, count = operation
    up, down = seconds(first), seconds(second)
    summed_up = moved(first_move) if first_move else None
    summed = moved(second_move) if second_move else None
    lanes = stretch.lanes()
    waits = []
    for number in range(count + 1):
        if number < count:
            lanes.kernel(up)
            waits.append(lanes.issue(summed_up))
        if number:
            lanes.wait(waits[number - 1])
            lanes.kernel(down)
            last = lanes.issue(summed)
    lanes.wait(last)
    lanes.done()
