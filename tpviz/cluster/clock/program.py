"""A captured program: what each rank computes, issues and waits for, and who it is the same as.

A capture records a few ranks. Ranks that differ only in where they sit share a capture; `place`
says which members a collective has on another rank: on axes along which the group's members vary
they stay, on the others they follow the rank. A message follows the rank on all axes, round the end
as on a ring.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tpviz.core.mesh import Mesh
from tpviz.core.trace.critical import rows_of
from tpviz.core.trace.members import members_list, members_text
from tpviz.core.trace.table import Trace

if TYPE_CHECKING:
    from tpviz.core.trace.ledger import Ledger

PEER = ("send", "recv")
WHAT = ("begin", "kernel", "issue", "end", "wait")


@dataclass(frozen=True, eq=False)
class Capture:
    """Traces of a program; their times give only the order of events (see `tpviz.capture`).

    traces : {rank: Trace} of the ranks recorded. model : {rank: recorded rank like it}.
    """

    axes: dict[str, int]
    traces: dict[int, Trace]
    model: dict[int, int]
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        """Number of ranks of the program."""
        return self.mesh.size

    @cached_property
    def mesh(self) -> Mesh:
        """The mesh the program was captured on."""
        return Mesh(self.axes)

    def ledger(self, rank: int = 0) -> "Ledger":
        """The ledger of a rank's step."""
        return self.traces[self.model[rank]].ledger()

    def trace(self, rank: int) -> Trace:
        """The program of one rank as a `Trace`; start and end give its order, not seconds."""
        source = self.model[rank]
        trace = self.traces[source]
        if rank == source:
            return trace
        keys = [(e.members, is_message(e.name)) for e in trace]
        placed = {
            (text, peer): place(self.mesh, source, rank, members_list(text), peer)
            for text, peer in dict.fromkeys(keys)
        }
        events = (
            e._replace(rank=rank, members=members_text(placed[key])) for e, key in zip(trace, keys)
        )
        return Trace.from_events(events, trace.meta)

    def __repr__(self):
        events = sum(map(len, self.traces.values()))
        return (
            f"<Capture {self.world_size} ranks, {len(self.traces)} of them recorded, "
            f"{events} events>"
        )


def is_message(name: str) -> bool:
    """Whether ``name`` is that of a point-to-point message, or of the wait for one."""
    return name.removeprefix("wait ") in PEER


def place(
    mesh: Mesh, source: int, rank: int, members: Sequence[int], peer: bool = False
) -> tuple[int, ...]:
    """The ranks of ``rank``'s group that corresponds to the group ``members`` of the recorded rank
    ``source``. peer : the group is the two ranks of a point-to-point message."""
    if source == rank or not members:
        return tuple(members)
    found = np.array(members)
    for stride, size in strides(mesh):
        here, there = source // stride % size, rank // stride % size
        places = found // stride % size
        if peer:
            found += ((places - here + there) % size - places) * stride
        elif (places == here).all():
            found += (there - here) * stride
    return tuple(found.tolist())


def strides(mesh: Mesh) -> list[tuple[int, int]]:
    """[(how far apart neighbours on an axis are, its size)], outer first."""
    stride, found = mesh.size, []
    for size in mesh.shape:
        stride //= size
        found.append((stride, size))
    return found


def operations(trace: Trace) -> list[tuple[str, int, int]]:
    """The program of a captured rank, in order, as (what, row acted on, own row).

    ("kernel", row, row), ("issue", row, row), ("wait", row of the collective, row), and ("begin",
    row, row), ("end", row, row) of a step. Rows are indices into the trace.
    """
    kinds = trace["kind"]
    rows = np.repeat(np.arange(len(kinds)), np.where(kinds == "step", 2, 1))  # it begins, and ends
    what = np.full(len(rows), WHAT.index("wait"))
    for kind, number in (("step", 0), ("compute", 1), ("comm", 2), ("copy", 2)):
        what[kinds[rows] == kind] = number
    what[1:][rows[1:] == rows[:-1]] = WHAT.index("end")
    waits = what == WHAT.index("wait")
    on = np.where(waits, rows_of(trace, trace["waits_for"])[rows], rows)
    late = what >= WHAT.index("end")
    order = np.argsort(np.where(late, trace["end"][rows], trace["start"][rows]), kind="stable")
    columns = (column[order].tolist() for column in (what, on, rows))
    return [(WHAT[number], row, own) for number, row, own in zip(*columns)]
