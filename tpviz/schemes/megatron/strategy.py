"""Megatron-LM's 1D tensor parallelism, with sequence parallelism as a knob.

Shoeybi et al. 2019 (arXiv 1909.08053); Korthikanti et al. 2022 (arXiv 2205.05198).

>>> Megatron(tp=3).check(GPT(heads=4))
Traceback (most recent call last):
ValueError: heads=4 does not split evenly over tp=3: use tp=2 or 4
"""

from collections.abc import Iterator
from math import gcd
from typing import TYPE_CHECKING, Self

from tpviz.core.checks import divides
from tpviz.core.mesh import Mesh
from tpviz.core.workload import GPT
from tpviz.schemes.grid.layout import Layout
from tpviz.schemes.grid.tensor import TensorParallel
from tpviz.schemes.knobs import accumulation_knob, knob, offload_knob, recompute_knob
from tpviz.schemes.strategy import microbatch, register

from .paper import communication

if TYPE_CHECKING:
    from tpviz.cluster import Cluster

__all__ = ["GPT", "Megatron"]


@register
class Megatron(TensorParallel):
    """Shards every pair of weight matrices over ``tp`` ranks, the first by columns and the second
    by rows. One all-reduce completes the output of each pair.

    With ``sp`` the activations between the pairs are split by sequence, and each sum becomes a
    reduce-scatter, with an all-gather before the next pair: less memory. With ``chunks`` the second
    matrix of a pair works on a part of the batch while the previous part's all-reduce is in flight.
    """

    tp: int = knob(4, help="ranks that share every weight matrix", low=1, high=64)
    sp: bool = knob(False, help="split activations between the matrices by sequence")
    chunks: int = knob(
        1, help="chunks of the batch whose all-reduces overlap the next GEMM", low=1, high=64
    )
    accumulation: int = accumulation_knob()
    recompute: str = recompute_knob()
    offload: int = offload_knob()

    @property
    def axes(self) -> dict[str, int]:
        return {"tp": self.tp}

    @property
    def layout(self) -> Layout:
        """The `Layout` with one axis, ``tp``, inside the pairs."""
        return Layout.of_one_axis("tp", self.tp, self.chunks, self.sp)

    def check(self, workload: GPT) -> None:
        w = microbatch(self, workload)
        sizes = w.divisible | {"vocab": (w.vocab, 0)} | ({"seq": (w.seq, 0)} if self.sp else {})
        also = gcd(*(size for size, _ in sizes.values()))
        for name, (size, within) in sizes.items():
            divides(name, size, "tp", self.tp, also, within=within)
        if self.sp and self.chunks > 1:
            raise ValueError(
                f"sp=True and chunks={self.chunks} are not possible together: "
                "use chunks=1, or sp=False"
            )
        divides("batch", w.batch, "chunks", self.chunks)

    def communication(self, workload: GPT, cluster: "Cluster", mesh: Mesh | None = None) -> float:
        """Seconds by `paper.communication`: the bytes of a layer's all-reduces alone."""
        return communication(self, workload, cluster, mesh)

    @classmethod
    def space(cls, workload: GPT, world_size: int) -> Iterator[Self]:
        """Every combination of knobs with tp = ``world_size``, including 2 and 4 chunks."""
        if cls.allows("tp", world_size):
            yield cls(tp=world_size)
            if world_size > 1:
                yield cls(tp=world_size, sp=True)
                yield from (cls(tp=world_size, chunks=chunks) for chunks in (2, 4))
