"""The ledger: which collectives ran on which axis, how often, and how many bytes, exactly.

The same rows come from a formula (`Strategy.ledger`) and from a measured trace (`Trace.ledger`), so
they can be compared with ``==``; `Ledger.diff` says in words where two differ.

>>> print(Ledger.of([("tp", "all_reduce", "forward", 2, 4096, 4)]))
axis  collective  phase    count  payload_bytes  wire_bytes
tp    all_reduce  forward      2           8192       12288
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import isnan, nan
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from tpviz.core.checks import whole_number
from tpviz.core.copies import COPY, HOST
from tpviz.core.show import Tabular
from tpviz.core.tables import grouped, html_table

from .members import members_list

if TYPE_CHECKING:
    from .table import Trace


UNKNOWN = nan
"""Bytes that a trace does not tell: the same object everywhere, so that equal ledgers are equal."""


def wire_bytes(collective: str, payload: int, size: int) -> float:
    """Bytes one rank sends when a ring of ``size`` ranks does this collective on ``payload`` bytes.

    payload is the full tensor: the tensor of an all_reduce, the output of an all_gather, the input
    of a reduce_scatter. Ring algorithm (derived): all_reduce 2(n-1)/n, all_gather, reduce_scatter,
    all_to_all (n-1)/n, broadcast, reduce, gather and scatter (n-1)/n averaged over the ranks, send
    and all_to_all_v, whose payload is what goes to others, 1, recv and barrier 0. nan where the
    payload (below 0) or the size (0) is unknown.
    """
    if payload < 0 or (size < 1 and collective not in ("send", "recv", "barrier")):
        return UNKNOWN
    factor = {"all_reduce": 2, "send": 0, "recv": 0, "barrier": 0}.get(collective, 1)
    if collective in ("send", "all_to_all_v"):
        return payload
    if not factor:
        return 0
    whole, rest = divmod(factor * (size - 1) * payload, size)
    return whole if rest == 0 else factor * (size - 1) * payload / size


class LedgerRow(NamedTuple):
    """The collectives of one kind, axis and phase: how many, and their bytes in all, per rank.

    The bytes are nan, and written "unknown", where a trace does not tell those of every one.
    """

    axis: str
    collective: str
    phase: str
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  (of tuple)
    payload_bytes: float
    wire_bytes: float


@dataclass(frozen=True, repr=False)
class Ledger(Tabular):
    """The rows of a ledger, sorted by axis, collective and phase. Ledgers with equal rows are
    equal."""

    _right = (3, 4, 5)
    rows: tuple[LedgerRow, ...] = ()

    @classmethod
    def of(cls, entries: Iterable[tuple[str, str, str, int, int, int]]) -> Self:
        """A ledger from (axis, collective, phase, count, payload bytes of each, group size) tuples.

        Groups of one rank move nothing but copies, and are left out; so are entries with count 0.
        -1 stands for unknown bytes, and 0 for the size of an unknown group.
        """
        count: Counter[tuple[str, str, str]] = Counter()
        by_size: Counter[tuple[str, str, str, int, bool]] = Counter()
        payload: dict[tuple[str, str, str], float] = defaultdict(int)
        wire: dict[tuple[str, str, str], float] = defaultdict(int)
        for axis, collective, phase, n, bytes_each, size in entries:
            if n == 0 or (size == 1 and collective != COPY):
                continue
            key = (axis, collective, phase)
            count[key] += n
            payload[key] += n * bytes_each if bytes_each >= 0 else UNKNOWN
            by_size[*key, size, bytes_each < 0] += n * bytes_each
        # Wire bytes grow with the payload, so the sum is rounded once, whatever the order was.
        for (*key, size, _), total in sorted(by_size.items()):
            wire[tuple(key)] += wire_bytes(key[1], total, size)  # pyright: ignore[reportArgumentType]
        return cls(tuple(_row(k, count[k], payload[k], wire[k]) for k in sorted(count)))

    def __iter__(self):
        return iter(self.rows)

    def __len__(self):
        return len(self.rows)

    def __add__(self, other: "Ledger"):
        """The two ledgers in one, equal (axis, collective, phase) rows summed."""
        sums: dict[tuple[str, str, str], tuple[Any, ...]] = {}
        for row in (*self.rows, *other.rows):
            old = sums.get(row[:3], (0, 0, 0))
            sums[row[:3]] = tuple(a + b for a, b in zip(old, row[3:]))
        return Ledger(tuple(_row(k, *sums[k]) for k in sorted(sums)))

    def total(self, **equal: str | float) -> tuple[int, float, float]:
        """(count, payload_bytes, wire_bytes) summed over rows whose fields equal those given; nan
        where one is unknown."""
        rows: list[Any] = [
            r for r in self.rows if all(getattr(r, k) == v for k, v in equal.items())
        ]
        return tuple(sum(r[i] for r in rows) for i in (3, 4, 5))  # pyright: ignore[reportReturnType]

    def diff(self, other: "Ledger", names: tuple[str, str] = ("this", "other")) -> list[str]:
        """Lines that say where two ledgers differ; an empty list when they are equal."""
        mine, theirs = ({r[:3]: r[3:] for r in led} for led in (self, other))
        return [
            f"{'/'.join(k)}: {names[0]} has {_words(mine.get(k))}, "
            f"{names[1]} has {_words(theirs.get(k))}"
            for k in sorted(mine.keys() | theirs.keys())
            if mine.get(k) != theirs.get(k)
        ]

    def to_table(self) -> list[list[str]]:
        """A list of rows of strings, header first."""
        return [list(LedgerRow._fields)] + [
            [*r[:3], str(r.count), _amount(r.payload_bytes, ""), _amount(r.wire_bytes)]
            for r in self.rows
        ]

    def _repr_html_(self):
        rows = (map(grouped, row) for row in self.to_table())
        return html_table(rows, "class='tpviz-ledger'")


def _row(key: tuple[str, str, str], count: int, payload: float, wire: float):
    payload, wire = (UNKNOWN if isnan(size) else size for size in (payload, wire))
    return LedgerRow(key[0], key[1], key[2], count, payload, wire)


def _amount(size: float, kind: str = ".10g"):
    return "unknown" if isnan(size) else f"{size:{kind}}"


def _words(values: tuple[int, float, float] | None):
    if values is None:
        return "nothing"
    payload, wire = _amount(values[1], ""), _amount(values[2])
    return f"{values[0]} x, {payload} payload bytes, {wire} on the wire"


def ledger(trace: "Trace", rank: int | None = None, step: int | None = None) -> Ledger:
    """The ledger of one rank (the lowest) and step (the last one marked, else all events).

    Raises ValueError for a rank or a step that is not in the trace.
    """
    steps = np.unique(trace["step"]).tolist()
    for name, value, known in (("rank", rank, trace.ranks), ("step", step, steps)):
        if value is not None and whole_number(name, value, None) not in known:
            raise ValueError(f"the trace has no {name} {value}; it has {known}")
    if not len(trace):
        return Ledger()
    rank = trace.ranks[0] if rank is None else rank
    if step is None and trace.steps:
        step = trace.steps[-1]
    comm = trace.select(kind=["comm", "copy"], rank=rank)
    if step is not None:
        comm = comm.select(step=step)
    size = {text: len(members_list(text)) for text in set(comm["members"].tolist())}
    moves = (e for e in comm if e.kind == "comm" or e.axis in HOST)
    return Ledger.of((e.axis, e.name, e.phase, 1, e.bytes, size[e.members]) for e in moves)
