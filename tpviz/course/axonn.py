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
        f'that is order "{other}". In order "{order}" {order[0]} is innermost: ranks 0 and 1 are '
        f"neighbours along {order[0]}.": _coords(grid, other, rank),
        "these are the right numbers for other axes: x and y are exchanged. The order tells which "
        "axis runs fastest; the answer is always (x, y, z, data).": (
            _turned(right) if order == "yxz" else None
        ),
        f"you divided by the size of {other[0]} first, and exchanged the two results. In order "
        f'"{order}" the number runs fastest along {order[0]}: divide by the size of {order[0]} '
        "first.": (_turned(_coords(grid, other, rank)) if order == "yxz" else None),
        **{
            f"{axis} begins again from 0 when the next axis counts on: take the quotient modulo "
            f"the size of {axis}.": tuple(at.values())
            for axis, at in _unreduced(rank, grid, order).items()
        },
        "you let data run fastest. The order names the axis of neighbouring ranks first: rank 1 is "
        f"one step along {order[0]}.": tuple(outer_first[axis] for axis in GRID),
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
        return (
            f"for {question}: these are the right numbers for other axes. The order tells which "
            "axis runs fastest; the answer is always (x, y, z, data)."
        )


COORDS = Formula(
    title="Coordinates of a rank on the grid",
    prompt='A `grid` (x, y, z, data) of ranks. In `order` "xyz" (the paper\'s) the number of a '
    'rank runs fastest along x, then y, z, data; in "yxz" (the authors\' code) along y, '
    "then x, z, data. Return the coordinates (x, y, z, data) of `rank`.",
    starter="""def axonn_coords(rank, grid, order):
    x, y, z, data = grid
    return rank % x, 0, 0, rank // x  # a line of ranks?""",
    concept="As with the digits of a number: the last digit runs fastest.",
    principle="rank = x + X (y + Y (z + Z data)) in order xyz; the remainder by the innermost size "
    "is the innermost coordinate, and the quotient goes on to the next axis.",
    shape="A `divmod` for each axis but the last, innermost first; at the end the four numbers "
    "in the order (x, y, z, data).",
    success="The axis of neighbouring ranks gets the links inside a node; outer axes get the "
    "inter-node links.",
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
        "x and y are swapped. A first layer (qkv, up) has its outputs over x and its inputs over "
        "y; a second one (out, down) the reverse.": _cut(shape, grid, at, not first),
        "you split the whole weight into z shards. First x and y select the block; z splits that, "
        "flattened.": (*right[:4], *_part(prod(shape), at["z"], grid[2])),
        "that is the whole block, which exists only while it is used. The rank keeps its shard "
        "along z.": (*right[:4], 0, prod(shape) // (grid[0] * grid[1])),
        "rows and columns are exchanged. A weight is (out, in): its rows are the output "
        "features.": (*right[2:4], *right[:2], *right[4:]),
        'in order "xyz" ranks 0 and 1 are neighbours along x; you let another axis run fastest.': (
            _cut(shape, grid, dict(zip(GRID, _coords(grid, "yxz", rank))), first)
        ),
        **{
            f"{axis} begins again from 0 when the next axis counts on: take the quotient modulo "
            f"the size of {axis}.": _cut(shape, grid, at, first)
            for axis, at in _unreduced(rank, grid, "xyz").items()
        },
    }


def _right_piece(weight, shape, grid, rank):
    first = weight in ("qkv", "up")
    return _cut(shape, grid, dict(zip(GRID, _coords(grid, "xyz", rank))), first)


PIECE = Formula(
    title="Which shard of which block does a rank hold?",
    prompt='`weight` ("qkv", "up", "out" or "down") has `shape` (out, in). On a `grid` '
    '(x, y, z, data) in order "xyz" the plane of x and y cuts out a block, which is flattened '
    "row by row and split into equal shards over z. Return for `rank`: (first row, row after the "
    "last, first column, column after the last) of the block, and then (first number, number "
    "after the last) of its shard, six numbers in all.",
    starter="""def axonn_piece(weight, shape, grid, rank):
    x, y, z, data = grid
    rows, columns = shape
    return 0, rows // x, 0, columns // y, 0, rows * columns // (x * y)  # rank 0, before z?""",
    concept="Two steps: a block by x and y, as on ATP's mesh; then a shard of its flattened "
    "numbers by z.",
    principle="A first layer (qkv, up) has its rows (outputs) over x and its columns over y, a "
    "second (out, down) the reverse. The block has out * in / (x y) numbers.",
    shape="Three coordinates from `rank`; start and end of one part of the rows and of one "
    "part of the columns, by a condition on `weight`; start and end of one part of the "
    "block's numbers.",
    success="Gradients and the optimizer's state are sharded in the same way: 1/(x y z) of the "
    "weight on each rank, and only data has replicas.",
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
        "in a transposed layer x and y are swapped: the inputs are over x, so forward all-reduces "
        "over x, and backward over y.": layer_bytes(k, n, tokens, grid, False, itemsize),
        "over z there are two collectives: the gather of the block, and the scatter of its "
        "gradient.": (*over[:2], over[2] / 2, over[3]),
        f"the {tokens} tokens of a replica are split over the z = {grid[2]} ranks along z: each "
        "all-reduces only its own.": (over[0] * grid[2], over[1] * grid[2], *over[2:]),
        f"you swapped the bytes of x and y. The inputs are sharded over {inner} here: forward "
        f"all-reduces over {inner}, and backward over {outer}.": ((over[1], over[0], *over[2:])),
        "you exchanged k and n. Forward all-reduces the output, with n features, and backward the "
        "input's gradient, with k.": layer_bytes(n, k, tokens, grid, transposed, itemsize),
        f"these are counts of numbers, each of which has {itemsize} bytes.": (
            tuple(number / itemsize for number in over)
        ),
        "gradients are those of the shard of x, y and z: data all-reduces 1/z of the block.": (
            ...,
            ...,
            ...,
            over[3] * grid[2],
        ),
        "activations are sharded too: a rank has n / x features of the output, k / y of the "
        "input.": (
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
        return (
            f"for {question}: these are payloads. A ring of m ranks sends 2 (m-1)/m of the "
            "payload of an all-reduce, and (m-1)/m of that of an all-gather or reduce-scatter."
        )
    return None


WIRE = Formula(
    title="Bytes that one layer sends over each axis",
    prompt="A layer has `k` inputs and `n` outputs; `tokens` go through a data replica on a "
    "`grid` (x, y, z, data); `itemsize` bytes a number. Return the bytes one rank sends on rings "
    "in a step, forward and backward: (over x, over y, over z, over data). The gathered block is "
    "kept for backward; `transposed` layers (every second one) have x and y swapped. Your formula "
    "is compared with the model that equals the ledgers of real grids.",
    starter="""def axonn_wire_bytes(k, n, tokens, grid, transposed, itemsize):
    x, y, z, data = grid
    return 0, 0, 0, 2 * (data - 1) / data * k * n * itemsize  # all data parallel?""",
    concept="Four axes, five collectives: all-gather and reduce-scatter over z, an all-reduce in "
    "forward, one in backward, and one of the gradients over data. How large is each payload?",
    principle="The block has k n / (x y) numbers, the shard 1/z of it. Forward all-reduces the "
    "output, tokens / z rows of n / x features, over y; backward the input's gradient, k / y "
    "features, over x.",
    shape="Each number is 2(n-1)/n of one tensor's bytes, with n the size of that axis. A "
    "transposed layer exchanges x and y before, and the first two results after.",
    success="These four terms, each divided by the bandwidth of its axis, are the complete model "
    "by which AxoNN chooses its grid.",
    draw=_draw_wire,
    parts=("bytes over x", "bytes over y", "bytes over z", "bytes over data"),
    solution=layer_bytes,
    mistakes=_wire_mistakes,
    wrong=_wire_wrong,
)
