"""The exercises of notebook 10 on real ranks: a column-first layer, forward and backward, and
overlapping its all-reduce, judged by the trace.

Weights are (out, in), as in PyTorch and in `tpviz.schemes.atp`: y = x W^T + b, features of x over
d2, of y over d1. Numbers are whole and float64, so sums are exact in any order.
"""

import numpy as np

from tpviz.cluster.clock.cost import by_axis
from tpviz.cluster.clock.fast import Clock
from tpviz.cluster.clock.queues import Transfer
from tpviz.core.step import Collective, Kernel, Operations, Part
from tpviz.core.trace import Trace

from .checks import (
    Attempt,
    Case,
    Mistake,
    RankProgram,
    fewest_bytes,
    parts,
    right_axes,
    right_numbers,
    right_shape,
    same_ledger,
    silent,
    whole_numbers,
)
from .told import told
from .variants import Terms

WORLDS = ({"d1": 2, "d2": 2}, {"d1": 3, "d2": 2})
PARTS = 4  # chunks


def _layer(rng, axes, tokens):
    """Whole arrays x (tokens, in), w (out, in), b (out,), grad (tokens, out)."""
    wide_in, wide_out = (axes[axis] * int(rng.integers(2, 5)) for axis in ("d2", "d1"))
    shapes = ((tokens, wide_in), (wide_out, wide_in), (wide_out,), (tokens, wide_out))
    return [whole_numbers(rng, *shape, dtype=np.float64) for shape in shapes]


def _make_forward(rng, axes, tokens=None):
    x, w, b, _ = _layer(rng, axes, tokens or int(rng.integers(2, 6)))
    inputs = parts(axes, (x, None, "d2"), (w, "d1", "d2"), (b, "d1"))
    expected = [y for (y,) in parts(axes, (x @ w.T + b, None, "d1"))]
    terms = Terms(
        [x @ w.T for x, w, _ in inputs], "d2", lambda rank, total: total + inputs[rank][2]
    )
    work = 2 * inputs[0][0].shape[0] * inputs[0][1].size

    def program(steps):
        x, w, b = zip(*inputs)
        x, w = steps.value("x", x), steps.value("W", w)
        total = steps.sum("x Wᵀ", [a @ c.T for a, c in zip(x, w)], "d2")
        return steps.value("y", steps.add("b", total, b))

    return Case(inputs, expected, work, terms, program)


# --- atp_column_linear ---
NO_SUM = silent
SUM_OVER_D1 = Mistake("you all-reduced over d1", lambda a: {row.axis for row in a.ledger} == {"d1"})


def _bias_too_often(attempt):
    n, inputs, want = attempt.axes["d2"], attempt.case.inputs, attempt.case.expected
    if attempt.all_right:
        return None
    if attempt.equals(lambda rank: want[rank] + (n - 1) * inputs[rank][2]):
        return COLUMN.say("bias counts times", n=n)
    for name, size in (*attempt.axes.items(), ("the whole mesh", attempt.size)):
        if attempt.equals(lambda rank, size=size: want[rank] + (n / size - 1) * inputs[rank][2]):
            where = f"axis {name}" if name in attempt.axes else name
            return COLUMN.say("bias is divided", size=size, where=where, n=n)
    if attempt.equals(lambda rank: want[rank] - inputs[rank][2]):
        return COLUMN.say("products are right")
    if attempt.equals(lambda rank: (want[rank] - inputs[rank][2]) / n + inputs[rank][2]):
        return COLUMN.say("you averaged the terms over d2", n=n)


COLUMN = RankProgram(
    **told("atp_column_linear"),
    make=_make_forward,
    judges=(
        NO_SUM,
        SUM_OVER_D1,
        Mistake(
            "trace shows all-reduces over d2",
            lambda a: (
                not a.right
                and a.count("all_reduce", axis="d2") > 1
                and a.count("all_reduce", axis="d2")
            ),
        ),
        right_axes,
        right_shape,
        _bias_too_often,
        right_numbers,
        Mistake(
            "you gathered where an all-reduce", lambda a: "all_gather" in a.names() and a.all_right
        ),
        fewest_bytes,
        same_ledger,
    ),
    worlds=WORLDS,
)


# -- what hides an all-reduce ----------------------------------------------------------------------


def timeline(trace: Trace, rank: int = 0) -> list[tuple[str, int, int]]:
    """The kernels and collectives of a rank in program order: (what, id, amount); what is "kernel",
    "issue" or "wait", the amount FLOPs or bytes, the id that of the collective."""
    rows = [
        (
            e.start,
            {"compute": "kernel", "comm": "issue", "wait": "wait"}[e.kind],
            e.waits_for if e.kind == "wait" else e.id,
            e.flops if e.kind == "compute" else e.bytes,
        )
        for e in trace.select(rank=rank)
        if e.kind in ("compute", "comm", "wait")
    ]
    return [row[1:] for row in sorted(rows)]


