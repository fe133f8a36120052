"""The exercises of notebook 03 on what hides a sum: backward, and chunks, judged by the trace.

The layer is that of `atp_layers`: features of x over d2, of y over d1, weights (out, in).
"""

from typing import TYPE_CHECKING

import numpy as np

from ..cost import Clock, Transfer, by_axis
from ..step import Collective, Kernel, Operations, Part
from ..trace import Ledger
from .atp import NOTEBOOK
from .atp_layers import (
    WORLDS,
    bias_too_often,
    block,
    layer,
    make_forward,
    no_sum,
    ranks,
    sum_over_d1,
)
from .checks import FIRST, fewest_bytes, right_axes, right_numbers, right_shape, same_ledger
from .task import Case, Exercise

if TYPE_CHECKING:
    from ..trace import Trace

PARTS = 4  # chunks


def timeline(trace: "Trace", rank: int = 0) -> list[tuple[str, int, int]]:
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


def exposed(trace: "Trace", rank: int = 0) -> float:
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


# --- atp_column_backward ---


def _make_backward(rng, axes):
    x, w, _, grad = layer(rng, axes, int(rng.integers(2, 6)))
    dx, dw = grad @ w, grad.T @ x
    inputs = [
        (
            block(x, axes, r, None, "d2"),
            block(w, axes, r, "d1", "d2"),
            block(grad, axes, r, None, "d1"),
        )
        for r in ranks(axes)
    ]
    expected = [
        np.concatenate([block(dx, axes, r, None, "d2"), block(dw, axes, r, "d1", "d2")])
        for r in ranks(axes)
    ]
    return Case(inputs, expected, flops=4 * inputs[0][0].shape[0] * inputs[0][1].size)


def _sum_over_spread(axes, case):
    return Ledger.of([("d1", "all_reduce", "", 1, case.inputs[0][0].nbytes, axes["d1"])])


def _own_dx(attempt):
    if not attempt.ledger:
        return (
            "the trace shows no collective. dX = dY W contracts the output features, and a "
            "rank has only some of them: the other parts are on the ranks along d1."
        )


def _dx_over_d2(attempt):
    if {row.axis for row in attempt.ledger} == {"d2"}:
        return (
            "you summed over d2, as forward does. Backward contracts the output features, "
            "which lie over d1: the axes are exchanged."
        )


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
            f"the numbers are right, but the trace shows {' > '.join(kinds)}: the sum of dX "
            "starts when no kernel is left to hide it. dW does not need it: compute dX first, "
            "start its sum with `async_op=True`, and then compute dW."
        )
    if exposed(attempt.trace) > 0.6:
        return (
            f"the numbers are right, but the trace shows {' > '.join(kinds)}: the kernel of dW "
            "begins after the sum of dX has ended. Start the sum with `async_op=True`, and "
            "wait when dW is done."
        )


BACKWARD = Exercise(
    name="atp_column_backward",
    title="A column-first layer, backward, under cover",
    notebook=NOTEBOOK,
    prompt="The gradients of y = x Wᵀ for the layer before: dX = dY W, summed over the axis that "
    "needs it, and dW = dYᵀ x. The sum must run **while dW is computed**: the trace has to "
    "show dX's product, the start of the sum, dW's product, then the wait. Return both, dX "
    "above dW: `torch.cat([dx, dw])`.",
    starter="""def atp_column_backward(x, w, grad, mesh):
    # x: [T, in/d2]; w: [out/d1, in/d2]; grad: [T, out/d1], complete
    dw = grad.t() @ x
    dx = grad @ w
    return torch.cat([dx, dw])""",
    hints=(
        "dX = dY W contracts the output features. Over which axis do they lie? And what does dW "
        "contract?",
        "Only dX has to be summed, over d1. A collective with `async_op=True` runs until its "
        "`.wait()`; what you compute in between hides it.",
        '`dx = grad @ w`, `work = dist.all_reduce(dx, group=mesh.get_group("d1"), '
        "async_op=True)`, `dw = grad.t() @ x`, `work.wait()`, `return torch.cat([dx, dw])`.",
    ),
    success="So every layer of ATP does it: dX's sum runs behind dW's product.",
    make=_make_backward,
    needs=_sum_over_spread,
    checks=(
        *FIRST,
        _own_dx,
        _dx_over_d2,
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


def _make_chunked(rng, axes):
    return make_forward(rng, axes, PARTS * int(rng.integers(1, 4)))


def _sums_of_chunks(axes, case):
    part = case.expected[0].nbytes // PARTS
    return Ledger.of([("d2", "all_reduce", "", PARTS, part, axes["d2"])])


def _one_piece(attempt):
    count, _, _ = attempt.ledger.total(collective="all_reduce")
    if count != PARTS and attempt.all_right:
        return (
            f"the numbers are right, but the trace shows {attempt}: each of the {PARTS} chunks "
            "needs a sum of its own."
        )


def _chunk_order(attempt):
    def sorted_rows(array):
        return array[np.lexsort(array.T)]

    if not attempt.right and _same_rows(attempt, sorted_rows):
        return (
            "the rows are all there, in another order: join the chunks in the order in which "
            "they were cut."
        )


def _same_rows(attempt, order):
    return all(
        got.shape == want.shape and np.array_equal(order(got), order(want))
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
    kinds = [what for what, _, _ in timeline(attempt.trace)]
    waits, least = exposed(attempt.trace), 1 / PARTS
    if waits > 1.01 * least:
        return (
            f"the numbers are right, but with products and sums equally long the kernels would "
            f"wait {waits:.2g} of a whole sum; {least:.2g} is possible. The trace shows "
            f"{' > '.join(kinds)}. Start each chunk's sum with `async_op=True` right after its "
            "product, and wait for all of them at the end."
        )


CHUNKED = Exercise(
    name="atp_chunked_linear",
    title="Chunks: the sum of one part under the product of the next",
    notebook=NOTEBOOK,
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
    hints=(
        "A sum that is waited for at once hides behind nothing.",
        "Keep the handles: the products of all chunks need no sum, so wait when the last product "
        "is done, then join the parts in their order and add the bias.",
        'In the loop `works.append(dist.all_reduce(y, group=mesh.get_group("d2"), '
        "async_op=True))` and `parts.append(y)`; after it `for work in works: work.wait()`, then "
        "`return torch.cat(parts) + b`.",
    ),
    success="Only the last chunk's sum is left: 1/C of it with C chunks, until the latency of many "
    "small sums outweighs that.",
    make=_make_chunked,
    needs=_sums_of_chunks,
    checks=(
        *FIRST,
        no_sum,
        sum_over_d1,
        right_axes,
        right_shape,
        bias_too_often,
        _chunk_order,
        right_numbers,
        _bit_identical,
        _one_piece,
        fewest_bytes,
        same_ledger,
        _seen,
        _hidden,
    ),
    worlds=WORLDS,
)
