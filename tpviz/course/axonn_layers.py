"""The exercises of notebook 11 on real ranks: a layer on the grid, forward and backward, the order
in which a step gathers its weights, and the norm of the gradient.

Weights are (out, in): y = x W^T. On a grid with the axes z, y, x a rank has the rows of its z of
the tokens, features of its y of the input and of its x of the output; and shard z of the flattened
block of W that x and y select. Numbers are whole and float64, so sums are exact in any order.
"""

from functools import lru_cache

import numpy as np

from tpviz.core.mesh import Mesh
from tpviz.core.workload import GPT

from .axonn import strategy_of
from .checks import (
    Case,
    Mistake,
    RankProgram,
    fewest_bytes,
    own_share_of_work,
    parts,
    places,
    ran_along,
    right_axes,
    right_numbers,
    right_shape,
    same_ledger,
    silent,
    whole_numbers,
)
from .formula import Formula, Question, listed
from .variants import Terms, Variants

WORLDS = ({"z": 2, "y": 2, "x": 2}, {"z": 3, "y": 2, "x": 1})
BACK_WORLDS = ({"z": 2, "y": 2, "x": 2}, {"z": 2, "y": 1, "x": 3})


def _pieces(blocks, axes):
    """Each rank's shard of its flattened block."""
    return [
        np.split(block.flatten(), axes["z"])[at["z"]].copy()
        for (block,), at in zip(blocks, places(axes))
    ]


def _layer(rng, axes):
    """Whole arrays x (tokens, in), w (out, in), grad (tokens, out). A block has 2 z columns or 3 z:
    with z, shards joined as columns and a block read by columns would have the same numbers."""
    tokens = axes["z"] * int(rng.integers(2, 5))
    inside = axes["y"] * axes["z"] * int(rng.integers(2, 4))  # z divides each block's columns,
    outside = axes["x"] * axes["z"] * int(rng.integers(1, 3))  # and its rows
    shapes = (tokens, inside), (outside, inside), (tokens, outside)
    return [whole_numbers(rng, *shape, dtype=np.float64) for shape in shapes]


# --- axonn_linear ---
def _make_forward(rng, axes):
    x, w, _ = _layer(rng, axes)
    blocks = parts(axes, (w, "x", "y"))
    rows = [x for (x,) in parts(axes, (x, "z", "y"))]
    expected = [y for (y,) in parts(axes, (x @ w.T, "z", "x"))]
    inputs = list(zip(rows, _pieces(blocks, axes)))
    terms = Terms([own @ block.T for own, (block,) in zip(rows, blocks)], "y")
    width = rows[0].shape[1]

    def program(steps):
        flat = steps.gather("the block", steps.value("`piece`", _flat(inputs)), "z")
        own = [one.reshape(-1, width) for one in flat]
        return steps.sum("y", [a @ b.T for a, b in zip(steps.value("x", rows), own)], "y")

    work = 2 * rows[0].shape[0] * blocks[0][0].size
    return Case(inputs, expected, work, terms, program)


def _flat(inputs):
    return [piece for _, piece in inputs]


