"""The exercises of notebook 04 on a whole step: in which order weights are sent for, judged by the
real program, and the norm of the gradient, on real ranks."""

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from ..trace import Ledger
from .axonn import NOTEBOOK, strategy_of
from .axonn_layers import WORLDS, part, places
from .checks import FIRST, fewest_bytes, right_numbers, right_shape
from .formula import Formula, NoAnswer, Question
from .task import Case, Exercise, whole_numbers

# --- axonn_gathers ---

KNOBS = ((True, False), (False, False), (True, True), (False, True))
"""(keep, recompute) of each question."""


@lru_cache(maxsize=4)
def _workload(blocks):
    from ..workload import GPT

    return GPT(layers=blocks, hidden=16, heads=2, seq=4, batch=4, vocab=16, dtype="float64")


@lru_cache(maxsize=64)
def step_in_order(
    blocks: int, keep: bool, recompute: bool, order: tuple[str, ...] | None = None
) -> tuple[tuple[str, ...], int]:
    """(names of the layers whose weights a step asks for, how many were not sent for in time).

    order : the names by which gathers are sent for ahead, or None for what the step before took.
    On two real ranks along z.
    """
    from ..runtime.launch import launch

    strategy = strategy_of((1, 1, 2, 1), keep=keep, recompute=recompute)
    return launch(
        _step, strategy, _workload(blocks), order, world_size=2, timeout=60, progress=False
    )[0]


def _step(strategy, workload, order):
    """On a rank: two steps, the second by ``order``."""
    from ..schemes.gpt.program import batch_of
    from ..verbs.ranks import program_here

    program, _ = program_here(strategy, workload)
    depth = program.depth  # pyright: ignore[reportAttributeAccessIssue]
    program.step(batch_of(workload, 0))
    asked = list(depth.asked)
    if order is not None:
        weights = {weight.layer: weight for weight, _ in asked}
        depth.asked = [(weights[name], phase) for name, (_, phase) in zip(order, asked)]
    program.step(batch_of(workload, 1))
    return tuple(weight.layer for weight, _ in asked), depth.misses


def _make_gathers(rng):
    questions = []
    for keep, recompute in KNOBS:
        right, misses = step_in_order(int(rng.integers(2, 4)), keep, recompute)
        assert misses == 0
        half = right.index("head") + 1  # forward ends there
        asked = {"layers": right[:half], "keep": keep, "recompute": recompute}
        questions.append(Question(asked, right, f"keep={keep}, recompute={recompute}"))
    return questions


