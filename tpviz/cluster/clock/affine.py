"""Records of ranks that differ in how many rows go to experts, from a few of them (derived).

Such ranks run the same operations in the same order. Each number in a record (FLOPs and bytes of a
row, parts of an all-to-all, a change of what is allocated) is affine in one count of rows, those of
an expert, of all experts of a rank, for another rank, or it is the same for all. A few records show
in which; where they show none, `Affine.of_records` gives none.

>>> enough(np.array([[1, 8], [3, 7], [5, 5], [7, 9]]))
[0, 1, 2]
"""

from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple, Self

import numpy as np

from tpviz.core.mesh import Mesh
from tpviz.core.trace.ledger import wire_bytes
from tpviz.core.trace.members import members_list
from tpviz.core.trace.table import Trace

from .shared import groups_in, members_of

_OWN = "rank", "members", "flops", "bytes", "wire_bytes"


def enough(counts: np.ndarray) -> list[int]:
    """Which ranks to record, so that counts that vary apart anywhere vary apart on these.

    counts : of rows, (ranks, counts).
    """
    counts = np.column_stack([counts, np.zeros(len(counts), np.int64)])  # what does not vary
    wanted, chosen = _directions(counts), [0]
    while _directions(counts[chosen]) < wanted:
        rest = [rank for rank in range(len(counts)) if rank not in chosen]
        chosen.append(max(rest, key=lambda rank: _directions(counts[[*chosen, rank]])))
    return chosen


def _directions(counts):
    """How many counts there are of which none is affine in another on these ranks."""
    changes = counts - counts[0]
    changes = changes // np.maximum(np.gcd.reduce(changes, axis=0), 1)
    first = np.take_along_axis(changes, (changes != 0).argmax(0)[None], 0)
    return len(np.unique(changes * np.where(first < 0, -1, 1), axis=1).T)


class Affine(NamedTuple):
    """The program of every rank of such a family: the record of one, and how its numbers change."""

    mesh: Mesh
    rank: int
    trace: Trace
    counts: np.ndarray
    """of the rank recorded"""
    slopes: np.ndarray
    """of each number: how much more it is for one row more"""
    of: np.ndarray
    """of each number: of which of the counts"""

    @classmethod
    def of_records(cls, mesh: Mesh, traces: Mapping[int, Trace], counts: np.ndarray) -> Self | None:
        """By records of a few ranks, {rank: trace}, that `enough` names; None if they are of other
        programs. counts : of rows of each of these ranks, (ranks, counts)."""
        (rank, base), *others = traces.items()
        if any(not _same(mesh, rank, base, other, trace) for other, trace in others):
            return None
        numbers = np.array([np.concatenate(_numbers(t, other)) for other, t in traces.items()])
        slopes, of = np.zeros_like(numbers[0]), np.zeros(len(numbers[0]), np.int64)
        changes, left = numbers - numbers[0], (numbers != numbers[0]).any(0)
        for count, more in enumerate((counts - counts[0]).T):
            most = np.abs(more).argmax()
            if more[most]:
                slope, rest = np.divmod(changes[most], more[most])
                fits = left & (rest == 0) & (changes == np.outer(more, slope)).all(0)
                slopes[fits], of[fits], left = slope[fits], count, left & ~fits
        return None if left.any() else cls(mesh, rank, base, counts[0], slopes, of)

    def at(self, rank: int, counts: np.ndarray) -> Trace:
        """The program of another rank, with these counts of rows."""
        known = _numbers(self.trace, self.rank)
        more = self.slopes * (counts - self.counts)[self.of]
        ends = np.cumsum([len(part) for part in known])[:-1]
        flops, sizes, parts, *memory = map(np.add, known, np.split(more, ends))
        columns = {**self.trace.columns, "flops": flops, "bytes": sizes}
        columns["rank"] = np.full_like(columns["rank"], rank)
        columns["members"] = members_of(self.mesh, self.rank, rank, groups_in(columns))
        columns["wire_bytes"] = _wire_bytes(columns, self.trace["bytes"])
        series, meta, parts = self.trace.meta["memory"][self.rank], {}, iter(parts.tolist())
        of_kind = (changes.cumsum().tolist() for changes in memory)
        meta["memory"] = {rank: {k: series[k] if k == "time" else next(of_kind) for k in series}}
        if "parts" in self.trace.meta:
            lengths = _lengths(self.trace, self.rank)
            meta["parts"] = {rank: [list(islice(parts, length)) for length in lengths]}
        return Trace(columns, self.trace.meta | meta)


def _numbers(trace, rank):
    """FLOPs, bytes, parts of all-to-alls, and changes of each kind of memory."""
    parts = [size for of in trace.meta.get("parts", {}).get(rank, ()) for size in of]
    series = trace.meta["memory"][rank]
    changes = [np.diff(series[kind], prepend=0) for kind in series if kind != "time"]
    return [trace["flops"], trace["bytes"], np.array(parts, np.int64), *changes]


def _wire_bytes(columns, before):
    """The column, where bytes were ``before``: of collectives anew."""
    found = columns["wire_bytes"].copy()
    for row in np.flatnonzero((columns["bytes"] != before) & (columns["kind"] == "comm")).tolist():
        size = len(members_list(str(columns["members"][row])))
        found[row] = wire_bytes(str(columns["name"][row]), int(columns["bytes"][row]), size)
    return found


def _same(mesh, rank, base, other, trace):
    """Whether two records differ in sizes alone."""
    return (
        len(base) == len(trace)
        and all((base[name] == trace[name]).all() for name in base.columns if name not in _OWN)
        and (members_of(mesh, rank, other, groups_in(base.columns)) == trace["members"]).all()
        and base.meta["memory"][rank]["time"] == trace.meta["memory"][other]["time"]
        and _lengths(base, rank) == _lengths(trace, other)
    )


def _lengths(trace, rank):
    return [len(of) for of in trace.meta.get("parts", {}).get(rank, ())]