def _block_variants(attempt):
    """Blocks of shards that are joined otherwise than row by row."""
    mesh, inputs, z = Mesh(attempt.axes), attempt.case.inputs, attempt.axes["z"]

    def with_blocks(made):
        terms = []
        for rank, (x, _) in enumerate(inputs):
            shards = [inputs[r][1] for r in mesh.group(rank, "z")]
            terms.append(x @ made(shards, x.shape[1]).T)
        return [sum(terms[r] for r in mesh.group(rank, "y")) for rank in range(len(inputs))]

    joined = "the block was flattened row by row, so its shards stand one after another, by rows"
    rows = inputs[0][1].size * z // inputs[0][0].shape[1]
    if inputs[0][0].shape[1] % z == 0:
        yield (
            f"the shards are joined as columns of the block: {joined}",
            with_blocks(
                lambda of, width: np.concatenate([s.reshape(-1, width // z) for s in of], 1)
            ),
        )
    yield (
        "the block is read as [in, out], column by column: it is [out, in] row by row, `view(-1, "
        "x.shape[1])`, and x is multiplied by its transpose",
        with_blocks(lambda of, width: np.concatenate(of).reshape(width, rows).T),
    )


LINEAR = RankProgram(
    title="A layer on the grid, forward",
    prompt="y = x Wᵀ on a grid with the axes z, y and x. A rank has rows of its z and features of "
    "its y of the input, and `piece`, a flat shard of its block of W `[out/x, in/y]`, which is "
    "sharded over z. Gather the block, multiply, and all-reduce the partial sum. Return `y[T/z, "
    'out/x]` with **one** all-gather and **one** all-reduce. `mesh.get_group("z")` is the group '
    "of this rank along z.",
    starter="""def axonn_linear(x, piece, mesh):
    # x: [T/z, in/y]; piece: [out/x * in/y / z], of the block row by row
    block = piece.view(-1, x.shape[1])
    return x @ block.t()""",
    concept="A rank lacks two things: numbers of the weight, and terms of the sum. On which axes "
    "are they?",
    principle="The shards of a rank's block are on the ranks along z, in order. The input's "
    "features, which the product contracts, are sharded over y.",
    shape="A list of empty shards; an all-gather with a `group` that fills it; the starter's "
    "product with the joined list; an all-reduce with another `group`.",
    success="The next layer uses y as its input without redistribution, with x and y swapped.",
    make=_make_forward,
    sends=lambda axes, case: [
        ("z", "all_gather", 1, case.inputs[0][1].nbytes * axes["z"]),
        ("y", "all_reduce", 1, case.expected[0].nbytes),
    ],
    judges=(
        silent(
            "the trace shows no collective. A rank has a shard of its block of W: the other "
            "shards are on the ranks along z."
        ),
        ran_along(
            "x",
            "all_reduce",
            "you all-reduced over x, as backward does. Ranks along x have other output features; "
            "those along y have other input features, so theirs are terms of one sum.",
        ),
        Mistake(
            lambda a: (
                a.axes_of("all_gather") != {"z"} and " and ".join(sorted(a.axes_of("all_gather")))
            ),
            "you gathered over {it}. The shards of one block are along z; ranks along x or y have "
            "shards of other blocks.",
        ),
        right_axes,
        right_shape,
        Mistake(
            lambda a: a.names() == {"all_gather"} and not a.right,
            "the block is complete, but its product with x is a partial sum: a rank has only the "
            "input features of its y.",
        ),
        Variants(_block_variants),
        right_numbers,
        fewest_bytes,
        own_share_of_work,
        same_ledger,
    ),
    worlds=WORLDS,
)


# --- axonn_backward ---
def _make_backward(rng, axes):
    x, w, grad = _layer(rng, axes)
    inputs = parts(axes, (x, "z", "y"), (w, "x", "y"), (grad, "z", "x"))
    mine = _pieces(parts(axes, (grad.T @ x, "x", "y")), axes)
    expected = [
        np.concatenate([dx.flatten(), dw])
        for (dx,), dw in zip(parts(axes, (grad @ w, "z", "y")), mine)
    ]
    terms = Terms(
        [grad @ block for _, block, grad in inputs],
        "x",
        lambda rank, total: np.concatenate([total.flatten(), mine[rank]]),
    )

    def program(steps):
        x, block, grad = zip(*inputs)
        dy = steps.value("dY", grad)
        dx = steps.sum("dX", [one @ own for one, own in zip(dy, block)], "x")
        dw = [(one.T @ own).ravel() for one, own in zip(dy, steps.value("x", x))]
        pairs = zip(dx, steps.scatter("dW", dw, "z"))
        return [np.concatenate([one.ravel(), shard]) for one, shard in pairs]

    work = 4 * inputs[0][0].shape[0] * inputs[0][1].size
    return Case(inputs, expected, work, terms, program)


def _averaged(attempt):
    size, cut = attempt.axes["z"], attempt.case.inputs[0][0].size
    if attempt.matches(lambda want: np.concatenate([want[:cut], want[cut:] / size])):
        return (
            f"your shard is 1/{size} of the right one. The loss is a mean over all rows already, "
            "so the gradients of the z ranks' rows are added, not averaged."
        )


def _under_weight(attempt):
    """Judge: a kernel runs between the start of the all-reduce over x and its wait."""
    rank = attempt.trace.select(rank=0)
    waits = {e.waits_for: e.start for e in rank if e.kind == "wait"}
    kernels = [e.start for e in rank if e.kind == "compute" and e.flops]
    for total in rank:
        if total.kind == "comm" and total.name == "all_reduce":
            if any(total.start <= start < waits[total.id] for start in kernels):
                continue
            words = (
                "the numbers are right, but no product runs between the start of dX's all-reduce "
                "and its wait"
            )
            if max(kernels) < total.start:
                return (
                    f"{words}: dW's had ended before the start. dX does not need dW: compute dX "
                    "first, so that dW is left for the time of the all-reduce."
                )
            return (
                f"{words}: dW's begins after the wait. dW does not need the sum: start the "
                "all-reduce with `async_op=True`, compute dW, then wait."
            )


BACKWARD = RankProgram(
    title="A layer on the grid, backward, with overlap",
    prompt="The gradients of y = x Wᵀ, with the block of W kept from forward. dX = dY W is "
    "all-reduced over one axis, **while dW is computed** (the paper's OAR); dW = dYᵀ x is "
    "reduce-scattered over the ranks that had other rows, and each keeps its flat shard. Return "
    "both: `torch.cat([dx.flatten(), piece])`.",
    starter="""def axonn_backward(x, block, grad, mesh):
    # x: [T/z, in/y]; block: [out/x, in/y]; grad: [T/z, out/x], complete
    dw = grad.t() @ x
    dx = grad @ block
    pieces = dw.flatten().chunk(mesh.get_group("z").size())
    return torch.cat([dx.flatten(), pieces[0]])""",
    concept="What does each product contract, and along which axis are the other terms of its sum?",
    principle="dX contracts output features: over x. dW contracts tokens: over z, and there each "
    "rank needs only its shard, which is a reduce-scatter.",
    shape="A product, an all-reduce that is started, the other product, the wait. Then a list "
    "of flat shards, a reduce-scatter of it into one empty shard, and the starter's "
    "return with that shard.",
    success="With ORS the reduce-scatter is not waited for here either, but after the last layer.",
    make=_make_backward,
    sends=lambda axes, case: [
        ("x", "all_reduce", 1, case.inputs[0][0].nbytes),
        ("z", "reduce_scatter", 1, case.inputs[0][1].nbytes),
    ],
    judges=(
        silent(
            "the trace shows no collective. Other ranks had other output features (dX) and "
            "other rows (dW): along which axes?"
        ),
        ran_along(
            "y",
            "all_reduce",
            "you all-reduced over y, as forward does. Backward contracts the output features, "
            "which are sharded over x.",
        ),
        right_axes,
        right_shape,
        _averaged,
        Mistake(
            lambda a: "z" not in {row.axis for row in a.ledger} and not a.right,
            "nothing was sent over z. A rank's dW is of its own rows only: the other terms of "
            "that sum are on the ranks along z, and each keeps its shard of the result.",
        ),
        right_numbers,
        ran_along(
            "z",
            "all_reduce",
            "you all-reduced the whole block over z, {a.sent:g} bytes sent per rank instead of "
            "{a.least:g}: a rank keeps only its shard, so use reduce_scatter.",
        ),
        fewest_bytes,
        own_share_of_work,
        same_ledger,
        _under_weight,
    ),
    worlds=BACK_WORLDS,
)


# --- axonn_gathers ---
KNOBS = ((True, False), (False, False), (True, True), (False, True))
"""(keep, recompute) of each question."""


@lru_cache(maxsize=4)
def _workload(blocks):
    return GPT(layers=blocks, hidden=16, heads=2, seq=4, batch=4, vocab=16, dtype="float64")


@lru_cache(maxsize=64)
def step_in_order(
    blocks: int, keep: bool, recompute: bool, order: tuple[str, ...] | None = None
) -> tuple[tuple[str, ...], int]:
    """(names of the layers whose weights a step gathers, how many were not prefetched in time).

    order : the names in the order of prefetching, or None for the order of the previous step. On
    two real ranks along z.
    """
    from tpviz.ranks.launch import launch

    strategy = strategy_of((1, 1, 2, 1), keep=keep, recompute=recompute)
    return launch(
        _step, strategy, _workload(blocks), order, world_size=2, timeout=60, progress=False
    )[0]


def _step(strategy, workload, order):
    """On a rank: two steps, the second by ``order``."""
    from tpviz.schemes.gpt.program import batch_of
    from tpviz.verbs.run import program_here

    program, _ = program_here(strategy, workload)
    depth = program.depth  # pyright: ignore[reportAttributeAccessIssue]
    program.step(batch_of(workload, 0))
    asked = list(depth.asked)
    if order is not None:
        weights = {weight.layer: weight for weight, _ in asked}
        depth.asked = [(weights[name], phase) for name, (_, phase) in zip(order, asked)]
    program.step(batch_of(workload, 1))
    return tuple(weight.layer for weight, _ in asked), depth.misses


def _draw_gathers(rng):
    for keep, recompute in KNOBS:
        right, misses = step_in_order(int(rng.integers(2, 4)), keep, recompute)
        assert misses == 0
        half = right.index("head") + 1  # forward ends there
        asked = {"layers": right[:half], "keep": keep, "recompute": recompute}
        yield Question(asked, right, f"keep={keep}, recompute={recompute}")


def _gathers_verdict(question, got):
    """What is wrong with an order, or None where no gather is late."""
    right, (layers, *knobs) = question.answer, question.arguments.values()
    if not listed(got):
        return f"for {question} your function returned {got!r}, not a list of layers' names."
    strange = [name for name in got if name not in layers]
    if strange:
        return f"for {question}: {strange[0]!r} is none of the layers {', '.join(layers)}."
    if len(got) != len(right):
        return (
            f"for {question} a step needs {len(right)} gathers, you list {len(got)}. "
            f"{_how_many(question)}"
        )
    _, misses = step_in_order(len(layers) // 4, *knobs, got)  # beside embed and head
    if misses == 0:
        return None
    place = next(n for n, (mine, want) in enumerate(zip(got, right)) if mine != want)
    return (
        f"for {question}: with your order, {misses} of {len(right)} gathers of the real program "
        f"were not prefetched. The first: it needed {right[place]}, yours was {got[place]}. "
        f"{_why(question, place)}"
    )


def _how_many(question):
    _, keep, recompute = question.arguments.values()
    if keep and not recompute:
        return "Blocks are kept until backward: only forward gathers."
    again = "its activations are recomputed" if recompute else "its input's gradient"
    return f"What does backward need a layer's weight for: {again}?"


def _why(question, place):
    if place < len(question.arguments["layers"]):
        return "Forward runs the layers in the listed order."
    if question.arguments["recompute"]:
        return (
            "Backward runs the last block first, and recomputes each block's forward, in the "
            "order of forward, before its backward."
        )
    return (
        "Backward goes through the layers from the last to the first; embed's table is not "
        "needed for its gradient."
    )


GATHERS = Formula(
    title="In which order are weights prefetched?",
    prompt="With OAG the next gather is in flight before the current weight is used, so the order "
    'must be known. `layers` are the names in the order of forward ("embed", '
    '"blocks.0.attention.qkv", ..., "head"). Return the names in the order in which one step '
    "gathers their weights, forward and backward. Without `keep` a block is gathered again for "
    "backward; with `recompute` every block (embed and head are in none) recomputes its forward "
    "just before its backward. The real program prefetches in your order, which must foresee "
    "every gather.",
    starter="""def axonn_gathers(layers, keep, recompute):
    again = [] if keep else list(layers)  # in backward as in forward?
    return list(layers) + again""",
    concept="Go through a step by hand: which layer is used next, is its weight gathered yet?",
    principle="Backward takes head, then the blocks from the last, each from down to qkv. With "
    "recompute it takes a block's four layers from qkv to down first. embed needs no weight in "
    "backward.",
    shape="A list that begins with `layers`, perhaps one more name, then a loop over the "
    "blocks in reverse, four names at a time, with up to two additions for each block.",
    success="Our program records this order in its first step and replays it. The order of the "
    "modules would be late for nearly every gather in backward.",
    draw=_draw_gathers,
    verdict=_gathers_verdict,
)
