"""The trace: one table, one row per event, whatever made it (a run, a simulation, an import).

Columns are NumPy arrays of equal length; times are float seconds on one clock, starting near zero.

>>> t = Trace.from_events([Event(rank=0, lane="compute", kind="compute", name="mm", end=1.0)])
>>> len(t), t.ranks
(1, [0])
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tpviz.core.show import written_by
from tpviz.core.tables import listed

from . import analyses, clocks, ledger
from .agreement import MOST, disagreements
from .columns import COLUMNS, Event, codes, equals
from .faithful import badge_words, warn, warn_if_late
from .members import members_text
from .meta import brief, fact
from .rows import check_table, each, table_of
from .steps import median_number, step_spans

if TYPE_CHECKING:
    import pandas


__all__ = ["Event", "Trace"]


@dataclass(frozen=True, eq=False)
class Trace:
    """All events of a run, with what made them in ``meta``.

    meta (all optional, all JSON): ``badge`` ("this machine, gloo" | "NCCL" | "imported" | ...),
    ``world_size``, ``device``, ``strategy``, ``workload`` (printed forms), ``mesh`` ({"axes":
    {name: size, outer first}}), ``losses``, ``memory`` ({rank: {"time": [...], "parameters": [...],
    "gradients": [...], "optimizer": [...], "activations": [...]}}, bytes), ``overhead`` (seconds
    the recorder itself took), ``late`` (of an emulated run, see `tpviz.core.trace.faithful`),
    ``unrecorded`` (groups whose collectives are missing: [backend, members] each), ``notes`` (of
    an imported trace: sentences on what its files do not tell, and on what is assumed),
    ``parts`` ({rank: for each all-to-all of unequal parts, in order, the bytes to each member}),
    ``hosts`` ({rank: [name, mark of the clock of its times]} where known, `tpviz.ranks.hosts`),
    ``offsets`` (before `merge`, {rank: how far its clock is ahead, see `tpviz.core.trace.clocks`}),
    ``clocks`` (of hosts, {mark: seconds within which it is known beside the one of all times}),
    ``disagree`` (sentences: collectives on which ranks disagree, see `tpviz.core.trace.agreement`).
    """

    columns: dict[str, np.ndarray]
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        check_table(self.columns, self.meta)

    @classmethod
    def from_events(cls, events: Iterable[Event], meta: dict[str, Any] | None = None) -> Self:
        """Build from Events (any order). Events with id -1 are numbered in the order given.

        Raises ``ValueError`` for an event with a value that its column does not hold.
        """
        return cls(table_of(each(Event, "events", events)), {} if meta is None else meta)

    @classmethod
    def merge(cls, traces: "Iterable[Trace]", **meta: Any) -> "Trace":
        """One trace from one per rank: ids renumbered; memory, overhead and badges joined.

        Warns where an emulated run was not faithful, and where ranks disagree about the sizes,
        operations, roots or dtypes of collectives: here, since here the ranks' traces meet. Times
        of several hosts become those of one clock; ``ValueError`` if nobody compared their clocks.
        """
        traces = each(Trace, "traces", traces)
        if not traces:
            return cls.from_events([], meta)
        parts, offset, overhead = [], 0, 0.0
        memory, hosts, sent, offsets, known = {}, {}, {}, {}, {}
        for t in traces:
            c = dict(t.columns)
            c["id"] = c["id"] + offset
            c["waits_for"] = np.where(c["waits_for"] >= 0, c["waits_for"] + offset, -1)
            offset = int(c["id"].max()) + 1 if len(t) else offset
            parts.append(c)
            memory.update(t.fact("memory"))
            hosts.update(t.fact("hosts"))
            sent.update(t.fact("parts"))
            offsets.update(t.fact("offsets"))
            known.update(t.fact("clocks"))
            overhead = max(overhead, t.fact("overhead"))
        columns = {n: np.concatenate([p[n] for p in parts]) for n in COLUMNS}
        columns, memory, hosts, found = clocks.on_reference(columns, memory, hosts, offsets)
        each_of = {"memory": memory, "hosts": hosts, "parts": sent, "clocks": {**known, **found}}
        joined: dict[str, Any] = {name: of for name, of in each_of.items() if of}
        late = [t.fact("late") for t in traces if t.fact("late")]
        if late:
            joined["late"] = dict(max(late, key=lambda found: found.get("seconds", 0.0)))
            for share in ("share", "share_of_communication", "behind"):
                joined["late"][share] = max(found.get(share, 0.0) for found in late)
            warn_if_late(joined["late"])
        unrecorded = [group for t in traces for group in t.fact("unrecorded")]
        if unrecorded:
            joined["unrecorded"] = [list(g) for g in dict.fromkeys(map(tuple, unrecorded))]
        if notes := [note for t in traces for note in t.fact("notes")]:
            joined["notes"] = list(dict.fromkeys(notes))
        badges = dict.fromkeys(t.fact("badge") or "origin unknown" for t in traces)
        if len(badges) > 1:  # a part must not pass for what another one is
            joined["badge"] = "; ".join(badges)
        first = {key: value for key, value in traces[0].meta.items() if key != "offsets"}
        merged = cls(columns, {**first, **joined, "overhead": overhead, **meta}).rebased()
        found = disagreements(merged) if len(traces) > 1 else []
        if found:
            merged.meta["disagree"] = found[:MOST]
            warn("ranks disagree", f"ranks disagree about {listed(found, between=' ', most=1)}")
        return merged

    @property
    def badge(self) -> str:
        """Where the numbers come from, and what is wrong with them, as every figure shows it."""
        text = self.fact("badge") or "origin unknown"
        text += badge_words(self.fact("late"))
        groups = [
            f"{backend} group of ranks {members}" for backend, members in self.fact("unrecorded")
        ]
        if groups:
            text += f"; not recorded: {listed(groups, between=' ', most=1)}"
        if (hosts := self.fact("hosts")) and (others := set(self.ranks) - hosts.keys()):
            text += f"; host unknown of ranks {members_text(sorted(others))}"
        text += clocks.badge_words(self.fact("clocks"))
        disagree = self.fact("disagree")
        text += f"; ranks disagree: {listed(disagree, between=' ', most=1)}" if disagree else ""
        return "; ".join([text, *brief(self.fact("notes"))])

    @property
    def notes(self) -> list[str]:
        """Sentences on what is unknown, left out or assumed, of which `badge` has the subjects."""
        return [f"{note[0].upper()}{note[1:]}." for note in self.fact("notes") if note]

    def rebased(self) -> "Trace":
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

    def fact(self, name: str) -> Any:
        """The value of a key of ``meta``, or an empty value of its type if missing or malformed."""
        return fact(self.meta, name)

    def __len__(self):
        return len(self.columns["id"])

    def __getitem__(self, name: str):
        return self.columns[name]

    def __repr__(self):
        badge = self.badge if self.fact("badge") else "no badge"
        return f"<Trace {len(self.ranks)} ranks, {len(self)} events, {badge}>"

    def __iter__(self):
        """Rows as Events, with plain Python values."""
        return (Event(*row) for row in zip(*(self.columns[n].tolist() for n in COLUMNS)))

    def where(self, mask: np.ndarray) -> "Trace":
        """The rows where the boolean array ``mask`` holds; same meta."""
        return Trace({n: c[mask] for n, c in self.columns.items()}, self.meta)

    def select(self, **equal: Any) -> "Trace":
        """The rows whose columns equal the given values: ``t.select(rank=0, kind="comm")``."""
        mask = np.ones(len(self), dtype=bool)
        for name, value in equal.items():
            if name not in self.columns:
                raise ValueError(f"a trace has no column {name!r}; it has {', '.join(COLUMNS)}")
            mask &= equals(name, self[name], value)
        return self.where(mask)

    @property
    def ranks(self) -> list[int]:
        """Numbers of the ranks that have events, in order."""
        rank = self["rank"]  # of a rank's rows in a row the first says it
        return np.unique(rank[np.diff(rank, prepend=rank[:1] - 1) != 0]).tolist()

    def model_of(self, rank: int) -> int:
        """The rank whose rows stand for those of ``rank``: its own, unless ranks share rows."""
        return rank

    def whole(self) -> "Trace":
        """The trace with the rows of every rank: itself, unless ranks share rows."""
        return self

    @property
    def lanes(self) -> list[str]:
        """Names of the lanes to draw: compute first, then communication by name."""
        names = [n for n in codes(self["lane"])[0].tolist() if n != "step"]
        return sorted(names, key=lambda n: (n != "compute", n))

    @property
    def steps(self) -> list[int]:
        """Numbers of the steps recorded, in order."""
        return np.unique(self["step"][self["kind"] == "step"]).tolist()

    @property
    def step_time(self) -> float:
        """Seconds of the median step, from its first rank's start to its last rank's end; of an
        even number of steps, the shorter of the middle two."""
        _, start, end = step_spans(self)
        if not len(start):
            return float(self["end"].max() - self["start"].min()) if len(self) else 0.0
        return float((end - start)[median_number(start, end)])

    # The analyses live in their own modules, with what they say; these are the names people type.
    ledger = ledger.ledger
    breakdown = analyses.breakdown
    idle = analyses.idle
    overlap = analyses.overlap
    exposed_communication = analyses.exposed_communication
    bubble = analyses.bubble
    critical_path = analyses.critical_path
    memory = analyses.memory

    def to_chrome(self, path: str | PathLike[str]) -> Path:
        """Write Chrome/Perfetto JSON (.json or .json.gz); returns the path."""
        return written_by("chrome").to_chrome(self, path)

    def to_hta(self, folder: str | PathLike[str]) -> Path:
        """Write a folder that HolisticTraceAnalysis reads; returns the path."""
        return written_by("hta").to_hta(self, folder)

    def to_pandas(self) -> "pandas.DataFrame":
        """A ``pandas.DataFrame``. Raises ``ImportError`` with a hint where pandas is missing."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_pandas needs pandas: pip install pandas") from error
        return pandas.DataFrame(self.columns)
