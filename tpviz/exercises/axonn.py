"""The exercises of notebook 11 on numbers: a rank's coordinates and shards, a layer's bytes, the
grids of known schemes, and the best grid for a batch.

Known schemes are distinguished by the collectives of a step; grids for a batch by the papers' model
of communication.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

from .. import clusters
from ..cluster import Cluster
from ..cost import show_seconds
from ..mesh import Mesh
from ..schemes.axonn.models import paper_models
from ..schemes.axonn.paper import FC, fitting, seconds_by_axis, volume
from ..schemes.axonn.rates import of_cluster
from ..schemes.axonn.strategy import AxoNN
from ..trace import Ledger
from ..workload import GPT
from .atp import NAMES
from .formula import Asked, Choice, Formula, Question, listed, same

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
    outer_first = Mesh({axis: sizes[axis] for axis in (*order, "data")}).coords(rank)
    return {
        f'that is order "{other}". In order "{order}" {order[0]} is innermost: ranks 0 and 1 are '
        f"neighbours along {order[0]}.": _coords(grid, other, rank),
        "you let data run fastest. The order names the axis of neighbouring ranks first: rank 1 is "
        f"one step along {order[0]}.": tuple(outer_first[axis] for axis in GRID),
    }


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
    }


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
    axis, mine, want = next(row for row in zip(GRID, got, right) if not same(*row[1:]))
    return f"for {question}: over {axis} it is {want:,.6g} bytes, you returned {mine:,.6g}."


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
    solution=layer_bytes,
    mistakes=_wire_mistakes,
    wrong=_wire_wrong,
)


# --- axonn_special ---
def special(scheme: str, ranks: int, node: int) -> tuple[int, int, int, int]:
    """The grid (x, y, z, data) of ``ranks`` that is the scheme; ``node``: ranks of a node."""
    side = int(ranks**0.5)
    return {
        "Megatron-LM": (ranks, 1, 1, 1),
        "FSDP": (1, 1, ranks, 1),
        "DDP": (1, 1, 1, ranks),
        "HSDP": (1, 1, node, ranks // node),
        "2D": (side, side, 1, 1),
        "Megatron-LM + DDP": (node, 1, 1, ranks // node),
    }[scheme]


@lru_cache(maxsize=1)
def _small():
    return GPT(layers=2, hidden=64, heads=16, seq=16, batch=16, vocab=64)


def sent(grid: Sequence[int]) -> Ledger:
    """The ledger of a step on this grid; raises ValueError where sizes do not divide."""
    return strategy_of(grid).ledger(_small())


def _draw_special(rng):
    for scheme in rng.permutation(list(WHY)).tolist():
        sizes = [
            (ranks, node)
            for ranks in (8, 16)
            for node in (2, 4, 8)
            if ranks != node**2
            and ranks > node  # a node is not as large as their number
            and (scheme != "2D" or ranks == 16)
        ]
        ranks, node = sizes[int(rng.integers(len(sizes)))]
        yield Asked((scheme, ranks, node), f"{scheme} on {ranks} ranks, {node} a node")


WHY = {
    "Megatron-LM": "It gathers no weights, and every rank has the whole batch.",
    "FSDP": "All ranks share one copy of the weights, so data has one rank.",
    "DDP": "Each rank has a whole model, and only gradients are all-reduced.",
    "HSDP": "Weights are sharded within a node, and nodes are replicas of each other.",
    "2D": "Every weight is sharded along both dims, and z is 1.",
    "Megatron-LM + DDP": "A node is one replica of the model, sharded by features.",
}


def _special_wrong(question, got):
    scheme, ranks, _ = question.arguments.values()
    if len(got) != 4 or any(size < 1 or size != int(size) for size in got):
        return f"for {question} you returned {got}; a grid is four sizes (x, y, z, data)."
    got = tuple(map(int, got))
    if got[0] * got[1] * got[2] * got[3] != ranks:
        return f"for {question}: the grid {got} does not have {ranks} ranks."
    if scheme == "Megatron-LM" and same(got, (1, ranks, 1, 1)):
        mine, want = (sent(grid).total()[2] for grid in (got, question.answer))
        return (
            f"for {question}: with y alone every first layer all-reduces 3 h and 4 h features in "
            f"forward: {mine / want:.2g} times the bytes. Megatron-LM shards the outputs of first "
            "layers."
        )
    words = f"for {question}: {WHY[scheme]}"
    try:
        return f"{words} A step on your grid sends {_words(sent(got))}."
    except ValueError as error:
        return f"{words} And {error}."


def _words(ledger):
    """All phases together: "10 x all_reduce on x"."""
    counts = Counter()
    for row in ledger:
        counts[f"{row.collective} on {row.axis.removesuffix('_ahead')}"] += row.count
    return ", ".join(f"{count} x {what}" for what, count in counts.items())


SPECIAL = Formula(
    title="Which grid is which scheme?",
    prompt="AxoNN's grid includes many schemes as special cases. Return the grid (x, y, z, data) "
    "of `ranks` ranks, `node` of them in each node, that splits the model as `scheme` does: "
    '"Megatron-LM" (1D tensor parallelism), "FSDP" (all weights sharded), "HSDP" (shards '
    'within a node, replicas across nodes), "DDP", "2D" (a square of tensor parallelism), '
    '"Megatron-LM + DDP" (tensor parallelism within a node).',
    starter="""def axonn_special(scheme, ranks, node):
    return {"DDP": (1, 1, 1, ranks), "FSDP": (1, 1, node, ranks // node)}.get(
        scheme, (ranks, 1, 1, 1)
    )""",
    concept="x and y shard features, z shards a block and the batch, data only the batch.",
    principle="Ask of each scheme: are weights gathered (z)? Are whole models replicated (data)? "
    "Are activations all-reduced in forward (x, y)?",
    shape="As the starter, a dict {scheme: grid} with six entries; the sizes of each multiply "
    "to `ranks`.",
    success="One program covers six schemes and their combinations.",
    draw=_draw_special,
    solution=special,
    wrong=_special_wrong,
)


# --- axonn_grid_for ---
LEAST = 16
"""Ranks that x y z must have at least, as in the authors' launch script for 20B."""


def grid_times(cluster: Cluster, workload: GPT, least: int = LEAST) -> dict[tuple[int, ...], float]:
    """{(x, y, z, data): seconds of communication} of all grids that fit, by the papers' model."""
    grids = fitting(AxoNN.space(workload, cluster.size), workload)
    return {
        tuple(getattr(s, axis) for axis in GRID): s.communication(workload, cluster)
        for s in grids
        if s.x * s.y * s.z >= least
    }


def _draw_grid_for(rng):
    cases = (
        (clusters.perlmutter(8), 4),
        (clusters.perlmutter(8), 1024),
        (clusters.frontier(8), 8),
        (clusters.frontier(8), 512),
    )
    for number in rng.permutation(len(cases)).tolist():
        cluster, batch = cases[number]
        words = f"batch={batch} on {cluster.size} devices of {cluster.name}"
        yield Asked((cluster, replace(paper_models()["20B"], batch=batch), LEAST), words)


def _no_grid(question, got):
    if listed(got):
        return (
            f"for {question}: {got} is none of the {len(question.known)} grids (x, y, z, data) "
            f"of {question.arguments['cluster'].size} ranks with x y z >= {LEAST} whose sizes "
            f"divide, such as {next(iter(question.known))}; the batch must divide by z data."
        )


def _grid_wrong(question, got):
    cluster, w, _ = question.arguments.values()
    by_axis = seconds_by_axis(strategy_of(got), w, of_cluster(cluster, cluster.size))
    axis = max(by_axis, key=by_axis.__getitem__)
    what = {"z": "weights and gradients", "data": "gradients"}.get(axis, "activations")
    return (
        f"{show_seconds(by_axis[axis])} of it are on {axis}, for {what}. Which bytes grow with "
        f"the batch, and which do not? Here it is {w.batch} sequences."
    )


GRID_FOR = Choice(
    title="The best grid for a small batch and a large one",
    prompt="A model of 20B parameters, on 32 devices of Perlmutter or 64 of Frontier, with a batch "
    "for fine-tuning or one for pretraining. Return the grid (x, y, z, data) of all devices "
    "with the least time of communication by the papers' model as we read it, "
    "`tv.AxoNN(...).communication(workload, cluster)`; x y z must be at least `least` (the "
    "memory of a device), and sizes must divide: batch by z data. Within 1 % is right.",
    starter="""def axonn_grid_for(cluster, workload, least):
    return 4, 1, cluster.size // 4, 1  # tensor parallelism in a node, the rest in pieces?""",
    concept="x and y move activations, which grow with the tokens; z and data move weights, which "
    "do not.",
    principle="The authors' rule: a small batch uses x and y, a large one z and data. A small "
    "batch limits z and data, whose product must divide it.",
    shape="A loop over `tv.AxoNN.space(workload, cluster.size)` that skips what is too small "
    "and what `.check(workload)` refuses, and keeps the minimum. A strategy has `.x`, "
    "`.y`, `.z` and `.data`.",
    success="The model ignores latency and overlap, and for large batches z and data are nearly "
    "equal: so the authors run the first few grids of the ranking.",
    kind="a grid (x, y, z, data)",
    draw=_draw_grid_for,
    solution=grid_times,
    wrong=_grid_wrong,
    missing=_no_grid,
)
