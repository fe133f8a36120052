"""A trace of many ranks, of which those that do the same share rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tpviz.core.mesh import Mesh
from tpviz.core.trace.columns import COLUMNS, equals
from tpviz.core.trace.members import members_list, members_text
from tpviz.core.trace.table import Trace

from .program import PEER, place


@dataclass(frozen=True, eq=False, repr=False)
class SharedTrace(Trace):
    """A `Trace` whose rows are those of one rank of each kind; it answers for every rank.

    ``ranks`` are all; `select` with a rank, and what is asked of one rank, gives that rank's own
    rows. What is asked of all counts each rank once. The columns themselves, `where`, exports and
    pictures have the rows held, and the badge says how many ranks these stand for.

    model : per rank the one whose rows it shares. The column ``last`` is the id of the row of a
    collective's last member.
    """

    model: list[int] = field(default_factory=list)

    @property
    def ranks(self) -> list[int]:
        """Numbers of all ranks."""
        return list(range(len(self.model)))

    @cached_property
    def _block(self):
        """{rank whose rows are held: (first row, row behind the last)}; they lie together."""
        ranks, first = np.unique(self["rank"], return_index=True)
        ends = np.append(first[1:], len(self))
        return dict(zip(ranks.tolist(), zip(first.tolist(), ends.tolist())))

    @cached_property
    def _first_id(self):
        """Per rank, the id of its first row: rows of all ranks are numbered through."""
        rows = [end - start for start, end in (self._block[m] for m in self.model)]
        return np.concatenate([[0], np.cumsum(rows)]).tolist()

    def model_of(self, rank: int) -> int:
        """The rank whose rows stand for those of ``rank``."""
        return self.model[rank] if 0 <= rank < len(self.model) else rank

    def of_rank(self, rank: int) -> Trace:
        """The rows of one rank, as a plain `Trace`."""
        return Trace(self._columns_of(rank), self.meta)

    def _columns_of(self, rank):
        source = self.model[rank]
        held = slice(*self._block[source])
        columns = {name: self[name][held] for name in COLUMNS}
        if rank != source:
            moved = self._first_id[rank] - self._first_id[source]
            waits = columns["waits_for"]
            columns |= {
                "id": columns["id"] + moved,
                "rank": np.full_like(columns["rank"], rank),
                "waits_for": np.where(waits < 0, -1, waits + moved),
                "members": self._members_of(source, rank, columns),
            }
        return columns

    def _members_of(self, source, rank, columns):
        if source not in self._groups:
            self._groups[source] = groups_in(columns)
        return members_of(self._mesh, source, rank, self._groups[source])

    @cached_property
    def _groups(self):
        """{rank whose rows are held: `groups_in` these}, as far as it was asked for."""
        return {}

    @cached_property
    def _mesh(self):
        return Mesh(self.meta["mesh"]["axes"])

    def whole(self) -> Trace:
        """The plain `Trace` with the rows of every rank: about 1 kB a row."""
        parts = list(map(self._columns_of, self.ranks))
        columns = {name: np.concatenate([part[name] for part in parts]) for name in COLUMNS}
        return Trace(columns, self.meta)

    def select(self, **equal: Any) -> Trace:
        """The rows whose columns equal the given values; with a rank, that rank's own."""
        if "rank" not in equal:
            return super().select(**equal)
        wanted = np.flatnonzero(equals("rank", np.arange(len(self.model)), equal.pop("rank")))
        parts = [self.of_rank(rank).select(**equal).columns for rank in wanted.tolist()]
        if not parts:
            return self.where(np.zeros(len(self), bool))
        columns = {name: np.concatenate([part[name] for part in parts]) for name in COLUMNS}
        return Trace(columns, self.meta)


def groups_in(columns: Mapping[str, np.ndarray]) -> tuple[list[tuple[list[int], bool]], np.ndarray]:
    """([(members, whether it is a message)], of each row which of these)."""
    message = np.isin(columns["name"], [f"{wait}{name}" for wait in ("", "wait ") for name in PEER])
    texts, at = np.unique(columns["members"], return_inverse=True)
    known, at = np.unique(at.reshape(-1) * 2 + message, return_inverse=True)
    return [
        (members_list(str(texts[key // 2])), bool(key % 2)) for key in known.tolist()
    ], at.reshape(-1)


def members_of(
    mesh: Mesh, source: int, rank: int, groups: tuple[list[tuple[list[int], bool]], np.ndarray]
) -> np.ndarray:
    """The column ``members`` of ``rank``, from the `groups_in` the columns of rank ``source``."""
    kinds, at = groups
    found = [members_text(place(mesh, source, rank, *kind)) for kind in kinds]
    return np.array(found)[at]
