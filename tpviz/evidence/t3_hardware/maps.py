"""Address maps: what becomes of each chunk of a GEMM's output on each rank.

The GEMM's code stays as it is; a store to a mapped address goes to a peer's memory (`Remote`), or
stays and starts a DMA when enough updates are in (`Dma`), or just stays (`Local`). Maps are data:
per rank, in the order in which it computes, (chunk, rule). ``ring_rs`` is the paper's, with the
order as derived here; the others follow its discussion (derived).

>>> for chunk, rule in maps("ring_rs", 4)[0]:
...     print(chunk, rule)
1 Remote(to=3, op='update')
2 Dma(to=3, op='update', updates=2)
3 Dma(to=3, op='update', updates=2)
0 Local(updates=2)
"""

from collections.abc import Callable
from typing import NamedTuple

from tpviz.core.checks import one_of, whole_number
from tpviz.schemes.t3.paper import updates_per_element
from tpviz.schemes.t3.tiles import gathering_order, order

OPS = ("update", "store")


class Remote(NamedTuple):
    """The GEMM's store goes over the link to rank ``to``: there added (update) or written."""

    to: int
    op: str = "update"


class Dma(NamedTuple):
    """Stores stay here; once each element has ``updates`` stores and updates a DMA takes it on."""

    to: int
    op: str = "update"
    updates: int = 2


class Local(NamedTuple):
    """Stays here and is complete once each element has ``updates`` stores and updates."""

    updates: int = 2


Rule = Remote | Dma | Local


def ring_rs(rank: int, ranks: int) -> list[tuple[int, Rule]]:
    """Ring reduce-scatter to rank - 1: chunk rank + 1 first, its own last."""
    to, last = (rank - 1) % ranks, (rank, Local(updates_per_element(ranks - 1)))
    if ranks == 1:
        return [last]
    first, *middle = order(rank, ranks)[:-1]
    sent = [(c, Dma(to, "update", updates_per_element(j))) for j, c in enumerate(middle, 1)]
    return [(first, Remote(to, "update")), *sent, last]


def direct_rs(rank: int, ranks: int) -> list[tuple[int, Rule]]:
    """Reduce-scatter on links between all: every chunk goes to its owner's memory at once."""
    others = order(rank, ranks)[:-1]
    sent: list[tuple[int, Rule]] = [(c, Remote(c, "update")) for c in others]
    return sent + [(rank, Local(ranks))]


def ring_ag(rank: int, ranks: int) -> list[tuple[int, Rule]]:
    """Ring all-gather: what is there is sent on; a rank computes its own chunk, the first."""
    to, (*passed, last) = (rank - 1) % ranks, gathering_order(rank, ranks)
    sent: list[tuple[int, Rule]] = [(c, Dma(to, "store", 1)) for c in passed]
    return sent + [(last, Local(1))]


def all_to_all(rank: int, ranks: int) -> list[tuple[int, Rule]]:
    """Every chunk is stored at its owner, in a buffer for each source."""
    others = order(rank, ranks)[:-1]
    sent: list[tuple[int, Rule]] = [(c, Remote(c, "store")) for c in others]
    return sent + [(rank, Local(1))]


class Goal(NamedTuple):
    """A collective. of : rank, ranks -> its map. ends : where a chunk is to be in the end: at its
    "owner" (the rank of its number) or at "all". sums : one sum of all ranks' parts. computes :
    "all" chunks on each rank, or its "own". gathers : whether an all-gather comes after."""

    of: Callable[[int, int], list[tuple[int, Rule]]]
    ends: str
    sums: bool
    computes: str = "all"
    gathers: bool = False

    @property
    def many(self) -> bool:
        """Whether each source has a buffer of its own at the owner."""
        return self.ends == "owner" and not self.sums


COLLECTIVES = {
    "ring_rs": Goal(ring_rs, "owner", True, gathers=True),
    "direct_rs": Goal(direct_rs, "owner", True, gathers=True),
    "ring_ag": Goal(ring_ag, "all", False, "own"),
    "all_to_all": Goal(all_to_all, "owner", False),
}
"""{name: `Goal`}."""


def maps(collective: str, ranks: int) -> list[list[tuple[int, Rule]]]:
    """Per rank, in the order in which it computes, a list of (chunk, rule)."""
    goal = COLLECTIVES[one_of("collective", collective, tuple(COLLECTIVES))]
    ranks = whole_number("ranks", ranks)
    return [goal.of(rank, ranks) for rank in range(ranks)]
