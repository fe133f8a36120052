"""The exercises of notebook 01: all-reduce from its two halves, and an MLP on a 2 x 2 mesh."""

import numpy as np

from ..mesh import Mesh
from ..trace import Ledger
from .checks import FIRST, GENERAL
from .task import Case, Exercise, whole_numbers

NOTEBOOK = "01_ranks_meshes_collectives"


# --- all_reduce_in_two ---


def _make_two(rng, axes):
    n = axes["world"]
    rows, columns = int(rng.integers(1, 4)) * n, int(rng.integers(2, 6))
    inputs = [whole_numbers(rng, rows, columns) for _ in range(n)]
    return Case([(x,) for x in inputs], [sum(inputs)] * n)


def _two_halves(axes, case):
    n, size = axes["world"], case.expected[0].nbytes
    halves = ("reduce_scatter", "all_gather")
    return Ledger.of([("world", collective, "", 1, size, n) for collective in halves])


def _no_collective(attempt):
    if not attempt.ledger:
        return "the trace shows no collective: every rank still has only its own tensor."


def _not_built(attempt):
    if "all_reduce" in attempt.names():
        return (
            "`all_reduce` is what we want to build: leave it out and use `dist.reduce_scatter` "
            "and `dist.all_gather`."
        )


def _half_way(attempt):
    want = attempt.case.expected[0]
    blocks = np.split(want, attempt.size)
    if (
        "reduce_scatter" in attempt.names()
        and "all_gather" not in attempt.names()
        and getattr(attempt.outputs[0], "shape", None) == blocks[0].shape
    ):
        return (
            f"half way: after reduce_scatter each rank holds 1/{attempt.size} of the sum, "
            f"{list(blocks[0].shape)} of {list(want.shape)}. Now every rank needs the other "
            "blocks."
        )


def _added_by_hand(attempt):
    (_, _, sent), (_, _, least) = attempt.ledger.total(), attempt.needed.total()
    if attempt.names() == {"all_gather"} and attempt.all_right and sent > least:
        return (
            "the numbers are right, but gathering everything and adding at home moved "
            f"{sent / least:.2g}x the bytes needed ({sent:g} instead of {least:g} per rank). "
            "Let reduce_scatter add on the way."
        )


def _wrong_order(attempt):
    if (
        {"all_gather", "reduce_scatter"} <= attempt.names()
        and not attempt.right
        and attempt.matches(lambda want: want * attempt.size)
    ):
        return (
            f"every number is {attempt.size}x too large: you added tensors that were already "
            "sums. Scatter the sum first, then gather the blocks."
        )


def _through_one_rank(attempt):
    if (
        attempt.names() == {"reduce", "broadcast"}
        and attempt.all_right
        and attempt.ledger.total(collective="reduce")[0] == 1
    ):
        return (
            "the numbers are right, but reduce + broadcast pass everything through rank 0: its "
            "link carries the whole tensor while the others wait. Let each rank be in charge "
            "of one block: reduce_scatter."
        )


IN_TWO = Exercise(
    name="all_reduce_in_two",
    title="All-reduce from its two halves",
    notebook=NOTEBOOK,
    prompt="Return the sum of `x` over all ranks, on every rank, **without** `all_reduce`: build "
    "it from one reduce-scatter and one all-gather. It sends exactly the bytes of the ring "
    "all-reduce. The rows of `x` divide by the number of ranks.",
    starter="""def all_reduce_in_two(x):
    # x: [R, C] on every rank; the rows divide by the number of ranks n
    blocks = list(x.chunk(dist.get_world_size()))  # n tensors of R / n rows
    return torch.cat(blocks)""",
    hints=(
        "In a ring all-reduce every rank first becomes the owner of one finished block of the sum.",
        "reduce_scatter leaves block r of the sum on rank r and sends (n-1)/n of the tensor; "
        "all_gather hands the blocks round and sends (n-1)/n again.",
        "`block = torch.empty_like(blocks[0])`, then `dist.reduce_scatter(block, blocks)`, then "
        "`dist.all_gather(blocks, block)`.",
    ),
    success="ZeRO and sequence parallelism do just this, with other work between the halves.",
    make=_make_two,
    needs=_two_halves,
    checks=(
        *FIRST,
        _no_collective,
        _not_built,
        _half_way,
        _added_by_hand,
        _wrong_order,
        _through_one_rank,
        *GENERAL,
    ),
)


# --- mlp_on_mesh ---


def _make_mlp(rng, axes):
    dp, tp = axes["dp"], axes["tp"]
    batch, wide, hidden = (int(s) for s in rng.integers(2, 6, size=3))
    xs = [whole_numbers(rng, batch, wide) for _ in range(dp)]
    w1, w2 = whole_numbers(rng, wide, hidden * tp), whole_numbers(rng, hidden * tp, wide)
    columns, rows = np.split(w1, tp, axis=1), np.split(w2, tp)
    inputs = [(xs[d], columns[t], rows[t]) for d in range(dp) for t in range(tp)]
    expected = [np.maximum(xs[d] @ w1, 0) @ w2 for d in range(dp) for _ in range(tp)]
    return Case(inputs, expected, flops=2 * (2 * batch * wide * hidden))


