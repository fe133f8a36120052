"""The exercises of notebooks 00 and 01: a mean over the ranks, a matrix product sharded along its
inner dimension, all-reduce from its two halves, and an MLP on a 2 x 2 mesh."""

import numpy as np

from tpviz.core.mesh import Mesh

from .checks import GENERAL, Case, Mistake, RankProgram, silent, wasteful, whole_numbers
from .variants import Terms


def _one_all_reduce(axes, case):
    return [("world", "all_reduce", 1, case.expected[0].nbytes)]


# --- mean_over_ranks ---
def _make_mean(rng, axes):
    rows, columns = rng.integers(3, 9, size=2)
    inputs = [whole_numbers(rng, rows, columns) for _ in range(axes["world"])]
    n = axes["world"]
    terms = Terms(inputs, finish=lambda rank, total: total / n, mean=True)
    return Case([(x,) for x in inputs], [sum(inputs) / n] * n, terms=terms)


MEAN = RankProgram(
    title="Mean over the ranks",
    prompt="Every rank gets its own tensor `x`, all of one shape. Return, on **every** rank, the "
    "mean of these tensors over the ranks. Send as few bytes as possible, for any number of ranks.",
    starter="""def mean_over_ranks(x):
    # x is this rank's tensor; dist.get_world_size() is the number of ranks
    return x / dist.get_world_size()""",
    concept="A mean is a sum divided by a count. Each rank has one term of the sum.",
    principle="An all-reduce sends 2(n-1)/n times the tensor; an all-gather of all tensors sends "
    "(n-1) times the tensor.",
    shape="Two lines: one collective that changes `x` in place, then an expression of `x` and "
    "the number of ranks.",
    success="This is what data parallelism does with every gradient.",
    make=_make_mean,
    sends=_one_all_reduce,
    judges=(
        silent(
            "the trace shows no collective at all. Each rank has only its own tensor, so no rank "
            "can compute the answer without communication."
        ),
        Mistake(
            lambda a: a.matches(lambda mean: mean * a.size),
            "you have the sum over the ranks, not the mean: divide by the number of ranks.",
        ),
        Mistake(
            lambda a: a.size != 4 and a.matches(lambda mean: mean * a.size / 4),
            "you divided by 4, but this world is smaller: use `dist.get_world_size()`.",
        ),
        Mistake(
            lambda a: a.right == [0] and "reduce" in a.names(),
            "only rank 0 has the mean: `dist.reduce` leaves the result on one rank. Which "
            "collective leaves it on all of them?",
        ),
        Mistake(
            lambda a: "all_gather" in a.names() and a.sent > a.least and a.all_right,
            "the numbers are right, but you sent {a.excess:.2g}x the bytes needed: all_gather "
            "brings every rank all {a.size} tensors ({a.sent:g} bytes sent per rank, {a.least:g} "
            "would do). Use a collective that reduces.",
        ),
        *GENERAL,
    ),
)


# --- row_parallel ---
def _make_rows(rng, axes):
    n = axes["world"]
    batch, inner, out = (int(s) for s in rng.integers(2, 6, size=3))
    x, w = whole_numbers(rng, batch, inner * n), whole_numbers(rng, inner * n, out)
    parts = [slice(r * inner, (r + 1) * inner) for r in range(n)]
    inputs = [(x[:, part], w[part]) for part in parts]
    terms = Terms([mine @ own for mine, own in inputs])

    def program(steps):
        xs, ws = (steps.value(f"`{name}`", one) for name, one in zip("xw", zip(*inputs)))
        return steps.sum("the product", [a @ b for a, b in zip(xs, ws)], "world")

    return Case(inputs, [x @ w] * n, 2 * batch * inner * out, terms, program)


def _summed_too_early(attempt):
    xs = sum(x for x, _ in attempt.case.inputs)
    ws = sum(w for _, w in attempt.case.inputs)
    first_x, first_w = attempt.case.inputs[0]
    early = {"x": xs @ first_w, "w": first_x @ ws, "x and w": xs @ ws}  # pyright: ignore[reportOperatorIssue]
    return next((what for what, y in early.items() if 0 in attempt.matches(lambda _, y=y: y)), "")


