"""The exercises of notebook 04 on numbers: where a rank is, what it owns, what a layer sends."""

from collections.abc import Sequence
from itertools import permutations
from math import prod
from typing import TYPE_CHECKING, Any

from ..mesh import Mesh
from .atp import NAMES
from .formula import Formula, Question, same

if TYPE_CHECKING:
    from ..schemes.axonn.strategy import AxoNN

NOTEBOOK = "04_axonn"
GRID = ("x", "y", "z", "data")


def strategy_of(grid: Sequence[int], **knobs: Any) -> "AxoNN":
    """The `AxoNN` of a grid (x, y, z, data)."""
    from ..schemes.axonn.strategy import AxoNN  # loads torch, which showing a task does not need

    return AxoNN(**dict(zip(GRID, grid)), **knobs)


# --- axonn_coords ---


def _coords(grid, order, rank):
    """(x, y, z, data) of a rank, by the mesh of the strategy."""
    found = Mesh(strategy_of(grid, order=order).axes).coords(rank)
    return tuple(found[axis] for axis in GRID)


def _make_coords(rng):
    questions = []
    for grid, order in (
        ((2, 2, 2, 1), "xyz"),
        ((4, 2, 2, 2), "xyz"),
        ((4, 2, 2, 1), "yxz"),
        ((2, 3, 2, 2), "yxz"),
        ((3, 1, 2, 2), "xyz"),
    ):
        rank = int(rng.integers(1, prod(grid) - 1))
        while min(grid[:2]) > 1 and _coords(grid, "xyz", rank) == _coords(grid, "yxz", rank):
            rank = int(rng.integers(1, prod(grid) - 1))
        asked = {"rank": rank, "grid": grid, "order": order}
        questions.append(Question(asked, _coords(grid, order, rank)))
    return questions


def _coords_wrong(question, got):
    rank, grid, order = question.arguments.values()
    if order == "yxz" and same(got, _coords(grid, "xyz", rank)):
        return (
            f'for {question}: that is order "xyz". In the order of the authors\' code y is '
            "innermost: ranks 0 and 1 are neighbours along y."
        )
    sizes: dict[str, int] = dict(zip(GRID, grid))
    inner = "yxz" if order == "yxz" else "xyz"
    outer_first = Mesh({axis: sizes[axis] for axis in (*inner, "data")}).coords(rank)
    if same(got, tuple(outer_first[axis] for axis in GRID)):
        return (
            f"for {question}: you let data run fastest. The order names the axis of "
            f"neighbouring ranks first: rank 1 is one step along {inner[0]}."
        )
    for wrong in permutations(question.answer):
        if same(got, wrong):
            return (
                f"for {question}: these are the right numbers for other axes. The order says "
                "which axis runs fastest; the answer is always (x, y, z, data)."
            )


COORDS = Formula(
    name="axonn_coords",
    title="Where on the grid am I?",
    notebook=NOTEBOOK,
    prompt='A `grid` (x, y, z, data) of ranks. In `order` "xyz" (the paper\'s) the number of a '
    'rank runs fastest along x, then y, z, data; in "yxz" (the authors\' code) along y, '
    "then x, z, data. Return the coordinates (x, y, z, data) of `rank`.",
    starter="""def axonn_coords(rank, grid, order):
    x, y, z, data = grid
    return rank % x, 0, 0, rank // x  # a line of ranks?""",
    hints=(
        "As with the digits of a number: the last digit runs fastest.",
        "rank = x + X (y + Y (z + Z data)) in order xyz; the remainder by the innermost size is "
        "the innermost coordinate, and the quotient goes on to the next axis.",
        "`rank, x = divmod(rank, grid[0])`, then y with grid[1], then z with grid[2]; data is what "
        "is left. In order yxz take y first.",
    ),
    success="Which axis has the neighbours decides which links it gets: inside a node, or the way "
    "out of it.",
    make=_make_coords,
    needs=None,
    checks=(_coords_wrong,),
)


# --- axonn_piece ---


def _piece(strategy, workload, weight, coords):
    """(first row, row after the last, first column, column after the last, first number of the
    flat block, number after the last), from `splits` and `blocks`."""
    name = f"blocks.0.{NAMES[weight]}.weight"
    shape, block = workload.parameter_shapes()[name], strategy.blocks(workload)[name]
    found, cuts = [], dict(strategy.splits(workload)[name])
    for dim, axis in sorted(cuts.items()):
        part = shape[dim] // strategy.axes[axis]
        found += [coords[axis] * part, (coords[axis] + 1) * part]
    numbers = prod(block) // strategy.z
    return (*found, coords["z"] * numbers, (coords["z"] + 1) * numbers)