def _one_on_tp(axes, case):
    return Ledger.of([("tp", "all_reduce", "", 1, case.expected[0].nbytes, axes["tp"])])


def _partial_mlp(attempt):
    if not attempt.ledger and not attempt.right:
        return (
            "each rank returned a partial sum: `w2` holds only some rows of W2, "
            "so the products must still be added along axis tp."
        )


def _row(attempt, rank, axis="tp"):
    """(x, w1, w2) of the ranks along ``axis`` with ``rank``."""
    return [attempt.case.inputs[r] for r in Mesh(attempt.axes).group(rank, axis)]


def _summed_hidden(attempt):
    def early(rank, axis, total):
        """Y, or this rank's part of it, if H is summed over ``axis`` first."""
        parts = [
            (
                np.maximum(sum(x @ w1 for x, w1, _ in _row(attempt, r, axis)), 0)
                @ attempt.case.inputs[r][2]
            )
            for r in Mesh(attempt.axes).group(rank, "tp")
        ]
        return sum(parts) if total else parts[Mesh(attempt.axes).coords(rank)["tp"]]

    if any(
        attempt.equals(lambda rank, a=axis, t=total: early(rank, a, t))
        for axis in attempt.axes
        for total in (True, False)
    ):
        return (
            "you added the hidden activations over the ranks, but each rank holds other "
            "columns of H[B, F_tp], not parts of a sum. Keep them apart: relu works on each "
            "column alone."
        )


def _relu_misplaced(attempt):
    def linear(rank):
        return sum(x @ w1 @ w2 for x, w1, w2 in _row(attempt, rank))

    if attempt.equals(linear):
        return "relu is missing: Y = relu(X W1) W2."
    if attempt.equals(lambda rank: np.maximum(linear(rank), 0)) or attempt.equals(
        lambda rank: np.maximum(attempt.case.expected[rank], 0)
    ):
        return "relu belongs to the hidden activations alone, between the two products, not to Y."


def _averaged_over_dp(attempt):
    n = attempt.axes["dp"]
    total = sum(attempt.case.expected[:: attempt.axes["tp"]])
    if attempt.equals(lambda rank: total) or attempt.equals(lambda rank: total / n):
        return (
            "the sum over tp is right, but then you mixed the results over dp. Ranks with "
            "another dp coordinate have other rows of X: their Y is of other data, and only "
            "gradients of weights are ever averaged over dp."
        )


def _gathered_hidden(attempt):
    if "all_gather" in attempt.names() and attempt.all_right:
        (_, _, sent), (_, _, least) = attempt.ledger.total(), attempt.needed.total()
        return (
            "the numbers are right, but nothing has to be gathered: relu works on each column "
            f"of H alone, and your rows of W2 fit your columns of H. You sent {sent:g} bytes "
            f"per rank, {least:g} will do."
        )


MLP = Exercise(
    name="mlp_on_mesh",
    title="An MLP on a 2 x 2 mesh with one all-reduce",
    notebook=NOTEBOOK,
    prompt="Y = relu(X W1) W2 on a mesh with axes dp and tp. Data: `X[B_dp, D]`. Weights: `W1[D, "
    "F_tp]` is cut by columns and `W2[F_tp, D]` by rows. Return this rank's `Y[B_dp, D]` "
    'with **one** collective, on axis tp only. `mesh.get_group("tp")` is the group of '
    "this rank's neighbours along tp.",
    starter="""def mlp_on_mesh(x, w1, w2, mesh):
    # x: [B / dp, D]; w1: [D, F / tp], columns of W1; w2: [F / tp, D], rows of W2
    h = torch.relu(x @ w1)
    return h @ w2""",
    hints=(
        "Which of the two products has its inner dimension cut? Only that one leaves partial sums.",
        "Ranks with the same dp coordinate share the data and hold parts of one sum; ranks with "
        "another dp coordinate hold other data, and adding theirs would be wrong.",
        '`y = torch.relu(x @ w1) @ w2`, then `dist.all_reduce(y, group=mesh.get_group("tp"))`, '
        "then `return y`.",
    ),
    success="Column cut, then row cut: the pair at the heart of Megatron's 1D tensor parallelism.",
    make=_make_mlp,
    needs=_one_on_tp,
    checks=(
        *FIRST,
        _partial_mlp,
        _summed_hidden,
        _relu_misplaced,
        _averaged_over_dp,
        _gathered_hidden,
        *GENERAL,
    ),
    worlds=({"dp": 2, "tp": 2},),
)
