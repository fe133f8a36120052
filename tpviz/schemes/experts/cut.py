"""Which experts and which tokens a rank has, and how many rows go from rank to rank.

E experts lie on the axis ep, E / ep on each rank, in order. A rank chooses experts for its own
tokens, sends each token's row to the ranks that have them, and gets the results back. Along the
axis of tensor parallelism either all ranks have the same tokens and each a part of every expert's
matrices (``etp`` = tp), or each has whole experts and chooses for its own part of every sequence
(``etp`` = 1).

All ranks of ep have the same places of other sequences, so under a `tpviz.Routing` they choose
alike, and a rank gets ep times what it sends itself. Where the router chooses, formulas take a
`Routing` without skew. Under a capacity all experts get rows for all that they may take.

>>> from tpviz import GPT, Routing
>>> cut, w = ExpertCut(ep=2), GPT(experts=4, seq=8, batch=1, routing=Routing(1.0))
>>> cut.sent(w), cut.loads(w, 1)
(array([3, 7, 4, 2]), array([8, 4]))
"""

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tpviz.core.routing import Routing

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

NO_ROUTING = Routing()


class ExpertCut(NamedTuple):
    """Experts over ``ep`` ranks, each over ``etp`` of the ``tp`` ranks of an axis ``inside``."""

    ep: int = 1
    etp: int = 1
    tp: int = 1
    inside: str = ""

    @property
    def parts(self) -> int:
        """The parts of a sequence that the ranks of ``inside`` choose for: one each, or all."""
        return self.tp // self.etp

    def at(self, w: "GPT") -> int:
        """The index on ep of the rank that a workload is a part of; of one with most to do, unless
        its ``place`` says."""
        place = dict(w.place)
        if "ep" in place or self.ep == 1:
            return place.get("ep", 0)
        return int(self.sent(w).reshape(self.ep, -1).sum(1).argmax())

    def places(self, w: "GPT") -> np.ndarray:
        """The places in their sequence of the tokens that a rank chooses for. w : of the rank."""
        place = dict(w.place)
        found = w.context.places(w.num_positions, place) if w.context else np.arange(w.seq)
        if self.parts == 1:
            return found
        return np.split(found, self.parts)[place.get(self.inside, 0)]

    def sent(self, w: "GPT") -> np.ndarray:
        """Rows of a rank for each expert, (E,). w : of the rank."""
        return _sent(self, w)

    def loads(self, w: "GPT", index: int) -> np.ndarray:
        """Rows that each expert of the rank with this index on ep computes, (E / ep,)."""
        return self.ep * self.sent(w).reshape(self.ep, -1)[index]


def parts_over(cut: ExpertCut, w: "GPT") -> tuple[str, ...]:
    """The axes whose ranks choose for parts of the same sequences. w : of the rank."""
    inside = (cut.inside,) if cut.parts > 1 else ()
    return (*(w.context.axes if w.context else ()), *inside)


@lru_cache(maxsize=1024)
def _sent(cut: ExpertCut, w: "GPT") -> np.ndarray:
    if w.capacity:
        return np.full(w.experts, w.batch * w.taken)
    places = cut.places(w)
    table = (w.routing or NO_ROUTING).decisions(w.experts, w.top_k, w.num_positions)
    return w.batch * np.bincount(table[places].ravel(), minlength=w.experts)
