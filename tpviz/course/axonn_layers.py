"""The exercises of notebook 11 on real ranks: a layer on the grid, forward and backward, the order
in which a step gathers its weights, and the norm of the gradient.

Weights are (out, in): y = x W^T. On a grid with the axes z, y, x a rank has the rows of its z of
the tokens, features of its y of the input and of its x of the output; and shard z of the flattened
block of W that x and y select. Numbers are whole and float64, so sums are exact in any order.
"""

from functools import lru_cache, partial

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
from .told import told
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

    joined = LINEAR.say("block was flattened row")
    rows = inputs[0][1].size * z // inputs[0][0].shape[1]
    if inputs[0][0].shape[1] % z == 0:
        yield (
            LINEAR.say("shards are joined as columns", joined=joined),
            with_blocks(
                lambda of, width: np.concatenate([s.reshape(-1, width // z) for s in of], 1)
            ),
        )
    yield (
        LINEAR.say("block is read"),
        with_blocks(lambda of, width: np.concatenate(of).reshape(width, rows).T),
    )


LINEAR = RankProgram(
    **told("axonn_linear"),
    make=_make_forward,
    judges=(
        silent,
        ran_along("you all-reduced over x as backward", "x", "all_reduce"),
        Mistake(
            "you gathered over",
            lambda a: (
                a.axes_of("all_gather") != {"z"} and " and ".join(sorted(a.axes_of("all_gather")))
            ),
        ),
        right_axes,
        right_shape,
        Mistake("block is complete but its", lambda a: a.names() == {"all_gather"} and not a.right),
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
        return BACKWARD.say("your shard", size=size)


def _under_weight(attempt):
    """Judge: a kernel runs between the start of the all-reduce over x and its wait."""
    rank = attempt.trace.select(rank=0)
    waits = {e.waits_for: e.start for e in rank if e.kind == "wait"}
    kernels = [e.start for e in rank if e.kind == "compute" and e.flops]
    for total in rank:
        if total.kind == "comm" and total.name == "all_reduce":
            if any(total.start <= start < waits[total.id] for start in kernels):
                continue
            words = BACKWARD.say("no product runs between the start")
            if max(kernels) < total.start:
                return BACKWARD.say("dw's had ended before the start", words=words)
            return BACKWARD.say("dw's begins after the wait", words=words)


BACKWARD = RankProgram(
    **told("axonn_backward"),
    make=_make_backward,
    judges=(
        silent,
        ran_along("you all-reduced over y as forward", "y", "all_reduce"),
        right_axes,
        right_shape,
        _averaged,
        Mistake(
            "nothing was sent over z",
            lambda a: "z" not in {row.axis for row in a.ledger} and not a.right,
        ),
        right_numbers,
        ran_along("you all-reduced the whole block over", "z", "all_reduce"),
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
    say = partial(GATHERS.say, question=question, count=len(right))
    if not listed(got):
        return say("your function returned not a list", got=got)
    strange = [name for name in got if name not in layers]
    if strange:
        return say("is none of the layers", strange=strange, names=", ".join(layers))
    if len(got) != len(right):
        return say("step needs gathers you list", count_=len(got), asked=_how_many(question))
    _, misses = step_in_order(len(layers) // 4, *knobs, got)  # beside embed and head
    if misses == 0:
        return None
    place = next(n for n, (mine, want) in enumerate(zip(got, right)) if mine != want)
    facts = {"right": right[place], "mine": got[place], "why": _why(question, place)}
    return say("with your order of gathers", misses=misses, **facts)


def _how_many(question):
    _, keep, recompute = question.arguments.values()
    if keep and not recompute:
        return GATHERS.say("blocks are kept until backward")
    again = "its activations are recomputed" if recompute else "its input's gradient"
    return GATHERS.say("what does backward need a layer's", again=again)


def _why(question, place):
    if place < len(question.arguments["layers"]):
        return GATHERS.say("forward runs the layers")
    if question.arguments["recompute"]:
        return GATHERS.say("backward runs the last block first")
    return GATHERS.say("backward goes through the layers")


GATHERS = Formula(**told("axonn_gathers"), draw=_draw_gathers, verdict=_gathers_verdict)
