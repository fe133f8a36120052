"""The exercises of notebook 12 on real ranks: a weight that two stages share, and two halves of a
microbatch.

Numbers are whole and float64, so sums are exact in any order.
"""

import numpy as np

from tpviz.core.mesh import Mesh

from .atp_layers import exposed, timeline
from .checks import (
    Case,
    Mistake,
    RankProgram,
    fewest_bytes,
    parts,
    right_axes,
    right_numbers,
    right_shape,
    silent,
    whole_numbers,
)
from .variants import Variants


# --- merak_ties ---
def _make_ties(rng, axes):
    m, *shape = 2 ** int(rng.integers(1, 3)), *(int(n) for n in rng.integers(2, 6, 2))
    inputs = [whole_numbers(rng, m, *shape, dtype=np.float64) for _ in range(axes["pp"])]
    expected = [grads.mean(0) for grads in inputs]
    expected[0] = expected[-1] = expected[0] + expected[-1]
    return Case([(grads,) for grads in inputs], expected)


def _ties_variants(attempt):
    """Sums of other microbatches or stages."""
    inputs = [grads for (grads,) in attempt.case.inputs]
    want, last = attempt.case.expected, len(inputs) - 1
    m, means = len(inputs[0]), [grads.mean(0) for grads in inputs]
    at_ends = lambda end, other: [
        end(rank) if rank in (0, last) else other(rank) for rank in range(len(inputs))
    ]
    own, right = means.__getitem__, want.__getitem__
    yield (
        "first and last have the gradient of their own copy alone: they are not added",
        at_ends(own, own),
    )
    for k in range(m):
        yield (
            f"only microbatch {k} counts: take the mean over all {m}",
            at_ends(
                lambda rank, k=k: inputs[0][k] + inputs[last][k], lambda rank, k=k: inputs[rank][k]
            ),
        )
    yield (
        "the ranks in the middle return zeros: they have own weights",
        at_ends(right, lambda rank: 0 * want[rank]),
    )
    yield (
        "the ranks in the middle return the gradient of the shared weight",
        at_ends(right, lambda rank: want[0]),
    )
    yield (
        "first and last are added, and the ranks in the middle have sums",
        at_ends(right, lambda rank: m * want[rank]),
    )
    yield (
        f"first and last have {m} times the right gradient: the mean is over microbatches",
        (at_ends(lambda rank: m * want[rank], right)),
    )
    yield f"the mean is divided by the {m} microbatches once more", [one / m for one in want]
    yield (
        f"the sum over all stages is divided by their number, {len(inputs)}",
        [sum(means) / len(inputs)] * len(inputs),
    )
    for rank in range(1, last):
        yield (
            f"first and last are added to the gradient of rank {rank}",
            at_ends(lambda end, rank=rank: want[0] + means[rank], own),
        )
    yield "the last stage is added to each rank", [one + means[last] for one in means]
    yield "the first stage is added to each rank", [one + means[0] for one in means]


def _by_microbatch(attempt):
    """Judge of the handling of microbatches."""
    inputs = [grads for (grads,) in attempt.case.inputs]

    def ends(part):
        return lambda rank: (
            part(inputs[rank])
            if 0 < rank < attempt.size - 1
            else sum(part(inputs[end]) for end in (0, -1))
        )

    m = len(inputs[0])
    if attempt.equals(ends(lambda grads: grads.sum(0))):
        return (
            f"every number is {m} times too large. The loss of a step is the mean over its "
            f"{m} microbatches, so each one's gradient has the share 1/{m}."
        )
    if any(attempt.equals(ends(lambda grads, by=by: grads[-1] / by)) for by in (1, m)):
        return "only the last microbatch is left: add each to the previous ones."


def _summed_over_all_stages(attempt):
    total = sum(grads.mean(0) for (grads,) in attempt.case.inputs)
    return attempt.equals(lambda rank: total)


def _ends_averaged(attempt):
    want = attempt.case.expected
    return attempt.size > 2 and all(
        np.array_equal(attempt.outputs[end], want[end] / 2) for end in (0, -1)
    )


def _for_each(attempt):
    m = len(attempt.case.inputs[0][0])
    if attempt.all_right and attempt.sent == m * attempt.least:
        return (
            f"the numbers are right, but each of {m} microbatches was sent separately, "
            f"{attempt.sent:g} bytes where {attempt.least:g} will do: sum the microbatches first."
        )


