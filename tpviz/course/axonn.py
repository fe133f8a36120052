"""The exercises of notebook 11 on numbers: a rank's coordinates and shards, and a layer's bytes.
Those on the choice of a grid are in `axonn_grids`."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

from tpviz.core.mesh import Mesh
from tpviz.core.workload import GPT
from tpviz.schemes.axonn.paper import FC, volume
from tpviz.schemes.axonn.strategy import AxoNN

from .atp import NAMES
from .causes import same
from .formula import Formula, Question
from .told import told

GRID = ("x", "y", "z", "data")


def strategy_of(grid: Sequence[int], **knobs: Any) -> AxoNN:
    """The `AxoNN` of a grid (x, y, z, data)."""
    return AxoNN(**dict(zip(GRID, grid)), **knobs)


# --- axonn_coords ---
def _coords(grid, order, rank):
    """(x, y, z, data) of a rank, by the mesh of the strategy."""
    coords = Mesh(strategy_of(grid, order=order).axes).coords(rank)
    return tuple(coords[axis] for axis in GRID)


def _draw_coords(rng):
    for grid, order in (
        ((4, 2, 2, 2), "xyz"),
        ((2, 2, 2, 1), "xyz"),
        ((4, 2, 2, 1), "yxz"),
        ((2, 3, 2, 2), "yxz"),
        ((3, 1, 2, 2), "xyz"),
    ):
        rank = int(rng.integers(1, prod(grid) - 1))
        while min(grid[:2]) > 1 and _undecided(grid, rank):
            rank = int(rng.integers(1, prod(grid) - 1))
        yield rank, grid, order


def _undecided(grid, rank):
    """Whether the orders, or x and y exchanged where their sizes differ, give the same."""
    (x, y, *_), (other_x, other_y, *_) = (_coords(grid, order, rank) for order in ("xyz", "yxz"))
    clear = 2 if grid[0] == grid[1] else 3
    return len({(x, y), (y, x), (other_x, other_y)}) < clear


def _coords_mistakes(rank, grid, order):
    sizes: dict[str, int] = dict(zip(GRID, grid))
    other = "yxz" if order == "xyz" else "xyz"
    right = _coords(grid, order, rank)
    outer_first = Mesh({axis: sizes[axis] for axis in (*order, "data")}).coords(rank)
    return {
        COORDS.say("that is order", other=other, order=order): _coords(grid, other, rank),
        "axes x and y are exchanged": _turned(right) if order == "yxz" else None,
        COORDS.say("you divided by the size", other=other, order=order): (
            _turned(_coords(grid, other, rank)) if order == "yxz" else None
        ),
        **{
            COORDS.say("begins again from 0 when", axis=axis): tuple(at.values())
            for axis, at in _unreduced(rank, grid, order).items()
        },
        "you let data run fastest": tuple(outer_first[axis] for axis in GRID),
    }


def _turned(coords):
    return (*reversed(coords[:2]), *coords[2:])


def _unreduced(rank, grid, order):
    """{axis: the coordinates, with a quotient for this one}, of the two axes in the middle."""
    sizes, found = dict(zip(GRID, grid)), {}
    right = dict(zip(GRID, _coords(grid, order, rank)))
    for inner, axis in pairwise(order):
        rank //= sizes[inner]
        found[axis] = right | {axis: rank}
    return found


def _coords_wrong(question, got):
    if sorted(got) == sorted(question.answer):
        return COORDS.say("axes the order tells which axis", question=question)


COORDS = Formula(
    **told("axonn_coords"),
    draw=_draw_coords,
    parts=("x", "y", "z", "data"),
    solution=lambda rank, grid, order: _coords(grid, order, rank),
    mistakes=_coords_mistakes,
    wrong=_coords_wrong,
)


# --- axonn_piece ---
def _piece(strategy, workload, weight, coords):
    """(first row, row after the last, first column, column after the last, first number of the
    flat block, number after the last), from `splits` and `blocks`."""
    name = f"blocks.0.{NAMES[weight]}.weight"
    shape, block = workload.parameter_shapes()[name], strategy.blocks(workload)[name]
    ends = []
    for dim, axis in sorted(dict(strategy.splits(workload)[name]).items()):
        ends += _part(shape[dim], coords[axis], strategy.axes[axis])
    return (*ends, *_part(prod(block), coords["z"], strategy.z))


def _draw_piece(rng):
    for weight, grid in (
        ("up", (2, 2, 2, 1)),
        ("down", (2, 2, 2, 1)),
        ("qkv", (4, 2, 3, 1)),
        ("out", (4, 2, 3, 2)),
        ("down", (2, 4, 2, 2)),
    ):
        w = GPT(layers=1, hidden=24 * int(rng.integers(1, 4)), heads=8, vocab=64)
        rank = int(rng.integers(1, prod(grid)))
        shape = w.parameter_shapes()[f"blocks.0.{NAMES[weight]}.weight"]
        coords = dict(zip(GRID, _coords(grid, "xyz", rank)))
        asked = {"weight": weight, "shape": shape, "grid": grid, "rank": rank}
        words = f"{weight} {list(shape)} on grid {grid}, rank {rank} at {tuple(coords.values())}"
        yield Question(asked, _piece(strategy_of(grid), w, weight, coords), words)


def _part(size, number, count):
    return number * size // count, (number + 1) * size // count


def _cut(shape, grid, at, first):
    """The shard, derived: rows over x and columns over y of a ``first`` layer, else swapped."""
    rows, columns = ("x", "y") if first else ("y", "x")
    sizes = dict(zip(GRID, grid))
    numbers = shape[0] * shape[1] // (grid[0] * grid[1])
    return (
        *_part(shape[0], at[rows], sizes[rows]),
        *_part(shape[1], at[columns], sizes[columns]),
        *_part(numbers, at["z"], grid[2]),
    )


def _piece_mistakes(weight, shape, grid, rank):
    first, at = weight in ("qkv", "up"), dict(zip(GRID, _coords(grid, "xyz", rank)))
    right = _cut(shape, grid, at, first)
    return {
        "x and y are swapped": _cut(shape, grid, at, not first),
        "you split the whole weight into": (*right[:4], *_part(prod(shape), at["z"], grid[2])),
        "that is the whole block which": (*right[:4], 0, prod(shape) // (grid[0] * grid[1])),
        "rows and columns are exchanged": (*right[2:4], *right[:2], *right[4:]),
        "in order xyz ranks 0": (
            _cut(shape, grid, dict(zip(GRID, _coords(grid, "yxz", rank))), first)
        ),
        **{
            PIECE.say("begins again from 0 when", axis=axis): _cut(shape, grid, at, first)
            for axis, at in _unreduced(rank, grid, "xyz").items()
        },
    }


def _right_piece(weight, shape, grid, rank):
    first = weight in ("qkv", "up")
    return _cut(shape, grid, dict(zip(GRID, _coords(grid, "xyz", rank))), first)


PIECE = Formula(
    **told("axonn_piece"),
    draw=_draw_piece,
    parts=(
        "first row",
        "row after the last",
        "first column",
        "column after the last",
        "first number",
        "number after the last",
    ),
    solution=_right_piece,
    mistakes=_piece_mistakes,
)


# --- axonn_wire_bytes ---
def layer_bytes(
    k: int, n: int, tokens: float, grid: Sequence[int], transposed: bool, itemsize: int
) -> tuple[float, ...]:
    """Bytes on the wire of a rank over (x, y, z, data), from the model of communication."""
    v = volume(FC(k, n, transposed), tokens, *grid)
    over_x, over_y = (v.forward, v.backward) if transposed else (v.backward, v.forward)
    return tuple(itemsize * part for part in (over_x, over_y, v.gather + v.scatter, v.data))


def _draw_wire(rng):
    for number, (grid, transposed) in enumerate(
        (
            ((4, 2, 2, 2), False),  # x and y exchanged are not k and n exchanged here
            ((2, 2, 2, 1), False),
            ((4, 2, 2, 2), True),
            ((2, 4, 1, 2), True),
            ((1, 1, 8, 1), False),
        )
    ):
        k, n = (64 * int(size) for size in rng.permutation(range(1, 9))[:2])
        yield k, n, 16 * int(rng.integers(1, 5)), grid, transposed, (2, 4, 8)[number % 3]


def _wire_mistakes(k, n, tokens, grid, transposed, itemsize):
    over = layer_bytes(k, n, tokens, grid, transposed, itemsize)
    inner, outer = ("x", "y") if transposed else ("y", "x")
    return {
        "in a transposed layer x": layer_bytes(k, n, tokens, grid, False, itemsize),
        "over z there are two collectives": (*over[:2], over[2] / 2, over[3]),
        "tokens of a replica": (over[0] * grid[2], over[1] * grid[2], *over[2:]),
        WIRE.say("you swapped the bytes of x", inner=inner, outer=outer): (
            (over[1], over[0], *over[2:])
        ),
        "you exchanged k and n": layer_bytes(n, k, tokens, grid, transposed, itemsize),
        "these are counts of numbers": tuple(number / itemsize for number in over),
        "gradients are those of the shard": (..., ..., ..., over[3] * grid[2]),
        "activations are sharded too": (
            over[0] * grid[1 if not transposed else 0],
            over[1] * grid[0 if not transposed else 1],
            ...,
            ...,
        ),
    }


def _wire_wrong(question, got):
    right, grid = question.answer, question.arguments["grid"]
    if len(got) != len(right):
        return None
    rings = [2 * (m - 1) / m for m in grid]
    if all(same(mine * ring, want) for mine, ring, want in zip(got, rings, right)):
        return WIRE.say("these are payloads", question=question)
    return None


WIRE = Formula(
    **told("axonn_wire_bytes"),
    draw=_draw_wire,
    parts=("bytes over x", "bytes over y", "bytes over z", "bytes over data"),
    solution=layer_bytes,
    mistakes=_wire_mistakes,
    wrong=_wire_wrong,
)
