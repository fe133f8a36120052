"""Which tokens of a sequence each rank has, and which blocks of attention it computes.

A sequence of S tokens is cut into chunks of c, one or two for each rank of a ring. Under a causal
mask queries of chunk i attend to keys of the chunks 0..i: i squares of c x c and a triangle. Under
"ring" rank r has chunk r, so it computes r squares and a triangle, and the last rank sets the pace.
"zigzag" and "all_gather" give rank r the chunks r and 2 n - 1 - r of a ring of n: 2 n - 1 squares
and two triangles on every rank (Llama 3, arXiv 2407.21783, section 3.3.2). Where documents are
packed, a block has what one of them has in both chunks, on the diagonal a triangle for each; those
that none crosses are left out, so that chunks balance no more.

Ulysses exchanges tokens for heads, so that each rank computes all the tokens that an exchange's
ranks have, for some of the heads. Alone ("ulysses") those are whole sequences. Inside a ring (Fang
and Zhao 2024, arXiv 2405.07719) they are what one rank of the ring has, chunk after chunk, of which
each rank of the axis ulysses has an equal part.

>>> [SequenceCut(2, "zigzag").chunks(rank) for rank in range(2)]
[(0, 3), (1, 2)]
>>> SequenceCut(2, "zigzag").blocks(0, 1)
[(1, 0, False), (1, 1, False)]
>>> [(r.rows, r.columns) for r in SequenceCut(2, "zigzag").rectangles((10, 6), 0, 1)]
[(slice(4, 8, None), slice(6, 8, None))]
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tpviz.core.checks import divides, one_of, whole_number
from tpviz.core.workload import GPT

if TYPE_CHECKING:
    from torch import Tensor

    from tpviz.core.step import Operation
    from tpviz.schemes.collectives import GroupsByAxis
    from tpviz.schemes.gpt.heads import Heads

KINDS = ("zigzag", "ring", "all_gather", "ulysses")
BALANCED = ("zigzag", "all_gather")


class Rectangle(NamedTuple):
    """Queries ``rows`` of a rank and keys ``columns`` of a rank, by their places there; of a
    ``causal`` one, a square, half is masked."""

    rows: slice
    columns: slice
    causal: bool


@dataclass(frozen=True)
class SequenceCut:
    """Sequences over ``cp`` times ``ulysses`` ranks, and how their attention is computed: one of
    `KINDS`, inside of it an exchange of heads over ``ulysses`` ranks."""

    cp: int
    kind: str
    ulysses: int = 1

    def __post_init__(self):
        for name in ("cp", "ulysses"):
            whole_number(name, getattr(self, name))
        one_of("kind", self.kind, KINDS)
        if self.kind == "ulysses" and self.ulysses > 1:
            raise ValueError(
                f"kind='ulysses' exchanges heads over cp itself: use cp={self.ranks} without "
                f"ulysses={self.ulysses}, or kind='zigzag', 'ring' or 'all_gather' around it"
            )

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that sequences are cut over, outer first."""
        sizes = {"cp": self.cp, "ulysses": self.ulysses}
        return tuple(axis for axis, ranks in sizes.items() if ranks > 1)

    @property
    def ranks(self) -> int:
        """Ranks that share a sequence."""
        return self.cp * self.ulysses

    @property
    def ring(self) -> int:
        """Ranks of the axis cp whose keys and values each needs: 1 if they exchange heads."""
        return 1 if self.kind == "ulysses" else self.cp

    @property
    def exchange(self) -> tuple[str, int]:
        """(axis, ranks) that exchange tokens for heads."""
        return ("cp", self.cp) if self.kind == "ulysses" else ("ulysses", self.ulysses)

    @property
    def each(self) -> int:
        """Chunks of a rank of the ring."""
        return 2 if self.kind in BALANCED and self.cp > 1 else 1

    def chunks(self, rank: int) -> tuple[int, ...]:
        """The numbers of the chunks that a rank of the ring has, in order. Raises ``ValueError``
        for a rank that it does not have."""
        whole_number("rank", rank, 0, self.ring - 1)
        return (rank, 2 * self.ring - 1 - rank) if self.each == 2 else (rank,)

    def blocks(self, queries: int, keys: int) -> list[tuple[int, int, bool]]:
        """[(query chunk, key chunk, whether its half is masked)] of the attention of the ring's
        rank ``queries`` to the tokens of its rank ``keys``: chunks by their place on the rank."""
        return [
            (i, j, query == key)
            for i, query in enumerate(self.chunks(queries))
            for j, key in enumerate(self.chunks(keys))
            if key <= query
        ]

    def rectangles(self, lengths: tuple[int, ...], queries: int, keys: int) -> list[Rectangle]:
        """The `blocks`, as far as documents of these ``lengths`` are in both chunks. Those on the
        diagonal are first: each row is in one."""
        return _rectangles(self, lengths, queries, keys)

    def work(self, lengths: tuple[int, ...]) -> list[float]:
        """Scores of a head and sequence that each rank of the ring computes: the areas of its
        `rectangles`, of causal ones half."""
        self.check(sum(lengths))
        before = np.concatenate([np.arange(n) for n in lengths]) + 0.5
        chunks = before.reshape(self.ring * self.each, -1).sum(1)
        return [float(chunks[[*self.chunks(rank)]].sum()) for rank in range(self.ring)]

    def passing(self, rank: int) -> Iterator[int]:
        """The ring's ranks whose keys one of them has, one after another, its own first."""
        return ((rank + position) % self.ring for position in range(self.ring))

    def busiest(self, lengths: tuple[int, ...] = ()) -> int:
        """A rank of the ring that no other has more `work` than: the last where documents of these
        ``lengths`` do not say else."""
        return _busiest(self, lengths) if len(lengths) > 1 else self.ring - 1

    def positions(self, seq: int, mesh: "GroupsByAxis", exchanged: bool = False) -> "Tensor":
        """The places in the whole sequence of this rank's tokens, int64. seq : of the whole.
        exchanged : of those that it has between the exchanges of heads."""
        import torch

        place = {axis: mesh.get_group(axis).rank() for axis in self.axes}
        return torch.tensor(self.places(seq, place, exchanged))

    def places(
        self, seq: int, place: Mapping[str, int], exchanged: bool = False
    ) -> "np.ndarray[Any, Any]":
        """As `positions`, of the rank with these indices along the `axes`; 0 where they lack."""
        self.check(seq)
        size, (axis, ranks) = seq // (self.ring * self.each), self.exchange
        chunks = self.chunks(place.get("cp", 0) if self.ring > 1 else 0)
        found = np.concatenate([np.arange(size) + chunk * size for chunk in chunks])
        return found if exchanged or ranks == 1 else np.split(found, ranks)[place.get(axis, 0)]

    def check(self, seq: int) -> None:
        """Raise ``ValueError`` unless sequences of so many tokens can be cut so."""
        over = "*".join(self.axes)
        parts, each = f"2*{over}" if self.each == 2 else over, self.each
        divides("seq", seq, parts, each * self.ranks, each=each)

    @property
    def order(self) -> tuple[int, ...]:
        """The parts of all ranks, one after another: as `tpviz.Custom` takes ``chunks``. These are
        the chunks, and under Ulysses as many parts of each as ranks exchange heads."""
        chunks = (chunk for rank in range(self.ring) for chunk in self.chunks(rank))
        _, n = self.exchange
        return tuple(chunk * n + part for chunk in chunks for part in range(n))

    def part(self, x: "Tensor", mesh: "GroupsByAxis") -> "Tensor":
        """This rank's tokens (batch, S / ranks, ...) of x (batch, S, ...): inputs, or targets."""
        return x[:, self.positions(x.shape[1], mesh).to(x.device)]

    def restored(self, x: "Tensor", dim: int = 1) -> "Tensor":
        """x (batch, S, ...), gathered rank after rank along ``dim``, in the sequence's order."""
        from tpviz.schemes.collectives import restored

        self.check(x.shape[dim])
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
        they travel, but where queries are turned and so projections are not kept; nothing where
        they do not travel, but all tokens of a part of the heads."""
        turned = w.rotary and not w.kv_lora
        return 0 if self.ring == 1 or turned else 2 * w.num_kv_heads * w.head_size


@dataclass(frozen=True)
class PartOfSequence(GPT):
    """What a rank has of a workload whose sequences are cut: ``seq`` tokens of each."""

    context: SequenceCut = SequenceCut(1, "zigzag")  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def num_positions(self) -> int:
        return self.seq * self.context.ranks


@lru_cache(maxsize=4096)
def _rectangles(
    cut: SequenceCut, lengths: tuple[int, ...], queries: int, keys: int
) -> list[Rectangle]:
    size = sum(lengths) // (cut.ring * cut.each)
    found, documents = list[Rectangle](), list(zip(accumulate((0, *lengths)), accumulate(lengths)))
    for i, j, causal in cut.blocks(queries, keys):
        chunks = (i, cut.chunks(queries)[i]), (j, cut.chunks(keys)[j])
        for begin, end in documents:
            rows, columns = (
                slice(
                    max(begin - size * chunk, 0) + size * at,
                    min(end - size * chunk, size) + size * at,
                )
                for at, chunk in chunks
            )
            if rows.start < rows.stop and columns.start < columns.stop:
                found.append(Rectangle(rows, columns, causal))
    return sorted(found, key=lambda one: not one.causal)


@lru_cache(maxsize=256)
def _busiest(cut: SequenceCut, lengths: tuple[int, ...]):
    work = cut.work(lengths)
    return max(reversed(range(cut.ring)), key=work.__getitem__)
