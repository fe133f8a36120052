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
NO_SUM = silent(
    "the trace shows no collective. A rank has only some of the input features, so its product is "
    "a partial sum; the other terms are on the ranks along d2."
)
SUM_OVER_D1 = Mistake(
    lambda a: {row.axis for row in a.ledger} == {"d1"},
    "you all-reduced over d1. Ranks along d1 have other rows of W, that is other features of the "
    "output, not terms of the same sum. The input's features, which it contracts, are over d2.",
)


def _bias_too_often(attempt):
    n, inputs, want = attempt.axes["d2"], attempt.case.inputs, attempt.case.expected
    if attempt.all_right:
        return None
    if attempt.equals(lambda rank: want[rank] + (n - 1) * inputs[rank][2]):
        return (
            f"the bias counts {n} times: every rank along d2 added it before the all-reduce. All "
            "of them have the same shard of it: add it once, after the all-reduce."
        )
    for name, size in (*attempt.axes.items(), ("the whole mesh", attempt.size)):
        if attempt.equals(lambda rank, size=size: want[rank] + (n / size - 1) * inputs[rank][2]):
            where = f"axis {name}" if name in attempt.axes else name
            return (
                f"the bias is divided by {size}, the size of {where}, before the all-reduce, which "
                f"adds it {n} times: over d2. Add it once, after the all-reduce."
            )
    if attempt.equals(lambda rank: want[rank] - inputs[rank][2]):
        return "the products are right, but the bias is missing."
    if attempt.equals(lambda rank: (want[rank] - inputs[rank][2]) / n + inputs[rank][2]):
        return f"you averaged the terms over d2: the product is their sum, so do not divide by {n}."


