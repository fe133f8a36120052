"""What is read off a trace: overlap, exposed communication, bubbles, memory, the critical path.

Overlap is defined as HolisticTraceAnalysis (Meta, 2023) defines it: communication time that
computation covers, over communication time, both on merged intervals of one rank. The bubble is our
own (derived).

>>> from tpviz.trace import Event, Trace
>>> events = [Event(end=2.0), Event(lane="comm/tp", kind="comm", start=1.0, end=3.0)]
>>> overlap(Trace.from_events(events))
0.5
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tpviz.checks import whole_number

from .critical import critical_path, last_members, match_collectives
from .steps import step_spans

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from .table import Trace

__all__ = [
    "Breakdown",
    "MemoryUse",
    "breakdown",
    "bubble",
    "critical_path",
    "exposed_communication",
    "intersect",
    "length",
    "match_collectives",
    "memory",
    "merge",
    "overlap",
    "overlaps",
]


def merge(start: "ArrayLike", end: "ArrayLike") -> tuple[np.ndarray, np.ndarray]:
    """Union of intervals: disjoint sorted (start, end) arrays; touching ones join, empty go."""
    start, end = np.asarray(start, float), np.asarray(end, float)
    start, end = start[end > start], end[end > start]
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.ones(len(start), bool)
    first[1:] = start[1:] > end[:-1]
    last = np.append(first[1:], True)[: len(first)]
    return start[first], end[last]


def intersect(
    a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Intersection of two merged interval sets, merged itself."""
    # A piece starts where the later of two overlapping intervals starts: pair every start with the
    # interval of the other set that covers it.
    pieces = [[], []]
    for (start, end), (other_start, other_end), side in ((a, b, "right"), (b, a, "left")):
        i = np.searchsorted(other_start, start, side) - 1  # pyright: ignore[reportCallIssue, reportArgumentType]
        covered = (i >= 0) & (start < other_end[np.maximum(i, 0)]) if len(other_end) else i >= 0
        pieces[0].append(start[covered])
        pieces[1].append(np.minimum(end[covered], other_end[i[covered]]))
    return merge(*map(np.concatenate, pieces))


def length(intervals: tuple[np.ndarray, np.ndarray]) -> float:
    """Total length of a merged interval set."""
    return float((intervals[1] - intervals[0]).sum())


def _spans(trace, kind, ranks):
    """{rank: the merged intervals of its events of a kind}; ranks that share rows share these."""
    rows = trace["kind"] == kind
    rank, start, end = (trace[column][rows] for column in ("rank", "start", "end"))
    found = {m: merge(start[rank == m], end[rank == m]) for m in set(map(trace.model_of, ranks))}
    return {r: found[trace.model_of(r)] for r in ranks}


def _ranks(trace, rank):
    if rank is None:
        return trace.ranks
    if whole_number("rank", rank, None) not in trace.ranks:
        raise ValueError(f"the trace has no rank {rank}; it has {trace.ranks}")
    return [rank]


def _covered(trace, ranks):
    """(seconds of communication, seconds of it under compute) of each rank."""
    comm, compute = _spans(trace, "comm", ranks), _spans(trace, "compute", ranks)
    return [(length(comm[r]), length(intersect(comm[r], compute[r]))) for r in ranks]


def overlap(trace: "Trace", rank: int | None = None) -> float:
    """Fraction (0..1) of communication time during which the same rank computes (HTA's definition).

    Only events of kind ``compute`` count as computation; a blocked wait does not. rank None: all
    ranks together, overlapped seconds summed over ranks divided by communication seconds summed
    over ranks. 0.0 where there is no communication. Raises ValueError for a rank that is not in the
    trace.
    """
    sums = np.array(_covered(trace, _ranks(trace, rank))).reshape(-1, 2).sum(0)
    return min(1.0, float(sums[1] / sums[0])) if sums[0] > 0 else 0.0


def overlaps(trace: "Trace") -> dict[int, float]:
    """{rank: overlap fraction}."""
    found = {m: overlap(trace, m) for m in set(map(trace.model_of, trace.ranks))}
    return {r: found[trace.model_of(r)] for r in trace.ranks}


def exposed_communication(trace: "Trace", rank: int | None = None) -> float:
    """Seconds of communication during which the rank does not compute, over the whole trace.

    All of it, as HTA counts: bandwidth, latency, contention and `Breakdown`'s ``waiting`` for a
    peer, which is also `bubble`. rank None: the largest over ranks, since the step waits for the
    slowest. Raises ValueError for a rank that is not in the trace.
    """
    seconds = _covered(trace, _ranks(trace, rank))
    return max((max(0.0, comm - covered) for comm, covered in seconds), default=0.0)


class Breakdown(NamedTuple):
    """Seconds of a rank: ``compute`` (alone) + ``overlapped`` + ``exposed`` + ``copying`` +
    ``idle`` is ``span``.

    overlapped: computing and communicating. exposed: communicating, not computing. copying: neither
    of these, but copying to or from the device. idle: nothing. waiting is the part of ``exposed``
    in which no data can move yet, because every collective that runs still lacks a member: some
    peer has not issued its part.
    """

    span: float
    compute: float
    overlapped: float
    exposed: float
    idle: float
    waiting: float
    copying: float = 0.0


def breakdown(trace: "Trace") -> dict[int, Breakdown]:
    """{rank: `Breakdown`}, over the marked steps (or the whole trace where no steps are marked).

    The span is the same for all ranks: from the first rank's start of a step to the last rank's end
    of it, summed over steps.
    """
    windows, ranks = _windows(trace), trace.ranks
    models = sorted(set(map(trace.model_of, ranks)))
    compute, copies = (_spans(trace, kind, models) for kind in ("compute", "copy"))
    rows = np.flatnonzero(trace["kind"] == "comm")
    columns = trace["start"][rows], trace["end"][rows], _arrival(trace)[rows]
    rank = trace["rank"][rows]
    found = {
        m: _breakdown(windows, compute[m], copies[m], *(c[rank == m] for c in columns))
        for m in models
    }
    return {r: found[trace.model_of(r)] for r in ranks}


def _breakdown(windows, compute, copies, start, end, arrival):
    compute = intersect(windows, compute)
    comm = intersect(windows, merge(start, end))
    before = intersect(windows, merge(start, np.minimum(arrival, end)))
    moving = merge(*map(np.concatenate, zip(compute, merge(arrival, end))))
    busy = merge(*map(np.concatenate, zip(compute, comm)))
    both = length(intersect(compute, comm))
    active = length(intersect(windows, merge(*map(np.concatenate, zip(busy, copies)))))
    return Breakdown(
        span=length(windows),
        compute=length(compute) - both,
        overlapped=both,
        exposed=length(comm) - both,
        idle=length(windows) - active,
        waiting=length(before) - length(intersect(before, moving)),
        copying=active - length(busy),
    )


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

    A rank is idle when it neither computes nor communicates nor copies, and waiting when it does
    not compute and no collective it has issued can move data, because a peer has not issued its
    part: a pipeline stage blocked in a recv whose sender still computes, or a rank ahead of a
    straggler. Time in which data moves is exposed communication, not bubble. 0.0 where the span is
    empty.
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
