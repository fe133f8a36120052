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

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tpviz.core.routing import Routing

if TYPE_CHECKING:
    from tpviz.core.workload import GPT
    from tpviz.schemes.grid.layout import Layout
    from tpviz.schemes.strategy import Strategy

NO_ROUTING = Routing()


class ExpertCut(NamedTuple):
    """Experts over ``ep`` ranks, each over ``etp`` of the ``tp`` ranks of an axis ``inside``.
    overlap : whether shared experts are computed while rows travel. gathered : whether all ranks
    of ep get all tokens. halves : 2 where halves of a microbatch go through a block in turn."""

    ep: int = 1
    etp: int = 1
    tp: int = 1
    inside: str = ""
    overlap: bool = False
    gathered: bool = False
    halves: int = 1

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
        own = self.sent(w).reshape(self.ep, -1)  # as many rows take longer in uneven parts
        return max(range(self.ep), key=lambda index: (own[index].sum(), (own[index] ** 2).sum()))

    def places(self, w: "GPT") -> np.ndarray:
        """The places in their sequence of the tokens that a rank chooses for. w : of the rank."""
        place = dict(w.place)
        found = w.context.places(w.num_positions, place) if w.context else np.arange(w.seq)
        if self.parts == 1:
            return found
        return np.split(found, self.parts)[place.get(self.inside, 0)]

    def sent(self, w: "GPT") -> np.ndarray:
        """Rows of a rank for each expert, (E,). w : of the rank; of one in the `groups` whose
        busiest rank has most to do, unless its ``place`` says."""
        place, rows = dict(w.place), _rows_of(self, w)
        if w.place:
            at = [place.get(axis, 0) if n > 1 else 0 for axis, n in zip(self.apart, rows.shape)]
            return w.batch * rows[tuple(at)]
        rows = rows.reshape(-1, self.ep, w.experts // self.ep)
        return w.batch * rows[rows.sum(2).max(1).argmax()].ravel()

    @property
    def apart(self) -> tuple[str, str, str]:
        """The axes along which ranks may choose for other places of a sequence."""
        return "cp", "ulysses", self.inside

    def groups(self, w: "GPT") -> list[tuple[tuple[str, int], ...]]:
        """A ``place``, without ep, in each kind of group: ranks of ep choose for the same places of
        a sequence, those of another group may choose for others."""
        rows = _rows_of(self, w)
        _, first = np.unique(rows.reshape(-1, w.experts), axis=0, return_index=True)
        found = np.transpose(np.unravel_index(first, rows.shape[:3])).tolist()
        return [tuple(zip(self.apart, at)) for at in found]

    def loads(self, w: "GPT", index: int) -> np.ndarray:
        """Rows that each expert of the rank with this index on ep computes, (E / ep,)."""
        return self.ep * self.sent(w).reshape(self.ep, -1)[index]

    def num_parameters(self, w: "GPT") -> int:
        """Parameters of a rank in an MLP of experts."""
        each = w.hidden * (w.up_features + w.mlp_width) // self.etp
        return w.hidden * w.experts + each * (w.experts // self.ep + w.shared_experts)

    def uneven(self, w: "GPT") -> list[str]:
        """The axes along which ranks send or compute other numbers of rows. w : of a rank."""
        rows = _rows_of(self, w)
        rows = rows.reshape(*rows.shape[:3], self.ep, -1)
        return [
            axis
            for dim, axis in enumerate((*self.apart, "ep"))
            if rows.shape[dim] > 1 and (rows != rows.take([0], dim)).any()
        ]


def parts_over(cut: ExpertCut, w: "GPT") -> tuple[str, ...]:
    """The axes whose ranks choose for parts of the same sequences. w : of the rank."""
    inside = (cut.inside,) if cut.parts > 1 else ()
    return (*(w.context.axes if w.context else ()), *inside)


def of_mixtures(w: "GPT") -> list[str]:
    """The parameters of all MLPs that are mixtures."""
    blocks = {f"blocks.{i}" for i in range(w.layers) if w.has_experts(i)}
    return [name for name in w.parameter_shapes() if name.partition(".mlp.")[0] in blocks]


def cut_of(at: "Layout", w: "GPT") -> ExpertCut:
    """How a rank's experts are cut: where no `tpviz.Experts` says, as any MLP is by the layout."""
    return w.cut or ExpertCut(1, at.i, at.i, at.inside)


def each_group(strategy: "Strategy", workload: "GPT") -> "list[GPT]":
    """The workload with the place of each of `ExpertCut.groups`; the slowest of these decides when
    a step is done."""
    if not workload.experts:
        return [workload]
    local = strategy.local(workload)
    places = (local.cut or ExpertCut()).groups(local)
    return [replace(workload, place=place) for place in places]


def _rows_of(cut, w):
    if w.capacity:
        return np.full((1, 1, 1, w.experts), w.taken)
    routing = w.routing or NO_ROUTING
    return _rows(cut, w.context, routing, w.experts, w.top_k, w.num_positions)


@lru_cache(maxsize=256)
def _rows(cut, context, routing, experts, top_k, positions):
    """A sequence's rows for each expert, by who chooses: (ranks of cp, of ulysses, parts, E)."""
    table = routing.decisions(experts, top_k, positions)
    shape, places = (1, 1), [np.arange(positions)]
    if context:
        shape = context.cp, context.ulysses
        each = (dict(zip(("cp", "ulysses"), at)) for at in np.ndindex(shape))
        places = [context.places(positions, place) for place in each]
    chosen = (table[part].ravel() for of in places for part in np.split(of, cut.parts))
    counts = [np.bincount(experts_of, minlength=experts) for experts_of in chosen]
    return np.reshape(counts, (*shape, cut.parts, experts))