COLUMN = RankProgram(
    title="A column-first layer, forward",
    prompt="y = x Wᵀ + b on a mesh with axes d1 and d2: input features over d2, output features "
    "over d1. Return this rank's `y[T, out/d1]` with **one** all-reduce of it. "
    '`mesh.get_group("d1")` and `mesh.get_group("d2")` are this rank\'s groups.',
    starter="""def atp_column_linear(x, w, b, mesh):
    # x: [T, in/d2]; w: [out/d1, in/d2]; b: [out/d1], the same on all ranks along d2
    return x @ w.t() + b""",
    concept="Which dim of the product is contracted, and which axis shards it?",
    principle="Ranks along d2 have terms of one sum; ranks along d1 have other output features. "
    "Add the bias to the sum, not to its terms.",
    shape="Three lines: the product alone, one collective with a `group`, and the sum with the "
    "bias.",
    success="The next layer uses y without redistribution, with d1 and d2 swapped: row-first.",
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
            "the trace shows {it} all-reduces over d2: after the first one every rank has the "
            "complete sum, and a second one multiplies it. One is enough.",
        ),
        right_axes,
        right_shape,
        _bias_too_often,
        right_numbers,
        Mistake(
            lambda a: "all_gather" in a.names() and a.all_right,
            "the numbers are right, but you gathered where an all-reduce is enough: {a}, "
            "{a.sent:g} bytes sent per rank instead of {a.least:g}.",
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
        return (
            f"you all-reduced {sent:g} bytes where {least:g} will do: only dX is a partial sum. "
            "dW contracts the tokens, and every rank has all of those: its dW is complete. Ranks "
            f"along {axis} have other {'columns' if axis == 'd2' else 'rows'} of it."
        )


def _under_wgrad(attempt):
    kinds = [what for what, _, _ in timeline(attempt.trace)]
    if "kernel" not in kinds[kinds.index("issue") :]:
        return (
            f"the numbers are right, but the trace shows {shown(attempt)}: the all-reduce of dX "
            "starts when no kernel is left to hide it. dW does not need it: compute dX first, "
            "start its all-reduce with `async_op=True`, and then compute dW."
        )
    if exposed(attempt.trace) > 0.6:
        return (
            f"the numbers are right, but the trace shows {shown(attempt)}: the kernel of dW "
            "begins after the all-reduce of dX has ended. Start the all-reduce with "
            "`async_op=True`, and wait when dW is done."
        )


BACKWARD = RankProgram(
    title="A column-first layer, backward, with overlap",
    prompt="The gradients of y = x Wᵀ for the layer before: dX = dY W, all-reduced over the axis "
    "that needs it, and dW = dYᵀ x. The all-reduce must run **while dW is computed**: the trace "
    "has to show dX's product, the start of the all-reduce, dW's product, then the wait. Return "
    "both, dX above dW: `torch.cat([dx, dw])`.",
    starter="""def atp_column_backward(x, w, grad, mesh):
    # x: [T, in/d2]; w: [out/d1, in/d2]; grad: [T, out/d1], complete
    dw = grad.t() @ x
    dx = grad @ w
    return torch.cat([dx, dw])""",
    concept="dX = dY W contracts the output features. Which axis shards them? And what does dW "
    "contract?",
    principle="Only dX needs an all-reduce, over d1. A collective with `async_op=True` runs until "
    "its `.wait()`; computation in between hides it.",
    shape="Five lines: one product, a collective with `async_op=True`, the other product, a "
    "wait, and the starter's return.",
    success="Every layer of ATP does this: the all-reduce of dX overlaps the product of dW.",
    make=_make_backward,
    sends=lambda axes, case: [("d1", "all_reduce", 1, case.inputs[0][0].nbytes)],
    judges=(
        silent(
            "the trace shows no collective. dX = dY W contracts the output features, and a rank "
            "has only some of them: the other terms are on the ranks along d1."
        ),
        Mistake(
            lambda a: {row.axis for row in a.ledger} == {"d2"},
            "you all-reduced over d2, as forward does. Backward contracts the output features, "
            "which are sharded over d1: the axes are swapped.",
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
                f"rank {rank} is close, but not equal bit by bit: chunks are rows, and must not "
                "change how any number is computed."
            )


def _seen(attempt):
    kernels = [what for what, _, _ in timeline(attempt.trace)].count("kernel")
    if not kernels:
        return (
            "the numbers are right, but the trace shows 0 products. Write them as `piece @ w.t()`."
        )
    if kernels < PARTS:
        return (
            f"the numbers are right, but the trace shows {kernels} of {PARTS} products, and an "
            "all-reduce cannot start before its chunk's product is done: split x, not the result."
        )


def _hidden(attempt):
    waits, least = exposed(attempt.trace), 1 / PARTS
    if waits > 1.01 * least:
        return (
            "the numbers are right, but if products and all-reduces took equally long, kernels "
            f"would wait {waits:.2g} of an all-reduce; {least:.2g} is possible. The trace shows "
            f"{shown(attempt)}. Start each chunk's all-reduce with `async_op=True` right after "
            "its product, and wait for all of them at the end."
        )


CHUNKED = RankProgram(
    title="Chunks: overlapping an all-reduce with the next product",
    prompt=f"The column-first layer again, in {PARTS} chunks of rows of x (they divide): the "
    "all-reduce of one chunk must run during the next chunk's product. The trace is replayed on a "
    "clock on which all products take as long as all all-reduces: kernels may wait for no more "
    "than the last chunk's all-reduce. The result stays bit-identical.",
    starter=f"""def atp_chunked_linear(x, w, b, mesh):
    # x: [T, in/d2]; w: [out/d1, in/d2]; b: [out/d1]
    parts = []
    for piece in x.chunk({PARTS}):
        y = piece @ w.t()
        dist.all_reduce(y, group=mesh.get_group("d2"))
        parts.append(y)
    return torch.cat(parts) + b""",
    concept="An all-reduce that is waited for at once is not hidden.",
    principle="Keep the handles: no chunk's product needs an all-reduce, so wait when the last "
    "product is done, then join the parts in their order and add the bias.",
    shape="The starter's loop with two lists, of results and of handles; a second loop; the "
    "starter's return.",
    success="Only the last chunk's all-reduce is exposed: 1/C of it with C chunks, until the "
    "latency of many small all-reduces outweighs the gain.",
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
            "all rows are present, in another order: join the chunks in the order in which they "
            "were split.",
        ),
        right_numbers,
        _bit_identical,
        Mistake(
            lambda a: a.count("all_reduce") != PARTS and a.all_right,
            f"the numbers are right, but the trace shows {{a}}: each of the {PARTS} chunks needs "
            "its own all-reduce.",
        ),
        fewest_bytes,
        same_ledger,
        _seen,
        _hidden,
    ),
    worlds=WORLDS,
)
