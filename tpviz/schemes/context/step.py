"""Attention of a part of the sequences as data: its blocks, and what travels between (derived).

With n ranks, T = B S / n tokens of a rank, N heads of queries of D numbers, K of keys and as many
of values, b bytes a number and b' = max(b, 4), a rank sends for one attention:

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
last message of gradients, the reduce-scatter and the all-to-alls are exposed. With Ulysses over u
ranks inside a ring of n, the all-to-alls are the last row's for T of a rank, and a rank of the ring
has u T tokens of N / u and K / u heads, as many bytes.

Under "ring" ranks differ: this is the last one, which has a block in every position, so that all
others wait for it. Where documents are packed, ranks of all rings differ, and this is the one with
most to do; in some positions others may have more, which the formula leaves out.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

from tpviz.core.step import RING_SHIFT, Collective, Operation, Operations
from tpviz.schemes.gpt.kernels import attention, whole

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

    from .sequence import SequenceCut


def operations(
    cut: "SequenceCut", w: "GPT", heads: int, keys: int, rank: int | None = None
) -> tuple[list[Operation], list[Operation]]:
    """Implements `sequence.SequenceCut.operations`."""
    axis, n = cut.exchange
    forward, backward = _inside(cut, w, heads // n, keys // n, rank)
    if n == 1:
        return [*forward], [*backward]
    features = w.batch * w.seq * w.head_size * w.itemsize
    packed = Collective(axis, "all_to_all", (heads + 2 * keys) * features)
    result = Collective(axis, "all_to_all", heads * features)
    return [packed, *forward, result], [result, *backward, packed]


@lru_cache(maxsize=256)
def _inside(cut, w, heads, keys, rank):
    """Of the tokens and heads that a rank has between the exchanges."""
    if cut.ring == 1:
        return whole(w, heads, keys)
    busiest = cut.busiest(w.lengths) if rank is None else rank
    forward, backward = _kernels(cut, w, heads, keys, busiest)
    tokens = w.batch * w.num_positions // cut.ring
    size, wide = (2 * tokens * keys * w.head_size * b for b in (w.itemsize, max(w.itemsize, 4)))
    return _forward(cut, forward, size), _backward(cut, backward, size, wide)


def _kernels(cut, w, heads, keys, rank):
    """(forward, backward), each [kernels of a position, one a block]."""

    def kernels(one):
        rows, columns = (part.stop - part.start for part in one[:2])
        return attention(w.batch, heads, rows, w.head_size, w.itemsize, keys, one.causal, columns)

    blocks = [
        [kernels(one) for one in cut.rectangles(w.lengths, rank, other)]
        for other in cut.passing(rank)
    ]
    return ([[both[way] for both in some] for some in blocks] for way in (0, 1))


def _forward(cut, kernels, size):
    made, ticket = Operations(), None
    if cut.kind == "all_gather":
        return _gathered(cut, made, kernels, size)
    for position, blocks in enumerate(kernels):
        made.wait(ticket)
        if position < cut.ring - 1:
            ticket = made.issue(Collective("cp", RING_SHIFT, size))
        made += blocks
    return made


def _gathered(cut, made, kernels, size):
    own, *others = kernels
    ticket = made.issue(Collective("cp", "all_gather", cut.ring * size))
    made += own
    made.wait(ticket)
    made += [kernel for blocks in others for kernel in blocks]
    return made


def _backward(cut, kernels, size, wide):
    made = Operations()
    if cut.kind == "all_gather":
        _gathered(cut, made, kernels, size)
        made.append(Collective("cp", "reduce_scatter", cut.ring * wide))
        return made
    coming = summed = None
    for position, blocks in enumerate(kernels):
        made.wait(coming)
        if position < cut.ring - 1:
            coming = made.issue(Collective("cp", RING_SHIFT, size))
        made += blocks
        made.wait(summed)
        summed = made.issue(Collective("cp", RING_SHIFT, wide))
    made.wait(summed)
    return made
