"""The exercises of notebook 03 on real ranks: a column-first layer, forward and backward, and what
hides its all-reduce, judged by the trace.

Weights are (out, in), as in PyTorch and in `tpviz.schemes.atp`: y = x W^T + b, features of x over
d2, of y over d1. Numbers are whole and float64, so sums are exact in any order.
"""

import numpy as np

from ..cost import Clock, Transfer, by_axis
from ..step import Collective, Kernel, Operations, Part
from ..trace import Trace
from .attempt import Attempt, Case, parts, whole_numbers
from .checks import (
    Mistake,
    RankProgram,
    fewest_bytes,
    right_axes,
    right_numbers,
    right_shape,
    same_ledger,
    silent,
)

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
    return Case(inputs, expected, flops=2 * inputs[0][0].shape[0] * inputs[0][1].size)


# --- atp_column_linear ---
NO_SUM = silent(
    "the trace shows no collective. A rank has only some of the input features, so its "
    "product is a part of the sum; the other parts are on the ranks along d2."
)
SUM_OVER_D1 = Mistake(
    lambda a: {row.axis for row in a.ledger} == {"d1"},
    "you summed over d1. Ranks along d1 have other rows of W, that is other features of the "
    "output, not parts of the same sum. What is contracted (the input's features) lies over d2.",
)


def _bias_too_often(attempt):
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


