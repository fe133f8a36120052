"""The formulas' part of a search: candidates in the order of how fast they can be at most.

A cell of the space waits with a lower bound of all its choices, those of its choices that share
ZeRO's stage and recomputation with theirs, a choice with its own. What can be fastest is looked at
next: a cell and such a group are opened, a choice is asked for its sizes, its memory and its
predicted step. Once as many plans as are wanted are faster than all bounds that wait, these are
excluded, and nothing was lost: branch and bound (Land and Doig 1960).
"""

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any

from tpviz.core.here import thread_time
from tpviz.core.tables import show_bytes
from tpviz.schemes.advice import unadvised
from tpviz.schemes.strategy import Strategy

from .predict import check, predict
from .ranking import Rejected, Row, rounded
from .room import Training, check_memory, check_states, least_needs, room
from .why import kind

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.core.workload import GPT

    from .space import Cell

OPEN_EVERY, EACH = 64, 8
"""Cells that are made before what is fastest among them is looked at; and of so many steps one may
open a cell while choices wait."""
_Entry = tuple[float, int, "Cell", Sequence[Mapping[str, Any]]]
"""(bound, number, cell, choices: all of the cell, some that share a bound, or one)."""


@dataclass
class Found:
    """What formulas found. excluded : how many strategies cannot be among the first plans, by the
    bound of their time; untried : for how many there was no time, and ``least`` their lowest bound.
    ``limit`` : seconds of a step beyond which a bound excludes."""

    rows: list[Row] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    excluded: int = 0
    untried: int = 0
    least: float = inf
    limit: float = inf

    @property
    def looked_at(self) -> int:
        """Number of strategies decided: ranked, rejected or excluded."""
        return len(self.rows) + self.excluded + sum(r.count for r in self.rejected)


