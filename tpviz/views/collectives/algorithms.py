"""The collectives, step by step, over send and receive. Each works on a `wire.Wire`.

Rings: Thakur, Rabenseifner, Gropp (2005), "Optimization of Collective Communication Operations in
MPICH", as is recursive doubling; trees: see `trees`. The only library calls are isend and irecv.
"""

from collections.abc import Callable
from typing import NamedTuple

from tpviz.core.checks import one_of, whole_number

from . import trees
from .wire import COPY, REDUCE, Wire


def ring_reduce_scatter(wire: Wire) -> None:
    """n-1 steps: pass a chunk to the next rank, which adds its own; rank r ends with chunk r."""
    for i in range(wire.size - 1):
        with wire.step():
            wire.send(wire.rank - 1 - i, to=wire.rank + 1, phase=REDUCE)
            wire.receive(wire.rank - 2 - i, source=wire.rank - 1, phase=REDUCE)


def ring_all_gather(wire: Wire) -> None:
    """n-1 steps: rank r starts with chunk r; pass on what came last."""
    for i in range(wire.size - 1):
        with wire.step():
            wire.send(wire.rank - i, to=wire.rank + 1)
            wire.receive(wire.rank - 1 - i, source=wire.rank - 1)


def ring_all_reduce(wire: Wire) -> None:
    """Reduce-scatter, then all-gather: 2(n-1) steps of one chunk."""
    ring_reduce_scatter(wire)
    ring_all_gather(wire)


def tree_all_reduce(wire: Wire, number: int = 1) -> None:
    """Up the tree adding, down the tree copying; chunks follow each other one step apart.

    number: of trees; with two, odd chunks take the second one.
    """
    top = trees.height(wire.size)
    last = (wire.chunks - 1) // number
    for step in range(2 * top + last):
        with wire.step():
            for chunk in range(wire.chunks):
                _climb(wire, chunk, chunk % number, step - chunk // number, top)


def _climb(wire, chunk, tree, step, top):
    """What a chunk does in its own ``step``: 0..top-1 on the way up, top..2 top-1 down."""
    above = trees.parent(wire.rank, wire.size, tree)
    below = trees.children(wire.rank, wire.size, tree)
    here = trees.depth(wire.rank, wire.size, tree)
    if above is not None and step == top - here:
        wire.send(chunk, to=above, phase=REDUCE)
    if step == top - here - 1:
        for child in below:
            wire.receive(chunk, source=child, phase=REDUCE)
    if above is not None and step == top + here - 1:
        wire.receive(chunk, source=above)
    if step == top + here:
        for child in below:
            wire.send(chunk, to=child)


def double_tree_all_reduce(wire: Wire) -> None:
    """Two trees at once, half of the chunks on each."""
    tree_all_reduce(wire, number=2)


def recursive_doubling_all_reduce(wire: Wire) -> None:
    """log2(n) steps: swap everything with the rank 1, 2, 4, ... away, and add."""
    distance = 1
    while distance < wire.size:
        with wire.step():
            for chunk in range(wire.chunks):
                wire.send(chunk, to=wire.rank ^ distance, phase=REDUCE)
                wire.receive(chunk, source=wire.rank ^ distance, phase=REDUCE)
        distance *= 2


def pairwise_all_to_all(wire: Wire) -> None:
    """n-1 steps: in step i a rank sends to the one i ahead and receives from the one i behind.

    Chunks 0..n-1 are what the rank sends (chunk j to rank j), n..2n-1 what it has received.
    """
    for i in range(1, wire.size):
        with wire.step():
            there, here = (wire.rank + i) % wire.size, (wire.rank - i) % wire.size
            wire.send(there, to=there)
            wire.receive(wire.size + here, source=here)


class Algorithm(NamedTuple):
    """One way to do a collective.

    formula: its name in `tpviz.cluster.collectives`. chunks: of a buffer for n ranks, by default.
    fixed: whether the number of chunks follows from n. layout: see
    `tpviz.views.figures.microscope_layout`. powers: whether n must be a power of two.
    """

    run: Callable[[Wire], None]
    formula: str
    chunks: Callable[[int], int]
    fixed: bool = True
    layout: str = "ring"
    powers: bool = False


ALGORITHMS = {
    ("all_reduce", "ring"): Algorithm(ring_all_reduce, "ring", lambda n: n),
    ("all_reduce", "tree"): Algorithm(tree_all_reduce, "tree", lambda n: 1, False, "tree"),
    ("all_reduce", "double_tree"): Algorithm(
        double_tree_all_reduce, "tree", lambda n: 2, False, "circle"
    ),
    ("all_reduce", "recursive_doubling"): Algorithm(
        recursive_doubling_all_reduce,
        "recursive_doubling",
        lambda n: 1,
        layout="circle",
        powers=True,
    ),
    ("all_gather", "ring"): Algorithm(ring_all_gather, "ring", lambda n: n),
    ("reduce_scatter", "ring"): Algorithm(ring_reduce_scatter, "ring", lambda n: n),
    ("all_to_all", "pairwise"): Algorithm(
        pairwise_all_to_all, "ring", lambda n: 2 * n, layout="circle"
    ),
}


def find(collective: str, algorithm: str | None, world_size: int) -> Algorithm:
    """The `Algorithm`. Raises ValueError where there is none, or not for so many ranks."""
    one_of("collective", collective, tuple(dict.fromkeys(c for c, _ in ALGORITHMS)))
    names = [name for known, name in ALGORITHMS if known == collective]
    found = ALGORITHMS[collective, one_of("algorithm", algorithm or names[0], names)]
    whole_number("world_size", world_size, 2)
    below = 1 << (world_size.bit_length() - 1)
    if found.powers and below != world_size:
        raise ValueError(
            f"recursive doubling pairs ranks 1, 2, 4, ... apart, so world_size={world_size} must "
            f"be a power of two: use {below} or {2 * below}, or algorithm='ring'"
        )
    return found


__all__ = ["ALGORITHMS", "COPY", "REDUCE", "Algorithm", "find"]
