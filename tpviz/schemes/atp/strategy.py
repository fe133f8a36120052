"""ATP: tensor parallelism on a 2D mesh, column- or row-first (Cheng et al. 2023, arXiv 2301.08658).

A linear layer has its output features over one axis of the mesh and its input features over the
other, so it ends with an all-reduce over the latter; the next layer swaps the axes and needs no
resharding. Layouts as in the authors' released code; times and volumes are derived.

>>> ATP(mesh=(4, 2)).check(GPT(heads=4))
Traceback (most recent call last):
ValueError: heads=4 does not split evenly over d1*d2=8: use d1*d2=4, or heads=8; or attention='A1'
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import gcd, prod
from typing import TYPE_CHECKING, Any, Self

from tpviz.core.checks import divides, divisors, whole_number
from tpviz.core.mesh import Mesh
from tpviz.core.workload import GPT
from tpviz.schemes.grid.layout import Layout
from tpviz.schemes.grid.tensor import TensorParallel
from tpviz.schemes.knobs import accumulation_knob, knob, offload_knob, recompute_knob
from tpviz.schemes.strategy import Strategy, microbatch, register

from .paper import communication

if TYPE_CHECKING:
    from tpviz.cluster import Cluster

__all__ = ["ATP", "GPT"]


@register
class ATP(TensorParallel):
    """Shards every weight matrix along both dims over a (d1, d2) mesh. One all-reduce, over one of
    the axes, completes the output of each layer.

    ``order="column"``: first layers (qkv, up) have columns over d1 and rows over d2, second layers
    (out, down) the other way round; the residual stream is cut over d2. ``order="row"`` exchanges
    d1 and d2. Ranks along d2 are neighbours.
    """

    mesh: tuple[int, int] = knob((2, 2), help="ranks along (d1, d2); neighbouring ranks along d2")
    order: str = knob(
        "column",
        help="axis of the first layer's output features: column is d1, row is d2",
        choices=("column", "row"),
    )
    chunks: int = knob(
        1, help="chunks of a layer whose all-reduces overlap the next GEMM", low=1, high=64
    )
    chunking: str = knob(
        "batch",
        help="the dim split into chunks: batch as released; tokens; or pipelined, tokens through "
        "both layers of the MLP",
        choices=("batch", "tokens", "pipelined"),
    )
    attention: str = knob(
        "A3",
        help="A3: heads over both axes; A1: over one, computed by every rank of the other",
        choices=("A3", "A1"),
    )
    norm: str = knob(
        "L1",
        help="LayerNorm. L1: on sharded features, statistics all-reduced; L2: on gathered "
        "features, as released",
        choices=("L1", "L2"),
    )
    sp: bool = knob(
        False, help="split the residual stream by sequence over the axis that has copies of it"
    )
    accumulation: int = accumulation_knob()
    recompute: str = recompute_knob()
    offload: int = offload_knob()

    every_block = False

    def __post_init__(self):
        object.__setattr__(self, "mesh", _pair(self.mesh))
        super().__post_init__()

    @property
    def axes(self) -> dict[str, int]:
        return {"d1": self.mesh[0], "d2": self.mesh[1]}

    @property
    def layout(self) -> Layout:
        """The `Layout`: the role of each axis."""
        inside, stream = ("d1", "d2") if self.order == "column" else ("d2", "d1")
        i, s = self.axes[inside], self.axes[stream]
        return Layout(
            inside,
            stream,
            i,
            s,
            self.chunks,
            self.chunking,
            a3=self.attention == "A3" and s > 1,
            l2=self.norm == "L2" and s > 1,
            sp=self.sp and i > 1,
        )

    def check(self, workload: GPT) -> None:
        self.check_dense(workload)
        w, at = microbatch(self, workload), self.layout
        sizes = {name: size for name, (size, _) in w.divisible.items()} | {"vocab": w.vocab}
        sizes |= {"seq": w.seq} if self.sp else {}
        heads = self._check_heads(w, sizes)
        divides(
            "hidden", w.hidden, at.stream, at.s, step=w.hidden_step
        )  # under A3 heads have said so
        sizes[heads] //= at.s if at.a3 else 1
        for name, size in sizes.items():
            divides(name, size, at.inside, at.i, also=gcd(*sizes.values()))
        if self.sp and self.chunks > 1 and self.chunking != "batch":
            raise ValueError(
                f"sp=True and chunking={self.chunking!r} are not possible together: "
                "use chunking='batch', or sp=False"
            )
        if self.chunking == "batch":
            divides("batch", w.batch, "chunks", self.chunks)
        else:
            divides("batch * seq", w.batch * w.seq, "chunks", self.chunks)

    def variants(self, name: str, value: int) -> list[Callable[[], Strategy]]:
        """The mesh is one knob: its axes are changed one by one."""
        d1, d2 = self.mesh
        meshes = {
            "d1": [(value, d2)],
            "d2": [(d1, value)],
            "d1*d2": [(value // d2, d2), (d1, value // d1), (value, 1), (1, value)],
        }.get(name)
        if not meshes:
            return super().variants(name, value)
        return [
            lambda mesh=mesh: replace(self, mesh=mesh)
            for mesh in meshes
            if prod(mesh) == value or name != "d1*d2"
        ]

    def _check_heads(self, w: GPT, sizes: Mapping[str, int]):
        """The name of those that must divide, heads or kv_heads."""
        at, (name, (heads, within)) = self.layout, next(iter(w.divisible.items()))
        if self.attention == "A1":
            divides(name, heads, at.inside, at.i, gcd(*sizes.values()), within=within)
            return name
        try:
            divides(name, heads, "d1*d2", at.i * at.s, within=within)
        except ValueError as error:
            instead = "" if heads % at.i or w.hidden % at.s else "attention='A1'"
            raise replace(error.clash, instead=instead).error() from None  # pyright: ignore[reportAttributeAccessIssue]
        return name

    def check_split_backward(self) -> None:
        if self.layout.pipelined:
            raise ValueError(
                "chunking='pipelined' computes the gradients of both layers of the MLP in one "
                "function, which cannot wait: use chunking='batch' or 'tokens'"
            )

    def communication(self, workload: GPT, cluster: "Cluster", mesh: Mesh | None = None) -> float:
        """Seconds by `paper.communication`: the paper's estimate as we read it."""
        return communication(self, workload, cluster, mesh)

    @classmethod
    def space(cls, workload: GPT, world_size: int) -> Iterator[Self]:
        """All meshes in both orders, equivalent ones once; attention A1 where the heads require it.
        Each also with 2 and 4 chunks (of the batch or its tokens), and with sequence parallelism.
        """
        for strategy in cls.meshes(workload, world_size):
            yield strategy
            if world_size > 1:
                for chunks in (2, 4):
                    cut = "batch" if workload.batch % chunks == 0 else "tokens"
                    yield replace(strategy, chunks=chunks, chunking=cut)
                if strategy.layout.i > 1:
                    yield replace(strategy, sp=True)

    @classmethod
    def meshes(cls, workload: GPT, world_size: int) -> Iterator[Self]:
        """The search space of the paper as we read it: ordered factorisations x two orders.

        A mesh of one axis in column order equals the other one in row order: one is kept.
        """
        for d1 in reversed(divisors(world_size)):
            d2 = world_size // d1
            attention = "A1" if workload.num_kv_heads % world_size else "A3"
            for which in ("column", "row") if d1 > 1 and d2 > 1 else ("column",):
                yield cls(mesh=(d1, d2), order=which, attention=attention)  # pyright: ignore[reportCallIssue]


def _pair(mesh: Any):
    if not isinstance(mesh, (tuple, list)) or len(mesh) != 2:
        raise ValueError(f"mesh={mesh!r} must be two sizes (d1, d2), as in (2, 2) or (4, 1)")
    return tuple(whole_number(f"d{k + 1} of mesh", size) for k, size in enumerate(mesh))
