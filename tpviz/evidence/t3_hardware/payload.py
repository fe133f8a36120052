"""Real numbers carried through every store and update, so that the result can be checked.

Memory is zero at first (assumed), an update adds, a store writes. In a ring every
element gets two numbers at each rank, and a + b is b + a to the bit, so the result does not depend
on what arrives first; with more than two (direct reduce-scatter) it does, in the last bits. Only
the sign of a zero is lost: 0 + -0.0 is 0.0.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tpviz.core.checks import whole_number

if TYPE_CHECKING:
    from .maps import Goal
    from .tiling import Tiling


class Payload:
    """partials : per rank an m x n array, or (A, B) to be multiplied. goal : a `maps.Goal`.

    memory : per rank what it holds. Raises ``ValueError`` on other shapes or numbers of ranks.
    """

    def __init__(
        self,
        partials: Sequence[np.ndarray | tuple[np.ndarray, np.ndarray]],
        tiling: "Tiling",
        goal: "Goal",
    ):
        gemm, ranks = tiling.gemm, whole_number("ranks", tiling.ranks)
        if not hasattr(partials, "__len__"):
            raise ValueError(f"values={partials!r} is no list: give an m x n array for each rank")
        if len(partials) != ranks:
            raise ValueError(f"{len(partials)} values for ranks={ranks}: give one for each rank")
        self.tiling, self.goal = tiling, goal
        self.partials = [_partial(p, gemm, r) for r, p in enumerate(partials)]
        sources = ranks if goal.many else 1
        self.memory = [np.zeros((sources, *p.shape), p.dtype) for p in self.partials]

    def part(self, rank: int, tile: int, wave: int) -> tuple[int, np.ndarray]:
        """(rank, what its GEMM computes of a part of a tile)."""
        return rank, self.partials[rank][self.tiling.parts(tile)[wave]]

    def read(self, rank: int, tile: int, wave: int) -> tuple[int, np.ndarray]:
        """(rank, what its memory holds there): complete, so nobody writes it any more."""
        return rank, self.memory[rank][0][self.tiling.parts(tile)[wave]]

    def write(
        self,
        rank: int,
        tile: int,
        wave: int,
        op: str | None,
        message: tuple[int, np.ndarray] | None,
    ) -> None:
        """Add or write what came in; ``op`` None: what this rank computed itself."""
        if op is None:
            op, message = "update" if self.goal.sums else "store", self.part(rank, tile, wave)
        source, value = message  # pyright: ignore[reportGeneralTypeIssues]
        place = self.memory[rank][source if self.goal.many else 0][self.tiling.parts(tile)[wave]]
        if op == "update":
            place += value
        else:
            place[:] = value

    def result(self) -> np.ndarray:
        """m x n, each chunk from its owner; one more dim in front where there are several: of
        ranks that all end with all chunks, of sources whose parts are not summed."""
        if self.goal.ends == "all":
            return np.concatenate(self.memory)
        whole = np.zeros_like(self.memory[0])
        for chunk, tiles in enumerate(self.tiling.chunks):
            for place in (p for tile in tiles for p in self.tiling.parts(tile)):
                whole[:, *place] = self.memory[chunk][:, *place]
        return whole if self.goal.many else whole[0]


def ring_sum(partials: Sequence[np.ndarray], tiling: "Tiling") -> np.ndarray:
    """The sum of m x n partials as a ring reduce-scatter adds it: ((p[c-1] + p[c-2]) + ...) + p[c]
    in chunk c (derived). What a T3 run must equal to the bit, but for the sign of a zero."""
    ranks, whole = tiling.ranks, np.zeros_like(partials[0])
    for chunk, tiles in enumerate(tiling.chunks):
        for place in (p for tile in tiles for p in tiling.parts(tile)):
            total = partials[(chunk - 1) % ranks][place]
            for hop in range(2, ranks + 1):
                total = total + partials[(chunk - hop) % ranks][place]
            whole[place] = total
    return whole


def _partial(value, gemm, rank):
    if isinstance(value, (tuple, list)) and len(value) == 2 and np.ndim(value[0]) == 2:
        a, b = map(np.asarray, value)
        if a.shape != (gemm.m, gemm.k) or b.shape != (gemm.k, gemm.n):
            raise ValueError(
                f"rank {rank}: A {a.shape} and B {b.shape} are not of "
                f"{gemm.m} x {gemm.k} times {gemm.k} x {gemm.n}"
            )
        return a @ b
    value = np.asarray(value)
    if value.shape != (gemm.m, gemm.n):
        raise ValueError(
            f"rank {rank}: a partial of shape {value.shape} is not {gemm.m} x {gemm.n}"
        )
    return value
