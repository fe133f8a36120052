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
from tpviz.core.routing import Routing
from tpviz.core.tables import listed
from tpviz.core.trace.columns import codes
from tpviz.core.trace.steps import median_step
from tpviz.core.trace.table import Trace
from tpviz.schemes.strategy import seen_by

if TYPE_CHECKING:
    from tpviz.core.workload import GPT
    from tpviz.schemes.strategy import Strategy

    from .expert_loads import ExpertLoads

NAMED = 1.15
"""A rank is named when its experts have more than this many times the mean of rows."""
CLOSE = 0.95
"""Ranks with the same experts are named together from this part of the busiest one's rows on."""


class HotExpert(NamedTuple):
    """The ranks whose experts have most rows, ``times`` the mean of all ranks, and the expert of
    these that most tokens choose: the part ``share`` of all. layer : where that is so of one."""

    ranks: tuple[int, ...]
    expert: int
    share: float
    times: float
    layer: str = ""

    def __str__(self):
        ranks = listed([*map(str, self.ranks)], most=4)
        who = f"rank {ranks} has" if len(self.ranks) == 1 else f"ranks {ranks} have"
        where = f" in {self.layer}" * bool(self.layer)
        return (
            f"{who}{where} expert {self.expert}, which {100 * self.share:.0f} % of the tokens "
            f"choose, and {self.times:.2f} times the mean of rows"
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
    chosen = (w.routing or Routing()).counts(w.experts, w.top_k, w.num_positions)
    ranks = (
        rank
        for rank, source in sorted(model.items())
        if rows[source][0] == first and of_ranks[source] >= CLOSE * most
    )
    share = float(chosen[expert] / w.num_positions)
    return HotExpert(tuple(ranks), expert, share, float(most / mean))


def hottest_of(loads: "ExpertLoads") -> HotExpert | None:
    """As `hottest`, from the loads of a measured step, where its kernels tell them: of all layers
    together, or of the most uneven one, since a router chooses in each anew."""
    if loads.experts is None:
        return None
    one = loads.of_layers()
    if one.times.max() <= NAMED:
        each = map(loads.of_layers, range(len(loads.layers)))
        one = max(each, key=lambda layer: layer.times.max())
    times = one.times[0]
    if times.max() <= NAMED:
        return None
    rank, (expert, share), rows = one.busiest[0], one.hot[0], one.rows[0, 0]
    index = [group.index(own) for own, group in zip(one.ranks, one.groups)]
    at = one.ranks.index(rank)
    ranks = (
        own
        for place, own in enumerate(one.ranks)
        if index[place] == index[at] and rows[place] >= CLOSE * rows[at]
    )
    return HotExpert(tuple(ranks), expert, share, float(times.max()), one.layers[0])


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
    kernels, moves = zip(*map(_loaded, traces))

    def mean(column, rows):
        found = np.mean([trace[column][own] for trace, own in zip(traces, rows)], 0)
        return found.round().astype(np.int64)

    work = mean("flops", kernels), mean("bytes", kernels)
    sent = mean("bytes", moves)
    for trace, rows in zip(traces, zip(kernels, moves)):
        ((rank, parts),) = trace.meta.get("parts", {0: ()}).items()
        sizes = [[size / (len(of) - 1)] * len(of) for of, size in zip(parts, sent.tolist())]
        yield _with(trace, rows, rank, work, sent, sizes)


def as_measured(capture: Capture, measured: Trace) -> Capture | None:
    """The program with the work of MLPs and the parts of all-to-alls that each rank had in the
    measured (median) step, as where a router chooses; None where these are the program's own, or
    the step is of another program."""
    step, traces = median_step(measured), {}
    for rank in range(capture.world_size):
        program, mine = capture.trace(rank), measured.select(rank=rank)
        here = step.select(rank=rank)
        (kernels, moves), (ran, sent) = _loaded(program), _loaded(here)
        known, of = measured.fact("parts").get(rank, []), _loaded(mine)[1]
        if (len(kernels), len(moves)) != (len(ran), len(sent)) or len(known) != len(of):
            return None
        inside = np.isin(mine["id"][of], here["id"][sent])
        parts = [own for own, now in zip(known, inside.tolist()) if now]
        work = here["flops"][ran], here["bytes"][ran]
        traces[rank] = _with(program, (kernels, moves), rank, work, here["bytes"][sent], parts)
    if not any((traces[r]["flops"] != capture.trace(r)["flops"]).any() for r in traces):
        return None
    return Capture(capture.axes, traces, {rank: rank for rank in traces}, capture.meta)


def _with(trace, rows, rank, work, sent, parts):
    """The trace with other (FLOPs, bytes) of MLPs' kernels, and exchanges. rows : of `_loaded`."""
    kernels, moves = rows
    columns = dict(trace.columns) | {name: trace[name].copy() for name in ("flops", "bytes")}
    columns["flops"][kernels], columns["bytes"][kernels] = work
    columns["bytes"][moves] = sent
    return Trace(columns, {**trace.meta, "parts": {rank: parts}})


def _loaded(trace):
    """(rows of MLPs' kernels, of all-to-alls of unequal parts), each in order."""
    order = np.argsort(trace["start"], kind="stable")
    moves = (trace["name"] == UNEQUAL) & (trace["kind"] == "comm")
    return order[_of_mlps(trace)[order]], order[moves[order]]


def _of_mlps(trace):
    """Which rows are kernels of an MLP."""
    layers, index = codes(trace["layer"])
    return np.array([".mlp" in layer for layer in layers])[index] & (trace["kind"] == "compute")