ROWS = RankProgram(
    title="A matrix product sharded along its inner dimension",
    prompt="Y = X W, too big for one rank, so the **inner** dimension is sharded over the ranks: "
    "each rank gets its columns of X (`x`) and the same rows of W (`w`), in the notation of the "
    "figures `X[B, F_tp]` and `W[F_tp, D]`. Return the whole Y on every rank: one local product, "
    "as few bytes as possible.",
    starter="""def row_parallel(x, w):
    # x: [B, F / n], this rank's columns of X; w: [F / n, D], this rank's rows of W
    return x @ w""",
    concept="Write X W as a sum over the inner index f, and look at which f a rank holds.",
    principle="Each rank can compute one partial sum of the shape of Y. These must still be added "
    "over the ranks.",
    shape="Three lines: the local product, one collective on it, and the return of the same "
    "tensor.",
    success="A row-parallel layer with its one all-reduce ends each part of a Megatron block.",
    make=_make_rows,
    sends=_one_all_reduce,
    judges=(
        Mistake(
            lambda a: not a.ledger and a.matches(lambda want: np.matmul(*a.case.inputs[0])),
            "each rank returned only its partial sum. The inner dimension is sharded over the "
            "ranks, so X W = X0 W0 + X1 W1 + ...: the partial sums must still be added over the "
            "ranks.",
        ),
        Mistake(
            lambda a: a.matches(lambda want: want / a.size),
            "you averaged the partial sums; a matrix product adds them: do not divide.",
        ),
        Mistake(
            _summed_too_early,
            "you added {it} over the ranks before multiplying. The slices belong to "
            "different columns of X and rows of W: multiply first, then add the products.",
        ),
        Mistake(
            lambda a: "all_gather" in a.names() and a.flops > a.case.flops,
            "you gathered whole matrices and multiplied them on every rank: each rank did "
            "{a.extra_work:.2g}x its share of the multiplications and sent {a.sent:g} bytes "
            "({a.least:g} would do). Multiply the local slices, then all-reduce the results.",
        ),
        *GENERAL,
    ),
)


# --- all_reduce_in_two ---
def _make_two(rng, axes):
    n = axes["world"]
    rows, columns = int(rng.integers(1, 4)) * n, int(rng.integers(2, 6))
    inputs = [whole_numbers(rng, rows, columns) for _ in range(n)]

    def program(steps):
        return steps.gather("the sum", steps.scatter("`x`", inputs, "world"), "world")

    return Case([(x,) for x in inputs], [sum(inputs)] * n, None, Terms(inputs), program)


def _half_way(attempt):
    want = attempt.case.expected[0]
    part = np.split(want, attempt.size)[0].shape
    if (
        "reduce_scatter" in attempt.names()
        and "all_gather" not in attempt.names()
        and getattr(attempt.outputs[0], "shape", None) == part
    ):
        return (
            f"half way: after reduce_scatter each rank holds 1/{attempt.size} of the sum, "
            f"{list(part)} of {list(want.shape)}. Now every rank needs the other blocks."
        )


