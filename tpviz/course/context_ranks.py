"""The exercise of notebook 14 on real ranks: ring attention, known by its numbers, its messages and
its blocks."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .atp_layers import timeline
from .checks import Case, Mistake, RankProgram, right_numbers, right_shape, silent
from .context import positions
from .told import told
from .variants import Variants


# -- attention in blocks, of all ranks at once -----------------------------------------------------
def _block(q, k, v, seen, scale=True):
    """(output, log-sum-exps) of one block, of the keys ``seen`` by a query; of none 0, -inf."""
    scores = np.where(seen, q @ k.T * (q.shape[1] ** -0.5 if scale else 1), -np.inf)
    sums = np.logaddexp.reduce(scores, 1)
    return np.exp(scores - np.where(np.isfinite(sums), sums, 0)[:, None]) @ v, sums


_MERGED = "merged: old", "merged: new", "merged: added", "merged: mean", "merged: sums stay"


def _merged(blocks, how=""):
    """The output of blocks, right or with a mistake."""
    (out, sums), *others = blocks
    for more, of_more in others:
        both = np.logaddexp(sums, of_more)
        old, new = (np.exp(one - both)[:, None] for one in (sums, of_more))
        out = out * (1 if how in ("old", "added", "mean") else old)
        out = out + more * (1 if how in ("new", "added", "mean") else new)
        sums = sums if how == "sums stay" else both
    return out / (sum(np.isfinite(of)[:, None] for _, of in blocks) if how == "mean" else 1)


def _ring(inputs, seen=None, hops=None, how="", by=1, **more):
    """What each rank returns. seen: (rank, other) -> which keys of the other its queries see, by
    default those of `causal`; hops: how many; by: whose keys are there after one hop, from the
    rank on; keys, values: (rank, position) -> whose they are; scale."""
    n, seen = len(inputs), seen or causal(inputs)
    whose = lambda rank, position: (rank + by * position) % n
    keys, values = (more.pop(name, whose) for name in ("keys", "values"))

    blocks = lambda rank: [
        _block(inputs[rank][0], inputs[k][1], inputs[v][2], seen(rank, whose(rank, p)), **more)
        for p in range(n if hops is None else hops + 1)
        for k, v in [(keys(rank, p), values(rank, p))]
    ]
    return [_merged(blocks(rank), how) for rank in range(n)]


def causal(inputs: list[Any], kind: str = "zigzag") -> Callable[[int, int], Any]:
    """The function of (rank, other) for `_ring` that is right if the sequence is cut so."""
    n, tokens = len(inputs), len(inputs[0][0])
    places = [positions(kind, rank, n, n * tokens) for rank in range(n)]
    return lambda rank, other: np.greater_equal.outer(places[rank], places[other])


def _make(rng, axes):
    tokens, size = 2 * int(rng.integers(2, 5)), int(rng.integers(4, 9))
    shape = axes["world"], 3, tokens, size
    inputs = [tuple(np.ascontiguousarray(one) for one in own) for own in rng.normal(size=shape)]
    return Case(inputs, _ring(inputs))


def _sends(axes, case):
    hops, message = axes["world"] - 1, 2 * case.inputs[0][1].nbytes
    return [("world", name, hops, message) for name in ("send", "recv")]


# -- what goes wrong -------------------------------------------------------------------------------
def _masks(inputs):
    """{mistake: what is seen of (the own block, an earlier rank's, a later one's)}."""
    whole = np.ones((len(inputs[0][0]),) * 2, bool)
    early = whole & (np.arange(len(whole)) < len(whole) // 2)  # keys of the first chunk
    own, late, none = np.tril(whole), ~early.T, ~whole
    return {
        "no mask": (whole, whole, whole),
        "own mask on every block": (own, own, own),
        "own block not masked": (whole, early, late),
        "whole blocks": (own, whole, whole),
        "late keys": (own, whole, late),
        "early queries": (own, early, whole),
        "later left out": (own, early, none),
        "earlier and later exchanged": (own, late, early),
    }


def _variants(attempt):
    inputs, n, say = attempt.case.inputs, attempt.size, RING.say
    own = lambda rank, position: rank
    yield say("own block alone"), _ring(inputs, hops=0)
    yield say("contiguous"), _ring(inputs, causal(inputs, "ring"))
    for key, masks in _masks(inputs).items():
        # the index: 0 own, 1 an earlier rank's, -1 a later one's
        yield say(key), _ring(inputs, lambda r, o, masks=masks: masks[(r > o) - (r < o)])
    yield say("values stay"), _ring(inputs, values=own)
    yield say("keys stay"), _ring(inputs, keys=own)
    yield say("keys stay") + say("values too"), _ring(inputs, keys=own, values=own)
    yield say("not scaled"), _ring(inputs, scale=False)
    for by in (1, -1):
        for key in _MERGED:
            yield say(key), _ring(inputs, how=key.removeprefix("merged: "), by=by)
        other_way = lambda rank, position, by=by: (rank - by * position) % n
        yield say("wrong owner"), _ring(inputs, by=by, keys=other_way, values=other_way)
        for hops in range(1, n - 1):
            yield say("hops are missing", hops=hops, needed=n - 1), _ring(inputs, hops=hops, by=by)


def _blocks(attempt):
    """A rank that multiplies more than its own block and half of each other one."""
    tokens, size = attempt.case.inputs[0][0].shape
    needed = (attempt.size + 1) / 2
    for rank in range(attempt.size):
        done = attempt.trace.select(rank=rank)["flops"].sum() / (4 * tokens**2 * size)
        if done > needed + 0.01:
            return RING.say("blocks in vain", rank=rank, done=done, needed=needed)


def _exposed(attempt):
    """Whether no block is computed while a message is in flight."""
    flying, found = set(), False
    for what, number, _ in timeline(attempt.trace, attempt.size - 1):
        if what == "kernel":
            found |= bool(flying)
        else:
            (flying.add if what == "issue" else flying.discard)(number)
    return not found


def _round(attempt):
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
        Mistake("collective", lambda a: min(a.names() - {"send", "recv", "barrier"}, default="")),
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
