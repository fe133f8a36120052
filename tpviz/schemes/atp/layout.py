"""Which axis of ATP's mesh does what, and which part of each parameter a rank holds. No torch.

*inside* is the axis over which features lie between the two layers of a pair (heads, MLP width);
*stream* the one over which those of the residual stream lie. Column order: inside is d1. Everything
else in this package is written with these two, so the row order is the same code.
"""

from typing import TYPE_CHECKING, NamedTuple

from tpviz.schemes.gpt.pointwise import Held

if TYPE_CHECKING:
    from tpviz.workload import GPT

    from .strategy import ATP


class Layout(NamedTuple):
    """The two axes, their sizes i and s, and the knobs as far as they matter on this mesh."""

    inside: str
    stream: str
    i: int
    s: int
    chunks: int
    chunking: str
    a3: bool
    """heads over both axes: reduce-scatter and all-gather over the stream's"""
    l2: bool
    """LayerNorm on gathered features"""
    sp: bool

    @classmethod
    def of(cls, strategy: "ATP") -> "Layout":
        """The layout of an `ATP`."""
        inside, stream = ("d1", "d2") if strategy.order == "column" else ("d2", "d1")
        i, s = strategy.axes[inside], strategy.axes[stream]
        return cls(
            inside,
            stream,
            i,
            s,
            strategy.chunks,
            strategy.chunking,
            strategy.attention == "A3" and s > 1,
            strategy.norm == "L2" and s > 1,
            strategy.sp and i > 1,
        )

    @property
    def l1(self) -> bool:
        """LayerNorm on a part of the features, with summed statistics."""
        return self.s > 1 and not self.l2

    @property
    def pipelined(self) -> bool:
        """Chunks go through both layers of the MLP without a stop."""
        return self.chunking == "pipelined" and self.chunks > 1 and self.i * self.s > 1

    def held(self, workload: "GPT", shards: int = 0) -> Held:
        """What a rank's memory-bound kernels pass over; a norm of gathered features (``l2``) counts
        as if it were split. shards : as of `Held`."""
        stream = 1 / (self.s * (self.i if self.sp else 1))
        return Held(workload, self.i * self.s, stream, 1 / self.i, workload.layers, shards=shards)

    def splits(self, workload: "GPT") -> dict[str, list[tuple[int, str]]]:
        """{parameter: [(dim, axis)]}, inner cut first; weights are (out, in)."""
        inside, stream = [(0, self.inside)], [(0, self.stream)]
        first = [(0, self.inside), (1, self.stream)]
        second = [(0, self.stream), (1, self.inside)]
        norm = [] if self.l2 else stream
        kinds = {
            "attention.qkv.weight": first,
            "attention.out.weight": second,
            "attention.qkv.bias": stream + inside if self.a3 else inside,
            "attention.out.bias": stream,
            "mlp.up.weight": first,
            "mlp.up.bias": inside,
            "mlp.down.weight": second,
            "mlp.down.bias": stream,
        }
        block = {name: kinds.get(name, norm) for name in workload.block_shapes()}
        found = {"embed.token.weight": first}
        if not workload.rotary:
            found["embed.position.weight"] = [(1, self.stream)]
        for k in range(workload.layers):
            found |= {f"blocks.{k}.{name}": cuts for name, cuts in block.items() if cuts}
        found |= dict.fromkeys(workload.norm_shapes("norm"), norm) if norm else {}
        if not workload.tied:
            found["head.weight"] = first
        return found
