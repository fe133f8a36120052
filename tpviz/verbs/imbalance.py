"""Uneven loads of experts: the same captured program with mean loads, and the rank that has most.

>>> from tpviz import Experts, GPT, Routing, capture
>>> plan, w = Experts(ep=2), GPT(experts=4, batch=4, seq=16, routing=Routing(skew=2.0))
>>> print(hottest(plan, w, capture(plan, w).model))
rank 0 has expert 1, which 100 % of the tokens choose, and 1.25 times the mean of rows
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tpviz.cluster.clock.program import Capture
from tpviz.cluster.exchanges import UNEQUAL
from tpviz.core.mesh import Mesh
from tpviz.core.tables import listed
from tpviz.core.trace.columns import codes
from tpviz.core.trace.table import Trace
from tpviz.schemes.strategy import seen_by

if TYPE_CHECKING:
    from tpviz.core.workload import GPT
    from tpviz.schemes.strategy import Strategy

NAMED = 1.15
"""A rank is named when its experts have more than this many times the mean of rows."""
CLOSE = 0.95
"""Ranks with the same experts are named together from this part of the busiest one's rows on."""


class HotExpert(NamedTuple):
    """The ranks whose experts have most rows, ``times`` the mean of all ranks, and the expert of
    these that most tokens choose: the part ``share`` of all."""

    ranks: tuple[int, ...]
    expert: int
    share: float
    times: float

    def __str__(self):
        many = len(self.ranks) > 1
        who = (
            f"rank{'s' * many} {listed([*map(str, self.ranks)], most=4)} ha{'ve' if many else 's'}"
        )
        return (
            f"{who} expert {self.expert}, which {100 * self.share:.0f} % of the tokens choose, and "
            f"{self.times:.2f} times the mean of rows"
        )


def hottest(strategy: "Strategy", workload: "GPT", model: Mapping[int, int]) -> HotExpert | None:
    """Who has most rows under the workload's `tpviz.Routing`; None where nobody has more than
    others. model : of a `Capture`, {rank: recorded rank like it}."""
    rows = {rank: _rows(strategy, workload, rank) for rank in dict.fromkeys(model.values())}
    of_ranks = {rank: int(own.sum()) for rank, (_, own) in rows.items()}
    mean = np.mean([of_ranks[source] for source in model.values()])
    most = max(of_ranks.values())
    if not mean or most / mean <= NAMED:
        return None
    rank = next(rank for rank, number in of_ranks.items() if number == most)
    first, own = rows[rank]
    expert, w = first + int(own.argmax()), workload
    chosen = w.routing.counts(w.experts, w.top_k, w.num_positions) if w.routing else own  # pyright: ignore[reportOptionalMemberAccess]
    ranks = (
        rank
        for rank, source in sorted(model.items())
        if rows[source][0] == first and of_ranks[source] >= CLOSE * most
    )
    share = float(chosen[expert] / w.num_positions)
    return HotExpert(tuple(ranks), expert, share, float(most / mean))


def _rows(strategy, w, rank):
    """(the first expert of a rank, the rows that it computes for each of its own)."""
    local = getattr(strategy, "inside", strategy).local(seen_by(strategy, w, rank))
    if local.cut is None:
        return 0, np.zeros(1, int)
    index = Mesh(strategy.axes).coords(rank).get("ep", 0)
    return index * w.experts // local.cut.ep, local.cut.loads(local, index)


def evened(capture: Capture, strategy: "Strategy", workload: "GPT") -> Capture | None:
    """The program with the mean work of MLPs, and mean parts of their all-to-alls, on ranks that
    have uneven loads; None where loads are even. It is of the workload `with_even_loads`."""
    uneven = {*getattr(strategy, "uneven", lambda _: ())(workload)} if workload.experts else ()
    if not uneven:
        return None
    groups = defaultdict(list)
    for rank in capture.traces:
        coords = capture.mesh.coords(rank)
        groups[tuple(i for axis, i in coords.items() if axis not in uneven)].append(rank)
    traces = {}
    for ranks in groups.values():
        traces |= dict(zip(ranks, _averaged([capture.traces[rank] for rank in ranks])))
    return Capture(
        capture.axes,
        {rank: traces[rank] for rank in capture.traces},
        capture.model,
        {**capture.meta, "workload": repr(with_even_loads(workload))},
    )


def with_even_loads(workload: "GPT") -> "GPT":
    """The workload of a program that is `evened`."""
    return replace(workload, routing=None)


def _averaged(traces):
    """The traces, with the mean of the k-th kernel of their MLPs and of the k-th exchange."""
    orders = [np.argsort(trace["start"], kind="stable") for trace in traces]
    kernels = [order[_of_mlps(trace)[order]] for trace, order in zip(traces, orders)]
    moves = [order[(trace["name"] == UNEQUAL)[order]] for trace, order in zip(traces, orders)]

    def mean(column, rows):
        found = np.mean([trace[column][own] for trace, own in zip(traces, rows)], 0)
        return found.round().astype(np.int64)

    flops, bytes, sent = mean("flops", kernels), mean("bytes", kernels), mean("bytes", moves)
    for trace, own, moved in zip(traces, kernels, moves):
        columns = dict(trace.columns) | {n: trace[n].copy() for n in ("flops", "bytes")}
        columns["flops"][own], columns["bytes"][own], columns["bytes"][moved] = flops, bytes, sent
        parts = dict(trace.meta.get("parts", {}))
        for key, size in zip(trace["id"][moved].tolist(), sent.tolist()):
            if ranks := len(parts.get(key, ())):
                parts[key] = (size / (ranks - 1),) * ranks
        yield Trace(columns, {**trace.meta, "parts": parts})


def _of_mlps(trace):
    """Which rows are kernels of an MLP."""
    layers, index = codes(trace["layer"])
    return np.array([".mlp" in layer for layer in layers])[index] & (trace["kind"] == "compute")