class Frontier:
    """The candidates not yet looked at, ordered by their lower bounds. wanted : number of plans to
    find exactly. alone : rank by the communication formula, for which there is no bound."""

    def __init__(
        self,
        workload: "GPT",
        cluster: "Cluster",
        training: Training | None,
        wanted: int,
        communication: bool = False,
    ):
        self.on, self.wanted, self.communication = (workload, cluster), wanted, communication
        self.training = training
        self.found, self._first = Found(), []
        self._of_kind: dict[Any, float] = {}
        self._cells: list[_Entry] = []  # and groups of their choices
        self._leaves: list[_Entry] = []
        self._number, self._seen, self._again, self._last = 0, set(), 0, inf

    def run(
        self,
        cells: Iterable["Cell"],
        moment: float,
        tell: Callable[[int], Any],
        first: Iterable["Cell"] = (),
        last: float = inf,
    ) -> Found:
        """All that may be among the first, as far as the time until ``moment`` goes, or until
        ``last`` where nothing was found. tell(how many wait) is called after each step. first :
        cells whose best are looked at before, though their bounds are not the lowest; they are
        among the others again."""
        self._last = last
        self._before(first, moment, tell)
        for number, cell in enumerate(cells):
            if self._late(moment):  # nothing is known of it
                self.found.untried, self.found.least = self.found.untried + len(cell.choices), 0.0
                continue
            self._arrive(cell)
            tell(self._waiting)
            if number % OPEN_EVERY == OPEN_EVERY - 1 and not self.found.rows:
                self._look(moment, tell, once=True)
        self._look(moment, tell)
        if self._again > 0:  # rows whose choices were left as excluded, or untried
            left = min(self._again, self.found.excluded)
            self.found.excluded -= left
            self.found.untried -= min(self._again - left, self.found.untried)
        return self.found

    def _before(self, cells, moment, tell):
        """The best of some cells, which then count as not decided but for the rows found."""
        found = self.found
        for cell in cells:
            self._arrive(cell)
        self._look(moment, tell)
        self._first, rows = [], list(found.rows)
        for kept in (found.rows, found.rejected, self._seen, self._of_kind):
            kept.clear()
        found.excluded, found.untried, found.least, found.limit = 0, 0, inf, inf
        for row in sorted(rows, key=lambda row: row.predicted):
            self._seen.add(row.strategy)
            self._add(row)
        self._again = len(rows)

    def _late(self, moment):
        return thread_time() > (moment if self.found.rows else self._last)

    def _look(self, moment, tell, once=False):
        """Look at what waits, the fastest first. once : until something was found, of the best."""
        steps = 0
        while self._waiting and not self._late(moment):
            bound, _, cell, some = heappop(heap := self._next(steps))
            if not self._worth(bound, cell):
                self.found.excluded += len(some)
            elif heap is self._leaves:
                self._decide(cell, some[0])
            else:
                self._open(cell, bound, some)
            tell(self._waiting)
            steps += 1
            if once and (self.found.rows or steps > 2 * OPEN_EVERY):
                return
        if not once:
            self._leave()

    @property
    def _waiting(self):
        """How many wait."""
        return len(self._cells) + len(self._leaves)

    def _next(self, steps):
        """The heap of what is looked at: what can be fastest, but between two cells also some
        choices, so that something good is found before all cells are open."""
        if not self._leaves or not self._cells:
            return self._leaves or self._cells
        early = steps % EACH and self._leaves[0][0] <= self.found.limit
        return self._leaves if early or self._leaves[0] < self._cells[0] else self._cells

    def _leave(self):
        """The time is up, or nothing waits."""
        for bound, _, cell, some in (*self._cells, *self._leaves):
            if self._worth(bound, cell):
                self.found.untried += len(some)
                self.found.least = min(self.found.least, float(bound))
            else:
                self.found.excluded += len(some)
        self._cells, self._leaves = [], []

    def _arrive(self, cell):
        """Keep a cell with its bound; one whose sizes clash is rejected with all its choices."""
        with rejecting(self.found.rejected, cell.strategy, "sizes", len(cell.choices)):
            self._check(cell.strategy)
            free = cell.alone or self.communication
            least = 0.0 if free else cell.strategy.least_of_all(*self.on)
            self._push(self._cells, least, cell, cell.choices)

    def _check(self, strategy):
        """`check`, of which only the first error says what would work: that takes long."""
        with unadvised() if self.found.rejected else nullcontext():
            check(strategy, *self.on)

    def _push(self, heap, bound, cell, some):
        """Keep choices with their bound, unless it excludes them."""
        if self._worth(bound, cell):
            heappush(heap, (bound, self._number, cell, some))
            self._number += 1
        else:
            self.found.excluded += len(some)

    def _open(self, cell, least, some):
        """A cell's groups wait, or the choices of one, each with its own bound."""
        groups = {}
        if least and some is cell.choices:
            cell.bound, groups = cell.strategy.bounds(*self.on), cell.groups
        for shared, group in groups.items():
            strategy = cell.made(group[0])
            with rejecting(self.found.rejected, strategy, "memory", len(group)):
                if self.found.rows:  # else the least that is needed is told
                    check_states(strategy, *self.on, self.training)
                self._push(self._cells, max(least, cell.bound(dict(shared))), cell, group)
        for choice in () if groups else some:
            self._push(self._leaves, max(least, cell.bound(choice)), cell, [choice])

    def _worth(self, bound, cell):
        """Whether something with this bound may be among the first plans, or the best of its kind
        where that is a single axis or no other kind is known."""
        if bound <= self.found.limit or cell.alone:
            return True
        this = kind(cell.strategy)
        alone = len(this) <= 1 or len(self._of_kind) < 2
        return alone and bound < self._of_kind.get(this, inf)

    def _decide(self, cell, choice):
        """Sizes, memory, and time of one strategy."""
        strategy = cell.made(choice)
        if strategy in self._seen:
            self._again -= 1
            return
        self._seen.add(strategy)
        with rejecting(self.found.rejected, strategy, "sizes"):
            self._check(strategy)
            with rejecting(self.found.rejected, strategy, "memory"):
                _check_least(strategy, *self.on, self.training)
                if not self._worth(cell.bound(choice, closely=True), cell):
                    self.found.excluded += 1
                    return
                check_memory(strategy, *self.on, self.training)
                row = Row(strategy, predict(strategy, *self.on, training=self.training))
                if self.communication:
                    row = replace(row, communication=strategy.communication(*self.on))
                self._add(row)

    def _add(self, row):
        self.found.rows.append(row)
        seconds, this = rounded(row.predicted), kind(row.strategy)
        self._of_kind[this] = min(seconds, self._of_kind.get(this, inf))
        if not self.communication and seconds not in self._first:
            insort(self._first, seconds)
            if len(self._first) >= self.wanted:
                self.found.limit = self._first[self.wanted - 1] * (1 + 1e-9)


@contextmanager
def rejecting(
    rejected: list[Rejected], strategy: Strategy, cause: str, count: int = 1
) -> Iterator[None]:
    """Inside, an error adds the strategy to ``rejected``; a ``ValueError`` with this ``cause``."""
    try:
        yield
    except ValueError as error:
        rejected.append(Rejected(strategy, str(error), cause, count))
    except NotImplementedError as error:
        rejected.append(Rejected(strategy, str(error), "no formula", count))


def _check_least(
    strategy: Strategy, workload: "GPT", cluster: "Cluster", training: Training | None
):
    """`check_memory` of what is found faster, for in a large space most strategies fail by it."""
    size = room(cluster, training)
    for least in least_needs(strategy, workload, cluster, training):
        if least > size:
            raise ValueError(
                f"{strategy.short} needs {show_bytes(least)} or more on every rank and "
                f"the device {cluster.device.name!r} has {show_bytes(size)}"
            )
