"""The trace: one table, one row per event, whatever made it (a run, a simulation, an import).

Columns are NumPy arrays of equal length; times are float seconds on one clock, starting near zero.

>>> t = Trace.from_events([Event(rank=0, lane="compute", kind="compute", name="mm", end=1.0)])
>>> len(t), t.ranks
(1, [0])
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .faithful import badge_words, warn_if_late
from .members import MANY, members_list, members_text
from .meta import fact

__all__ = ["COLUMNS", "MANY", "Event", "Trace", "members_list", "members_text"]


class Event(NamedTuple):
    """One interval on one lane of one rank.

    kind: ``compute`` | ``comm`` | ``wait`` (compute lane blocked on the event ``waits_for``) |
    ``step`` (the span of a whole training step, on lane "step"). lane: ``compute``,
    ``comm/<axis>``, ``step``. phase: forward, backward, sync, recompute, optimizer or "". bytes:
    payload, the full tensor of the collective; of a kernel, what it reads and writes. wire_bytes:
    what one rank sends on a ring. axis: mesh axis of the group. members: its global ranks, as
    `members_text` writes them ("0,2"). seq: the how-manyeth collective of that group (the same
    number on every member), -1 for none. id is unique in a trace; waits_for is an id or -1. dtype:
    of a kernel's numbers, "float32", where known.
    """

    id: int = -1
    rank: int = 0
    lane: str = "compute"
    kind: str = "compute"
    name: str = ""
    phase: str = ""
    layer: str = ""
    microbatch: int = -1
    chunk: int = -1
    step: int = -1
    start: float = 0.0
    end: float = 0.0
    flops: int = 0
    bytes: int = 0
    wire_bytes: float = 0.0
    axis: str = ""
    members: str = ""
    seq: int = -1
    waits_for: int = -1
    dtype: str = ""


FEW = 64


def codes(column):
    """(distinct values, index of each row's value among them) of a column of texts.

    Columns such as ``lane`` have few values: looking for these one by one takes a fraction of the
    time that sorting a million texts takes.

    >>> codes(np.array(["b", "a", "b"]))[1].tolist()
    [0, 1, 0]
    """
    values, found, left = [], np.zeros(len(column), np.int64), np.arange(len(column))
    while len(left):
        if len(values) == FEW:
            return np.unique(column, return_inverse=True)
        same = column[left] == column[left[0]]
        found[left[same]] = len(values)
        values.append(column[left[0]])
        left = left[~same]
    return np.array(values, column.dtype), found


def equals(name, column, value):
    """Where a column has a value, or one of a list of them; ValueError for what is neither."""
    try:
        if isinstance(value, (list, tuple, set)):
            return np.isin(column, list(value))
        return np.broadcast_to(column == value, column.shape)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r} is no value or list of values") from None


_TYPES = {str: np.str_, int: np.int64, float: np.float64}
COLUMNS = {name: _TYPES[kind] for name, kind in Event.__annotations__.items()}


@dataclass(frozen=True, eq=False)
class Trace:
    """All events of a run, with what made them in ``meta``.

    meta (all optional, all JSON): ``badge`` ("this machine, gloo" | "NCCL" | "imported" | ...),
    ``world_size``, ``device``, ``strategy``, ``workload`` (printed forms), ``mesh`` ({"axes":
    {name: size, outer first}}), ``losses``, ``memory`` ({rank: {"time": [...], "parameters": [...],
    "gradients": [...], "optimizer": [...], "activations": [...]}}, bytes), ``overhead`` (seconds
    the recorder itself took), ``late`` (of an emulated run, see `tpviz.trace.faithful`),
    ``unrecorded`` (groups whose collectives are missing: [backend, members] each).
    """

    columns: dict
    meta: dict = field(default_factory=dict)

    def __post_init__(self):
        from .rows import check_table

        check_table(self.columns, self.meta)

    @classmethod
    def from_events(cls, events, meta=None):
        """Build from Events (any order). Events with id -1 are numbered in the order given.

        Raises ``ValueError`` for an event with a value that its column does not hold.
        """
        from .rows import each, table_of

        return cls(table_of(each(Event, "events", events)), {} if meta is None else meta)

    @classmethod
    def merge(cls, traces, **meta):
        """One trace from one per rank: ids renumbered; memory, overhead and badges joined.

        Warns where an emulated run was not faithful: here, since here the ranks' traces meet.
        """
        from .rows import each

        traces = each(Trace, "traces", traces)
        if not traces:
            return cls.from_events([], meta)
        parts, offset, memory, overhead = [], 0, {}, 0.0
        for t in traces:
            c = dict(t.columns)
            c["id"] = c["id"] + offset
            c["waits_for"] = np.where(c["waits_for"] >= 0, c["waits_for"] + offset, -1)
            offset = int(c["id"].max()) + 1 if len(t) else offset
            parts.append(c)
            memory.update(t.fact("memory"))
            overhead = max(overhead, t.fact("overhead"))
        columns = {n: np.concatenate([p[n] for p in parts]) for n in COLUMNS}
        joined = {"memory": memory} if memory else {}
        late = [t.fact("late") for t in traces if t.fact("late")]
        if late:
            joined["late"] = dict(max(late, key=lambda found: found.get("seconds", 0.0)))
            for share in ("share", "share_of_communication", "behind"):
                joined["late"][share] = max(found.get(share, 0.0) for found in late)
            warn_if_late(joined["late"])
        unrecorded = [group for t in traces for group in t.fact("unrecorded")]
        if unrecorded:
            joined["unrecorded"] = [list(g) for g in dict.fromkeys(map(tuple, unrecorded))]
        badges = dict.fromkeys(t.fact("badge") or "origin unknown" for t in traces)
        if len(badges) > 1:  # a part must not pass for what another one is
            joined["badge"] = "; ".join(badges)
        return cls(columns, {**traces[0].meta, **joined, "overhead": overhead, **meta}).rebased()

    @property
    def badge(self):
        """Where the numbers come from, and what is wrong with them, as every picture says it."""
        text = self.fact("badge") or "origin unknown"
        text += badge_words(self.fact("late"))
        groups = [
            f"{backend} group of ranks {members}" for backend, members in self.fact("unrecorded")
        ]
        more = f" and {len(groups) - 1} more" if len(groups) > 1 else ""
        return f"{text}; not recorded: {groups[0]}{more}" if groups else text

    def rebased(self):
        """The same events with the clock starting at zero (memory samples move along)."""
        if not len(self):
            return self
        zero = self["start"].min()
        columns = {**self.columns, "start": self["start"] - zero, "end": self["end"] - zero}
        meta = dict(self.meta)
        if memory := self.fact("memory"):
            meta["memory"] = {
                rank: {**series, "time": [t - zero for t in series["time"]]}
                for rank, series in memory.items()
            }
        return Trace(columns, meta)

    def fact(self, name):
        """What ``meta`` says under a known key, an empty value where that has another shape."""
        return fact(self.meta, name)

    def __len__(self):
        return len(self.columns["id"])

    def __getitem__(self, name):
        return self.columns[name]

    def __repr__(self):
        badge = self.badge if self.fact("badge") else "no badge"
        return f"<Trace {len(self.ranks)} ranks, {len(self)} events, {badge}>"

    def __iter__(self):
        """Rows as Events, with plain Python values."""
        return (Event(*row) for row in zip(*(self.columns[n].tolist() for n in COLUMNS)))

    def where(self, mask):
        """The rows where the boolean array ``mask`` holds; same meta."""
        return Trace({n: c[mask] for n, c in self.columns.items()}, self.meta)

    def select(self, **equal):
        """The rows whose columns equal the given values: ``t.select(rank=0, kind="comm")``."""
        mask = np.ones(len(self), dtype=bool)
        for name, value in equal.items():
            if name not in self.columns:
                raise ValueError(f"a trace has no column {name!r}; it has {', '.join(COLUMNS)}")
            mask &= equals(name, self[name], value)
        return self.where(mask)

    @property
    def ranks(self):
        """Numbers of the ranks that have events, in order."""
        return np.unique(self["rank"]).tolist()

    def model_of(self, rank):
        """The rank whose rows stand for those of ``rank``: its own, unless ranks share rows."""
        return rank

    def whole(self):
        """The trace with the rows of every rank: itself, unless ranks share rows."""
        return self

    @property
    def lanes(self):
        """Names of the lanes to draw: compute first, then communication by name."""
        names = [n for n in np.unique(self["lane"]).tolist() if n != "step"]
        return sorted(names, key=lambda n: (n != "compute", n))

    @property
    def steps(self):
        """Numbers of the steps recorded, in order."""
        return np.unique(self["step"][self["kind"] == "step"]).tolist()

    @property
    def step_time(self):
        """Seconds of one step: median over steps of (last rank's end - first rank's start)."""
        from .steps import step_spans

        _, start, end = step_spans(self)
        if not len(start):
            return float(self["end"].max() - self["start"].min()) if len(self) else 0.0
        return float(np.median(end - start))

    # The analyses live in their own modules; these are the names people type.
    def ledger(self, rank=None, step=None):
        """The `Ledger` of one rank's step: see `tpviz.trace.ledger.ledger`."""
        from .ledger import ledger

        return ledger(self, rank, step)

    def overlap(self, rank=None):
        """Fraction of communication under computation: see `tpviz.trace.analyses.overlap`."""
        from .analyses import overlap

        return overlap(self, rank)

    def exposed_communication(self, rank=None):
        """Seconds of communication that nothing hides: see `tpviz.trace.analyses`."""
        from .analyses import exposed_communication

        return exposed_communication(self, rank)

    def bubble(self):
        """{rank: idle fraction}: see `tpviz.trace.analyses.bubble`."""
        from .analyses import bubble

        return bubble(self)

    def critical_path(self):
        """The events that decided the end: see `tpviz.trace.critical`."""
        from .analyses import critical_path

        return critical_path(self)

    def memory(self, rank=None):
        """Peaks and series of a rank's memory: see `tpviz.trace.analyses`."""
        from .analyses import memory

        return memory(self, rank)

    def to_chrome(self, path):
        """Write Chrome/Perfetto JSON (.json or .json.gz); returns the path."""
        from .chrome import to_chrome

        return to_chrome(self, path)

    def to_hta(self, folder):
        """Write a folder that HolisticTraceAnalysis reads; returns the path."""
        from .hta import to_hta

        return to_hta(self, folder)

    def to_pandas(self):
        """A ``pandas.DataFrame``. Raises ``ImportError`` with a hint where pandas is missing."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_pandas needs pandas: pip install pandas") from error
        return pandas.DataFrame(self.columns)
