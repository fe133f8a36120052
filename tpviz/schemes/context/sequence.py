"""Which tokens of a sequence each rank of cp has, and which blocks of attention it computes.

A sequence of S tokens is cut into chunks of c, one or two for each of cp ranks. Under a causal mask
queries of chunk i attend to keys of the chunks 0..i: i squares of c x c and a triangle. In order
("ring", "ulysses") rank r has chunk r, so under "ring" it computes r squares and a triangle, and
the last rank sets the pace. "zigzag" and "all_gather" give rank r the chunks r and 2 cp - 1 - r:
2 cp - 1 squares and two triangles on every rank (Llama 3, arXiv 2407.21783, section 3.3.2).

>>> [SequenceCut(2, "zigzag").chunks(rank) for rank in range(2)]
[(0, 3), (1, 2)]
>>> SequenceCut(2, "zigzag").blocks(0, 1)
[(1, 0, False), (1, 1, False)]
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tpviz.core.checks import divides, one_of, whole_number
from tpviz.core.workload import GPT

if TYPE_CHECKING:
    from torch import Tensor

    from tpviz.core.step import Operation
    from tpviz.schemes.collectives import GroupsByAxis
    from tpviz.schemes.gpt.model import Heads

KINDS = ("zigzag", "ring", "all_gather", "ulysses")
BALANCED = ("zigzag", "all_gather")


@dataclass(frozen=True)
class SequenceCut:
    """Sequences over ``cp`` ranks, and how their attention is computed: one of `KINDS`."""

    cp: int
    kind: str

    axis: ClassVar[str] = "cp"

    def __post_init__(self):
        whole_number("cp", self.cp)
        one_of("kind", self.kind, KINDS)

    @property
    def each(self) -> int:
        """Chunks of a rank."""
        return 2 if self.kind in BALANCED else 1

    def chunks(self, rank: int) -> tuple[int, ...]:
        """The numbers of a rank's chunks, in order."""
        return (rank, 2 * self.cp - 1 - rank) if self.each == 2 else (rank,)

    def blocks(self, queries: int, keys: int) -> list[tuple[int, int, bool]]:
        """[(query chunk, key chunk, whether its half is masked)] of the attention of rank
        ``queries``'s tokens to those of rank ``keys``: chunks by their place on the rank."""
        return [
            (i, j, query == key)
            for i, query in enumerate(self.chunks(queries))
            for j, key in enumerate(self.chunks(keys))
            if key <= query
        ]

    def passing(self, rank: int) -> Iterator[int]:
        """The ranks whose keys a rank has, one after another, its own first."""
        return ((rank + position) % self.cp for position in range(self.cp))

    @property
    def busiest(self) -> int:
        """A rank that no other has more blocks than."""
        return self.cp - 1

    def positions(self, seq: int, mesh: "GroupsByAxis") -> "Tensor":
        """The places in the whole sequence of this rank's tokens, int64. seq : of the whole."""
        import torch

        divides("seq", seq, "2*cp" if self.each == 2 else "cp", self.cp * self.each)
        size = seq // (self.cp * self.each)
        mine = self.chunks(mesh.get_group(self.axis).rank())
        return torch.cat([torch.arange(size) + chunk * size for chunk in mine])

    @property
    def order(self) -> tuple[int, ...]:
        """The chunks of all ranks, rank after rank: as `tpviz.Custom` takes ``chunks``."""
        return tuple(chunk for rank in range(self.cp) for chunk in self.chunks(rank))

    def part(self, x: "Tensor", mesh: "GroupsByAxis") -> "Tensor":
        """This rank's tokens (batch, S / cp, ...) of x (batch, S, ...): inputs, or targets."""
        return x[:, self.positions(x.shape[1], mesh).to(x.device)]

    def restored(self, x: "Tensor", dim: int = 1) -> "Tensor":
        """x (batch, S, ...), gathered rank after rank along ``dim``, in the sequence's order."""
        from tpviz.schemes.collectives import restored

        return restored(x, dim, self.order)

    # -- what `tpviz.schemes.grid` asks where the workload is a part -----------------------------
    def operations(
        self, w: GPT, heads: int, keys: int, rank: int | None = None
    ) -> "tuple[list[Operation], list[Operation]]":
        """(forward, backward) of attention with ``heads`` heads of queries, ``keys`` of keys, of a
        ``rank``; the `busiest` unless said."""
        from .step import operations

        return operations(self, w, heads, keys, rank)

    def heads(self, w: GPT, mesh: Any, **kw: Any) -> "Heads":
        """The module of a rank's attention."""
        from .layers import heads

        return heads(self, w, mesh, **kw)

    def kept(self, w: GPT) -> int:
        """Features of a token that attention keeps for backward beside what it does without
        context parallelism (derived): block by block the keys and values once more, side by side as
        they travel; under "ulysses" nothing, but all tokens of a part of the heads."""
        return 0 if self.kind == "ulysses" else 2 * w.num_kv_heads * w.head_size


@dataclass(frozen=True)
class PartOfSequence(GPT):
    """What a rank has of a workload whose sequences are cut: ``seq`` tokens of each."""

    context: SequenceCut = SequenceCut(1, "zigzag")  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def num_positions(self) -> int:
        return self.seq * self.context.cp
