"""Faults to inject: slow ranks, slow links, jitter. The same for a simulation and an emulated run.

>>> Faults(stragglers={3: 1.5}).kernel_factor(3)
1.5
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from zlib import crc32

from tpviz.cluster.parts import finite
from tpviz.core.checks import number, settle, whole_number


@dataclass(frozen=True)
class Faults:
    """Faults to inject into a cluster.

    stragglers : {rank: factor}: every kernel of that rank takes this many times as long.
    slow_links : {rank: factor}: so does every collective that the rank takes part in.
    jitter : 0.1 makes every kernel longer by up to 10 %, uniformly distributed and reproducible.
    seed : of the jitter.

    Raises ``ValueError`` on factors that are not positive, finite numbers.
    """

    stragglers: dict[int, float] = field(default_factory=dict)
    slow_links: dict[int, float] = field(default_factory=dict)
    jitter: float = 0.0
    seed: int = 0

    def __post_init__(self):
        for what in ("stragglers", "slow_links"):
            factors = getattr(self, what)
            if not isinstance(factors, dict):
                raise ValueError(f"{what}={factors!r} must be {{rank: factor}}, as in {{3: 1.5}}")
            for rank, factor in factors.items():
                whole_number(f"rank in {what}", rank, 0)
                finite(f"{what}[{rank}]", factor)
        settle(self, "jitter", number, 0, 100)
        whole_number("seed", self.seed, 0)

    def __hash__(self):
        return hash((tuple(self.stragglers.items()), tuple(self.slow_links.items()), self.jitter))

    def check(self, world_size: int) -> None:
        """Raise ``ValueError`` if a fault names a rank outside 0..world_size-1."""
        for what in ("stragglers", "slow_links"):
            for rank in getattr(self, what):
                if rank >= world_size:
                    raise ValueError(
                        f"{what} names rank {rank}, but ranks are 0 to {world_size - 1}"
                    )

    def kernel_factor(self, rank: int, index: int = 0) -> float:
        """How many times as long the rank's ``index``-th kernel takes."""
        factor = self.stragglers.get(rank, 1.0)
        if self.jitter:
            draw = crc32(f"{self.seed}/{rank}/{index}".encode()) / 2**32
            factor *= 1 + self.jitter * draw
        return factor

    def kernel_kind(self, rank: int) -> float:
        """A value that is equal for ranks whose kernels are slowed down in the same way."""
        return rank if self.jitter else self.stragglers.get(rank, 1.0)

    def link_factor(self, members: Iterable[int]) -> float:
        """How many times as long a collective of these ranks takes."""
        if not self.slow_links:
            return 1.0
        return max((self.slow_links.get(rank, 1.0) for rank in members), default=1.0)


NONE = Faults()