TIES = RankProgram(
    title="A weight shared by the first and last stage",
    prompt="The embedding on the first stage and the head on the last use one weight, and each of "
    "the two ranks has a copy. `grads[m, V, H]` are the gradients of this rank's weight by each "
    "of m microbatches' own losses (a rank in the middle has another weight, of the same size). "
    "The loss is the **mean** over the microbatches. Return the gradient `[V, H]` of this rank's "
    "weight for its optimizer, on every rank, so that both copies stay equal. A rank in the "
    "middle sends nothing. (Create a group of some ranks by `dist.new_group([...])`, which "
    "**all** ranks call.)",
    starter="""def merak_ties(grads, mesh):
    # grads: [m, V, H]; rank 0 is the first stage, the last one has the head
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    return grads.sum(0)""",
    concept="One weight is used in two places. What is its gradient, if each place has its own?",
    principle="On each rank the mean over the microbatches; then, for first and last, the sum of "
    "both: one all-reduce, after the last microbatch.",
    shape="A reduction over a dim, a group that every rank creates, one collective under an "
    "`if`, and a return on every rank.",
    success="Merak's partitioner finds such weights by identity, and creates this group.",
    make=_make_ties,
    sends=lambda axes, case: [("ends", "all_reduce", 1, case.expected[0].nbytes)],
    judges=(
        silent(
            "the trace shows no collective. First and last stage each have the gradient of their "
            "own copy; the weight is one, so its gradient is the sum of both."
        ),
        right_shape,
        _by_microbatch,
        Mistake(
            _summed_over_all_stages,
            "you all-reduced over all stages. Those in the middle have other weights, with "
            "unrelated gradients: the all-reduce is over first and last.",
        ),
        Mistake(
            _ends_averaged,
            "first and last have half of the right gradient: the gradients of two uses of one "
            "weight are added, not averaged.",
        ),
        Mistake(
            lambda a: len(a.right) == a.size - 1 and not {0, a.size - 1} <= set(a.right),
            "one end has the sum, and the other has not. Each copy has its own optimizer: with "
            "different gradients they diverge.",
        ),
        Variants(_ties_variants),
        right_numbers,
        _for_each,
        Mistake(
            lambda a: [rank for rank in range(1, a.size - 1) if a.trace.ledger(rank=rank)],
            "the numbers are right, but rank {it[0]} takes part, but has no copy: it waits for "
            "the others in every step without need.",
        ),
        fewest_bytes,
    ),
    worlds=({"pp": 4},),
)


# --- merak_halves ---
def _row_of(case, axes, rank):
    """Inputs of all ranks along tp with the same rows as ``rank``."""
    mesh = Mesh(axes)
    return [
        own for r, own in enumerate(case.inputs) if mesh.coords(r)["dp"] == mesh.coords(rank)["dp"]
    ]


def _block(row, skip=True):
    """(y, z, dx) of the whole block; ``skip``: with the gradient that goes around the parts."""
    x, grad = row[0][0], row[0][5]
    up1, down1, up2, down2 = (
        np.concatenate([own[k] for own in row], 1 - k % 2) for k in range(1, 5)
    )
    h1 = np.maximum(x @ up1.T, 0)
    y = x + h1 @ down1.T
    h2 = np.maximum(y @ up2.T, 0)
    dy = skip * grad + (grad @ down2 * (h2 > 0)) @ up2
    return y, y + h2 @ down2.T, skip * dy + (dy @ down1 * (h1 > 0)) @ up1


def _program(inputs):
    """The whole block, step by step."""
    x, up1, down1, up2, down2, grad = zip(*inputs)

    def part(steps, number, x, up, down):
        h = steps.relu(f"h{number}", [a @ u.T for a, u in zip(x, up)])
        partial = [a @ d.T for a, d in zip(h, down)]
        return h, steps.sum(f"f{number}", partial, "tp")

    def back(steps, number, h, up, down, grad):
        inner = [g @ d for g, d in zip(grad, down)]
        masked = steps.mask(f"h{number}", inner, h)
        partial = [g @ u for g, u in zip(masked, up)]
        return steps.sum(f"the gradient through f{number}", partial, "tp")

    def program(steps):
        h1, f1 = part(steps, 1, x, up1, down1)
        y = steps.add("the residual x of y = x + f1(x)", f1, x)
        h2, f2 = part(steps, 2, y, up2, down2)
        z = steps.add("the residual y of z = y + f2(y)", f2, y)
        dy = steps.add("the residual's grad in dy", back(steps, 2, h2, up2, down2, grad), grad)
        dx = steps.add("the residual's dy in dx", back(steps, 1, h1, up1, down1, dy), dy)
        return [np.concatenate(both) for both in zip(z, dx)]

    return program


