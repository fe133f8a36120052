"""Rows that each rank computed for its experts, step by step, from the bytes of a trace.

Of a rank's forward all-to-alls of rows one sends its tokens' and the other sends results back, as
many as came: what it computes is what it chose, less what it sent, and what came (derived). Where
the halves of a microbatch go in turn, rows of both are sent before results of either. The FLOPs of
its last kernels before results go back tell which of its experts had them.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tpviz.core.checks import whole_number
from tpviz.core.show import Tabled, figure_of
from tpviz.core.trace.columns import codes
from tpviz.core.trace.members import members_list
from tpviz.schemes.experts.step import ROWS

if TYPE_CHECKING:
    from tpviz.core.trace import Trace
    from tpviz.core.workload import GPT

CANNOT = "This trace cannot tell which expert of a rank had them, nor from which rank they came."


@dataclass(frozen=True, eq=False, repr=False)
class ExpertLoads(Tabled):
    """steps, layers, ranks : their names, in order. rows : (steps, layers, ranks), of all
    microbatches; 0 where a rank has not the layer. groups : the ranks that share each one's
    experts. badge : where the trace comes from. experts : (steps, layers, ranks, a rank's experts),
    the rows of each; None where kernels do not tell. top_k : experts of a token."""

    steps: tuple[int, ...]
    layers: tuple[str, ...]
    ranks: tuple[int, ...]
    rows: np.ndarray
    groups: tuple[tuple[int, ...], ...]
    badge: str
    experts: np.ndarray | None = None
    top_k: int = 1

    @property
    def times(self) -> np.ndarray:
        """Rows of all layers over the mean of the rank's group, (steps, ranks); 1 is even."""
        of_all = self.rows.sum(1)
        return np.stack(
            [
                of_all[:, at] / of_all[:, np.isin(self.ranks, group)].mean(1)
                for at, group in enumerate(self.groups)
            ],
            1,
        )

    @property
    def busiest(self) -> list[int]:
        """The rank of each step with most times the mean."""
        return [self.ranks[at] for at in self.times.argmax(1)]

    def of_layers(self, at: int | None = None) -> Self:
        """The same with one layer: the ``at``-th of these, or the sum of all, named ""."""
        cut = lambda of: of.sum(1, keepdims=True) if at is None else of[:, [at]]
        experts = None if self.experts is None else cut(self.experts)
        name = "" if at is None else self.layers[at]
        return replace(self, layers=(name,), rows=cut(self.rows), experts=experts)

    @property
    def hot(self) -> list[tuple[int, float]]:
        """Of each step (the expert of the busiest rank that has most rows, the part of all tokens
        that choose it); [] where kernels do not tell."""
        if self.experts is None:
            return []
        rows, found = self.experts.sum(1), []
        for step, rank in enumerate(self.busiest):
            at = self.ranks.index(rank)
            index, own = self.groups[at].index(rank), int(rows[step, at].argmax())
            same = [n for n, group in enumerate(self.groups) if group.index(self.ranks[n]) == index]
            share = rows[step, same, own].sum() * self.top_k / rows[step].sum()
            found.append((index * rows.shape[-1] + own, float(share)))
        return found

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: a rank of a step each."""
        table, times = [["step", "rank", "rows", "times the mean"]], self.times
        for at, step in enumerate(self.steps):
            for place, rank in enumerate(self.ranks):
                rows = self.rows[at, :, place].sum()
                table.append([str(step), str(rank), str(rows), f"{times[at, place]:.2f}"])
        return table

    def describe(self) -> str:
        """The busiest rank of each step with its hot expert, or that a trace cannot tell it."""
        steps = zip(self.steps, self.busiest, self.times.max(1))
        told = [f"step {step} rank {rank}, {most:.2f} times" for step, rank, most in steps]
        if self.hot:
            words = (
                f"expert {n}, which {100 * part:.0f} % of tokens choose" for n, part in self.hot
            )
            told = [f"{most}, with {expert}" for most, expert in zip(told, words)]
        most = f"Most, of the mean: {', '.join(told)}."
        return f"Rows of experts by rank ({self.badge}). {most} {self.cannot}".rstrip()

    @property
    def cannot(self) -> str:
        """What the trace cannot tell."""
        return CANNOT if self.experts is None else ""

    def to_svg(self, theme: str = "auto") -> str:
        """Bars by rank, a line a step, as one SVG; the last steps and busiest ranks of many."""
        return figure_of(self).loads_svg(self, theme)

    def __repr__(self):
        return f"<ExpertLoads of {len(self.ranks)} ranks, {len(self.steps)} steps ({self.badge})>"


def expert_loads(trace: "Trace", workload: "GPT", etp: int = 1) -> ExpertLoads:
    """The loads of every rank in a trace of `tpviz.run`, `tpviz.simulate`, or of a program that
    `tpviz.record` saw on all ranks.

    workload : as the program had it. etp : ranks that share one expert, as of `tpviz.Experts`.
    Raises ``ValueError`` where the trace has no all-to-alls of rows in pairs, lacks ranks, or is of
    another workload; and under a capacity, whose buffers are equally large however full.
    """
    w, etp = workload, whole_number("etp", etp)
    if w.capacity:
        raise ValueError(
            f"capacity={w.capacity} sends buffers of one size, of which a trace cannot tell how "
            "full they are: tv.ExpertsView shows what a tv.Routing drops"
        )
    c = _exchanges(trace)
    there, back = _there_and_back(c)
    (steps, step), (layers, layer), (ranks, rank) = (
        np.unique(c[name][there], return_inverse=True) for name in ("step", "layer", "rank")
    )
    _, of, count = np.unique(step * len(layers) + layer, return_inverse=True, return_counts=True)
    chosen = w.batch * w.seq * w.top_k * etp / count[of]
    loads = chosen + (c["bytes"][back] - c["bytes"][there]) / (w.hidden * w.itemsize)
    if (loads % 1).any() or (loads < 0).any():
        raise ValueError(f"{w.short} with etp={etp} has other rows than the trace: give its own")
    rows = np.zeros((len(steps), len(layers), len(ranks)), dtype=np.int64)
    np.add.at(rows, (step, layer, rank), loads.astype(np.int64))
    members = dict(zip(c["rank"].tolist(), c["members"].tolist()))
    groups = tuple(tuple(members_list(members[one])) for one in ranks.tolist())
    experts = _by_expert(trace, w, etp, c.where(back), (step, layer, rank), rows, groups)
    named = [tuple(each.tolist()) for each in (steps, layers, ranks)]
    return ExpertLoads(named[0], named[1], named[2], rows, groups, trace.badge, experts, w.top_k)


def _exchanges(trace: "Trace") -> "Trace":
    """The all-to-alls of rows of all ranks, each rank's in order."""
    found, has = trace.whole().select(name=ROWS), len(trace.ranks)
    if "forward" not in found["phase"]:
        raise ValueError(
            "the trace has 0 all-to-alls of rows, whose bytes tell loads: run with "
            "tv.Experts(ep=2), dispatch='all_to_all'; dispatch='all_gather' gives experts the same "
            "rows, but sends as many bytes however uneven they are"
        )
    if has != (size := trace.meta.get("world_size", has)):
        raise ValueError(
            f"the trace has {has} ranks of {size}: merge those of all, as tv.Trace.merge(traces)"
        )
    return found.where(np.lexsort((found["start"], found["rank"])))


def _there_and_back(c: "Trace") -> tuple[np.ndarray, np.ndarray]:
    """Places in ``c`` of forward all-to-alls of rows, and of their results: of a layer and a
    microbatch the first half, and the second. Where a program does not tell microbatches, one ends
    where the rank goes on to another layer or phase."""
    keys = [c["step"], c["rank"], *(codes(c[name])[1] for name in ("layer", "phase"))]
    told = c["microbatch"]
    keys.append(np.where(told < 0, -1 - _runs(*keys), told))
    forward = np.flatnonzero(c["phase"] == "forward")
    order = forward[np.lexsort([key[forward] for key in keys])]
    of = _runs(*(key[order] for key in keys))
    count = np.bincount(of)
    if (count % 2).any():
        raise ValueError("all-to-alls of rows are not in pairs, there and back: is the trace cut?")
    number = np.arange(len(order)) - (np.cumsum(count) - count)[of]
    back = number >= count[of] // 2
    return order[~back], order[back]


def _runs(*keys: np.ndarray) -> np.ndarray:
    """The number of each row's run of rows with the same keys, from 0."""
    changed = np.any([np.diff(key, prepend=key[:1]) != 0 for key in keys], axis=0)
    return np.cumsum(changed)


def _by_expert(
    trace: "Trace", w: "GPT", etp: int, back: "Trace", where: Any, rows: np.ndarray, groups: Any
) -> np.ndarray | None:
    """Rows of each expert, or None: its two forward kernels are among the last of the rank before
    the results ``back``, and the first one's FLOPs are 2 rows h f."""
    own, (ranks, kernels) = w.experts // len(groups[0]), (back["rank"], {})
    for rank in np.unique(ranks).tolist():
        mine = trace.whole().select(kind="compute", rank=rank)
        kernels[rank] = mine.where(np.argsort(mine["start"], kind="stable"))
    each = 2 * w.hidden * w.up_features // etp
    found = np.zeros((*rows.shape, own), dtype=np.int64)
    for place, rank, start in zip(zip(*where), ranks.tolist(), back["start"].tolist()):
        end = np.searchsorted(kernels[rank]["start"], start)
        flops = kernels[rank]["flops"][max(0, end - 2 * own) : end : 2]
        if len(flops) < own:
            return None
        found[place] += flops // each
    return found if (found.sum(-1) == rows).all() else None
