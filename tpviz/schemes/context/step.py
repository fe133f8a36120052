"""Attention of a part of the sequences as data: its blocks, and what travels between (derived).

With n = cp ranks, T = B S / n tokens of a rank, K heads of D numbers of keys and as many of values,
b bytes a number and b' = max(b, 4), a rank sends for one attention:

============  =============================================  ======================================
kind          forward                                        backward
============  =============================================  ======================================
ring, zigzag  n - 1 messages of 2 T K D b                    the same again, and n of 2 T K D b'
all_gather    an all-gather of 2 n T K D b                   the same again, and a reduce-scatter of
                                                             2 n T K D b'
ulysses       an all-to-all of T (N + 2 K) D b, and one of   the same, the other way round
              T N D b
============  =============================================  ======================================

A message of keys and values travels while the blocks of the one before are computed, a message of
their gradients while those of the next are. The all-gather travels under a rank's own blocks. The
last message of gradients, the reduce-scatter and the all-to-alls are exposed.

Under "ring" ranks differ: this is the last one, which has a block in every position, so that all
others wait for it.
"""

from typing import TYPE_CHECKING

from tpviz.core.step import RING_SHIFT, Collective, Operation, Operations
from tpviz.schemes.gpt.kernels import attention

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

    from .sequence import SequenceCut


def operations(
    cut: "SequenceCut", w: "GPT", heads: int, keys: int, rank: int | None = None
) -> tuple[list[Operation], list[Operation]]:
    """Implements `sequence.SequenceCut.operations`."""
    if cut.kind == "ulysses":
        return _exchanged(cut, w, heads, keys)
    size, wide = (_bytes(w, keys, item) for item in (w.itemsize, max(w.itemsize, 4)))
    forward, backward = _kernels(cut, w, heads, keys, cut.busiest if rank is None else rank)
    return _forward(cut, forward, size), _backward(cut, backward, size, wide)


def _exchanged(cut, w, heads, keys):
    n, features = cut.cp, w.batch * w.seq * w.head_size * w.itemsize
    packed = Collective(cut.axis, "all_to_all", (heads + 2 * keys) * features)
    result = Collective(cut.axis, "all_to_all", heads * features)
    forward, backward = attention(
        w.batch, heads // n, w.seq * n, w.head_size, w.itemsize, keys // n
    )
    return [packed, forward, result], [result, backward, packed]


def _kernels(cut, w, heads, keys, rank):
    """(forward, backward), each [kernels of a position, one a block]."""
    size = w.seq // cut.each
    of = {
        causal: attention(w.batch, heads, size, w.head_size, w.itemsize, keys, causal)
        for causal in (False, True)
    }
    blocks = [cut.blocks(rank, other) for other in cut.passing(rank)]
    return ([[of[causal][way] for *_, causal in some] for some in blocks] for way in (0, 1))


def _bytes(w, keys, item):
    return 2 * w.batch * w.seq * keys * w.head_size * item


def _forward(cut, kernels, size):
    made, ticket = Operations(), None
    if cut.kind == "all_gather":
        return _gathered(cut, made, kernels, size)
    for position, blocks in enumerate(kernels):
        made.wait(ticket)
        if position < cut.cp - 1:
            ticket = made.issue(Collective(cut.axis, RING_SHIFT, size))
        made += blocks
    return made


def _gathered(cut, made, kernels, size):
    own, *others = kernels
    ticket = made.issue(Collective(cut.axis, "all_gather", cut.cp * size))
    made += own
    made.wait(ticket)
    made += [kernel for blocks in others for kernel in blocks]
    return made


def _backward(cut, kernels, size, wide):
    made = Operations()
    if cut.kind == "all_gather":
        _gathered(cut, made, kernels, size)
        made.append(Collective(cut.axis, "reduce_scatter", cut.cp * wide))
        return made
    coming = summed = None
    for position, blocks in enumerate(kernels):
        made.wait(coming)
        if position < cut.cp - 1:
            coming = made.issue(Collective(cut.axis, RING_SHIFT, size))
        made += blocks
        made.wait(summed)
        summed = made.issue(Collective(cut.axis, RING_SHIFT, wide))
    made.wait(summed)
    return made