COLUMN = RankProgram(
    title="A column-first layer, forward",
    prompt="y = x Wᵀ + b on a mesh with axes d1 and d2: input features over d2, output features "
    "over d1. Return this rank's `y[T, out/d1]` with **one** all-reduce of it. "
    '`mesh.get_group("d1")` and `mesh.get_group("d2")` are this rank\'s groups.',
    starter="""def atp_column_linear(x, w, b, mesh):
    # x: [T, in/d2]; w: [out/d1, in/d2]; b: [out/d1], the same on all ranks along d2
    return x @ w.t() + b""",
    concept="Which dim of the product is contracted, and over which axis do its parts lie?",
    principle="Ranks along d2 have parts of one sum; ranks along d1 have other output features. "
    "The bias belongs to the sum, not to its parts.",
    answer='`y = x @ w.t()`, then `dist.all_reduce(y, group=mesh.get_group("d2"))`, then '
    "`return y + b`.",
    success="The next layer takes y as it lies, with d1 and d2 exchanged: row-first.",
    make=_make_forward,
    sends=lambda axes, case: [("d2", "all_reduce", 1, case.expected[0].nbytes)],
    judges=(
        NO_SUM,
        SUM_OVER_D1,
        Mistake(
            lambda a: (
                not a.right
                and a.count("all_reduce", axis="d2") > 1
                and a.count("all_reduce", axis="d2")
            ),
            "the trace shows {it} all-reduces over d2: after the first one every "
            "rank has the whole sum, and a second one counts it again. One is enough.",
        ),
        right_axes,
        right_shape,
        _bias_too_often,
        right_numbers,
        Mistake(
            lambda a: "all_gather" in a.names() and a.all_right,
            "the numbers are right, but you gathered what could be summed: {a}, "
            "{a.sent:g} bytes sent per rank where {a.least:g} will do.",
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
    """How long kernels wait for collectives on a clock where all kernels of the trace take 1 by
    FLOPs, and all collectives 1 by bytes, in the order of the program (derived)."""
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
    return Case(inputs, expected, flops=4 * inputs[0][0].shape[0] * inputs[0][1].size)


def _dw_summed(attempt):
    sent, least = (led.total()[1] for led in (attempt.ledger, attempt.needed))
    if sent > least and "all_reduce" in attempt.names():
        return (
            f"you summed {sent:g} bytes where {least:g} will do: only dX is a part of a sum. "
            "dW contracts the tokens, and every rank has all of those: its dW is complete."
        )


def _under_wgrad(attempt):
    kinds = [what for what, _, _ in timeline(attempt.trace)]
    if "kernel" not in kinds[kinds.index("issue") :]:
        return (
            f"the numbers are right, but the trace shows {shown(attempt)}: the sum of dX "
            "starts when no kernel is left to hide it. dW does not need it: compute dX first, "
            "start its sum with `async_op=True`, and then compute dW."
        )
    if exposed(attempt.trace) > 0.6:
        return (
            f"the numbers are right, but the trace shows {shown(attempt)}: the kernel of dW "
            "begins after the sum of dX has ended. Start the sum with `async_op=True`, and "
            "wait when dW is done."
        )


BACKWARD = RankProgram(
    title="A column-first layer, backward, under cover",
    prompt="The gradients of y = x Wᵀ for the layer before: dX = dY W, summed over the axis that "
    "needs it, and dW = dYᵀ x. The sum must run **while dW is computed**: the trace has to "
    "show dX's product, the start of the sum, dW's product, then the wait. Return both, dX "
    "above dW: `torch.cat([dx, dw])`.",
    starter="""def atp_column_backward(x, w, grad, mesh):
    # x: [T, in/d2]; w: [out/d1, in/d2]; grad: [T, out/d1], complete
    dw = grad.t() @ x
    dx = grad @ w
    return torch.cat([dx, dw])""",
    concept="dX = dY W contracts the output features. Over which axis do they lie? And what does "
    "dW contract?",
    principle="Only dX has to be summed, over d1. A collective with `async_op=True` runs until its "
    "`.wait()`; what you compute in between hides it.",
    answer='`dx = grad @ w`, `work = dist.all_reduce(dx, group=mesh.get_group("d1"), '
    "async_op=True)`, `dw = grad.t() @ x`, `work.wait()`, `return torch.cat([dx, dw])`.",
    success="So every layer of ATP does it: dX's sum runs behind dW's product.",
    make=_make_backward,
    sends=lambda axes, case: [("d1", "all_reduce", 1, case.inputs[0][0].nbytes)],
    judges=(
        silent(
            "the trace shows no collective. dX = dY W contracts the output features, and a "
            "rank has only some of them: the other parts are on the ranks along d1."
        ),
        Mistake(
            lambda a: {row.axis for row in a.ledger} == {"d2"},
            "you summed over d2, as forward does. Backward contracts the output features, "
            "which lie over d1: the axes are exchanged.",
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
            return (
                f"rank {rank} is close, but not equal bit by bit: chunks are rows, and must "
                "not change how a number is computed."
            )


def _seen(attempt):
    kernels = [what for what, _, _ in timeline(attempt.trace)].count("kernel")
    if not kernels:
        return (
            "the numbers are right, but the trace shows 0 products. Write them as `piece @ w.t()`."
        )
    if kernels < PARTS:
        return (
            f"the numbers are right, but the trace shows {kernels} of {PARTS} products, and a "
            "sum cannot start before its chunk's product is done: cut x, not the result."
        )


def _hidden(attempt):
    waits, least = exposed(attempt.trace), 1 / PARTS
    if waits > 1.01 * least:
        return (
            f"the numbers are right, but with products and sums equally long the kernels would "
            f"wait {waits:.2g} of a whole sum; {least:.2g} is possible. The trace shows "
            f"{shown(attempt)}. Start each chunk's sum with `async_op=True` right after its "
            "product, and wait for all of them at the end."
        )


CHUNKED = RankProgram(
    title="Chunks: the sum of one part under the product of the next",
    prompt=f"The column-first layer again, in {PARTS} chunks of rows of x (they divide): the sum "
    "of one chunk must run during the next chunk's product. The trace is replayed on a "
    "clock on which all products take as long as all sums: no more than the last chunk's "
    "sum may be waited for. The result stays the same, bit by bit.",
    starter=f"""def atp_chunked_linear(x, w, b, mesh):
    # x: [T, in/d2]; w: [out/d1, in/d2]; b: [out/d1]
    parts = []
    for piece in x.chunk({PARTS}):
        y = piece @ w.t()
        dist.all_reduce(y, group=mesh.get_group("d2"))
        parts.append(y)
    return torch.cat(parts) + b""",
    concept="A sum that is waited for at once hides behind nothing.",
    principle="Keep the handles: the products of all chunks need no sum, so wait when the last "
    "product is done, then join the parts in their order and add the bias.",
    answer='In the loop `works.append(dist.all_reduce(y, group=mesh.get_group("d2"), '
    "async_op=True))` and `parts.append(y)`; after it `for work in works: work.wait()`, then "
    "`return torch.cat(parts) + b`.",
    success="Only the last chunk's sum is left: 1/C of it with C chunks, until the latency of many "
    "small sums outweighs that.",
    make=lambda rng, axes: _make_forward(rng, axes, PARTS * int(rng.integers(1, 4))),
    sends=lambda axes, case: [("d2", "all_reduce", PARTS, case.expected[0].nbytes // PARTS)],
    judges=(
        NO_SUM,
        SUM_OVER_D1,
        right_axes,
        right_shape,
        _bias_too_often,
        Mistake(
            _rows_in_another_order,
            "the rows are all there, in another order: join the chunks in the order in which "
            "they were cut.",
        ),
        right_numbers,
        _bit_identical,
        Mistake(
            lambda a: a.count("all_reduce") != PARTS and a.all_right,
            f"the numbers are right, but the trace shows {{a}}: each of the {PARTS} chunks needs a "
            "sum of its own.",
        ),
        fewest_bytes,
        same_ledger,
        _seen,
        _hidden,
    ),
    worlds=WORLDS,
)