def exposed(trace: Trace, rank: int = 0) -> float:
    """How long kernels wait for collectives if all kernels together take 1, by FLOPs, and all
    collectives 1, by bytes, in program order (derived)."""
    events, made, tickets = timeline(trace, rank), Operations(), {}
    totals = {
        kind: sum(amount for what, _, amount in events if what == kind) or 1
        for kind in ("kernel", "issue")
    }
    for what, number, amount in events:
        if what == "kernel":
            made.append(Kernel(amount, 0))
        elif what == "issue":
            tickets[number] = made.issue(Collective("axis", "", amount))
        else:
            made.wait(tickets.get(number))
    clock = Clock(
        lambda kernel: kernel.flops / totals["kernel"],
        lambda move: Transfer(move.axis, move.payload / totals["issue"]),
    )
    return sum(by_axis(clock.run([Part("", "", tuple(made))]), "exposed").values())


def shown(attempt: Attempt) -> str:
    """The kernels and collectives of rank 0, in program order."""
    return " > ".join(what for what, _, _ in timeline(attempt.trace))  # pyright: ignore[reportArgumentType]


# --- atp_column_backward ---
def _make_backward(rng, axes):
    x, w, _, grad = _layer(rng, axes, int(rng.integers(2, 6)))
    inputs = parts(axes, (x, None, "d2"), (w, "d1", "d2"), (grad, None, "d1"))
    gradients = parts(axes, (grad @ w, None, "d2"), (grad.T @ x, "d1", "d2"))
    expected = [np.concatenate(both) for both in gradients]
    terms = Terms(
        [grad @ w for _, w, grad in inputs],
        "d1",
        lambda rank, total: np.concatenate([total, inputs[rank][2].T @ inputs[rank][0]]),
    )
    work = 4 * inputs[0][0].shape[0] * inputs[0][1].size

    def program(steps):
        x, w, grad = zip(*inputs)
        dy = steps.value("dY", grad)
        dx = steps.sum("dX", [one @ own for one, own in zip(dy, w)], "d1")
        dw = steps.value("dW", [one.T @ own for one, own in zip(dy, steps.value("x", x))])
        return [np.concatenate(both) for both in zip(dx, dw)]

    return Case(inputs, expected, work, terms, program)


def _dw_summed(attempt):
    sent, least = (led.total()[1] for led in (attempt.ledger, attempt.needed))
    if sent > least and "all_reduce" in attempt.names():
        axis = "d2" if "d2" in attempt.axes_of("all_reduce") else "d1"
        return BACKWARD.say(
            "you all-reduced bytes where will do",
            sent=sent,
            least=least,
            axis=axis,
            what="columns" if axis == "d2" else "rows",
        )


def _under_wgrad(attempt):
    kinds = [what for what, _, _ in timeline(attempt.trace)]
    if "kernel" not in kinds[kinds.index("issue") :]:
        return BACKWARD.say("all-reduce of dx starts when", order=shown(attempt))
    if exposed(attempt.trace) > 0.6:
        return BACKWARD.say("kernel of dw begins after", order=shown(attempt))


BACKWARD = RankProgram(
    **told("atp_column_backward"),
    make=_make_backward,
    judges=(
        silent,
        Mistake(
            "you all-reduced over d2 as forward", lambda a: {row.axis for row in a.ledger} == {"d2"}
        ),
        _dw_summed,
        right_axes,
        right_shape,
        right_numbers,
        same_ledger,
        _under_wgrad,
    ),
    worlds=WORLDS,
)


# --- atp_chunked_linear ---
def _rows_in_another_order(attempt):
    return not attempt.right and all(
        got.shape == want.shape and np.array_equal(*(a[np.lexsort(a.T)] for a in (got, want)))
        for got, want in zip(attempt.outputs, attempt.case.expected)
    )


def _bit_identical(attempt):
    for rank, (got, want) in enumerate(zip(attempt.outputs, attempt.case.expected)):
        if not np.array_equal(got, want):
            return CHUNKED.say("rank is close but not equal", rank=rank)


def _seen(attempt):
    kernels = [what for what, _, _ in timeline(attempt.trace)].count("kernel")
    if not kernels:
        return CHUNKED.say("trace shows 0 products")
    if kernels < PARTS:
        return CHUNKED.say("trace shows of products", kernels=kernels, PARTS=PARTS)


def _hidden(attempt):
    waits, least = exposed(attempt.trace), 1 / PARTS
    if waits > 1.01 * least:
        return CHUNKED.say(
            "if products and all-reduces took equally",
            waits=waits,
            least=least,
            order=shown(attempt),
        )


CHUNKED = RankProgram(
    **told("atp_chunked_linear", PARTS=PARTS),
    make=lambda rng, axes: _make_forward(rng, axes, PARTS * int(rng.integers(1, 4))),
    sends=lambda axes, case: [("d2", "all_reduce", PARTS, case.expected[0].nbytes // PARTS)],
    judges=(
        NO_SUM,
        SUM_OVER_D1,
        right_axes,
        right_shape,
        _bias_too_often,
        Mistake("all rows are present in another", _rows_in_another_order),
        right_numbers,
        _bit_identical,
        Mistake("the trace shows", lambda a: a.count("all_reduce") != PARTS and a.all_right),
        fewest_bytes,
        same_ledger,
        _seen,
        _hidden,
    ),
    worlds=WORLDS,
)