IN_TWO = RankProgram(
    title="All-reduce from its two halves",
    prompt="Return the sum of `x` over all ranks, on every rank, **without** `all_reduce`: build "
    "it from one reduce-scatter and one all-gather. It sends exactly the bytes of the ring "
    "all-reduce. The rows of `x` divide by the number of ranks.",
    starter="""def all_reduce_in_two(x):
    # x: [R, C] on every rank; the rows divide by the number of ranks n
    blocks = list(x.chunk(dist.get_world_size()))  # n tensors of R / n rows
    return torch.cat(blocks)""",
    concept="In a ring all-reduce every rank first owns one reduced block of the result.",
    principle="reduce_scatter leaves reduced block r on rank r and sends (n-1)/n of the tensor; "
    "all_gather sends the blocks to all ranks, (n-1)/n again.",
    shape="Two collectives. The first takes the list `blocks` and fills one new tensor of a "
    "block's shape; the second takes that tensor and fills the list.",
    success="ZeRO and sequence parallelism do this, with computation between the halves.",
    make=_make_two,
    sends=lambda axes, case: [
        ("world", half, 1, case.expected[0].nbytes) for half in ("reduce_scatter", "all_gather")
    ],
    judges=(
        silent("the trace shows no collective: every rank still has only its own tensor."),
        Mistake(
            lambda a: "all_reduce" in a.names(),
            "this exercise builds `all_reduce`: do not call it, use `dist.reduce_scatter` and "
            "`dist.all_gather`.",
        ),
        _half_way,
        Mistake(
            lambda a: a.names() == {"all_gather"} and a.all_right and a.sent > a.least,
            "the numbers are right, but gathering everything and adding locally sent "
            "{a.excess:.2g}x the bytes needed ({a.sent:g} instead of {a.least:g} per rank). Use "
            "reduce_scatter.",
        ),
        Mistake(
            lambda a: (
                {"all_gather", "reduce_scatter"} <= a.names()
                and not a.right
                and a.matches(lambda want: want * a.size)
            ),
            "every number is {a.size}x too large: you added tensors that were already reduced. "
            "Reduce-scatter first, then all-gather the blocks.",
        ),
        Mistake(
            lambda a: (
                a.names() == {"reduce", "broadcast"} and a.all_right and a.count("reduce") == 1
            ),
            "the numbers are right, but reduce + broadcast send everything through rank 0: its "
            "link carries the whole tensor while the others wait. Let each rank reduce one block: "
            "reduce_scatter.",
        ),
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
    terms = Terms([np.maximum(x @ w1, 0) @ w2 for x, w1, w2 in inputs], "tp")

    def program(steps):
        x, w1, w2 = zip(*inputs)
        h = steps.each("X W1", np.matmul, steps.value("X", x), w1)
        h = steps.value("H", steps.relu("H", h))
        return steps.sum("Y", [one @ down for one, down in zip(h, w2)], "tp")

    return Case(inputs, expected, 4 * batch * wide * hidden, terms, program)


def _row(attempt, rank, axis="tp"):
    """(x, w1, w2) of the ranks along ``axis`` with ``rank``."""
    return [attempt.case.inputs[r] for r in Mesh(attempt.axes).group(rank, axis)]


def _summed_hidden(attempt, total):
    """Whether H was all-reduced over an axis; total: and the products with W2 over tp."""

    def early(rank, axis):
        parts = [
            (
                np.maximum(sum(x @ w1 for x, w1, _ in _row(attempt, r, axis)), 0)
                @ attempt.case.inputs[r][2]
            )
            for r in Mesh(attempt.axes).group(rank, "tp")
        ]
        return sum(parts) if total else parts[Mesh(attempt.axes).coords(rank)["tp"]]

    return any(attempt.equals(lambda rank, a=axis: early(rank, a)) for axis in attempt.axes)


def _linear(attempt, rank):
    """Y without relu."""
    return sum(x @ w1 @ w2 for x, w1, w2 in _row(attempt, rank))


def _mixed_over_dp(attempt, by=1):
    total = sum(attempt.case.expected[:: attempt.axes["tp"]])
    return attempt.equals(lambda rank: total / by)


MLP = RankProgram(
    title="An MLP on a 2 x 2 mesh with one all-reduce",
    prompt="Y = relu(X W1) W2 on a mesh with axes dp and tp. Data: `X[B_dp, D]`. Weights: `W1[D, "
    "F_tp]` is sharded by columns and `W2[F_tp, D]` by rows. Return this rank's `Y[B_dp, D]` with "
    '**one** collective, on axis tp only. `mesh.get_group("tp")` is this rank\'s group along tp.',
    starter="""def mlp_on_mesh(x, w1, w2, mesh):
    # x: [B / dp, D]; w1: [D, F / tp], columns of W1; w2: [F / tp, D], rows of W2
    h = torch.relu(x @ w1)
    return h @ w2""",
    concept="Which of the two products has its inner dimension sharded? Only that one gives "
    "partial sums.",
    principle="Ranks with the same dp coordinate share the data and hold partial sums of one "
    "result; ranks with another dp coordinate hold other data, and adding theirs would be wrong.",
    shape="The two products of the starter stay. Between the last product and the return "
    "stands one collective, with a `group`.",
    success="Column-parallel, then row-parallel: the pair of layers in Megatron's 1D tensor "
    "parallelism.",
    make=_make_mlp,
    sends=lambda axes, case: [("tp", "all_reduce", 1, case.expected[0].nbytes)],
    judges=(
        Mistake(
            lambda a: not a.ledger and not a.right,
            "each rank returned a partial sum: `w2` holds only some rows of W2, "
            "so the products must still be added along axis tp.",
        ),
        Mistake(
            lambda a: _summed_hidden(a, total=True),
            "you added the hidden activations over the ranks, but each rank holds other columns "
            "of H[B, F_tp], not partial sums. Do not add them: relu works on each column "
            "separately.",
        ),
        Mistake(
            lambda a: _summed_hidden(a, total=False),
            "you added over the ranks at the wrong product: H[B, F_tp] has other columns on each "
            "rank, which are no partial sums, while the product with your rows of W2 is one and "
            "was not added.",
        ),
        Mistake(
            lambda a: a.equals(lambda rank: _linear(a, rank)),
            "relu is missing: Y = relu(X W1) W2.",
        ),
        Mistake(
            lambda a: a.equals(lambda rank: np.maximum(_linear(a, rank), 0)),
            "relu is in the wrong place: it belongs between the two products, on the hidden "
            "activations, not on Y.",
        ),
        Mistake(
            lambda a: a.equals(lambda rank: np.maximum(a.case.expected[rank], 0)),
            "you applied relu twice, the second time to Y: it applies only to the hidden "
            "activations.",
        ),
        Mistake(
            lambda a: "world" in a.axes_of("all_reduce") and _mixed_over_dp(a),
            "you added over all ranks at once. Those with another dp coordinate have other rows of "
            "X: their terms belong to the Y of other data. Which group has the terms of your sum?",
        ),
        Mistake(
            _mixed_over_dp,
            "the all-reduce over tp is right, but then you added the results over dp. Ranks with "
            "another dp coordinate have other rows of X, and a whole Y of those.",
        ),
        Mistake(
            lambda a: _mixed_over_dp(a, by=a.axes["dp"]),
            "the all-reduce over tp is right, but then you averaged the results over dp. Data "
            "parallelism averages the gradients of weights; each replica's Y is of its own rows of "
            "X.",
        ),
        wasteful(
            lambda a: "all_gather" in a.names(),
            "the numbers are right, but nothing has to be gathered: relu works on each column of "
            "H separately, and your rows of W2 match your columns of H. You sent {a.sent:g} bytes "
            "per rank, {a.least:g} will do.",
        ),
        *GENERAL,
    ),
    worlds=({"dp": 2, "tp": 2},),
)
