"""Which tile of the output is where, in which chunk, and how many bytes each of its parts has.

Tiles are numbered along the shorter side of the output first, so that a wave of workgroups reads
few panels; a chunk is an equal run of that order. All ranks number alike; what differs is the chunk
they begin with.

>>> from .machine import Gemm
>>> grid = Tiling(Gemm(256, 384, 64), 3)
>>> grid.chunks, grid.rows[:4], grid.columns[:4]
((range(0, 2), range(2, 4), range(4, 6)), (0, 1, 0, 1), (0, 0, 1, 1))
"""

from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .machine import Gemm


class Tiling:
    """The tiles of a `Gemm`'s output, cut into one chunk for each of ``ranks``.

    rows, columns : per tile its place. chunks : per chunk a range of tiles; they differ by one
    tile at most. chunk_of : per tile. parts : per tile the (row, column) slices of its wavefronts'
    parts, those that are not empty. sizes : per tile the bytes of these.
    Raises ``ValueError`` where there are fewer tiles than ranks.
    """

    def __init__(self, gemm: "Gemm", ranks: int):
        down, across = gemm.tiles
        total = down * across
        if total < ranks:
            raise ValueError(
                f"{gemm.m} x {gemm.n} has {total} tiles of {gemm.tile[0]} x "
                f"{gemm.tile[1]}, too few for ranks={ranks}: use ranks={total} or "
                "smaller tiles"
            )
        self.gemm, self.ranks, self.total = gemm, ranks, total
        along = range(total)
        if down < across:
            self.rows = tuple(t % down for t in along)
            self.columns = tuple(t // down for t in along)
        else:
            self.rows = tuple(t // across for t in along)
            self.columns = tuple(t % across for t in along)
        edges = [total * c // ranks for c in range(ranks + 1)]
        self.chunks = tuple(range(a, b) for a, b in pairwise(edges))
        self.chunk_of = tuple(c for c, tiles in enumerate(self.chunks) for _ in tiles)
        shapes = {}
        self.sizes = tuple(self._sizes(t, shapes) for t in along)

    @property
    def extents(self) -> tuple[list[int], ...]:
        """(rows of each row of tiles, columns of each column of tiles)."""
        return tuple(
            [min(side, whole - start) for start in range(0, whole, side)]
            for whole, side in zip((self.gemm.m, self.gemm.n), self.gemm.tile)
        )

    def _sizes(self, tile, shapes):
        down, across = self.gemm.tiles
        kind = self.rows[tile] == down - 1, self.columns[tile] == across - 1
        if kind not in shapes:
            shapes[kind] = tuple(
                (r.stop - r.start) * (c.stop - c.start) * self.gemm.itemsize
                for r, c in self.parts(tile)
            )
        return shapes[kind]

    def parts(self, tile: int) -> tuple[tuple[slice, slice], ...]:
        """The (rows, columns) slices of a tile's parts."""
        (height, width), waves = self.gemm.tile, self.gemm.wavefronts
        top, left = self.rows[tile] * height, self.columns[tile] * width
        across = slice(left, min(left + width, self.gemm.n))
        edges = [min(top + height * w // waves, self.gemm.m) for w in range(waves + 1)]
        return tuple((slice(a, b), across) for a, b in pairwise(edges) if a < b)

    @cached_property
    def chunk_bytes(self) -> tuple[int, ...]:
        """Bytes of each chunk."""
        return tuple(sum(sum(self.sizes[t]) for t in tiles) for tiles in self.chunks)

    @property
    def alike(self) -> bool:
        """Whether all chunks have the same tiles, so that one GPU can stand for all."""
        first = [self.sizes[t] for t in self.chunks[0]]
        return all([self.sizes[t] for t in tiles] == first for tiles in self.chunks[1:])
