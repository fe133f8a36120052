"""Which rank computes which part of a sum of partial products, and in what order (no torch).

The tokens of an output (T, H) are cut into n chunks; chunk c ends as rank c's. Rank r computes
r+1, r+2, ..., r and sends each on to r-1: what is at position j of rank r is at position j+1 of
rank r-1, so a partial sum arrives while, or before, the receiver computes its own share (derived;
references: T3's staggered order). An all-gather goes round the same way from r itself.

`ring` runs in this order, and the simulated hardware's maps have it. All else goes by positions and
by the neighbour r - 1: the formula (`step`), the rule of `paper.updates_per_element`, where `ring`
and the maps send, the hardware's sums and states (`payload`, `tiles_states`), the GPU kernels.

>>> order(1, 4), gathering_order(1, 4)
([2, 3, 0, 1], [1, 2, 3, 0])
>>> cut(10, 8, 4)
[(slice(0, 4, None), slice(0, 8, None)), (slice(4, 8, None), slice(0, 8, None)), \
(slice(8, 10, None), slice(0, 8, None))]
"""

from collections.abc import Iterable


def order(rank: int, size: int) -> list[int]:
    """The chunks in the order in which a rank computes them; its own is last."""
    return [(rank + 1 + position) % size for position in range(size)]


def gathering_order(rank: int, size: int) -> list[int]:
    """The order in which a rank has the chunks in a ring all-gather; its own is first."""
    return [(rank + position) % size for position in range(size)]


def cut(rows: int, cols: int, height: int, width: int = 0) -> list[tuple[slice, slice]]:
    """[(rows, columns)] slices of the tiles of a chunk, row by row; the last may be smaller.

    height, width : of a tile; 0 is all of the chunk.
    """
    return [(down, across) for down in _slices(rows, height) for across in _slices(cols, width)]


def whole_chunk(rows: int, cols: int) -> list[tuple[slice, slice]]:
    """A chunk as one tile."""
    return cut(rows, cols, 0)


def bands(tiles: Iterable[tuple[slice, slice]]) -> list[slice]:
    """The distinct row ranges of tiles, for an all-gather, which sends whole rows."""
    return list({down.start: down for down, _ in tiles}.values())


def sizes(tiles: Iterable[tuple[slice, slice]]) -> list[tuple[int, int]]:
    """[(height, width)] of tiles."""
    return [tuple(side.stop - side.start for side in tile) for tile in tiles]


def _slices(size, step):
    return [slice(i, min(i + (step or size), size)) for i in range(0, size, step or size)]
