"""What is read off a trace: overlap, exposed communication, bubbles, memory, the critical path.

Overlap is defined as HolisticTraceAnalysis (Meta, 2023) defines it: communication time that
computation covers, over communication time, both on merged intervals of one rank. Where a step's
time goes (`breakdown`), idle time and the bubble are our own (derived).

>>> from tpviz.core.trace import Event, Trace
>>> events = [Event(end=2.0), Event(lane="comm/tp", kind="comm", start=1.0, end=3.0)]
>>> overlap(Trace.from_events(events))
0.5
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tpviz.core.checks import whole_number
from tpviz.core.show import Tabular
from tpviz.core.tables import show_seconds

from .critical import critical_path, last_members, match_collectives
from .steps import step_spans

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from .table import Trace

__all__ = [
    "Breakdown",
    "Breakdowns",
    "MemoryUse",
    "breakdown",
    "bubble",
    "critical_path",
    "exposed_communication",
    "idle",
    "idle_spans",
    "intersect",
    "length",
    "match_collectives",
    "memory",
    "merge",
    "overlap",
    "overlaps",
    "subtract",
]
WORKS = "compute", "comm", "copy"
"""Kinds of events in which a rank's device does something; in a wait it does nothing of its own."""
LEAST = 5e-4
"""Parts of a step below this share are not put into words: they would round to nothing."""


def merge(start: "ArrayLike", end: "ArrayLike") -> tuple[np.ndarray, np.ndarray]:
    """Union of intervals: disjoint sorted (start, end) arrays; touching ones join, empty go."""
    start, end = np.asarray(start, float), np.asarray(end, float)
    some = end > start
    if not some.all():
        start, end = start[some], end[some]
    if not (start[1:] >= start[:-1]).all():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    end = np.maximum.accumulate(end)
    gap = np.flatnonzero(start[1:] > end[:-1])
    return np.concatenate([start[:1], start[gap + 1]]), np.concatenate([end[gap], end[-1:]])


