"""The exercises of notebook 00: a mean over the ranks, and a matrix product cut along its inner
dimension."""

from ..trace import Ledger
from .checks import FIRST, GENERAL
from .task import Case, Exercise, whole_numbers

NOTEBOOK = "00_start"


def _silent(attempt):
    if not attempt.ledger:
        return (
            "the trace shows no collective at all. Each rank knows only its own tensor, "
            "so no rank can know the answer without asking the others."
        )


# --- mean_over_ranks ---


def _make_mean(rng, axes):
    rows, columns = rng.integers(3, 9, size=2)
    inputs = [whole_numbers(rng, rows, columns) for _ in range(axes["world"])]
    mean = sum(inputs) / axes["world"]
    return Case([(x,) for x in inputs], [mean] * axes["world"])


def _one_all_reduce(axes, case):
    return Ledger.of([("world", "all_reduce", "", 1, case.expected[0].nbytes, axes["world"])])


def _sum_not_mean(attempt):
    if attempt.matches(lambda mean: mean * attempt.size):
        return "you have the sum over the ranks, not the mean: divide by the number of ranks."


def _four_written_in(attempt):
    if attempt.size != 4 and attempt.matches(lambda mean: mean * attempt.size / 4):
        return "you divided by 4, but this world is smaller: ask `dist.get_world_size()`."


def _one_rank_only(attempt):
    if attempt.right == [0] and "reduce" in attempt.names():
        return (
            "only rank 0 has the mean: `dist.reduce` leaves the sum on one rank. "
            "Which collective leaves it on all of them?"
        )


def _gathered(attempt):
    (_, _, sent), (_, _, least) = attempt.ledger.total(), attempt.needed.total()
    if "all_gather" in attempt.names() and sent > least and attempt.all_right:
        return (
            f"the numbers are right, but you moved {sent / least:.2g}x the bytes needed: "
            f"all_gather brings every rank all {attempt.size} tensors ({sent:g} bytes sent per "
            f"rank, {least:g} would do). Let the collective do the adding."
        )


MEAN = Exercise(
    name="mean_over_ranks",
    title="Mean over the ranks",
    notebook=NOTEBOOK,
    prompt="Every rank gets its own tensor `x`, all of one shape. Return, on **every** rank, the "
    "mean of these tensors over the ranks. Send as few bytes as you can, and let it work "
    "for any number of ranks.",
    starter="""def mean_over_ranks(x):
    # x is this rank's tensor; dist.get_world_size() is the number of ranks
    return x / dist.get_world_size()""",
    hints=(
        "A mean is a sum divided by a count. Each rank knows one term of the sum.",
        "A collective that adds while it moves sends 2(n-1)/n times the tensor; one that brings "
        "all tensors to all ranks sends (n-1) times the tensor.",
        "`dist.all_reduce(x)` replaces x by the sum on every rank; then return `x / "
        "dist.get_world_size()`.",
    ),
    success="This is what data parallelism does with every gradient.",
    make=_make_mean,
    needs=_one_all_reduce,
    checks=(*FIRST, _silent, _sum_not_mean, _four_written_in, _one_rank_only, _gathered, *GENERAL),
)


# --- row_parallel ---


def _make_rows(rng, axes):
    n = axes["world"]
    batch, inner, out = (int(s) for s in rng.integers(2, 6, size=3))
    x, w = whole_numbers(rng, batch, inner * n), whole_numbers(rng, inner * n, out)
    parts = [slice(r * inner, (r + 1) * inner) for r in range(n)]
    inputs = [(x[:, part], w[part]) for part in parts]
    return Case(inputs, [x @ w] * n, flops=2 * batch * inner * out)


def _partial_sum(attempt):
    partial = [x @ w for x, w in attempt.case.inputs]
    if not attempt.ledger and attempt.matches(lambda want: partial[0]):
        return (
            "each rank returned only its part of the sum. The inner dimension is cut over the "
            "ranks, so X W = X0 W0 + X1 W1 + ...: the parts still have to be added over the "
            "ranks."
        )


def _mean_not_sum(attempt):
    if attempt.matches(lambda want: want / attempt.size):
        return "you averaged the parts; a matrix product adds them: do not divide."


def _summed_too_early(attempt):
    xs = sum(x for x, _ in attempt.case.inputs)
    ws = sum(w for _, w in attempt.case.inputs)
    first_x, first_w = attempt.case.inputs[0]
    early = [xs @ first_w, first_x @ ws, xs @ ws]  # pyright: ignore[reportOperatorIssue]
    if any(0 in attempt.matches(lambda want, y=y: y) for y in early):
        return (
            "you added the inputs over the ranks before multiplying. The slices belong to "
            "different columns of X and rows of W: multiply first, then add the products."
        )


def _gathered_inputs(attempt):
    if "all_gather" in attempt.names() and attempt.flops > attempt.case.flops:
        (_, _, sent), (_, _, least) = attempt.ledger.total(), attempt.needed.total()
        return (
            "you gathered whole matrices and multiplied them on every rank: each rank did "
            f"{attempt.flops / attempt.case.flops:.2g}x its share of the multiplications and "
            f"sent {sent:g} bytes ({least:g} would do). Multiply the slices you have, then "
            "combine the results."
        )


ROWS = Exercise(
    name="row_parallel",
    title="A matrix product cut along its inner dimension",
    notebook=NOTEBOOK,
    prompt="Y = X W, too big for one rank, so the **inner** dimension is cut over the ranks: each "
    "rank gets its columns of X (`x`) and the same rows of W (`w`), in the notation of the "
    "figures `X[B, F_tp]` and `W[F_tp, D]`. Return the whole Y on every rank: one local "
    "product, as few bytes as you can.",
    starter="""def row_parallel(x, w):
    # x: [B, F / n], this rank's columns of X; w: [F / n, D], this rank's rows of W
    return x @ w""",
    hints=(
        "Write X W as a sum over the inner index f, and look at which f a rank holds.",
        "Each rank can compute one partial sum of the shape of Y from what it has. What is missing "
        "is the addition over the ranks.",
        "`y = x @ w`, then `dist.all_reduce(y)`, then `return y`.",
    ),
    success="A row-parallel layer with its one all-reduce ends each part of a Megatron block.",
    make=_make_rows,
    needs=_one_all_reduce,
    checks=(*FIRST, _partial_sum, _mean_not_sum, _summed_too_early, _gathered_inputs, *GENERAL),
)
