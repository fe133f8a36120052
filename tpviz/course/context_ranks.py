"""The exercise of notebook 14 on real ranks: ring attention, known by its numbers, its messages and
its blocks."""

import numpy as np

from .atp_layers import timeline
from .checks import Attempt, Case, Mistake, RankProgram, right_numbers, right_shape, silent
from .told import told
from .variants import Variants


# -- attention in blocks, of all ranks at once -----------------------------------------------------
def _scores(q, k, scale=True):
    return q @ k.T * (q.shape[1] ** -0.5 if scale else 1)


def _block(q, k, v, masked=False, scale=True):
    """(output, log-sum-exps) of one block; masked: its upper triangle."""
    scores = _scores(q, k, scale)
    if masked:
        scores = np.where(np.tri(*scores.shape), scores, -np.inf)
    sums = np.logaddexp.reduce(scores, 1)
    return np.exp(scores - sums[:, None]) @ v, sums


MERGES = "merged: old", "merged: new", "merged: added", "merged: mean", "merged: sums stay"
"""Mistakes in merging blocks."""


def _merged(blocks, how=""):
    """The output of blocks, right or with a mistake."""
    (out, sums), *others = blocks
    for more, of_more in others:
        both = np.logaddexp(sums, of_more)
        old, new = (np.exp(one - both)[:, None] for one in (sums, of_more))
        if how in ("merged: old", "merged: added", "merged: mean"):
            old = np.ones_like(old)
        if how in ("merged: new", "merged: added", "merged: mean"):
            new = np.ones_like(new)
        out, sums = out * old + more * new, sums if how == "merged: sums stay" else both
    return out / len(blocks) if how == "merged: mean" else out


def _ring(inputs, masked=lambda rank, other: rank == other, hops=None, how="", **more):
    """What each rank returns. masked: whether a block has a mask, None if it is left out; hops: how
    many; keys, values: (rank, position) -> whose they are; scale."""
    n, found = len(inputs), []
    whose = lambda rank, position: (rank - position) % n
    keys, values = (more.pop(name, whose) for name in ("keys", "values"))
    for rank in range(n):
        blocks = []
        for position in range(n if hops is None else hops + 1):
            mask = masked(rank, whose(rank, position))
            if mask is not None:
                k, v = inputs[keys(rank, position)][1], inputs[values(rank, position)][2]
                blocks.append(_block(inputs[rank][0], k, v, mask, **more))
        found.append(_merged(blocks, how))
    return found


def causal(rank: int, other: int) -> bool | None:
    """Whether a block has a mask; None where it is masked as a whole."""
    return rank == other if other <= rank else None


def _make(rng, axes):
    tokens, size = int(rng.integers(3, 6)), int(rng.integers(4, 9))
    shape = axes["world"], 3, tokens, size
    inputs = [tuple(np.ascontiguousarray(one) for one in own) for own in rng.normal(size=shape)]
    return Case(inputs, _ring(inputs, causal))


def _sends(axes, case):
    hops, message = axes["world"] - 1, 2 * case.inputs[0][1].nbytes
    return [("world", name, hops, message) for name in ("send", "recv")]


# -- what goes wrong -------------------------------------------------------------------------------
def _variants(attempt):
    inputs, n, say = attempt.case.inputs, attempt.size, RING.say
    own = lambda rank, position: rank
    yield say("own block alone"), _ring(inputs, causal, 0)
    yield say("no mask"), _ring(inputs, lambda rank, other: False)
    yield say("own mask on every block"), _ring(inputs, lambda r, o: True if o <= r else None)
    yield say("own mask on all, later too"), _ring(inputs, lambda rank, other: True)
    yield say("own block not masked"), _ring(inputs, lambda r, o: False if o <= r else None)
    yield say("later blocks too"), _ring(inputs)
    yield say("earlier and later exchanged"), _ring(inputs, lambda r, o: r == o if o >= r else None)
    for how in MERGES:
        for mask in (causal, lambda rank, other: rank == other):
            yield say(how), _ring(inputs, mask, how=how)
    yield say("values stay"), _ring(inputs, causal, values=own)
    yield say("keys stay"), _ring(inputs, causal, keys=own)
    yield say("keys stay") + say("values too"), _ring(inputs, causal, keys=own, values=own)
    other_way = lambda rank, position: (rank + position) % n
    yield say("wrong owner"), _ring(inputs, causal, keys=other_way, values=other_way)
    yield say("not scaled"), _ring(inputs, causal, scale=False)
    for hops in range(1, n - 1):
        yield say("hops are missing", hops=hops, needed=n - 1), _ring(inputs, causal, hops)


def _blocks(attempt):
    """A rank that multiplies more than the blocks up to its own."""
    tokens, size = attempt.case.inputs[0][0].shape
    for rank in range(attempt.size):
        done = attempt.trace.select(rank=rank)["flops"].sum() / (4 * tokens**2 * size)
        if done > rank + 1.01:
            return RING.say("blocks in vain", rank=rank, done=done, needed=rank + 1)


def _exposed(attempt):
    """Whether no block is computed while a message is in flight, on the rank that has all."""
    flying, found = set(), False
    for what, number, _ in timeline(attempt.trace, attempt.size - 1):
        if what == "kernel":
            found |= bool(flying)
        else:
            (flying.add if what == "issue" else flying.discard)(number)
    return not found


def _round(attempt: Attempt):
    """A message that skips a rank."""
    members = np.unique(attempt.trace.select(kind="comm", name="send")["members"]).tolist()
    for sender, receiver in (map(int, pair.split(",")) for pair in members):
        if (receiver - sender) % attempt.size not in (1, attempt.size - 1):
            return RING.say("no ring", sender=sender, receiver=receiver)


RING = RankProgram(
    **told("cp_ring"),
    make=_make,
    sends=_sends,
    judges=(
        silent,
        Mistake(
            "is a collective",
            lambda a: "`, `".join(sorted(a.names() - {"send", "recv", "barrier"})),
        ),
        right_shape,
        Variants(_variants),
        right_numbers,
        _round,
        Mistake("last hop", lambda a: a.sent > a.least),
        Mistake("fewer bytes", lambda a: a.sent < a.least),
        _blocks,
        Mistake("in flight", _exposed),
    ),
)
