"""The exercises of notebooks 00 and 01: a mean over the ranks, a matrix product sharded along its
inner dimension, all-reduce from its two halves, and an MLP on a 2 x 2 mesh."""

import numpy as np

from tpviz.core.mesh import Mesh

from .checks import GENERAL, Case, Mistake, RankProgram, silent, wasteful, whole_numbers
from .told import told
from .variants import Terms


# --- mean_over_ranks ---
def _make_mean(rng, axes):
    rows, columns = rng.integers(3, 9, size=2)
    inputs = [whole_numbers(rng, rows, columns) for _ in range(axes["world"])]
    n = axes["world"]
    terms = Terms(inputs, finish=lambda rank, total: total / n, mean=True)
    return Case([(x,) for x in inputs], [sum(inputs) / n] * n, terms=terms)


MEAN = RankProgram(
    **told("mean_over_ranks"),
    make=_make_mean,
    sends=lambda axes, case: [("world", "all_reduce", 1, case.expected[0].nbytes)],
    judges=(
        silent,
        Mistake("you have the sum over", lambda a: a.matches(lambda mean: mean * a.size)),
        Mistake(
            "you divided by 4", lambda a: a.size != 4 and a.matches(lambda mean: mean * a.size / 4)
        ),
        Mistake("only rank 0 has the mean", lambda a: a.right == [0] and "reduce" in a.names()),
        Mistake(
            "you sent the bytes needed",
            lambda a: "all_gather" in a.names() and a.sent > a.least and a.all_right,
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
    **told("row_parallel"),
    make=_make_rows,
    judges=(
        Mistake(
            "each rank returned only its partial",
            lambda a: not a.ledger and a.matches(lambda want: np.matmul(*a.case.inputs[0])),
        ),
        Mistake("you averaged the partial sums", lambda a: a.matches(lambda want: want / a.size)),
        Mistake("you added over the ranks before", _summed_too_early),
        Mistake(
            "you gathered whole matrices and multiplied",
            lambda a: "all_gather" in a.names() and a.flops > a.case.flops,
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
        return IN_TWO.say(
            "half way after reduce_scatter each rank",
            attempt=attempt,
            shape=list(part),
            whole=list(want.shape),
        )


IN_TWO = RankProgram(
    **told("all_reduce_in_two"),
    make=_make_two,
    judges=(
        silent,
        Mistake("this exercise builds all_reduce", lambda a: "all_reduce" in a.names()),
        _half_way,
        Mistake(
            "gathering everything and adding locally sent",
            lambda a: a.names() == {"all_gather"} and a.all_right and a.sent > a.least,
        ),
        Mistake(
            "every number is too large",
            lambda a: (
                {"all_gather", "reduce_scatter"} <= a.names()
                and not a.right
                and a.matches(lambda want: want * a.size)
            ),
        ),
        Mistake(
            "reduce broadcast send everything through rank",
            lambda a: (
                a.names() == {"reduce", "broadcast"} and a.all_right and a.count("reduce") == 1
            ),
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
    **told("mlp_on_mesh"),
    make=_make_mlp,
    judges=(
        Mistake("each rank returned a partial sum", lambda a: not a.ledger and not a.right),
        Mistake("you added the hidden activations over", lambda a: _summed_hidden(a, total=True)),
        Mistake("you added over the ranks", lambda a: _summed_hidden(a, total=False)),
        Mistake("relu is missing", lambda a: a.equals(lambda rank: _linear(a, rank))),
        Mistake(
            "relu is in the wrong place",
            lambda a: a.equals(lambda rank: np.maximum(_linear(a, rank), 0)),
        ),
        Mistake(
            "you applied relu twice the second",
            lambda a: a.equals(lambda rank: np.maximum(a.case.expected[rank], 0)),
        ),
        Mistake(
            "you added over all ranks",
            lambda a: "world" in a.axes_of("all_reduce") and _mixed_over_dp(a),
        ),
        Mistake("you added the results over dp", _mixed_over_dp),
        Mistake("you averaged the results over dp", lambda a: _mixed_over_dp(a, by=a.axes["dp"])),
        wasteful("nothing has to be gathered", lambda a: "all_gather" in a.names()),
        *GENERAL,
    ),
    worlds=({"dp": 2, "tp": 2},),
)
