"""The exercise of notebook 03 on the forward of a column-first layer, on real ranks.

Weights are (out, in), as in PyTorch and in `tpviz.schemes.atp`: y = x W^T + b, features of x over
d2, of y over d1. Numbers are whole and float64, so sums are exact in any order.
"""

from typing import TYPE_CHECKING

import numpy as np

from ..trace import Ledger
from .atp import NOTEBOOK
from .checks import FIRST, fewest_bytes, right_axes, right_numbers, right_shape, same_ledger
from .task import Case, Exercise, whole_numbers

if TYPE_CHECKING:
    from .attempt import Attempt

WORLDS = ({"d1": 2, "d2": 2}, {"d1": 3, "d2": 2})


def layer(rng: np.random.Generator, axes: dict[str, int], tokens: int) -> list[np.ndarray]:
    """Whole arrays x (tokens, in), w (out, in), b (out,), grad (tokens, out)."""
    d1, d2 = axes["d1"], axes["d2"]
    wide_in, wide_out = d2 * int(rng.integers(2, 5)), d1 * int(rng.integers(2, 5))
    shapes = ((tokens, wide_in), (wide_out, wide_in), (wide_out,), (tokens, wide_out))
    return [whole_numbers(rng, *shape).astype(np.float64) for shape in shapes]


def block(
    whole: np.ndarray, axes: dict[str, int], rank: int, *axis_of_dims: str | None
) -> np.ndarray:
    """A rank's block: one axis (or None) for each dim."""
    at: dict[str, int] = dict(zip(("d1", "d2"), divmod(rank, axes["d2"])))
    for dim, axis in enumerate(axis_of_dims):
        if axis:
            whole = np.split(whole, axes[axis], dim)[at[axis]]
    return whole.copy()


def ranks(axes: dict[str, int]) -> range:
    """All ranks of the mesh."""
    return range(axes["d1"] * axes["d2"])


def make_forward(rng: np.random.Generator, axes: dict[str, int], tokens: int | None = None) -> Case:
    """The `Case` of y = x W^T + b: x, w, b of each rank, and its part of y."""
    x, w, b, _ = layer(rng, axes, tokens or int(rng.integers(2, 6)))
    inputs = [
        (block(x, axes, r, None, "d2"), block(w, axes, r, "d1", "d2"), block(b, axes, r, "d1"))
        for r in ranks(axes)
    ]
    y = x @ w.T + b
    expected = [block(y, axes, r, None, "d1") for r in ranks(axes)]
    return Case(inputs, expected, flops=2 * inputs[0][0].shape[0] * inputs[0][1].size)


# --- atp_column_linear ---


def _sum_over_d2(axes, case):
    return Ledger.of([("d2", "all_reduce", "", 1, case.expected[0].nbytes, axes["d2"])])


def no_sum(attempt: "Attempt") -> str | None:
    """Judge: there is a collective."""
    if not attempt.ledger:
        return (
            "the trace shows no collective. A rank has only some of the input features, so its "
            "product is a part of the sum; the other parts are on the ranks along d2."
        )


def bias_too_often(attempt: "Attempt") -> str | None:
    """Judge: the bias counts once."""
    n, inputs, want = attempt.axes["d2"], attempt.case.inputs, attempt.case.expected
    if attempt.equals(lambda rank: want[rank] + (n - 1) * inputs[rank][2]):
        return (
            f"the bias counts {n} times: every rank along d2 added it before the sum. All of "
            "them have the same part of it: add it once, after the sum."
        )
    if attempt.equals(lambda rank: want[rank] - inputs[rank][2]):
        return "the products are right, but the bias is missing."
    if attempt.equals(lambda rank: (want[rank] - inputs[rank][2]) / n + inputs[rank][2]):
        return f"you averaged the parts over d2: the product is their sum, so do not divide by {n}."


def sum_over_d1(attempt: "Attempt") -> str | None:
    """Judge: not all sums are over d1."""
    if {row.axis for row in attempt.ledger} == {"d1"}:
        return (
            "you summed over d1. Ranks along d1 have other rows of W, that is other features "
            "of the output, not parts of the same sum. What is contracted (the input's "
            "features) lies over d2."
        )


def _gathered(attempt):
    if "all_gather" in attempt.names() and attempt.all_right:
        (_, _, sent), (_, _, least) = attempt.ledger.total(), attempt.needed.total()
        return (
            f"the numbers are right, but you gathered what could be summed: {attempt}, "
            f"{sent:g} bytes sent per rank where {least:g} will do."
        )


def _summed_twice(attempt):
    count = sum(row.count for row in attempt.ledger if row[:2] == ("d2", "all_reduce"))
    if count > 1 and not attempt.right:
        return (
            f"the trace shows {count} all-reduces over d2: after the first one every rank has "
            "the whole sum, and a second one counts it again. One is enough."
        )


COLUMN = Exercise(
    name="atp_column_linear",
    title="A column-first layer, forward",
    notebook=NOTEBOOK,
    prompt="y = x Wᵀ + b on a mesh with axes d1 and d2: input features over d2, output features "
    "over d1. Return this rank's `y[T, out/d1]` with **one** all-reduce of it. "
    '`mesh.get_group("d1")` and `mesh.get_group("d2")` are this rank\'s groups.',
    starter="""def atp_column_linear(x, w, b, mesh):
    # x: [T, in/d2]; w: [out/d1, in/d2]; b: [out/d1], the same on all ranks along d2
    return x @ w.t() + b""",
    hints=(
        "Which dim of the product is contracted, and over which axis do its parts lie?",
        "Ranks along d2 have parts of one sum; ranks along d1 have other output features. The bias "
        "belongs to the sum, not to its parts.",
        '`y = x @ w.t()`, then `dist.all_reduce(y, group=mesh.get_group("d2"))`, then '
        "`return y + b`.",
    ),
    success="The next layer takes y as it lies, with d1 and d2 exchanged: row-first.",
    make=make_forward,
    needs=_sum_over_d2,
    checks=(
        *FIRST,
        no_sum,
        sum_over_d1,
        _summed_twice,
        right_axes,
        right_shape,
        bias_too_often,
        right_numbers,
        _gathered,
        fewest_bytes,
        same_ledger,
    ),
    worlds=WORLDS,
)
