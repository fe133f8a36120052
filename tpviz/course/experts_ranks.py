"""The exercise of notebook 15 on real ranks: rows to experts and back, known by its numbers, its
bytes and its products."""

from typing import Any

import numpy as np

from .checks import Case, Mistake, RankProgram, right_numbers, right_shape, silent, whole_numbers
from .told import told
from .variants import Variants

EACH, K, HIDDEN = 2, 2, 8
"""Experts of a rank, experts of a token, features."""


# -- all ranks at once -----------------------------------------------------------------------------
def _results(inputs, applied=None):
    """Of each rank the results [T, K, H] of its rows, by the expert that was chosen or by
    ``applied``, of the same shape."""
    stack = np.concatenate([own[3] for own in inputs])
    chosen = [own[1] for own in inputs] if applied is None else applied
    return [
        np.maximum(np.einsum("th,tkhg->tkg", own[0], stack[of]), 0)
        for own, of in zip(inputs, chosen)
    ]


def _combined(inputs, results=None):
    """What each rank returns."""
    results = _results(inputs) if results is None else results
    return [(own[2][..., None] * rows).sum(1) for own, rows in zip(inputs, results)]


def _numbers(inputs):
    """Rows from each rank to each, [from, to]."""
    n = len(inputs)
    return np.array([np.bincount(own[1].ravel() // EACH, minlength=n) for own in inputs])


def _make(rng, axes):
    n = axes["world"]
    tokens, hot = int(rng.integers(4, 7)), rng.permutation(n * EACH)
    inputs: list[tuple[Any, ...]] = []
    for _ in range(n):
        liking = rng.random((tokens, n * EACH)) + 0.5 * (hot < 2)
        experts = np.argsort(-liking, 1)[:, :K].copy()
        x, mine = whole_numbers(rng, tokens, HIDDEN), whole_numbers(rng, EACH, HIDDEN, HIDDEN)
        inputs.append((x, experts, rng.integers(1, 6, (tokens, K)).astype(np.float32), mine))
    rows = int(_numbers(inputs).sum(0).max())
    return Case(inputs, _combined(inputs), flops=2 * rows * HIDDEN**2)


def _sends(axes, case):
    """Of the rank that sends the most: numbers of rows, and rows both ways."""
    rows = _numbers(case.inputs)
    others = rows * ~np.eye(len(rows), dtype=bool)
    rank = int((others.sum(0) + others.sum(1)).argmax())
    yield "world", "all_to_all", 1, 8 * EACH * axes["world"]
    for moved in (others[rank].sum(), others[:, rank].sum()):
        yield "world", "all_to_all_v", 1, 4 * HIDDEN * int(moved)


# -- what goes wrong -------------------------------------------------------------------------------
def _orders(inputs):
    return [np.argsort(own[1].ravel(), kind="stable") for own in inputs]


def _in_order(results, orders):
    return [r.reshape(-1, HIDDEN)[o].reshape(r.shape) for r, o in zip(results, orders)]


def _as_they_came(inputs):
    """The experts that compute rows which lie rank after rank as if expert after expert."""
    applied = [np.empty(own[1].size, int) for own in inputs]
    for rank in range(len(inputs)):
        places = [
            (source, place)
            for source, (own, order) in enumerate(zip(inputs, _orders(inputs)))
            for place in order
            if own[1].ravel()[place] // EACH == rank
        ]
        chosen = sorted(inputs[source][1].ravel()[place] for source, place in places)
        for (source, place), expert in zip(places, chosen):
            applied[source][place] = expert
    return [of.reshape(own[1].shape) for of, own in zip(applied, inputs)]


def _variants(attempt):
    inputs, say = attempt.case.inputs, DISPATCH.say
    results, orders = _results(inputs), _orders(inputs)
    yield say("no weights"), [rows.sum(1) for rows in results]
    yield say("mean of experts"), [rows.mean(1) for rows in results]
    yield (
        say("shares of weights"),
        [one / own[2].sum(1, keepdims=True) for one, own in zip(attempt.case.expected, inputs)],
    )
    back = _in_order(results, orders)
    yield say("not put back"), _combined(inputs, back)
    yield say("put back twice"), _combined(inputs, _in_order(back, orders))
    yield say("put back unweighed"), [rows.sum(1) for rows in back]
    sorted_weights = [own[2].ravel()[o].reshape(-1, K) for own, o in zip(inputs, orders)]
    yield (
        say("weights are sorted"),
        [(w[..., None] * rows).sum(1) for w, rows in zip(sorted_weights, results)],
    )
    yield say("as they came"), _combined(inputs, _results(inputs, _as_they_came(inputs)))
    for expert in range(EACH):
        applied = [own[1] // EACH * EACH + expert for own in inputs]
        yield say("one expert", expert=expert), _combined(inputs, _results(inputs, applied))
    applied = [rank * EACH + own[1] % EACH for rank, own in enumerate(inputs)]
    yield say("own experts"), _combined(inputs, _results(inputs, applied))
    for choice, other in ((0, "second"), (1, "first")):
        wrong = [own[2][:, choice, None] * r[:, choice] for own, r in zip(inputs, results)]
        yield say("one choice", other=other), wrong
    yield (
        say("not sent out"),
        _combined(
            inputs,
            [
                r * (own[1] // EACH == i)[..., None]
                for i, (r, own) in enumerate(zip(results, inputs))
            ],
        ),
    )


def _gathered(attempt):
    """A collective that has all tokens, or their results, in its payload."""
    tokens = len(attempt.case.inputs[0][0]) * attempt.size
    found = [row for row in attempt.ledger if row.collective in _WHOLE]
    return any(row.payload_bytes / row.count >= 4 * HIDDEN * tokens for row in found)


_WHOLE = {"all_gather", "broadcast", "all_reduce", "reduce_scatter"}


def _padded(attempt):
    """More bytes than those of rows, their numbers, and the number of an expert for each row."""
    rows = attempt.case.inputs[0][1].size
    return attempt.sent > attempt.least + 8 * (rows + 2 * EACH * attempt.size)


DISPATCH = RankProgram(
    **told("moe_dispatch"),
    make=_make,
    sends=_sends,
    judges=(
        silent,
        right_shape,
        Variants(_variants),
        right_numbers,
        Mistake("gathered", _gathered),
        Mistake("padded", _padded),
        Mistake("in vain", lambda a: a.flops > a.case.flops and a.extra_work),
    ),
)
