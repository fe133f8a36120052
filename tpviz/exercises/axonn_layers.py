"""The exercises of notebook 04 on real ranks: a layer on the grid, forward and backward.

Weights are (out, in): y = x W^T. On a grid with the axes z, y, x a rank has rows part z of the
tokens, features part y of the input and part x of the output; of the block of W that x and y cut
out, flat, piece z. Numbers are whole and float64, so sums are exact in any order.
"""

import numpy as np

from ..mesh import Mesh
from ..trace import Ledger
from .axonn import NOTEBOOK
from .checks import (
    FIRST,
    fewest_bytes,
    own_share_of_work,
    right_axes,
    right_numbers,
    right_shape,
    same_ledger,
)
from .task import Case, Exercise, whole_numbers

WORLDS = ({"z": 2, "y": 2, "x": 2}, {"z": 3, "y": 2, "x": 1})
BACK_WORLDS = ({"z": 2, "y": 2, "x": 2}, {"z": 2, "y": 1, "x": 3})


def places(axes: dict[str, int]) -> list[dict[str, int]]:
    """The coordinates of each rank."""
    mesh = Mesh(axes)
    return [mesh.coords(rank) for rank in range(mesh.size)]


def part(
    whole: np.ndarray, axes: dict[str, int], at: dict[str, int], *axis_of_dims: str | None
) -> np.ndarray:
    """A rank's part of an array: one axis (or None) for each dim."""
    for dim, axis in enumerate(axis_of_dims):
        if axis:
            whole = np.split(whole, axes[axis], dim)[at[axis]]
    return whole.copy()


def piece(block: np.ndarray, axes: dict[str, int], at: dict[str, int]) -> np.ndarray:
    """A rank's piece of a block, flat."""
    return np.split(block.flatten(), axes["z"])[at["z"]].copy()


def layer(rng: np.random.Generator, axes: dict[str, int]) -> list[np.ndarray]:
    """Whole arrays x (tokens, in), w (out, in), grad (tokens, out)."""
    tokens = axes["z"] * int(rng.integers(2, 5))
    inside = axes["y"] * int(rng.integers(2, 5))
    outside = axes["x"] * axes["z"] * int(rng.integers(1, 3))  # so that z divides the block
    shapes = (tokens, inside), (outside, inside), (tokens, outside)
    return [whole_numbers(rng, *shape).astype(np.float64) for shape in shapes]


# --- axonn_linear ---


def _make_forward(rng, axes):
    x, w, _ = layer(rng, axes)
    blocks = [part(w, axes, at, "x", "y") for at in places(axes)]
    inputs = [
        (part(x, axes, at, "z", "y"), piece(block, axes, at))
        for at, block in zip(places(axes), blocks)
    ]
    expected = [part(x @ w.T, axes, at, "z", "x") for at in places(axes)]
    return Case(inputs, expected, flops=2 * inputs[0][0].shape[0] * blocks[0].size)


def _gather_and_sum(axes, case):
    return Ledger.of(
        [
            ("z", "all_gather", "", 1, case.inputs[0][1].nbytes * axes["z"], axes["z"]),
            ("y", "all_reduce", "", 1, case.expected[0].nbytes, axes["y"]),
        ]
    )


def _no_collective(attempt):
    if not attempt.ledger:
        return (
            "the trace shows no collective. A rank has a piece of its block of W: the other "
            "pieces are on the ranks along z."
        )


def _summed_over_x(attempt):
    if ("x", "all_reduce") in {row[:2] for row in attempt.ledger}:
        return (
            "you summed over x, as backward does. Ranks along x have other output features; "
            "those along y have other input features, so theirs are parts of one sum."
        )


def _not_summed(attempt):
    if attempt.names() == {"all_gather"} and not attempt.right:
        return (
            "the block is there, but its product with x is a part of the sum: a rank has only "
            "the input features of its y."
        )


def _other_gather(attempt):
    axes = {row.axis for row in attempt.ledger if row.collective == "all_gather"}
    if axes and axes != {"z"}:
        return (
            f"you gathered over {' and '.join(sorted(axes))}. The pieces of one block lie "
            "along z; ranks along x or y have pieces of other blocks."
        )


LINEAR = Exercise(
    name="axonn_linear",
    title="A layer on the grid, forward",
    notebook=NOTEBOOK,
    prompt="y = x Wᵀ on a grid with the axes z, y and x. A rank has rows of its z and features of "
    "its y of the input, and a flat piece of its block of W `[out/x, in/y]`, which is cut "
    "over z. Gather the block, multiply, and sum what is a part of a sum. Return "
    "`y[T/z, out/x]` with **one** all-gather and **one** all-reduce. "
    '`mesh.get_group("z")` is the group of this rank along z.',
    starter="""def axonn_linear(x, piece, mesh):
    # x: [T/z, in/y]; piece: [out/x * in/y / z], of the block row by row
    block = piece.view(-1, x.shape[1])
    return x @ block.t()""",
    hints=(
        "Two things are missing: numbers of the weight, and terms of the sum. On which axes are "
        "they?",
        "The pieces of a rank's block lie along z, in their order. The input's features, which the "
        "product contracts, lie along y.",
        "`pieces = [torch.empty_like(piece) for _ in range(n)]` with `n = "
        'mesh.get_group("z").size()`, `dist.all_gather(pieces, piece, '
        'group=mesh.get_group("z"))`, `y = x @ torch.cat(pieces).view(-1, x.shape[1]).t()`, '
        '`dist.all_reduce(y, group=mesh.get_group("y"))`, `return y`.',
    ),
    success="y lies as the next layer wants its input, with x and y exchanged.",
    make=_make_forward,
    needs=_gather_and_sum,
    checks=(
        *FIRST,
        _no_collective,
        _summed_over_x,
        _other_gather,
        right_axes,
        right_shape,
        _not_summed,
        right_numbers,
        fewest_bytes,
        own_share_of_work,
        same_ledger,
    ),
    worlds=WORLDS,
)