def _make_halves(rng, axes):
    rows, width = 2 * int(rng.integers(2, 5)), int(rng.integers(2, 5))
    inner = axes["tp"] * int(rng.integers(2, 5))

    def two(*shape):
        return [whole_numbers(rng, *shape, dtype=np.float64) for _ in range(2)]

    ups, downs = two(inner, width), two(width, inner)
    cuts = ("tp",), (None, "tp")
    weights = parts(axes, *((w, *cut) for pair in zip(ups, downs) for w, cut in zip(pair, cuts)))
    replicas = [two(rows, width) for _ in range(axes["dp"])]
    inputs = [
        (replicas[rank // axes["tp"]][0], *own, replicas[rank // axes["tp"]][1])
        for rank, own in enumerate(weights)
    ]
    case = Case(inputs, [])
    whole = [_block(_row_of(case, axes, rank)) for rank in range(len(inputs))]
    expected = [np.concatenate([z, dx]) for _, z, dx in whole]
    return case._replace(expected=expected, program=_program(inputs))


def _stranger(attempt):
    """Judge: the second half's residual."""
    for rank, got in enumerate(attempt.outputs):
        y, z, _ = _block(_row_of(attempt.case, attempt.axes, rank))
        (first, second), rows = np.split(y, 2), len(z)
        if got.shape != (2 * rows, z.shape[1]) or np.array_equal(first, second):  # alike by chance
            continue
        if np.array_equal(got[rows // 2 : rows], z[rows // 2 :] - second + first):
            return (
                "the first half is right, and z of the second half has the residual of the first: "
                "its residual is its own y. (The released code had this fault.)"
            )


def _no_skip(attempt):
    """Judge: backward of the residual."""
    row = lambda rank: _row_of(attempt.case, attempt.axes, rank)
    if attempt.equals(lambda rank: np.concatenate(_block(row(rank), skip=False)[1:])):
        return (
            "z is right; the gradient only passed through the parts. It also passes along the "
            "residual: dy = grad + part 2's, dx = dy + part 1's."
        )


def _turned(want):
    return np.concatenate(
        [part for pair in np.split(want, 2) for part in reversed(np.split(pair, 2))]
    )


def _hidden(attempt):
    waits = exposed(attempt.trace)
    if waits > 0.26:
        kinds = [what for what, _, amount in timeline(attempt.trace) if amount or what == "wait"]
        return (
            "the numbers are right, but if products and all-reduces took equally long, kernels "
            f"would wait {waits:.2g} of all all-reduces; 0.25 is possible. The trace shows "
            f"{' > '.join(kinds)}. Start each all-reduce with `async_op=True`, and wait for it "
            "when the other half's products of that part are issued."
        )


HALVES = RankProgram(
    title="Two halves of a microbatch, each all-reduce overlapped with the other's products",
    prompt="A block of two parts, y = x + f1(x) and z = y + f2(y), each f(x) = relu(x Uᵀ) Dᵀ with "
    "its inner features sharded over tp, so that f needs an all-reduce over tp; in backward, so "
    "does the gradient of a part's input. Merak splits the rows into two halves: while one half's "
    "all-reduce is in flight, the other half is computed. Return `torch.cat([z, dx])`, dx being "
    "x's gradient (weights' gradients are left out here), in 8 all-reduces of half the rows. "
    "Replayed on a clock where all products take as long as all all-reduces, kernels may wait for "
    "no more than the last all-reduce of each direction: a quarter.",
    starter="""def part(x, up, down):
    h = (x @ up.t()).relu()
    return h @ down.t(), h


def part_back(h, up, down, grad):
    return (grad @ down * (h > 0)) @ up


def merak_halves(x, up1, down1, up2, down2, grad, mesh):
    # x, grad: [rows, H]; up: [F/tp, H]; down: [H, F/tp]
    total = lambda t: dist.all_reduce(t, group=mesh.get_group("tp"))
    a, h1 = part(x, up1, down1)
    total(a)
    y = x + a
    b, h2 = part(y, up2, down2)
    total(b)
    dn = part_back(h2, up2, down2, grad)
    total(dn)
    dy = grad + dn
    dn = part_back(h1, up1, down1, dy)
    total(dn)
    return torch.cat([y + b, dy + dn])""",
    concept="Write down eight lines: part 1 of half 1, part 1 of half 2, part 2 of half 1, part 2 "
    "of half 2, and backward. Which all-reduce does each line need, and when was it started?",
    principle="Part 1 of half 1, start its all-reduce; part 1 of half 2, start; wait for half 1, "
    "y1 = x1 + a1, part 2 of half 1, start; wait for half 2, .... Keep a list of h for each half: "
    "the residual of half 2 is y2. And the gradient also passes along each residual.",
    shape="Lists of two for x, both h and the handles. Two nested loops, parts outside, halves "
    "inside. Their body: finish the all-reduce that this half waits for, compute, start "
    "the next. Backward is the same, with both loops reversed.",
    success="`tv.Merak(tp=2, subpipeline=2)` does so in every block, and `subpipeline=3` overlaps "
    "a block's last all-reduce with the next block. It pays if half a microbatch fills the device.",
    make=_make_halves,
    sends=lambda axes, case: [("tp", "all_reduce", 8, case.inputs[0][0].nbytes // 2)],
    judges=(
        silent(
            "the trace shows no collective. Each rank along tp has a part of the inner features: "
            "each part of the block returns a partial sum."
        ),
        right_axes,
        right_shape,
        _stranger,
        _no_skip,
        Mistake(
            lambda a: not a.right and a.matches(_turned),
            "the halves are right but in the wrong order: backward begins with the second.",
        ),
        right_numbers,
        fewest_bytes,
        Mistake(
            lambda a: a.count("all_reduce") != 8 and a.all_right,
            "the numbers are right, but the trace shows {a}: two parts, two halves, forward and "
            "backward make 8 all-reduces of half the rows.",
        ),
        _hidden,
    ),
    worlds=({"dp": 2, "tp": 2},),
)
