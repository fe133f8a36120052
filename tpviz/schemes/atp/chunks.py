"""How long a linear layer takes whose sum runs in chunks beside its GEMM: T(C), and the best C.

g seconds of GEMM, a seconds of transfer of the all-reduce, alpha seconds of latency of each
collective, kappa: a GEMM takes kappa times as long while a collective is in flight (1: no
contention). C equal chunks, each w = g / C of GEMM, then t = a / C + alpha of collective that the
next GEMMs do not wait for. The first GEMM runs alone. Later ones are slow where they are under a
collective: one that outlasts it (t < kappa w) by t (1 - 1/kappa), else all of it. So (derived)

    T(C) = max(g + (C - 1) (1 - 1/kappa) t + t,  w + C t)                             forward
    T    = g_d + max(a, g_w + (1 - 1/kappa) a)                                        backward

the left side if the GEMMs are the longer lane, the right side if the all-reduces are; a backward
layer's ``a`` includes its latency. With kappa = 1 that is a `tpviz.core.step.Chunks`. The simpler
g_d + max(a, kappa g_w) is the same for a >= kappa g_w, and too much if they end earlier.

The best C, not rounded (derived: both sides are convex in C and meet at C = (kappa g - a)/alpha):

    GEMMs longer, kappa > 1     sqrt(a / ((kappa - 1) alpha)), if that is before they meet
    sums longer                 sqrt(g / alpha), if that is after they meet
    otherwise                   where they meet

So without contention chunks are free while the all-reduces stay hidden: only the last is exposed.

>>> layer = ChunkedLayer(gemm=8.0, sending=8.0, latency=0.5)
>>> [layer.seconds(chunks) for chunks in (1, 2, 4, 8)], layer.optimum, layer.best((1, 2, 4, 8))
([16.5, 13.0, 12.0, 13.0], 4.0, 4)
"""

from collections.abc import Callable, Iterable
from math import ceil, floor, inf, sqrt
from typing import TYPE_CHECKING, NamedTuple

from tpviz.core.checks import number, whole_number
from tpviz.core.step import Chunks, Overlapped, PairInChunks, flat
from tpviz.schemes.strategy import step_of

if TYPE_CHECKING:
    from tpviz.cluster.clock.queues import Transfer
    from tpviz.core.step import Collective, Kernel
    from tpviz.core.workload import GPT

    from .strategy import ATP


class ChunkedLayer(NamedTuple):
    """A linear layer's forward: seconds of its whole GEMM and all-reduce; kappa of contention."""

    gemm: float
    sending: float
    latency: float = 0.0
    kappa: float = 1.0

    def seconds(self, chunks: int) -> float:
        """T(C): seconds from the start of the first GEMM to the end of the last all-reduce."""
        g, a, alpha, kappa = self
        whole_number("chunks", chunks)
        one = a / chunks + alpha
        slowed = (chunks - 1) * (1 - 1 / kappa) * one
        return max(g + slowed + one, g / chunks + chunks * one)

    def exposed(self, chunks: int) -> float:
        """T(C) - g: the time that the all-reduce adds to the GEMM, by waiting and by contention."""
        return self.seconds(chunks) - self.gemm

    @property
    def optimum(self) -> float:
        """The best number of chunks, not rounded, 1 or more; infinite without latency."""
        g, a, alpha, kappa = self
        if not a:
            return 1.0  # nothing to hide
        if not alpha:
            return inf
        meet = (kappa * g - a) / alpha
        slow = sqrt(a / ((kappa - 1) * alpha)) if kappa > 1 else inf
        return max(1.0, slow if slow <= meet else max(meet, sqrt(g / alpha)))

    def best(self, counts: Iterable[int] | None = None) -> int:
        """The fastest number of chunks in ``counts``, or of all numbers; of equals the smallest.

        Raises ``ValueError`` without ``counts`` if more chunks are always faster.
        """
        if counts is None:
            if self.optimum == inf:
                raise ValueError(
                    "without latency more chunks are always better: give the counts "
                    "to choose from, as in (1, 2, 4, 8)"
                )
            counts = {floor(self.optimum), ceil(self.optimum)}
        counts = [whole_number("chunks", count) for count in counts]
        if not counts:
            raise ValueError("no counts to choose from: give some, as in (1, 2, 4, 8)")
        return min(counts, key=lambda count: (self.seconds(count), count))


def backward(of_input: float, of_weight: float, moved: float, kappa: float = 1.0) -> float:
    """Seconds of a layer's backward: dX is all-reduced while the GEMM of dW runs."""
    check_kappa(kappa)
    return of_input + max(moved, of_weight + (1 - 1 / kappa) * moved)


def check_kappa(kappa: float) -> float:
    """``kappa`` as a float; ``ValueError`` below 1, since a collective cannot speed up a GEMM."""
    return number("kappa", kappa, 1, 1000)


def slowdown(
    strategy: "ATP",
    workload: "GPT",
    seconds: "Callable[[Kernel], float]",
    moved: "Callable[[Collective], Transfer]",
    kappa: float,
) -> float:
    """Seconds that contention (kappa > 1) adds to the step of an `ATP`.

    seconds : kernel -> s; moved : `tpviz.core.step.Collective` ->
    `tpviz.cluster.clock.queues.Transfer`. Raises ``ValueError`` for pipelined chunks, of which this
    has no formula.
    """
    check_kappa(kappa)
    return sum(
        times * _slowed(operation, seconds, moved, kappa)
        for part, times in flat(step_of(strategy, workload))
        for operation in part.operations
    )


def _slowed(operation, seconds, moved, kappa):
    """What contention adds to one operation of the step."""
    if isinstance(operation, PairInChunks):
        raise ValueError(
            "there is no formula for contention with chunking='pipelined': use "
            "chunking='batch' or 'tokens', or kappa=1"
        )
    if isinstance(operation, Overlapped):
        under, sent = seconds(operation.kernel), moved(operation.move).seconds
        return backward(0.0, under, sent, kappa) - backward(0.0, under, sent)
    if isinstance(operation, Chunks):
        layer = layer_of(operation, seconds, moved)
        slow = layer._replace(kappa=kappa)
        return slow.seconds(operation.count) - layer.seconds(operation.count)
    return 0.0


def layer_of(
    operation: Chunks,
    seconds: "Callable[[Kernel], float]",
    moved: "Callable[[Collective], Transfer]",
) -> ChunkedLayer:
    """The `ChunkedLayer` of an operation: its GEMM and all-reduce as fast as in these chunks."""
    kernel, move, count = operation
    one = moved(move)
    return ChunkedLayer(count * seconds(kernel), count * (one.seconds - one.latency), one.latency)
