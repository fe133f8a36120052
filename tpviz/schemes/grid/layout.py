"""Which axis of the plane does what, and which part of each parameter a rank holds. No torch.

*inside* is the axis over which features lie between the two layers of a pair (heads, MLP width);
*stream* the one over which those of the residual stream lie. Every tensor-parallel scheme is a
layout of these two: Megatron-LM's has tp inside and no stream; ATP's column order has d1 inside and
d2 as stream, its row order the other way round; AxoNN's plane has x inside and y as stream. All
else in this package is written with these two.
"""

from typing import TYPE_CHECKING, NamedTuple, Self

from tpviz.schemes.gpt.pointwise import Held

if TYPE_CHECKING:
    from tpviz.core.workload import GPT


class Layout(NamedTuple):
    """The two axes, their sizes i and s, and the knobs as far as they matter on this mesh."""

    inside: str
    stream: str
    """an axis is "" where features are not cut over one"""
    i: int
    s: int
    chunks: int = 1
    chunking: str = "batch"
    a3: bool = False
    """heads over both axes: reduce-scatter and all-gather over the stream's"""
    l2: bool = False
    """LayerNorm on gathered features"""
    sp: bool = False
    """the stream cut by sequence over *inside*"""

    @classmethod
    def of_one_axis(cls, axis: str, ranks: int, chunks: int = 1, sp: bool = False) -> Self:
        """Megatron-LM's layout: one axis, over which heads and the MLP's width are split."""
        return cls(axis, "", ranks, 1, chunks, sp=sp and ranks > 1)

    @property
    def l1(self) -> bool:
        """Whether norms work on a rank's features and all-reduce their statistics ("L1")."""
        return self.s > 1 and not self.l2

    @property
    def pipelined(self) -> bool:
        """Whether chunks run through both MLP layers without a barrier between them."""
        return self.chunking == "pipelined" and self.chunks > 1 and self.i * self.s > 1

    def stream_sizes(self, workload: "GPT") -> tuple[int, int]:
        """(tokens of a sequence, features) that a rank has of an activation between two pairs."""
        w = workload
        return w.seq // (self.i if self.sp else 1), w.hidden // (1 if self.l2 else self.s)

    @property
    def outputs(self) -> list[tuple[int, str]]:
        """(dim, axis) of the logits' cuts, of (batch, seq, vocab) or (seq, batch, vocab)."""
        return [(2, self.inside)] if self.inside else []

    @property
    def inputs(self) -> list[tuple[int, str]]:
        """(dim, axis) of the cuts of what the first block takes."""
        features = [(2, self.stream)] if self.l1 else []
        return [(0, self.inside)] * self.sp + features

    def held(self, workload: "GPT", shards: int = 0) -> Held:
        """What a rank's memory-bound kernels pass over; a norm of gathered features (``l2``) counts
        as if it were split. shards : as of `Held`."""
        stream = 1 / (self.s * (self.i if self.sp else 1))
        return Held(workload, self.i * self.s, stream, 1 / self.i, workload.kinds(), shards=shards)

    def splits(self, workload: "GPT") -> dict[str, list[tuple[int, str]]]:
        """{parameter: [(dim, axis)]}, inner cut first; weights are (out, in)."""
        inside = [(0, self.inside)] if self.inside else []
        stream = [(0, self.stream)] if self.stream else []
        across = [(1, self.stream)] if self.stream else []
        first, second = inside + across, stream + [(1, axis) for _, axis in inside]
        norm = [] if self.l2 else stream
        kinds = {
            "attention.qkv.weight": first,
            "attention.q.weight": first,
            "attention.q_up.weight": first,
            "attention.kv_up.weight": first,
            "attention.out.weight": second,
            "attention.qkv.bias": stream + inside if self.a3 else inside,
            "attention.out.bias": stream,
            "mlp.up.weight": first,
            "mlp.up.bias": inside,
            "mlp.down.weight": second,
            "mlp.down.bias": stream,
            "mlp.router.weight": [],
            "mlp.shared_up.weight": first,
            "mlp.shared_down.weight": second,
        }
        stacks = {  # of experts, whose first dim is their number
            name: [(dim + 1, axis) for dim, axis in kinds[name]]
            for name in ("mlp.up.weight", "mlp.down.weight")
        }
        found = {"embed.token.weight": first}
        if not workload.rotary:
            found["embed.position.weight"] = across
        for k in range(workload.layers):
            own = kinds | (stacks if workload.has_experts(k) else {})
            block = workload.block_shapes(k)
            found |= {f"blocks.{k}.{name}": own.get(name, norm) for name in block}
        found |= dict.fromkeys(workload.norm_shapes("norm"), norm)
        if not workload.tied:
            found["head.weight"] = first
        return {name: cuts for name, cuts in found.items() if cuts}