def _make_piece(rng):
    from ..workload import GPT

    questions = []
    for weight, grid in (
        ("up", (2, 2, 2, 1)),
        ("down", (2, 2, 2, 1)),
        ("qkv", (4, 2, 3, 1)),
        ("out", (4, 2, 3, 2)),
        ("down", (2, 4, 2, 2)),
    ):
        w = GPT(layers=1, hidden=24 * int(rng.integers(1, 4)), heads=8, vocab=64)
        rank, strategy = int(rng.integers(1, prod(grid))), strategy_of(grid)
        shape = w.parameter_shapes()[f"blocks.0.{NAMES[weight]}.weight"]
        coords = dict(zip(GRID, _coords(grid, "xyz", rank)))
        right = _piece(strategy, w, weight, coords)
        other = {"up": "down", "down": "up", "qkv": "out", "out": "qkv"}[weight]
        known = {
            "exchanged": _cut(shape, grid, coords, other in ("up", "qkv")),
            "whole": (*right[:4], *_part(prod(shape), coords["z"], grid[2])),
            "block": (*right[:4], 0, prod(shape) // (grid[0] * grid[1])),
            "transposed": (*right[2:4], *right[:2], *right[4:]),
        }
        asked = {"weight": weight, "shape": shape, "grid": grid, "rank": rank}
        words = f"{weight} {list(shape)} on grid {grid}, rank {rank} at {tuple(coords.values())}"
        questions.append(Question(asked, right, words, known))
    return questions


def _part(size, number, count):
    return number * size // count, (number + 1) * size // count


def _cut(shape, grid, at, first):
    """The piece by hand: rows over x and columns over y of a ``first`` layer, else exchanged."""
    rows, columns = ("x", "y") if first else ("y", "x")
    sizes = dict(zip(GRID, grid))
    numbers = shape[0] * shape[1] // (grid[0] * grid[1])
    return (
        *_part(shape[0], at[rows], sizes[rows]),
        *_part(shape[1], at[columns], sizes[columns]),
        *_part(numbers, at["z"], grid[2]),
    )


def _piece_wrong(question, got):
    known = question.known
    mistake = next((name for name, wrong in known.items() if same(got, wrong)), None)
    return (
        mistake
        and f"for {question}: "
        + {
            "exchanged": "x and y are exchanged. A first layer (qkv, up) has its outputs over x "
            "and "
            "its inputs over y; a second one (out, down) the other way round.",
            "whole": "you cut the whole weight into z pieces. First x and y cut out the block; z "
            "cuts "
            "that, flattened.",
            "block": "that is the whole block, which is there only while it is used. Resident is "
            "the "
            "piece of this rank along z.",
            "transposed": "rows and columns are exchanged. A weight is (out, in): its rows are the "
            "output features.",
        }[mistake]
    )


PIECE = Formula(
    name="axonn_piece",
    title="Which piece of which block is mine?",
    notebook=NOTEBOOK,
    prompt='`weight` ("qkv", "up", "out" or "down") has `shape` (out, in). On a `grid` (x, '
    'y, z, data) in order "xyz" the plane of x and y cuts out a block, which is flattened '
    "row by row and cut into equal pieces over z. Return for `rank`: (first row, row after "
    "the last, first column, column after the last) of the block, and then (first number, "
    "number after the last) of its piece, six numbers in all.",
    starter="""def axonn_piece(weight, shape, grid, rank):
    x, y, z, data = grid
    rows, columns = shape
    return 0, rows // x, 0, columns // y, 0, rows * columns // (x * y)  # rank 0, before z?""",
    hints=(
        "Two steps: a block by x and y, as on ATP's mesh; then a piece of its flat numbers by z.",
        "A first layer (qkv, up) has its rows (outputs) over x and its columns over y, a second "
        "(out, down) the other way round. The block has out * in / (x y) numbers.",
        "`i, j, k = rank % x, rank // x % y, rank // (x * y) % z`; rows: part i of x (second: "
        "j of y), columns the other one; with `n = rows * columns // (x * y)`: `k * n // z, (k + "
        "1) * n // z`.",
    ),
    success="Gradients and the optimizer's state lie as the piece does: 1/(x y z) of the weight on "
    "each rank, and only data has copies.",
    make=_make_piece,
    needs=None,
    checks=(_piece_wrong,),
)


# --- axonn_wire_bytes ---


def layer_bytes(
    k: int, n: int, tokens: float, grid: Sequence[int], transposed: bool, itemsize: int
) -> tuple[float, ...]:
    """Bytes on the wire of a rank over (x, y, z, data), from the model of communication."""
    from ..schemes.axonn.paper import FC, volume

    v = volume(FC(k, n, transposed), tokens, *grid)
    over_x, over_y = (v.forward, v.backward) if transposed else (v.backward, v.forward)
    return tuple(itemsize * part for part in (over_x, over_y, v.gather + v.scatter, v.data))


def _make_wire(rng):
    questions = []
    for grid, transposed in (
        ((2, 2, 2, 1), False),
        ((4, 2, 2, 2), False),
        ((4, 2, 2, 2), True),
        ((2, 4, 1, 2), True),
        ((1, 1, 8, 1), False),
    ):
        k, n = (64 * int(size) for size in rng.permutation(range(1, 9))[:2])
        tokens = 16 * int(rng.integers(1, 5))
        sizes = k, n, tokens, grid, transposed, (2, 4, 8)[len(questions) % 3]
        asked: dict[str, Any] = dict(
            zip(("k", "n", "tokens", "grid", "transposed", "itemsize"), sizes)
        )
        questions.append(Question(asked, layer_bytes(*sizes)))
    return questions


def _wire_wrong(question, got):
    k, n, tokens, grid, transposed, itemsize = question.arguments.values()
    x, y, z, data = grid
    right = question.answer
    if len(got) != len(right):
        return None
    wrong = [axis for axis, mine, want in zip(GRID, got, right) if not same(mine, want)]
    if transposed and same(got, layer_bytes(k, n, tokens, grid, False, itemsize)):
        return (
            f"for {question}: in a transposed layer x and y are exchanged: the inputs lie over "
            "x, so forward sums over x, and backward over y."
        )
    if wrong == ["z"] and same(2 * got[2], right[2]):
        return (
            f"for {question}: over z there are two messages: the gather of the block, and the "
            "scatter of its gradient."
        )
    if set(wrong) <= {"x", "y"} and all(same(got[i] / z, right[i]) for i in (0, 1)):
        return (
            f"for {question}: the {tokens} tokens of a replica are shared by the z = {z} ranks "
            "along z: each sums only its own."
        )
    rings = [2 * (m - 1) / m for m in (x, y, z, data)]
    if all(same(mine * ring, want) for mine, ring, want in zip(got, rings, right)):
        return (
            f"for {question}: these are payloads. A ring of m ranks sends 2 (m-1)/m of what it "
            "sums, and (m-1)/m of what it gathers or scatters."
        )
    if same((got[1], got[0], *got[2:]), right):
        inner, outer = ("x", "y") if transposed else ("y", "x")
        return (
            f"for {question}: over x and y you have each other's bytes. The inputs lie over "
            f"{inner} here: forward sums over {inner}, and backward over {outer}."
        )
    if all(same(itemsize * mine, want) for mine, want in zip(got, right)):
        return f"for {question}: these are counts of numbers, each of which has {itemsize} bytes."
    axis = wrong[0]
    mine, want = (found[GRID.index(axis)] for found in (got, right))
    return f"for {question}: over {axis} it is {want:,.6g} bytes, you returned {mine:,.6g}."


WIRE = Formula(
    name="axonn_wire_bytes",
    title="What one layer sends over each axis",
    notebook=NOTEBOOK,
    prompt="A layer has `k` inputs and `n` outputs; `tokens` go through a data replica on a `grid` "
    "(x, y, z, data); `itemsize` bytes a number. Return the bytes one rank sends on rings "
    "in a step, forward and backward: (over x, over y, over z, over data). The gathered "
    "block is kept for backward; `transposed` layers (every second one) have x and y "
    "exchanged. Your formula is held against the model that equals the ledgers of real "
    "grids.",
    starter="""def axonn_wire_bytes(k, n, tokens, grid, transposed, itemsize):
    x, y, z, data = grid
    return 0, 0, 0, 2 * (data - 1) / data * k * n * itemsize  # all data parallel?""",
    hints=(
        "Four axes, five messages: gather and scatter over z, a sum forward, a sum backward, and a "
        "sum of the gradients over data. How large is what each moves?",
        "The block has k n / (x y) numbers, the piece 1/z of it. Forward sums the output, tokens / "
        "z rows of n / x features, over y; backward the input's gradient, k / y features, over x.",
        "`2 * (x-1)/x * tokens * k / (z*y)`, `2 * (y-1)/y * tokens * n / (z*x)`, `2 * (z-1)/z * "
        "k*n / (x*y)`, `2 * (data-1)/data * k*n / (x*y*z)`, each times itemsize; transposed: "
        "exchange x and y before, and the first two after.",
    ),
    success="These four terms over the bandwidths of their axes are the whole model that AxoNN "
    "chooses its grid by.",
    make=_make_wire,
    needs=None,
    checks=(_wire_wrong,),
)
