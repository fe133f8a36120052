"""The communication model as the authors' Gordon Bell script computes it, slips included.

Blocks of four layers h -> K h, K = 3, 1, 4, 4, in 16 bits, activations always recomputed, gradients
summed over data in float32. Its grid is (c, r, d, data), innermost first: our y, x, z, data in the
order "yxz". Two slips, kept to compare with it:

- the MLP's second layer is taken as h -> 4h, while it is 4h -> h: it should sum h forward over r
  and 4h backward over c (``corrected=True`` does);
- bytes are divided by 1024^3 and then by GB/s of 10^9: all times come out 1024^3/10^9 = 1.07 times
  too small, which changes no ranking.

`tpviz.schemes.axonn.paper` has neither.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

GIB = 1024**3
LAYERS = ((3, False), (1, True), (4, False), (4, True))
"""(K, transposed) of qkv, out, up, down."""


class ReleasedGrid(NamedTuple):
    """A configuration of the script: our y, x, z and data."""

    c: int
    r: int
    d: int
    data: int


def script_seconds(
    grid: Sequence[int],
    w: "GPT",
    rates: Callable[[int, int], float],
    accumulation: int = 1,
    corrected: bool = False,
) -> float:
    """What the script prints for a `ReleasedGrid` as seconds. rates : (inside, size) -> bytes/s."""
    c, r, d, data = grid = ReleasedGrid(*grid)
    tokens = w.batch * w.seq / (data * d)
    sent = dict.fromkeys(grid._fields, 0.0)
    for place, (k, transposed) in enumerate(LAYERS):
        first, second = ("r", "c") if transposed else ("c", "r")
        matrix = k * w.hidden**2 / (c * r)
        wide, narrow = (1, 4) if corrected and place == 3 else (k, 1)
        sent["d"] += 3 * (d - 1) / d * matrix * 2 * accumulation
        sent[first] += (
            2 * _sum(getattr(grid, first)) * tokens * wide * w.hidden * 2 / getattr(grid, second)
        )
        sent[second] += (
            _sum(getattr(grid, second)) * tokens * narrow * w.hidden * 2 / getattr(grid, first)
        )
        sent["data"] += 2 * _sum(data) * matrix / d * 2
    found, inside = 0.0, 1
    for axis, size in zip(grid._fields, grid):
        if size > 1:
            found += w.layers * sent[axis] / GIB / (rates(inside, size) / 1e9)
        inside *= size
    return found


def script_grids(w: "GPT", world_size: int, least: int = 1) -> Iterator[ReleasedGrid]:
    """The script's space: powers of two, at least ``least`` ranks for a model, an even batch."""
    powers = [2**k for k in range(world_size.bit_length())]
    for grid in product(powers, repeat=4):
        c, r, d, data = grid
        if prod(grid) == world_size and c * r * d >= least and w.batch % (data * d) == 0:
            yield ReleasedGrid(*grid)


def script_ranking(
    w: "GPT",
    world_size: int,
    rates: Callable[[int, int], float],
    least: int = 1,
    accumulation: int = 1,
    corrected: bool = False,
) -> list[tuple[ReleasedGrid, float]]:
    """[(Grid, seconds)] of the script's space, least first."""
    timed = [
        (grid, script_seconds(grid, w, rates, accumulation, corrected))
        for grid in script_grids(w, world_size, least)
    ]
    return sorted(timed, key=lambda t: t[1])


def _sum(size):
    """Of an all-reduced element, what a ring sends."""
    return 2 * (size - 1) / size
