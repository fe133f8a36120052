"""Interleaved 1F1B, and ZB-H1: 1F1B whose weight gradients wait, so that they fill bubbles.

Each rank has v chunks; stage c p + s is chunk c of rank s. Microbatches go in rounds of p: a round
on chunk 0, then on chunk 1, .., then the next round; backward through the chunks from the last.
Rank s does w forwards, then a forward and a backward in turn, then the backwards left:

    interleaved (arXiv 2104.04473, Megatron-LM)    w = (v - 1) p + 2 (p - 1 - s)
    ZB-H1 (arXiv 2401.10241)                       w = (v - 1) p + (p - 1 - s)

ZB-H1 makes the gradient of the input (I) where 1F1B runs backward, and that of the weights (W)
``s`` backwards later: then each rank holds what rank 0 holds in 1F1B. The paper has v = 1; with
more chunks it is PyTorch's interleaved zero bubble.

>>> print(finish("mine", zb_h1(2, 3, 1), 3, False))
s0: F0 F1 I0 W0 F2 I1 W1 I2 W2
s1: F0 I0 F1 I1 W0 F2 I2 W1 W2
"""

from .actions import Action
from .plan import Plan, finish, looped  # noqa: F401  (finish: for the example)


def in_rounds(p: int, m: int, chunks: int) -> None:
    """Raise ``ValueError`` if ranks have several chunks and m is not a multiple of p."""
    if chunks > 1 and m % p:
        near = [x for x in (m - m % p, m - m % p + p) if x]
        raise ValueError(
            f"several stages on each rank take microbatches in rounds of {p}, one a "
            f"rank; {m} are no whole number of rounds: use microbatches="
            f"{' or '.join(map(str, near))}"
        )


def interleaved_1f1b(p: int, m: int, chunks: int) -> Plan:
    """1F1B over several chunks of each rank: a smaller bubble for more messages and activations."""
    rows = [_row(rank, p, m, chunks, 2 * (p - 1 - rank)) for rank in range(p)]
    return Plan(looped(p, chunks), rows, (True,) * p * chunks)


def zb_h1(p: int, m: int, chunks: int) -> Plan:
    """1F1B with the backward split, the bubble a third as long, and no more activations."""
    rows = [_split(_row(rank, p, m, chunks, p - 1 - rank), rank) for rank in range(p)]
    return Plan(looped(p, chunks), rows, (True,) * p * chunks)


def _row(rank, p, m, chunks, ahead):
    """A rank's forwards and backwards; ``ahead``: warm-up forwards of its last chunk."""
    rounds = [range(first, min(first + p, m)) for first in range(0, m, p)]
    forwards, backwards = (
        [Action(kind, chunk * p + rank, i) for some in rounds for chunk in order for i in some]
        for kind, order in (("F", range(chunks)), ("B", range(chunks)[::-1]))
    )
    warmup = min((chunks - 1) * p + ahead, m * chunks)
    row = forwards[:warmup]
    for forward, backward in zip(forwards[warmup:], backwards):
        row += [forward, backward]
    return row + backwards[m * chunks - warmup :]


def _split(row, lag):
    """Backwards split into I, in their place, and W: that of the backward ``lag`` before it."""
    found, waiting = [], []
    for action in row:
        if action.kind == "F":
            found.append(action)
            continue
        found.append(action._replace(kind="I"))
        waiting.append(action._replace(kind="W"))
        if len(waiting) > lag:
            found.append(waiting.pop(0))
    return found + waiting