# --- axonn_backward ---


def _make_backward(rng, axes):
    x, w, grad = layer(rng, axes)
    inputs, expected = [], []
    for at in places(axes):
        inputs.append(
            (
                part(x, axes, at, "z", "y"),
                part(w, axes, at, "x", "y"),
                part(grad, axes, at, "z", "x"),
            )
        )
        dx, dw = (part(grad @ w, axes, at, "z", "y"), part(grad.T @ x, axes, at, "x", "y"))
        expected.append(np.concatenate([dx.flatten(), piece(dw, axes, at)]))
    return Case(inputs, expected, flops=4 * inputs[0][0].shape[0] * inputs[0][1].size)


def _sum_and_scatter(axes, case):
    x, block, _ = case.inputs[0]
    return Ledger.of(
        [
            ("x", "all_reduce", "", 1, x.nbytes, axes["x"]),
            ("z", "reduce_scatter", "", 1, block.nbytes, axes["z"]),
        ]
    )


def _nothing_sent(attempt):
    if not attempt.ledger:
        return (
            "the trace shows no collective. Other ranks had other output features (dX) and "
            "other rows (dW): along which axes?"
        )


def _sum_over_y(attempt):
    if ("y", "all_reduce") in {row[:2] for row in attempt.ledger}:
        return (
            "you summed over y, as forward does. Backward contracts the output features, which "
            "lie over x."
        )


def _own_rows(attempt):
    if "z" not in {row.axis for row in attempt.ledger} and not attempt.right:
        return (
            "nothing was sent over z. A rank's dW is of its own rows alone: the other terms of "
            "that sum are on the ranks along z, and each keeps its piece of the sum."
        )


def _block_summed(attempt):
    if ("z", "all_reduce") in {row[:2] for row in attempt.ledger}:
        (_, _, sent), (_, _, least) = attempt.ledger.total(), attempt.needed.total()
        return (
            f"you summed the whole block over z, {sent:g} bytes sent per rank where {least:g} "
            "will do: a rank keeps its piece only, so let reduce_scatter add on the way."
        )


def _averaged(attempt):
    size, cut = attempt.axes["z"], attempt.case.inputs[0][0].size
    if attempt.matches(lambda want: np.concatenate([want[:cut], want[cut:] / size])):
        return (
            f"your piece is 1/{size} of what it should be. The loss is a mean over all rows "
            "already, so the gradients of the z ranks' rows are added up, not averaged."
        )


def _under_weight(attempt):
    """Judge: a kernel runs between the start of the sum over x and the wait for it."""
    rank = attempt.trace.select(rank=0)
    sums = [e for e in rank if e.kind == "comm" and e.name == "all_reduce"]
    waits = {e.waits_for: e.start for e in rank if e.kind == "wait"}
    for total in sums:
        under = [
            e
            for e in rank
            if e.kind == "compute" and e.flops and total.start <= e.start < waits[total.id]
        ]
        if not under:
            return (
                "the numbers are right, but no product runs between the start of dX's sum and "
                "the wait for it. dW does not need it: compute dX first, start its sum with "
                "`async_op=True`, compute dW, then wait."
            )


BACKWARD = Exercise(
    name="axonn_backward",
    title="A layer on the grid, backward, its sum under cover",
    notebook=NOTEBOOK,
    prompt="The gradients of y = x Wᵀ, with the block of W still there from forward. dX = dY W is "
    "summed over one axis, **while dW is computed** (the paper's OAR); dW = dYᵀ x is summed "
    "over the ranks that had other rows, and each keeps its flat piece. Return both: "
    "`torch.cat([dx.flatten(), piece])`.",
    starter="""def axonn_backward(x, block, grad, mesh):
    # x: [T/z, in/y]; block: [out/x, in/y]; grad: [T/z, out/x], complete
    dw = grad.t() @ x
    dx = grad @ block
    pieces = dw.flatten().chunk(mesh.get_group("z").size())
    return torch.cat([dx.flatten(), pieces[0]])""",
    hints=(
        "What does each product contract, and along which axis do the other terms of its sum lie?",
        "dX contracts output features: over x. dW contracts tokens: over z, and there each rank "
        "needs its piece only, which is a reduce-scatter.",
        '`dx = grad @ block`, `work = dist.all_reduce(dx, group=mesh.get_group("x"), '
        "async_op=True)`, `dw = grad.t() @ x`, `work.wait()`, `pieces = list(dw.flatten().chunk("
        'mesh.get_group("z").size()))`, `mine = torch.empty_like(pieces[0])`, '
        '`dist.reduce_scatter(mine, pieces, group=mesh.get_group("z"))`, and join.',
    ),
    success="With ORS the scatter is not waited for here either, but after the last layer.",
    make=_make_backward,
    needs=_sum_and_scatter,
    checks=(
        *FIRST,
        _nothing_sent,
        _sum_over_y,
        right_axes,
        right_shape,
        _averaged,
        _own_rows,
        right_numbers,
        _block_summed,
        fewest_bytes,
        own_share_of_work,
        same_ledger,
        _under_weight,
    ),
    worlds=BACK_WORLDS,
)