def intersect(
    a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Intersection of two merged interval sets, merged itself."""
    for one, other in ((a, b), (b, a)):  # as a step has all of its events
        if len(one[0]) == 1 and (other[0] >= one[0]).all() and (other[1] <= one[1]).all():
            return other
    # A piece starts where the later of two overlapping intervals starts: pair every start with the
    # interval of the other set that covers it.
    pieces = [[], []]
    for (start, end), (other_start, other_end), side in ((a, b, "right"), (b, a, "left")):
        i = np.searchsorted(other_start, start, side) - 1  # pyright: ignore[reportCallIssue, reportArgumentType]
        covered = (i >= 0) & (start < other_end[np.maximum(i, 0)]) if len(other_end) else i >= 0
        pieces[0].append(start[covered])
        pieces[1].append(np.minimum(end[covered], other_end[i[covered]]))
    return merge(*map(np.concatenate, pieces))


def subtract(
    a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """The part of ``a`` outside ``b``; both, and the result, are merged (starts, ends)."""
    edges = np.concatenate([a[0], a[1], b[0], b[1]])
    change = np.repeat([1, -1, -2, 2], [len(a[0]), len(a[1]), len(b[0]), len(b[1])])
    order = np.argsort(edges, kind="stable")
    edges, inside = edges[order], np.cumsum(change[order])[:-1] == 1
    return merge(edges[:-1][inside], edges[1:][inside])


def length(intervals: tuple[np.ndarray, np.ndarray]) -> float:
    """Total length of a merged interval set."""
    return float((intervals[1] - intervals[0]).sum())


def _spans(trace, kind, ranks):
    """{rank: the merged intervals of its events of a kind}; ranks that share rows share these."""
    own = _by_rank(trace, trace["kind"] == kind)
    found = {m: merge(*own[m]) for m in set(map(trace.model_of, ranks))}
    return {r: found[trace.model_of(r)] for r in ranks}


def _by_rank(trace, some, *more):
    """{rank: start, end and more columns of its rows among some}; empty ones of other ranks."""
    rows = np.flatnonzero(some)
    rows = rows[np.argsort(trace["rank"][rows], kind="stable")]
    ranks, first = np.unique(trace["rank"][rows], return_index=True)
    columns = [column[rows] for column in (trace["start"], trace["end"], *more)]
    found = zip(*(np.split(column, first[1:]) for column in columns))
    return defaultdict(lambda: [column[:0] for column in columns], zip(ranks.tolist(), found))


def _ranks(trace, rank):
    if rank is None:
        return trace.ranks
    if whole_number("rank", rank, None) not in trace.ranks:
        raise ValueError(f"the trace has no rank {rank}; it has {trace.ranks}")
    return [rank]


def communication(trace: "Trace", rank: int | None = None) -> tuple[float, float]:
    """(`overlap`, `exposed_communication`)."""
    ranks = _ranks(trace, rank)
    comm, compute = _spans(trace, "comm", ranks), _spans(trace, "compute", ranks)
    sums = [(length(comm[r]), length(intersect(comm[r], compute[r]))) for r in ranks]
    whole, under = np.array(sums).reshape(-1, 2).sum(0)
    bare = max((max(0.0, one - covered) for one, covered in sums), default=0.0)
    return min(1.0, float(under / whole)) if whole > 0 else 0.0, bare


def overlap(trace: "Trace", rank: int | None = None) -> float:
    """Fraction (0..1) of communication time during which the same rank computes (HTA's definition).

    Only events of kind ``compute`` count as computation; a blocked wait does not. rank None: all
    ranks together, overlapped seconds summed over ranks divided by communication seconds summed
    over ranks. 0.0 where there is no communication. Raises ValueError for a rank that is not in the
    trace.
    """
    return communication(trace, rank)[0]


def overlaps(trace: "Trace") -> dict[int, float]:
    """{rank: overlap fraction}."""
    found = {m: overlap(trace, m) for m in set(map(trace.model_of, trace.ranks))}
    return {r: found[trace.model_of(r)] for r in trace.ranks}


def exposed_communication(trace: "Trace", rank: int | None = None) -> float:
    """Seconds of communication during which the rank does not compute, over the whole trace.

    All of it, as HTA counts: bandwidth, latency, contention, and `Breakdown`'s ``waiting`` for a
    peer. That part `bubble` counts too, as lost to the same peer: do not add the two up; the parts
    of `breakdown` add up. rank None: the largest over ranks, since the step waits for the slowest.
    Raises ValueError for a rank that is not in the trace.
    """
    return communication(trace, rank)[1]


class Breakdown(NamedTuple):
    """Seconds of a rank: ``compute`` (alone) + ``overlapped`` + ``exposed`` + ``copying`` +
    ``idle`` is ``span``.

    overlapped: computing and communicating. exposed: communicating, not computing. copying: neither
    of these, but copying to or from a device's memory or within it. idle: nothing. waiting is the
    part of ``exposed`` in which no data can move yet, because every collective that runs still
    lacks a member: some peer has not issued its part.
    """

    span: float
    compute: float
    overlapped: float
    exposed: float
    idle: float
    waiting: float
    copying: float = 0.0

    @property
    def parts(self) -> dict[str, float]:
        """{what the rank does: seconds}, largest first; they sum to ``span``."""
        parts = {
            "idle": self.idle,
            "exposed communication": self.exposed,
            "computing": self.compute + self.overlapped,
            "copying": self.copying,
        }
        return dict(sorted(parts.items(), key=lambda part: -part[1]))

    def describe(self) -> str:
        """The parts as shares of the span, largest first, without those below 0.05 %."""
        if not self.span > 0:
            return "no time"
        parts, wait = self.parts, 100 * self.waiting / self.span
        shown = [(what, 100 * s / self.span) for what, s in parts.items() if s >= LEAST * self.span]
        within = {"exposed communication": f" ({wait:.1f} % waiting for peers)"}
        within = within if self.waiting >= LEAST * self.span else {}
        return ", ".join(f"{what} {share:.1f} %{within.get(what, '')}" for what, share in shown)


class Breakdowns(Tabular, dict[int, Breakdown]):
    """{rank: `Breakdown`}, which prints as a table."""

    _look, _right = "tpviz-breakdown", range(8)

    @property
    def mean(self) -> Breakdown:
        """The `Breakdown` of the average rank."""
        return Breakdown(*(sum(x) / len(self) for x in zip(*self.values()))) if self else _NONE

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: seconds of each rank, and of the average one."""
        head = ["rank", "span", "computing", "exposed communication", "of it waiting", "copying"]
        rows = [(str(rank), one) for rank, one in self.items()]
        rows += [("mean", self.mean)] if len(self) > 1 else []
        return [[*head, "idle", "idle, %"]] + [
            [
                name,
                *map(show_seconds, (b.span, b.compute + b.overlapped, b.exposed, b.waiting)),
                *map(show_seconds, (b.copying, b.idle)),
                f"{100 * b.idle / b.span if b.span > 0 else 0.0:.1f}",
            ]
            for name, b in rows
        ]


_NONE = Breakdown(*[0.0] * 7)


def breakdown(trace: "Trace") -> Breakdowns:
    """{rank: `Breakdown`}, over the marked steps (or the whole trace where no steps are marked).

    The span is the same for all ranks: from the first rank's start of a step to the last rank's end
    of it, summed over steps.
    """
    windows, models = _windows(trace), sorted(set(map(trace.model_of, trace.ranks)))
    compute, copy = _spans(trace, "compute", models), _spans(trace, "copy", models)
    own = _by_rank(trace, trace["kind"] == "comm", _arrival(trace))
    found = {m: _breakdown(windows, compute[m], copy[m], *own[m]) for m in models}
    return Breakdowns({r: found[trace.model_of(r)] for r in trace.ranks})


def _breakdown(windows, compute, copy, start, end, arrival):
    compute, copy = intersect(windows, compute), intersect(windows, copy)
    comm = intersect(windows, merge(start, end))
    before = intersect(windows, merge(start, np.minimum(arrival, end)))
    moving = _union(compute, (arrival, end))
    works, computes, communicates = _union(compute, comm), length(compute), length(comm)
    works, does = length(works), length(_union(works, copy) if len(copy[0]) else works)
    return Breakdown(
        span=length(windows),
        compute=works - communicates,
        overlapped=max(0.0, computes + communicates - works),
        exposed=works - computes,
        idle=length(windows) - does,
        waiting=length(_union(before, moving)) - length(moving),
        copying=does - works,
    )


def _union(*sets):
    return merge(*map(np.concatenate, zip(*sets)))


def idle(trace: "Trace", rank: int | None = None) -> float:
    """Seconds of the marked steps (or of the whole trace where none are marked) in which a rank's
    device neither computes nor communicates nor copies.

    A GPU idles where its host launches kernels too slowly, where it waits for data, or for another
    rank without a collective in flight, as at the ends of a pipeline; between two operators on a
    CPU there is the time that Python takes. A collective that waits for a peer is exposed
    communication, not idle. rank None: the mean over ranks. Raises ValueError for a rank that is
    not in the trace.
    """
    ranks, found = _ranks(trace, rank), breakdown(trace)
    return sum(found[r].idle for r in ranks) / len(ranks) if ranks else 0.0


def idle_spans(trace: "Trace") -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """{rank: (starts, ends) of the times that `idle` counts}."""
    windows, own = _windows(trace), _by_rank(trace, np.isin(trace["kind"], WORKS))
    return {r: subtract(windows, merge(*own[trace.model_of(r)])) for r in trace.ranks}


def _windows(trace):
    """The merged spans of the steps: first rank's start to last rank's end of each."""
    _, start, end = step_spans(trace)
    if not len(start):
        start, end = trace["start"].min(initial=np.inf), trace["end"].max(initial=-np.inf)
    return merge(np.atleast_1d(start), np.atleast_1d(end))


def _arrival(trace):
    """Per row, when the last member issued the collective (its own start if unmatched)."""
    arrival = trace["start"].copy()
    last = last_members(trace)
    arrival[last >= 0] = trace["start"][last[last >= 0]]
    return arrival


def bubble(trace: "Trace") -> dict[int, float]:
    """{rank: fraction of the step span lost to having nothing to do}: (idle + waiting) / span.

    A rank is idle as `idle` says, and waiting when it does not compute and no collective it has
    issued can move data, because a peer has not issued its part: a pipeline stage blocked in a recv
    whose sender still computes, or a rank ahead of a straggler. Time in which data moves is exposed
    communication, not bubble; `exposed_communication` counts the waiting too, so the two do not add
    up, and the parts of `breakdown` do. 0.0 where the span is empty.
    """
    return {
        rank: (b.idle + b.waiting) / b.span if b.span > 0 else 0.0
        for rank, b in breakdown(trace).items()
    }


@dataclass(frozen=True, eq=False)
class MemoryUse:
    """Allocated tensor bytes of one rank over time.

    ``time``: seconds, shape (n,). ``series``: {kind: bytes, shape (n,)}, in the order parameters,
    gradients, optimizer, activations. ``total``: their sum. ``peaks``: {kind: largest bytes}, each
    at its own moment; ``peak`` and ``peak_time``: of the sum.
    """

    rank: int
    time: np.ndarray
    series: dict[str, np.ndarray]
    total: np.ndarray

    @property
    def peaks(self) -> dict[str, int]:
        """{kind: largest bytes}."""
        return {kind: int(values.max()) for kind, values in self.series.items()}

    @property
    def peak(self) -> int:
        """Largest bytes of all kinds together."""
        return int(self.total.max())

    @property
    def peak_time(self) -> float:
        """When `peak` is first reached, in seconds."""
        return float(self.time[self.total.argmax()])

    def __repr__(self):
        kinds = ", ".join(f"{kind} {peak}" for kind, peak in self.peaks.items())
        peak = f"peak {self.peak} bytes at {self.peak_time:.6f} s"
        return f"<MemoryUse rank {self.rank}: {peak} ({kinds})>"


def memory(trace: "Trace", rank: int | None = None) -> MemoryUse:
    """`MemoryUse` of one rank; the rank with the highest peak of the sum when ``rank`` is None.

    Raises ValueError where the trace holds no memory samples, or none of that rank.
    """
    # JSON turns the rank keys into strings.
    samples = {r: m for r, m in trace.fact("memory").items() if m["time"]}
    if not samples:
        raise ValueError("this trace holds no memory samples; record it with memory=True")
    if rank is not None and not {whole_number("rank", rank, None), trace.model_of(rank)} & set(
        samples
    ):
        raise ValueError(
            f"no memory samples of rank {rank}; there are samples of {sorted(samples)}"
        )
    uses = [
        _memory_use(r, samples.get(r) or samples[trace.model_of(r)])
        for r in (sorted(samples) if rank is None else [rank])
    ]
    return max(uses, key=lambda use: use.peak)


def _memory_use(rank, samples):
    series = {
        kind: np.asarray(values, np.int64) for kind, values in samples.items() if kind != "time"
    }
    time = np.asarray(samples["time"], float)
    total = sum(series.values(), np.zeros(len(time), np.int64))
    return MemoryUse(rank, time, series, total)
