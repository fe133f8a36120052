"""One mixture of experts over ranks: how many rows go where, by `ExpertCut`, and what a capacity
drops. No torch.

Under a `tpviz.Routing` all ranks of ep choose alike, so one rank's numbers are every rank's.

>>> from tpviz import GPT, Experts, Routing
>>> film = routed(Experts(ep=2), GPT(experts=4, seq=8, batch=2, routing=Routing(1.0)))
>>> film.sent, film.loads, film.busiest, round(film.uneven, 2)
(array([3, 7, 4, 2]), array([20, 12]), 0, 1.25)
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tpviz.core.workload import GPT
from tpviz.schemes.experts.cut import ExpertCut
from tpviz.schemes.experts.strategy import Experts


class ExpertFilm(NamedTuple):
    """One layer and microbatch. w : of a rank. chosen : choices of a rank for each expert, (E,);
    sent : rows that it sends for them, under a capacity whole buffers, (E,)."""

    cut: ExpertCut
    w: GPT
    chosen: np.ndarray
    sent: np.ndarray

    @property
    def kept(self) -> np.ndarray:
        """Choices of a rank that are sent, (E,)."""
        return np.minimum(self.chosen, self.sent)

    @property
    def dropped(self) -> np.ndarray:
        """Choices of a rank that are not, (E,)."""
        return self.chosen - self.kept

    @property
    def empty(self) -> np.ndarray:
        """Rows of a rank's buffers that no choice fills, (E,)."""
        return self.sent - self.kept

    @property
    def to_ranks(self) -> np.ndarray:
        """Rows that a rank has for each rank, its own included, (ep,)."""
        return self.sent.reshape(self.cut.ep, -1).sum(1)

    @property
    def loads(self) -> np.ndarray:
        """Rows that each rank computes, (ep,)."""
        return self.cut.ep * self.to_ranks

    @property
    def busiest(self) -> int:
        """The rank with most rows."""
        return int(self.loads.argmax())

    @property
    def alike(self) -> bool:
        """Whether all ranks have as many."""
        return self.loads.min() == self.loads.max()

    @property
    def uneven(self) -> float:
        """Rows of the busiest rank over the mean; 1 is even."""
        return float(self.loads.max() / self.loads.mean())


def routed(s: Experts, w: GPT) -> ExpertFilm:
    """The film of a strategy and a workload. Raises ``ValueError`` where they clash."""
    s.check(w)
    part = s.local(w)
    return ExpertFilm(s.cut, part, s.cut.sent(replace(part, capacity=None)), s.cut.sent(part))