@dataclass(frozen=True, repr=False)
class Order(Formula):
    """Asked for the order of gathers; what is close is tried on the real program."""

    def judge(self, question: Question, got: Any) -> str | None:
        """What is wrong with an order, or None where no gather is late."""
        right, (layers, *knobs) = question.answer, question.arguments.values()
        if isinstance(got, NoAnswer) or not isinstance(got, tuple):
            got = got.type if isinstance(got, NoAnswer) else repr(got)
            return f"for {question} your function returned {got}, not a list of layers' names."
        strange = [name for name in got if name not in layers]
        if strange:
            return f"for {question}: {strange[0]!r} is none of the layers {', '.join(layers)}."
        if len(got) != len(right):
            return (
                f"for {question} a step asks for {len(right)} gathers, you list {len(got)}. "
                f"{_how_many(question)}"
            )
        _, misses = step_in_order(len(layers) // 4, *knobs, got)  # beside embed and head
        if misses == 0:
            return None
        place = next(n for n, (mine, want) in enumerate(zip(got, right)) if mine != want)
        return (
            f"for {question}: sent for in your order, {misses} of {len(right)} gathers of the "
            f"real program came unforeseen. The first: it asked for {right[place]}, yours "
            f"was {got[place]}. {_why(question, place)}"
        )


def _how_many(question):
    _, keep, recompute = question.arguments.values()
    if keep and not recompute:
        return "Blocks are kept until backward: only forward asks."
    again = "its activations are computed again" if recompute else "its input's gradient"
    return f"What does backward need a layer's weight for: {again}?"


def _why(question, place):
    if place < len(question.arguments["layers"]):
        return "Forward goes through the layers as they are listed."
    if question.arguments["recompute"]:
        return (
            "Backward takes the last block first, and of each block first computes forward "
            "again, in the order of forward."
        )
    return (
        "Backward goes through the layers from the last to the first; embed's table is not "
        "needed for its gradient."
    )


GATHERS = Order(
    name="axonn_gathers",
    title="In which order are weights sent for?",
    notebook=NOTEBOOK,
    prompt="With OAG the next gather is on its way before the present one is used, so the order "
    'must be known. `layers` are the names in the order of forward ("embed", '
    '"blocks.0.attention.qkv", ..., "head"). Return the names in the order in which one '
    "step asks for their weights, forward and backward. Without `keep` a block is gathered "
    "anew for backward; with `recompute` every block (embed and head are in none) computes "
    "its forward again, just before its backward. The real program sends in your order: no "
    "gather may come unforeseen.",
    starter="""def axonn_gathers(layers, keep, recompute):
    again = [] if keep else list(layers)  # in backward as in forward?
    return list(layers) + again""",
    hints=(
        "Go through a step by hand: which layer is used next, and is its weight there?",
        "Backward takes head, then the blocks from the last, each from down to qkv. With recompute "
        "it takes a block's four layers from qkv to down first. embed needs no weight in backward.",
        'Start with `list(layers)`; `if not keep`: add "head". For the blocks in reverse '
        "(`layers[1:-1]` in fours): add the four if recompute; add the four reversed if not keep.",
    ),
    success="Our program records this order in its first step and replays it. To walk the modules "
    "from first to last instead is late nearly everywhere in backward.",
    make=_make_gathers,
    needs=None,
    checks=(),
)


# --- axonn_norm ---


def _make_norm(rng, axes):
    """piece: other numbers on every rank; bias: over x; scale: over y, both the same along z."""
    rows, width = (int(size) for size in rng.integers(2, 5, 2))
    pieces = [whole_numbers(rng, rows * width).astype(np.float64) for _ in places(axes)]
    bias = whole_numbers(rng, axes["x"] * rows).astype(np.float64)
    scale = whole_numbers(rng, axes["y"] * width).astype(np.float64)
    inputs = [
        (own, part(bias, axes, at, "x"), part(scale, axes, at, "y"))
        for own, at in zip(pieces, places(axes))
    ]
    total = sum(float((whole**2).sum()) for whole in (*pieces, bias, scale))
    return Case(inputs, [np.array(total**0.5)] * len(inputs))


def _three_sums(axes, case):
    return Ledger.of(
        [(axis, "all_reduce", "", int(axes[axis] > 1), 8, axes[axis]) for axis in ("z", "y", "x")]
    )


def _squares(attempt, bias=1.0, scale=1.0):
    """The sum of squares over all ranks with these weights."""
    return sum(
        (own**2).sum() + bias * (b**2).sum() + scale * (s**2).sum()
        for own, b, s in attempt.case.inputs
    )


def _copies(attempt):
    if attempt.matches(lambda want: np.sqrt(_squares(attempt))):
        z, y, x = (attempt.axes[axis] for axis in ("z", "y", "x"))
        return (
            f"bias counts {z * y} times and scale {z * x} times: that many ranks have the same "
            "numbers. A norm too large clips every gradient too much."
        )


def _one_share(attempt):
    if attempt.all_right:  # with as many ranks along x as along y, more than one way is right
        return None
    n = prod(attempt.axes.values())
    if attempt.matches(lambda want: np.sqrt(_squares(attempt, 1 / n, 1 / n))):
        return (
            "bias and scale are divided by the number of all ranks. Only some of them have the "
            "same part: bias lies over x, so its copies are along z and y."
        )
    z, y, x = (attempt.axes[axis] for axis in ("z", "y", "x"))
    if attempt.matches(lambda want: np.sqrt(_squares(attempt, 1 / z, 1 / z))):
        return "along z there is one copy each, but there are copies on the plane of x and y too."
    if attempt.matches(lambda want: np.sqrt(_squares(attempt, 1 / (z * x), 1 / (z * y)))):
        return "x and y are exchanged: bias lies over x (copies along y), scale over y."
    return None


def _sum_of_norms(attempt):
    own = [np.sqrt((p**2).sum() + (b**2).sum() + (s**2).sum()) for p, b, s in attempt.case.inputs]
    if attempt.matches(lambda want: np.array(sum(own))):
        return "norms do not add up; their squares do."
    if not attempt.ledger:
        return "the trace shows no collective: that is the norm of what one rank has."


NORM = Exercise(
    name="axonn_norm",
    title="The norm of a gradient that lies on a grid",
    notebook=NOTEBOOK,
    prompt="To clip gradients every rank needs the 2-norm of the **whole** gradient, each number "
    "counted once. A rank has `piece` (of a weight: other numbers on every rank), `bias` "
    "(it lies over x: the same on all ranks along y and z) and `scale` (a LayerNorm's, over "
    "y: the same along x and z). Return the norm, a tensor with one number and no dim, on "
    "every rank. Send no more than one number over each axis.",
    starter="""def axonn_norm(piece, bias, scale, mesh):
    # piece, bias, scale: gradients, flat
    return torch.cat([piece, bias, scale]).norm()""",
    hints=(
        "Sums of squares add up over ranks. What if several ranks add the same squares?",
        "Divide a tensor's sum of squares by the number of ranks that have the same part: z y for "
        "bias, z x for scale, 1 for piece. Then sum over z, y and x, and take the root.",
        '`x, y, z = (mesh.get_group(a).size() for a in "xyz")`, `total = (piece**2).sum() + '
        '(bias**2).sum() / (z * y) + (scale**2).sum() / (z * x)`, `for a in "zyx": '
        "dist.all_reduce(total, group=mesh.get_group(a))`, `return total.sqrt()`.",
    ),
    success="`tv.AxoNN(clip=1.0)` does this; data has equal gradients by then and takes no part.",
    make=_make_norm,
    needs=_three_sums,
    checks=(*FIRST, right_shape, _copies, _one_share, _sum_of_norms, right_numbers, fewest_bytes),
    worlds=WORLDS,
)
