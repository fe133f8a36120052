"""``search``: every strategy that fits a workload and a cluster, ranked; why the first is first.

found = tv.search(tv.GPT(batch=64), tv.clusters.nvlink_pairs(), top=5)
found.best, found.rows, print(found.describe())
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice, pairwise
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from tpviz.cluster.clock import deadline
from tpviz.core.checks import number, one_of, whole_number
from tpviz.core.here import has_torch, thread_time
from tpviz.core.tables import show_bytes, show_seconds
from tpviz.ranks.bar import ProgressView, viewer
from tpviz.schemes.context.strategy import Context
from tpviz.schemes.merak.strategy import Merak
from tpviz.schemes.strategy import Strategy

from .checks import check_cluster, check_workload
from .frontier import Found, Frontier
from .ranking import (
    COLUMNS,
    Rejected,
    Row,
    Search,
    agreement,
    kendall_tau,
    plan_of,
    plans,
    rounded,
)
from .room import Training, check_training, need, room
from .space import Cell, Kind, also, cells, space, tried, usual
from .why import rivals

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.core.workload import GPT

__all__ = ["Rejected", "Row", "Search", "kendall_tau", "search", "space"]
OBJECTIVES = ("step", "communication")
LISTED = 8
"""Plans that are found exactly, however few are simulated."""
SHARE = 2 / 3
"""Of the time, what formulas may take where simulations follow, once something was found."""
PATIENCE = 30.0  # s beyond its time after which a search that has found nothing ends
COMPARED = 1000
"""Of the strategies that need too much memory, the least need of so many is told."""
TELL = 0.2  # s between two reports of progress
LOOK = 1.0  # s between two rankings shown while formulas are evaluated


def search(
    workload: "GPT",
    cluster: "Cluster",
    strategies: Kind | Iterable[Kind] | None = None,
    top: int = 5,
    *,
    objective: str = "step",
    simulate: bool | None = None,
    run: int = 0,
    world_size: int | None = None,
    seconds: float | None = 9.0,
    progress: Callable[[int, int, str], Any] | ProgressView | bool | None = None,
    training: Training | None = None,
) -> Search:
    """Rank strategies for a workload on a cluster: by formula, then the first few by simulation.

    The space has every layout of the ranks, by microbatches of 1 to 8 rows, every recomputation,
    stage of ZeRO, and pipelines of every schedule and number of chunks. What cannot be among the
    first plans, by a lower bound of its time, is not ranked; nor is what does not fit. The first
    are simulated in order, until the time is up. `Search.describe` says how many were excluded by
    what, and what there was no time for; `Search.why_not` why a strategy is not the first.

    Parameters
    ----------
    strategies : classes (their whole space, and products with DataParallel if it is among them),
        names of classes, or single strategies; one of these, or a list; None: every registered
        class but `Pipeline`, whose products with Megatron-LM are `Merak`: give it besides for
        pipelines around ATP, AxoNN and T3. `Context` only where sequences have `space.LONG` tokens
        or more, or nothing fits without it; `Experts`, in products with Megatron-LM and pipelines,
        where the workload has experts, and then no ATP, AxoNN and T3, which do not split them.
    top : how many of the fastest predictions are simulated; so is the best of other kinds. That
        many plans, `LISTED` at least, are surely the fastest by formula.
    objective : "step", the time of a whole step, or "communication", only what
        `Strategy.communication` says, as papers choose a mesh (ties: the strategy with the fewest
        copies of hidden activations). Strategies without that formula are rejected, and each class
        has only its own ``space``, for microbatches and recomputation change nothing of it.
    simulate : False leaves the ranking to the formulas. By default the top is simulated where the
        objective is the step and torch is installed; simulations never change a ranking by
        communication.
    run : how many of the first are run on real ranks, the cluster emulated.
    world_size : ranks to use, all devices unless said; single strategies keep their own.
    seconds : this thread's CPU time (so that other programs do not matter) after which the search
        simulates nothing more, and ranks no more; where it has found nothing, it goes on for
        `PATIENCE` seconds. Where it simulates,
        formulas take two thirds at most, and torch is loaded, if it is not yet, in what is left.
        None: no limit.
    progress : None, False or a function (done, total, text), as `tpviz.launch` takes it; the text
        has the best strategy so far.
    training : a `tpviz.Training`, what AdamW keeps of a model in 16 bits.

    Returns a `Search`. Raises ``ValueError`` with the numbers where nothing fits.
    """
    limit, begun = inf if seconds is None else number("seconds", seconds, 0, inf), thread_time()
    check_workload(workload)
    check_cluster(cluster, "second")
    world_size = whole_number("world_size", cluster.size if world_size is None else world_size)
    cluster.check_world(world_size)
    by_step = one_of("objective", objective, OBJECTIVES) == "step"
    top, installed = whole_number("top", top), has_torch()
    simulate = by_step and installed if simulate is None else simulate
    if one_of("simulate", simulate, (True, False)) and not installed:
        raise ValueError("simulate=True needs torch, which is not installed: leave simulate out")
    run = whole_number("run", run, 0, top)
    given = tried(workload, strategies, also(workload) if by_step else ())
    show = viewer(progress)
    check_training(training, workload)
    share = limit * (SHARE if simulate else 1)
    ends = begun + share, begun + limit, begun + limit + PATIENCE
    looking = _Looking(workload, cluster, objective, *ends, show, training)
    try:
        common = by_step and Merak in given
        first = usual(workload, cluster, world_size, True, given) if common else ()
        others = cells(workload, world_size, given, not by_step)
        found = looking.by_formula(others, max(top, LISTED), first)
        if not found.rows and strategies is None and by_step and Context not in given:
            given, nothing = [*given, Context], found
            found = looking.by_formula(cells(workload, world_size, Context), max(top, LISTED), ())
            found.rejected += nothing.rejected
            found.untried += nothing.untried
        if not found.rows:
            words = _nothing(workload, cluster, world_size, found, training)
            raise ValueError(words + _unseen(found.untried, seconds))
        rows = sorted(found.rows, key=looking.order)
        looking.found(rows)
        if run:
            _check_ranks(_firsts(rows, top if simulate and by_step else run))
        late = ()
        if simulate:
            rows, late = looking.by_simulation(rows, top)
        rows = _by_running(rows, run, show)
    finally:
        show.close()
    seen = _firsts([r for r in rows if r.simulated is not None]) if by_step else rows
    return Search(
        workload,
        cluster,
        tuple(rows),
        tuple(found.rejected),
        agreement(seen, pairwise(COLUMNS)),
        objective,
        late,
        seconds,
        found,
        (world_size, tuple(given), training),
    )


def first_plan(
    workload: "GPT", cluster: "Cluster", ranks: int, training: Training | None = None
) -> Strategy:
    """The fastest by formula, of the plans that a search looks at first, that has room; the one
    that needs least where none has."""
    frontier = Frontier(workload, cluster, training, wanted=1)
    found = frontier.run(usual(workload, cluster, ranks), inf, lambda waiting: None)
    if found.rows:
        return min(found.rows, key=lambda row: row.predicted).strategy
    heavy = [rejected.strategy for rejected in found.rejected if rejected.cause == "memory"]
    alone = Merak(pp=1, microbatches=1, schedule="1f1b", recompute="none")
    return min(heavy, key=lambda s: need(s, workload, cluster, training).total, default=alone)


def _firsts(rows: Sequence[Row], most: int | None = None) -> list[Row]:
    """The first row of each of the first ``most`` plans, None: of all."""
    return [plan[0] for plan in islice(plans(rows), most)]


class _Looking(NamedTuple):
    """A search that goes on: by formulas until ``turn``, or ``last`` where nothing was found, and
    until ``end`` in all."""

    workload: "GPT"
    cluster: "Cluster"
    objective: str
    turn: float
    end: float
    last: float
    show: ProgressView
    training: Training | None = None

    def order(self, row: Row) -> Any:
        """The key of rows, first to last."""
        return _order(row) if self.objective == "step" else _paper_order(row)

    def found(self, rows: Sequence[Row]) -> None:
        """Show these rows, as what was found so far."""
        self.show.found(Search(self.workload, self.cluster, tuple(rows), (), {}, self.objective))

    def by_formula(self, candidates: Iterable[Cell], wanted: int, first: Iterable[Cell]) -> Found:
        """What formulas say, the fastest of all ``wanted`` plans surely; what people run first."""
        on = self.workload, self.cluster, self.training
        frontier = Frontier(*on, wanted, self.objective != "step")
        found, shown, begun = frontier.found, -inf, thread_time()
        next_look, order = begun + LOOK, cache(self.order)

        def tell(waiting: int) -> None:
            nonlocal shown, next_look
            now = thread_time()
            if now - (shown if shown > 0 or found.rows else begun) <= TELL:
                return
            shown, best = now, min(found.rows, key=order, default=None)
            if best and now > next_look:
                self.found(sorted(found.rows, key=order))
                next_look = thread_time() + LOOK
            done = found.looked_at
            self.show(done, done + waiting, "by formula" + _best(best))

        return frontier.run(candidates, self.turn, tell, first, self.last)

    def by_simulation(
        self, rows: Sequence[Row], top: int
    ) -> tuple[list[Row], tuple[Strategy, ...]]:
        """(rows, strategies for which there was no time): the first plans and their rivals
        simulated, the first in the order of that. What one strategy of a plan takes, all take."""
        tops = list(islice(plans(rows), top))
        chosen, found = list(dict.fromkeys((*(plan[0] for plan in tops), *rivals(rows)))), {}
        top_rows = dict.fromkeys(row for plan in tops for row in plan)

        def ranked() -> list[Row]:
            first = sorted((found[row] for row in top_rows if row in found), key=self.order)
            rest = [found.get(row, row) for row in rows if row not in top_rows or row not in found]
            every = found.keys() >= {*chosen}
            return [*first, *(sorted(rest, key=self.order) if every else rest)]

        for done, row in enumerate(chosen):
            best = min(found.values(), key=self.order, default=rows[0])
            self.show(done, len(chosen), f"simulating {row.strategy.short}" + _best(best))
            try:
                with deadline.until(self.end):
                    deadline.check()
                    seconds = _simulated(row).simulated
            except deadline.OutOfTime:
                break
            found |= {one: replace(one, simulated=seconds) for one in plan_of(row, rows)}
            self.found(ranked())
        return ranked(), tuple(row.strategy for row in chosen if row not in found)


def _by_running(rows: list[Row], run: int, show: ProgressView) -> list[Row]:
    """The rows, the first of each of the first ``run`` plans measured on ranks."""
    measured = {}
    for done, row in enumerate(_firsts(rows, run)):
        show(done, run, f"running {row.strategy.short}")
        measured[row] = _measured(row)
    return [measured.get(row, row) for row in rows]


def _best(row: Row | None):
    return f"; best so far {row.strategy.short}, {show_seconds(row.step_time)}" if row else ""


def _order(row: Row):
    """Faster first; of equals (to rounding) the one with less memory, then in the usual order of
    ranks, then by name."""
    s, memory = row.strategy, row.prediction.memory().total
    return rounded(row.step_time), memory, bool(getattr(s, "placement", "")), s.short


def _paper_order(row: Row):
    """Least communication first; of equals the one nearest 1D, then the one with less memory."""
    assert row.communication is not None
    return rounded(row.communication), row.strategy.copies, row.prediction.memory().total


def _check_ranks(rows: Sequence[Row]):
    """Raise ``ValueError``, before hours of simulation, where ranks that may run are too many."""
    from tpviz.ranks.most import check_world_size

    for world_size in {row.strategy.world_size for row in rows}:
        check_world_size(world_size)


def _simulated(row: Row):
    from .simulate import simulate

    p = row.prediction
    return replace(row, simulated=simulate(row.strategy, p.workload, p.cluster).step_time)


def _measured(row: Row):
    from .run import run

    p = row.prediction
    trace = run(row.strategy, p.workload, p.cluster, memory=False, progress=False)
    return replace(row, measured=trace.step_time)


def _unseen(untried: int, seconds: float | None) -> str:
    """The end of the message where the time was up before all strategies were looked at."""
    if not untried:
        return ""
    return (
        f"; {untried:,} more were not looked at in the {seconds:g} s allowed and {PATIENCE:g} s "
        "more: a larger seconds=, or None, looks at them"
    )


def _nothing(
    workload: "GPT",
    cluster: "Cluster",
    world_size: int,
    found: Found,
    training: Training | None,
):
    """The message where every strategy was rejected."""
    rejected = found.rejected
    if not rejected and found.untried:
        return f"no strategy was found that fits {world_size} ranks of {cluster.caption}"
    if not rejected:
        return f"no strategy to try on {world_size} ranks: give strategies, or another world_size"
    count = sum(r.count for r in rejected)
    start = f"none of {count:,} strategies fits {world_size} ranks of {cluster.caption}: "
    heavy = [r.strategy for r in rejected if r.cause == "memory"]
    uneven = next((r for r in rejected if r.cause == "sizes"), None)
    if not heavy and uneven:
        return start + f"sizes do not divide, as in {uneven.strategy.short}: {uneven.reason}"
    if not heavy:
        return start + (
            f"they have no formula, as {rejected[0].strategy.short}; tv.run, "
            "tv.simulate and tv.capture take it"
        )
    on = workload, cluster, training
    some = heavy[:: -(-len(heavy) // COMPARED)]
    among = f" among {len(some):,} that were compared" if len(some) < len(heavy) else ""
    least = min(some, key=lambda s: need(s, *on).total)
    return start + (
        f"{len(heavy):,} of them for want of memory, of which {least.short} needs least{among}, "
        f"{show_bytes(need(least, *on).total)}, and a device has "
        f"{show_bytes(room(cluster, training))}"
    )
