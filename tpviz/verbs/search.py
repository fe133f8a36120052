"""``search``: every strategy that fits a workload and a cluster, ranked; why the first is first.

    found = tv.search(tv.GPT(batch=64), tv.clusters.nvlink_pairs(), top=5)
    found.best, found.rows, print(found.describe())
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from tpviz.checks import one_of, whole_number
from tpviz.cost import show_bytes, show_seconds
from tpviz.strategy import Strategy, divisors
from tpviz.strategy import strategies as registered
from tpviz.tables import html_table

from .agreement import agreement, kendall_tau, rounded
from .checks import check_cluster, check_workload
from .predict import Prediction, check, check_memory, predict
from .reasons import least, rivals, why

__all__ = ["Rejected", "Row", "Search", "kendall_tau", "search", "space"]
OBJECTIVES = ("step", "communication")
COLUMNS = ("communication", "predicted", "simulated", "measured")
GIVE = ("give classes such as tv.Megatron, their names, or strategies such as tv.Megatron(tp=2); "
        "several in a list")


@dataclass(frozen=True, eq=False)
class Row:
    """One strategy and what is known of its step time, in seconds; None where it was not tried.

    communication : seconds by the scheme's own formula, where that is the search's objective.
    """

    strategy: Strategy
    prediction: Prediction
    simulated: float | None = None
    measured: float | None = None
    communication: float | None = None

    @property
    def predicted(self):
        """Seconds of one step by formula."""
        return self.prediction.step_time

    @property
    def step_time(self):
        """Seconds of one step by simulation where there is one, else by formula."""
        return self.predicted if self.simulated is None else self.simulated

    def __repr__(self):
        return f"<Row {self.strategy.short}: {show_seconds(self.step_time)}>"


class Rejected(NamedTuple):
    """A strategy that was not ranked: why not, and the cause: "sizes", "memory", "no formula"."""

    strategy: Strategy
    reason: str
    cause: str


@dataclass(frozen=True, eq=False, repr=False)
class Search:
    """The ranking: ``rows`` (`Row`, fastest first) and ``rejected`` (`Rejected`).

    The top rows, which are simulated, come first, in the order of their simulated times; with the
    objective "communication" nothing but that formula decides the order.
    agreement : {"predicted, simulated": {"tau": Kendall's, "top": whether both have the same first,
    "rows": how many}, "simulated, measured": ...} as far as these were made.
    """

    workload: object
    cluster: object
    rows: tuple
    rejected: tuple
    agreement: dict
    objective: str = "step"

    @property
    def best(self):
        """The winning strategy."""
        return self.rows[0].strategy

    def to_table(self, most=20):
        """Rows of strings, header first; "ranked" says which column decides the order.

        With the objective "step" that is the simulated time where there is one.
        """
        columns = COLUMNS[self.objective == "step":]
        ranked = [f"{name} (ranked)" if name == columns[0] else name for name in columns]
        table = [["strategy", *ranked, "compute", "exposed", "memory"]]
        for row in self.rows[:most]:
            p, times = row.prediction, [getattr(row, name) for name in columns]
            table.append([
                row.strategy.short, *("" if t is None else show_seconds(t) for t in times),
                show_seconds(p.parts["compute"]), show_seconds(sum(p.exposed.values())),
                show_bytes(p.memory().total)])
        return table

    def describe(self):
        """Why the winner wins, how far the rankings agree, and what was rejected, in words."""
        lines = why(self.rows) if self.objective == "step" else least(self.rows)
        for pair, found in self.agreement.items():
            first, second = pair.split(", ")
            lines.append(
                f"{first.capitalize()} and {second} times of {found['rows']} strategies have "
                f"Kendall's tau {found['tau']:.2f} and {'the same' if found['top'] else 'another'} "
                "first.")
        causes = Counter(r.cause for r in self.rejected)
        words = {"sizes": "because sizes do not divide", "memory": "for want of memory",
                 "no formula": "because they have no formula"}
        lines += [f"{n} more were rejected {words[cause]}." for cause, n in sorted(causes.items())]
        return " ".join(lines)

    def __repr__(self):
        by = "" if self.objective == "step" else f" by {self.objective}"
        return (f"<Search on {self.cluster.caption}: {self.best.short} is first of "
                f"{len(self.rows)}{by}, {len(self.rejected)} rejected>")

    def _repr_html_(self):
        return html_table(self.to_table(), "class='tpviz-search'")


def search(workload, cluster, strategies=None, top=5, *, objective="step", simulate=None, run=0,
           world_size=None):
    """Rank strategies for a workload on a cluster: by formula, then the first few by simulation.

    Parameters
    ----------
    strategies : classes (all their space, and their products with a DataParallel among them), names
        of classes, or single strategies; one of these, or several in a list; None: every registered
        class.
    top : how many of the fastest predictions are simulated; so is the best of other kinds.
    objective : "step", the time of a whole step, or "communication", what `Strategy.communication`
        says and nothing else, as papers choose a mesh (at equal times the strategy with the fewest
        copies of hidden activations). Strategies without that formula are rejected.
    simulate : False leaves the ranking to the formulas. By default the top is simulated where the
        objective is the step; simulations never change a ranking by communication.
    run : how many of the first are run on real ranks, the cluster emulated.
    world_size : ranks to use, all devices unless said; single strategies keep their own.

    Returns a `Search`. Raises ``ValueError`` with the numbers where nothing fits.
    """
    check_workload(workload)
    check_cluster(cluster, "second")
    world_size = whole_number("world_size", cluster.size if world_size is None else world_size)
    cluster.check_world(world_size)
    one_of("objective", objective, OBJECTIVES)
    simulate = objective == "step" if simulate is None else simulate
    top, simulate = whole_number("top", top), one_of("simulate", simulate, (True, False))
    run, by_step = whole_number("run", run, 0, top), objective == "step"
    rows, rejected, order = [], [], _order if by_step else _paper_order
    for strategy in space(workload, world_size, strategies):
        cause = "sizes"
        try:
            check(strategy, workload, cluster)
            cause = "memory"
            check_memory(strategy, workload, cluster)
            row = Row(strategy, predict(strategy, workload, cluster))
            if not by_step:
                row = replace(row, communication=strategy.communication(workload, cluster))
            rows.append(row)
        except ValueError as error:
            rejected.append(Rejected(strategy, str(error), cause))
        except NotImplementedError as error:
            rejected.append(Rejected(strategy, str(error), "no formula"))
    if not rows:
        raise ValueError(_nothing(workload, cluster, world_size, rejected))
    rows.sort(key=order)
    if run:
        _check_ranks(rows[:top] if simulate and by_step else rows[:run])
    if simulate:
        chosen = set(map(id, (*rows[:top], *rivals(rows))))
        rows = [_simulated(row) if id(row) in chosen else row for row in rows]
    rows = [*sorted(rows[:top], key=order), *sorted(rows[top:], key=order)]
    rows = [_measured(row) if i < run else row for i, row in enumerate(rows)]
    found = agreement(rows, pairwise(COLUMNS))
    return Search(workload, cluster, tuple(rows), tuple(rejected), found, objective)


def space(workload, world_size, strategies=None):
    """The strategies to try, none twice; `search` says what may be given.

    A class that has an ``inner`` is multiplied with those that have none: every way to share the
    ranks between the two.
    """
    known = registered()
    given = _listed(known.values() if strategies is None else strategies)
    given = [known[one_of("strategy", s, tuple(known))] if isinstance(s, str) else s for s in given]
    wrong = [s for s in given if not isinstance(s, Strategy)
             and not (isinstance(s, type) and issubclass(s, Strategy))]
    if wrong:
        raise ValueError(f"strategies has {wrong[0]!r}: {GIVE}")
    found = [s for s in given if isinstance(s, Strategy)]
    classes = [s for s in given if isinstance(s, type)]
    for cls in classes:
        found += cls.space(workload, world_size)
    outer = [c for c in classes if "inner" in c.__dataclass_fields__]
    for ranks in divisors(world_size)[1:-1]:
        for around in (s for c in outer for s in c.space(workload, ranks)):
            found += (replace(around, inner=inner) for c in classes
                      if c not in outer and not c.shares_batch
                      for inner in c.space(workload, world_size // ranks)
                      if inner.axes.keys().isdisjoint(around.axes))
    return list(dict.fromkeys(found))


def _listed(strategies):
    """A list of what was given: one thing alone is a list of one."""
    if isinstance(strategies, (str, type, Strategy)):
        return [strategies]
    if not isinstance(strategies, Iterable):
        raise ValueError(f"strategies={strategies!r}: {GIVE}")
    return list(strategies)


def _order(row):
    """Faster first; of equals (to rounding) the one with less memory, then by name."""
    return rounded(row.step_time), row.prediction.memory().total, row.strategy.short


def _paper_order(row):
    """Least communication first; of equals the one nearest 1D, then the one with less memory."""
    return rounded(row.communication), row.strategy.copies, row.prediction.memory().total


def _check_ranks(rows):
    """Raise ``ValueError``, before hours of simulation, where ranks that may run are too many."""
    from tpviz.runtime.launch import check_world_size

    for world_size in {row.strategy.world_size for row in rows}:
        check_world_size(world_size)


def _simulated(row):
    from .simulate import simulate

    p = row.prediction
    return replace(row, simulated=simulate(row.strategy, p.workload, p.cluster).step_time)


def _measured(row):
    from .run import run

    p = row.prediction
    trace = run(row.strategy, p.workload, p.cluster, memory=False, progress=False)
    return replace(row, measured=trace.step_time)


def _nothing(workload, cluster, world_size, rejected):
    """The message where every strategy was rejected."""
    if not rejected:
        return f"no strategy to try on {world_size} ranks: give strategies, or another world_size"
    start = f"none of {len(rejected)} strategies fits {world_size} ranks of {cluster.caption}: "
    heavy = [r.strategy for r in rejected if r.cause == "memory"]
    uneven = next((r for r in rejected if r.cause == "sizes"), None)
    if not heavy and uneven:
        return start + f"sizes do not divide, as in {uneven.strategy.short}: {uneven.reason}"
    if not heavy:
        return start + (f"they have no formula, as {rejected[0].strategy.short}; tv.run, "
                        "tv.simulate and tv.capture take it")
    least = min(heavy, key=lambda s: s.memory(workload).total)
    return start + (f"{len(heavy)} of them for want of memory, of which {least.short} needs least, "
                    f"{show_bytes(least.memory(workload).total)}, and a device has "
                    f"{show_bytes(cluster.device.memory)}")
