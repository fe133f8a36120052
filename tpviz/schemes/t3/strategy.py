"""T3: reduce-scatters of partial products that overlap their GEMMs, tile by tile.

Pati et al. 2024, "T3: Transparent Tracking & Triggering for Fine-grained Overlap of Compute &
Collectives", ASPLOS, arXiv 2401.16677. Here is its software form, for ranks of torch.distributed:
tiles computed in the staggered order, a tracker that counts their updates, a trigger that sends
them on. The simulated hardware is in `tpviz.evidence.t3_hardware`.

>>> T3(tp=4).check(GPT(seq=31, batch=2))
Traceback (most recent call last):
ValueError: batch*seq=62 does not split evenly over tp=4: use tp=2, or batch*seq=60 or 64
"""

from collections.abc import Iterator, Sequence
from math import gcd
from typing import TYPE_CHECKING, Any

from tpviz.core.checks import divides, whole_number
from tpviz.core.mesh import Mesh
from tpviz.core.workload import GPT
from tpviz.schemes.grid.layout import Layout
from tpviz.schemes.grid.tensor import TensorParallel
from tpviz.schemes.knobs import accumulation_knob, knob, offload_knob, recompute_knob
from tpviz.schemes.megatron.paper import communication
from tpviz.schemes.strategy import microbatch, register

from .step import Layers
from .tiles import cut, whole_chunk

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.core.step import Operation

__all__ = ["GPT", "T3"]


@register
class T3(TensorParallel):
    """Shards weights over ``tp`` ranks as Megatron-LM does, and fuses each GEMM with the
    reduce-scatter of its output: one tile is sent while the next is computed.

    The sum is a ring reduce-scatter whose chunks are computed in the order in which the ring needs
    them. ``mode="chunk"``: one message a chunk. "tile": a chunk in tiles, each sent when its two
    updates are in. "sequential": the GEMM, then the collective, for comparison. ``tile``: rows of a
    tile, or (rows, columns), 0 of columns for all; they need not divide. ``gather="after"``, the
    paper's: an all-gather follows each sum. "consumer", our extension: activations stay split by
    sequence, and the gather feeds the GEMM that needs it.
    """

    tp: int = knob(4, help="ranks that share every weight matrix", low=1, high=64)
    mode: str = knob(
        "tile",
        help="unit sent when computed: a tile, a chunk of all tokens, or (sequential) all, by a "
        "collective after the GEMM",
        choices=("tile", "chunk", "sequential"),
    )
    tile: int = knob(0, help="rows of a tile; 0 for a quarter of a chunk", low=0, high=4096)
    gather: str = knob(
        "after",
        help="where the all-gather runs: after the reduce-scatter, or (consumer) in the next GEMM",
        choices=("after", "consumer"),
    )
    accumulation: int = accumulation_knob()
    recompute: str = recompute_knob()
    offload: int = offload_knob()

    scheme, every_block = "tpviz.schemes.t3", False

    def __post_init__(self):
        tile = self.tile
        if isinstance(tile, (tuple, list)):
            object.__setattr__(self, "tile", 0)
        super().__post_init__()
        if isinstance(tile, (tuple, list)):
            object.__setattr__(self, "tile", _pair(tile))

    @property
    def axes(self) -> dict[str, int]:
        return {"tp": self.tp}

    @property
    def split(self) -> bool:
        """Whether activations between the fused layers are split by sequence."""
        return self.gather == "consumer" and self.tp > 1

    def tiles(self, rows: int, cols: int) -> list[tuple[slice, slice]]:
        """The tiles of a chunk of so many rows and columns, as `tiles.cut` makes them."""
        if self.mode != "tile":
            return whole_chunk(rows, cols)
        height, width = self.tile if isinstance(self.tile, tuple) else (self.tile, 0)
        return cut(rows, cols, height or -(-rows // 4), width)

    @property
    def layout(self) -> Layout:
        """The `Layout` of Megatron-LM."""
        return Layout.of_one_axis("tp", self.tp, sp=self.split)

    def check(self, workload: GPT) -> None:
        self.check_dense(workload)
        w = microbatch(self, workload)
        rows = {"seq": w.seq} if self.split else {"batch*seq": w.batch * w.seq}
        sizes = w.divisible | {name: (size, 0) for name, size in {"vocab": w.vocab, **rows}.items()}
        also = gcd(*(size for size, _ in sizes.values()))
        for name, (size, within) in sizes.items():
            divides(name, size, "tp", self.tp, also, within=within)

    def check_split_backward(self) -> None:
        if self.split:
            raise ValueError(
                "gather='consumer' feeds an all-gather into the GEMM of a weight's gradient, which "
                "cannot wait: use gather='after'"
            )

    def pieces(self, workload: GPT, split: bool = False) -> "dict[str, list[Operation]]":
        return Layers(self, workload, split).pieces()

    def communication(self, workload: GPT, cluster: "Cluster", mesh: Mesh | None = None) -> float:
        """Seconds of a layer's all-reduces by bytes alone, nothing hidden: those of `Megatron`."""
        return communication(self, workload, cluster, mesh)

    @classmethod
    def space(cls, workload: GPT, world_size: int) -> "Iterator[T3]":
        """Tile and chunk mode with either gather, default tiles; all the world on tp.

        Sequential mode is there to compare with: `Megatron` does the same and hides more.
        """
        if not cls.allows("tp", world_size):
            return
        if world_size == 1:
            yield cls(tp=1)
            return
        for mode in ("tile", "chunk"):
            for gather in ("after", "consumer"):
                yield cls(tp=world_size, mode=mode, gather=gather)


def _pair(tile: Sequence[Any]):
    if len(tile) != 2:
        raise ValueError(f"tile={tile!r} must be rows, or (rows, columns), as in 32 or (32, 64)")
    return tuple(
        whole_number(f"{what} of tile", size, 0) for what, size in zip(("rows", "columns"), tile)
    )
