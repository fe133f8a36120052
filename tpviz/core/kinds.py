"""Models whose blocks are not all alike: which block has experts, and what is said of a kind.

What a formula says of a block it says of a workload whose blocks are all so, `OfKinds.like`; of the
model the sum over its kinds, times how many blocks are of each.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

from .routing import CHOICE

if TYPE_CHECKING:
    from .workload import GPT

OF_EXPERTS = {"moe_ffn": None, "shared_experts": 0, "first_dense": 0, "moe_every": 1}
OF_EXPERTS |= {"capacity": None, "aux_loss": 0.0, "routing": None, **CHOICE}  # as of a dense model


class OfKinds:
    """What a `GPT` says of its blocks; the first of them is number 0."""

    if TYPE_CHECKING:
        layers: int
        experts: int
        first_dense: int
        moe_every: int

    @property
    def alike(self) -> bool:
        """Whether all blocks are of one kind."""
        return not self.experts or (self.first_dense, self.moe_every) == (0, 1)

    def has_experts(self, block: int) -> bool:
        """Whether block number ``block``, from 0, has experts."""
        return self.experts > 0 and block >= self.first_dense and not (block + 1) % self.moe_every

    def like(self, block: int) -> "GPT":
        """The same workload with all blocks as this one is (cached). What is said of one block is
        said of such a workload."""
        return self if self.alike else _like(self, self.has_experts(block))  # pyright: ignore[reportReturnType]

    def kinds(self, blocks: Iterable[int] | None = None) -> tuple[tuple["GPT", int], ...]:
        """((a workload as of `like`, how many of ``blocks`` are so), ...) of each kind, that of the
        first block first. blocks : all of them, unless said."""
        blocks = range(self.layers) if blocks is None else tuple(blocks)
        return ((self, len(blocks)),) if self.alike else _kinds(self, blocks)  # pyright: ignore[reportReturnType]

    def runs(self) -> tuple[tuple["GPT", int], ...]:
        """As `kinds`, of blocks that follow each other, in their order."""
        return ((self, self.layers),) if self.alike else _runs(self)  # pyright: ignore[reportReturnType]

    def check_blocks(self) -> None:
        """Raises ``ValueError`` for a model that has experts in no block."""
        if not self.experts or any(map(self.has_experts, range(self.layers))):
            return
        n, every = self.first_dense, self.moe_every
        most = self.layers // every * every - 1  # the number of the last block that may have some
        works = [f"first_dense={most} or less"] * (most >= 0)
        works += [f"moe_every={self.layers}"] * (n < self.layers < every)
        raise ValueError(
            f"first_dense={n} and moe_every={every} leave none of layers={self.layers} with "
            f"experts: use {', '.join([*works, f'layers={(n // every + 1) * every}'])}, or "
            "experts=0"
        )


@lru_cache(maxsize=1024)
def _like(workload: "GPT", experts: bool) -> "GPT":
    if experts:
        return replace(workload, first_dense=0, moe_every=1)
    return replace(workload, experts=0, **OF_EXPERTS)


@lru_cache(maxsize=4096)
def _kinds(workload: "GPT", blocks: Sequence[int]):
    return tuple(Counter(map(workload.like, blocks)).items())


@lru_cache(maxsize=1024)
def _runs(workload: "GPT"):
    found = groupby(range(workload.layers), workload.like)
    return tuple((kind, len(list(blocks))) for kind, blocks in found)
