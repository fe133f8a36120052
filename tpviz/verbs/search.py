"""``search``: every strategy that fits a workload and a cluster, ranked; why the first is first.

    found = tv.search(tv.GPT(batch=64), tv.clusters.nvlink_pairs(), top=5)
    found.best, found.rows, print(found.describe())
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

from tpviz.checks import one_of, whole_number
from tpviz.cost import show_bytes, show_seconds
from tpviz.strategy import Strategy, divisors
from tpviz.strategy import strategies as registered
from tpviz.tables import html_table

from .checks import check_cluster, check_workload
from .predict import Prediction, check, check_memory, predict
from .reasons import rivals, why

GIVE = ("give classes such as tv.Megatron, their names, or strategies such as tv.Megatron(tp=2); "
        "several in a list")


@dataclass(frozen=True, eq=False)
class Row:
    """One strategy and what is known of its step time, in seconds; None where it was not tried."""

    strategy: Strategy
    prediction: Prediction
    simulated: float | None = None
    measured: float | None = None

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

    The top rows, which are simulated, come first, in the order of their simulated times.
    agreement : {"predicted, simulated": {"tau": Kendall's, "top": whether both have the same first,
    "rows": how many}, "simulated, measured": ...} as far as these were made.
    """

    workload: object
    cluster: object
    rows: tuple
    rejected: tuple
    agreement: dict

    @property
    def best(self):
        """The winning strategy."""
        return self.rows[0].strategy

    def to_table(self, most=20):
        """Rows of strings, header first."""
        table = [["strategy", "predicted", "simulated", "measured", "compute", "exposed", "memory"]]
        for row in self.rows[:most]:
            p = row.prediction
            times = (row.predicted, row.simulated, row.measured)
            table.append([
                row.strategy.short, *("" if t is None else show_seconds(t) for t in times),
                show_seconds(p.parts["compute"]), show_seconds(sum(p.exposed.values())),
                show_bytes(p.memory().total)])
        return table

    def describe(self):
        """Why the winner wins, how far the rankings agree, and what was rejected, in words."""
        lines = why(self.rows)
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
        return (f"<Search on {self.cluster.caption}: {self.best.short} is first of "
                f"{len(self.rows)}, {len(self.rejected)} rejected>")

    def _repr_html_(self):
        return html_table(self.to_table(), "class='tpviz-search'")


def search(workload, cluster, strategies=None, top=5, *, simulate=True, run=0, world_size=None):
    """Rank strategies for a workload on a cluster: by formula, then the first few by simulation.

    Parameters
    ----------
    strategies : classes (all their space, and their products with a DataParallel among them), names
        of classes, or single strategies; one of these, or several in a list; None: every registered
        class.
    top : how many of the fastest predictions are simulated; so is the best of other kinds.
    simulate : False leaves the ranking to the formulas.
    run : how many of the first are run on real ranks, the cluster emulated.
    world_size : ranks to use, all devices unless said; single strategies keep their own.

    Returns a `Search`. Raises ``ValueError`` with the numbers where nothing fits.
    """
    check_workload(workload)
    check_cluster(cluster, "second")
    world_size = whole_number("world_size", cluster.size if world_size is None else world_size)
    cluster.check_world(world_size)
    top, simulate = whole_number("top", top), one_of("simulate", simulate, (True, False))
    run = whole_number("run", run, 0, top)
    rows, rejected = [], []
    for strategy in space(workload, world_size, strategies):
        cause = "sizes"
        try:
            check(strategy, workload, cluster)
            cause = "memory"
            check_memory(strategy, workload, cluster)
            rows.append(Row(strategy, predict(strategy, workload, cluster)))
        except ValueError as error:
            rejected.append(Rejected(strategy, str(error), cause))
        except NotImplementedError as error:
            rejected.append(Rejected(strategy, str(error), "no formula"))
    if not rows:
        raise ValueError(_nothing(workload, cluster, world_size, rejected))
    rows.sort(key=_order)
    if run:
        _check_ranks(rows[:top] if simulate else rows[:run])
    if simulate:
        chosen = set(map(id, (*rows[:top], *rivals(rows))))
        rows = [_simulated(row) if id(row) in chosen else row for row in rows]
    rows = [*sorted(rows[:top], key=_order), *sorted(rows[top:], key=_order)]
    rows = [_measured(row) if i < run else row for i, row in enumerate(rows)]
    return Search(workload, cluster, tuple(rows), tuple(rejected), _agreement(rows))


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
            found += (replace(around, inner=inner) for c in classes if c not in outer
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


def kendall_tau(a, b):
    """Kendall's tau-b of two sequences of numbers: 1 the same order, -1 the reverse, ties counted.

    Kendall 1945, "The treatment of ties in ranking problems": (concordant - discordant pairs) /
    sqrt(pairs not tied in a * pairs not tied in b). 1.0 where both are all ties, 0.0 where one is.
    Raises ``ValueError`` unless both have the same length of 2 or more.
    """
    if len(a) != len(b) or len(a) < 2:
        raise ValueError(f"two rankings of the same 2 or more things, not of {len(a)} and {len(b)}")
    signs = [(_sign(x - u), _sign(y - v)) for (x, y), (u, v) in combinations(zip(a, b), 2)]
    in_a, in_b = sum(x != 0 for x, _ in signs), sum(y != 0 for _, y in signs)
    if not in_a or not in_b:
        return float(in_a == in_b)
    return sum(x * y for x, y in signs) / (in_a * in_b) ** 0.5


def _sign(value):
    return (value > 0) - (value < 0)


def _order(row):
    """Faster first; of equals (to rounding) the one with less memory, then by name."""
    return _rounded(row.step_time), row.prediction.memory().total, row.strategy.short


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


def _agreement(rows):
    found = {}
    for first, second in (("predicted", "simulated"), ("simulated", "measured")):
        times = [(getattr(row, first), getattr(row, second)) for row in rows]
        times = [pair for pair in times if None not in pair]
        if len(times) > 1:
            a, b = ([_rounded(t) for t in column] for column in zip(*times))
            top = any(x == min(a) and y == min(b) for x, y in zip(a, b))
            found[f"{first}, {second}"] = {
                "tau": kendall_tau(a, b), "top": top, "rows": len(times)}
    return found


def _rounded(seconds):
    """Times that differ by rounding are one."""
    return float(f"{seconds:.9e}")


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
