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
from .told import told
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
    yield TIES.say("first and last have the gradient"), at_ends(own, own)
    for k in range(m):
        both, own_k = inputs[0][k] + inputs[last][k], lambda rank, k=k: inputs[rank][k]
        yield (
            TIES.say("only microbatch counts", k=k, m=m),
            at_ends(lambda rank, both=both: both, own_k),
        )
    zeros, times = lambda rank: 0 * want[rank], lambda rank: m * want[rank]
    yield TIES.say("return zeros they have own weights"), at_ends(right, zeros)
    yield TIES.say("return the gradient of the shared"), at_ends(right, lambda rank: want[0])
    yield TIES.say("added and the ranks"), at_ends(right, times)
    yield TIES.say("first and last have times", m=m), at_ends(times, right)
    yield TIES.say("mean is divided", m=m), [one / m for one in want]
    n = len(inputs)
    yield TIES.say("sum over all stages", stages=n), [sum(means) / n] * n
    for rank in range(1, last):
        added = at_ends(lambda end, rank=rank: want[0] + means[rank], own)
        yield TIES.say("added to the gradient of rank", rank=rank), added
    yield TIES.say("last stage is added"), [one + means[last] for one in means]
    yield TIES.say("first stage is added"), [one + means[0] for one in means]


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
        return TIES.say("every number is times too large", m=m)
    if any(attempt.equals(ends(lambda grads, by=by: grads[-1] / by)) for by in (1, m)):
        return TIES.say("only the last microbatch is left")


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
        return TIES.say("each of microbatches was sent separately", m=m, attempt=attempt)


TIES = RankProgram(
    **told("merak_ties"),
    make=_make_ties,
    sends=lambda axes, case: [("ends", "all_reduce", 1, case.expected[0].nbytes)],
    judges=(
        silent,
        right_shape,
        _by_microbatch,
        Mistake("you all-reduced over all stages", _summed_over_all_stages),
        Mistake("first and last have half", _ends_averaged),
        Mistake(
            "one end has the sum",
            lambda a: len(a.right) == a.size - 1 and not {0, a.size - 1} <= set(a.right),
        ),
        Variants(_ties_variants),
        right_numbers,
        _for_each,
        Mistake(
            "rank takes part but has no",
            lambda a: [rank for rank in range(1, a.size - 1) if a.trace.ledger(rank=rank)],
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
            return HALVES.say("first half is right")


def _no_skip(attempt):
    """Judge: backward of the residual."""
    row = lambda rank: _row_of(attempt.case, attempt.axes, rank)
    if attempt.equals(lambda rank: np.concatenate(_block(row(rank), skip=False)[1:])):
        return HALVES.say("z is right")


def _turned(want):
    return np.concatenate(
        [part for pair in np.split(want, 2) for part in reversed(np.split(pair, 2))]
    )


def _hidden(attempt):
    waits = exposed(attempt.trace)
    if waits > 0.26:
        kinds = [what for what, _, amount in timeline(attempt.trace) if amount or what == "wait"]
        return HALVES.say(
            "if products and all-reduces took equally", waits=waits, order=" > ".join(kinds)
        )


HALVES = RankProgram(
    **told("merak_halves"),
    make=_make_halves,
    sends=lambda axes, case: [("tp", "all_reduce", 8, case.inputs[0][0].nbytes // 2)],
    judges=(
        silent,
        right_axes,
        right_shape,
        _stranger,
        _no_skip,
        Mistake("halves are right", lambda a: not a.right and a.matches(_turned)),
        right_numbers,
        fewest_bytes,
        Mistake("the trace shows", lambda a: a.count("all_reduce") != 8 and a.all_right),
        _hidden,
    ),
    worlds=({"dp": 2, "tp": 2},),
)
