"""What a search found: strategies in order, with their times, and why the first is first."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import combinations, groupby, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from tpviz.core import charts
from tpviz.core.show import Charted
from tpviz.core.tables import html_table, show_apart, show_bytes, show_seconds
from tpviz.schemes.strategy import Strategy

from . import why as reasons
from .predict import Prediction

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.core.workload import GPT

    from .frontier import Found


# -- how far two rankings of the same strategies agree ---------------------------------------------
def agreement(rows: Sequence[Any], pairs: Iterable[tuple[str, str]]) -> dict[str, dict[str, float]]:
    """{"predicted, simulated": {"tau", "top", "rows"}} for pairs of columns of rows, as `Row`.

    Rows in which one of the two is None do not count; a pair with fewer than two is left out.
    """
    found = {}
    for first, second in pairs:
        times = [(getattr(row, first), getattr(row, second)) for row in rows]
        times = [pair for pair in times if None not in pair]
        if len(times) > 1:
            a, b = ([rounded(t) for t in column] for column in zip(*times))
            top = any(x == min(a) and y == min(b) for x, y in zip(a, b))
            found[f"{first}, {second}"] = {"tau": kendall_tau(a, b), "top": top, "rows": len(times)}
    return found


def rounded(seconds: float) -> float:
    """``seconds`` rounded, so that times differing by rounding errors compare equal."""
    return float(f"{seconds:.9e}")


def kendall_tau(a: Sequence[float], b: Sequence[float]) -> float:
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


NO_BREAK = "\N{NO-BREAK SPACE}"
COLUMNS = ("communication", "predicted", "simulated", "measured")


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
    def predicted(self) -> float:
        """Seconds of one step by formula."""
        return self.prediction.step_time

    @property
    def step_time(self) -> float:
        """Seconds of one step by simulation where there is one, else by formula."""
        return self.predicted if self.simulated is None else self.simulated

    def __repr__(self):
        return f"<Row {self.strategy.short}: {show_seconds(self.step_time)}>"


class Rejected(NamedTuple):
    """A strategy that was not ranked: why not, and the cause: "sizes", "memory", "no formula".
    count : how many it stands for, the same but for knobs that change nothing of that."""

    strategy: Strategy
    reason: str
    cause: str
    count: int = 1


def plans(rows: "Iterable[Row]") -> "Iterator[list[Row]]":
    """Ranked rows, those that are the same plan together: the same predicted times of a step, the
    same ledger, and the same memory of a rank. Whatever is made of one is as good for the others.
    """
    for _, near in groupby(rows, lambda row: rounded(row.communication or row.step_time)):
        found, several = {}, list(near)
        for row in several:
            found.setdefault(_same(row) if len(several) > 1 else None, []).append(row)
        yield from found.values()


def plan_of(row: Row, rows: "Iterable[Row]") -> list[Row]:
    """The rows of ``rows`` that are the same plan as ``row`` (see `plans`)."""
    near = [other for other in rows if rounded(other.predicted) == rounded(row.predicted)]
    return next(plan for plan in plans(near) if row in plan)


def _same(row):
    p = row.prediction
    times = (*p.parts.values(), *p.exposed.values(), *p.hidden.values())
    return (*map(rounded, times), *p.exposed, p.memory().total, p.ledger())


def same_words(plan: "Sequence[Row]") -> str:
    """ "x 6: order, overlap": how many strategies are one plan, and the knobs in which they differ;
    "" of one."""
    knobs = [_knobs(row.strategy) for row in plan]
    names = dict.fromkeys(name for one in knobs for name in one)
    differ = [name for name in names if len({repr(one.get(name)) for one in knobs}) > 1]
    return f"x {len(plan)}: {', '.join(differ)}" if len(plan) > 1 else ""


def _knobs(strategy):
    inner = getattr(strategy, "inner", None)
    own = {f.name: getattr(strategy, f.name) for f in fields(strategy) if f.metadata}
    return {**(_knobs(inner) if inner else {}), **own, "strategy": type(inner or strategy).__name__}


@dataclass(frozen=True, eq=False, repr=False)
class Search(Charted):
    """What a search found: ``rows`` (`Row`, fastest first) and ``rejected`` (`Rejected`).

    Rows that were simulated come first, ordered by simulated time; with the objective
    "communication" the formula of communication alone decides the order.
    late : strategies that were not simulated because the search's ``seconds`` were over. formulas :
    a `frontier.Found`: how many strategies were excluded, by which bound, and how many were not
    reached in time. asked : (world size, the strategies to try, the `tv.Training`).
    agreement : {"predicted, simulated": {"tau": Kendall's tau of the two rankings, "top": whether
    both put the same strategy first, "rows": number of strategies compared}, "simulated,
    measured": ...}; a pair is missing where one of the two was not computed.
    """

    workload: "GPT"
    cluster: "Cluster"
    rows: tuple[Row, ...]
    rejected: tuple[Rejected, ...]
    agreement: dict[str, dict[str, float]]
    objective: str = "step"
    late: tuple[Strategy, ...] = ()
    seconds: float | None = None
    formulas: "Found | None" = None
    asked: tuple[int, tuple[Any, ...], Any] | None = None

    @property
    def best(self) -> Strategy:
        """The winning strategy."""
        return self.rows[0].strategy

    def to_table(self, most: int = 20) -> list[list[str]]:
        """Rows of strings, header first, one for each of the first ``most`` plans: strategies that
        are the same but for knobs without effect share a row, which says how many and which.

        "ranked" says which column decides the order. With the objective "step" that is the
        simulated time where there is one. Columns without a time are left out.
        """
        shown = list(islice(plans(self.rows), most))
        first, same = [plan[0] for plan in shown], [same_words(plan) for plan in shown]
        table = {"strategy": [row.strategy.short for row in first]}
        table |= {"same plan": same} if any(same) else {}
        columns = COLUMNS[self.objective == "step" :]
        for name in columns:
            times = [getattr(row, name) for row in first]
            told = iter(show_apart(t for t in times if t is not None))
            if set(times) != {None}:
                head = f"{name} (ranked)" if name == columns[0] else name
                table[head] = ["" if t is None else next(told) for t in times]
        every = [row.prediction for row in first]
        table["compute"] = [show_seconds(p.parts["compute"]) for p in every]
        table["exposed"] = [show_seconds(sum(p.exposed.values())) for p in every]
        table["memory"] = [show_bytes(p.memory().total) for p in every]
        return [[*table], *map(list, zip(*table.values()))]

    def scene(self, most: int = 10) -> dict[str, Any]:
        """The chart of the first ``most`` plans as data, ready for JSON: see
        `tpviz.core.charts`."""
        first = list(islice(plans(self.rows), most))
        shown = [plan[0] for plan in first]
        names, common = contrasted([row.strategy for row in shown])
        names = [f"{n} x {len(plan)}" if len(plan) > 1 else n for n, plan in zip(names, first)]
        names = [n.replace(" ", NO_BREAK).replace(f",{NO_BREAK}", ", ") for n in names]
        unit, scale = charts.unit_of([row.step_time for row in shown])
        traces = []
        for source in COLUMNS[self.objective == "step" :]:
            times = [getattr(row, source) for row in shown]
            at = [(t / scale, name) for t, name in zip(times, names) if t is not None]
            if at:
                ink, _, symbol = charts.LINES.get(source, ("axis2", "dash", "cross"))
                x, y = zip(*at)
                traces.append(charts.points(charts.words_of(source), x, y, ink, symbol, 11))
        order = {"type": "category", "categoryarray": names, "autorange": "reversed"}
        return {
            "title": f"The first plans of {len(self.rows)} strategies on {self.cluster.caption}",
            "badges": [trace["name"] for trace in traces],
            "panels": [charts.panel(f"a step ({unit})", traces, charts.FROM_ZERO, order)],
            "notes": [f"The same in all of these: {common}."] * bool(common) + self._time(),
            "alt": self.describe(),
        }

    def describe(self) -> str:
        """Why the winner wins, how far the rankings agree, what was rejected and excluded, in
        words."""
        lines = reasons.why(self) if self.objective == "step" else reasons.least(self.rows)
        for pair, found in self.agreement.items():
            first, second = pair.split(", ")
            lines.append(
                f"{first.capitalize()} and {second} times of {found['rows']} strategies have "
                f"Kendall's tau {found['tau']:.2f} and {'the same' if found['top'] else 'another'} "
                "first."
            )
        return " ".join([*lines, *self._time(), *reasons.left_out(self)])

    def why_not(self, strategy: Strategy) -> str:
        """Why a strategy is not the first, with the numbers: its sizes clash, a rank's memory, the
        bound of its time, that it was not tried, or its place and the parts that differ.

        Raises ``ValueError`` for what is no strategy.
        """
        return reasons.why_not(self, strategy)

    def _time(self):
        """Which simulations the time did not allow."""
        if not self.late:
            return []
        done, missed = sum(row.simulated is not None for row in self.rows), len(self.late)
        names = ", ".join(strategy.short for strategy in self.late)
        return [
            f"{done} of {done + missed} simulations were done in the {self.seconds:g} s "
            f"allowed; {names} {'is' if missed == 1 else 'are'} ranked by formula alone: a "
            "larger seconds=, or None, simulates more."
        ]

    def __repr__(self):
        by = "" if self.objective == "step" else f" by {self.objective}"
        return (
            f"<Search on {self.cluster.caption}: {self.best.short} is first of "
            f"{len(self.rows)}{by}, {len(self.rejected)} rejected>"
        )

    def _in_page(self, **options: Any):
        """Chart and table: a page shows what a notebook does."""
        rows = self.to_table()
        sides = ["left" if head in ("strategy", "same plan") else "right" for head in rows[0]]
        styles = [f"text-align:{side};padding:1px 8px" for side in sides]
        table = html_table(rows, "class='tpviz-search'", styles)
        return f"<div>{self._image(**options)}{table}</div>"

    def _table(self):
        return ""

    def _repr_html_(self):
        return self._in_page()


def contrasted(several: Sequence[Strategy]) -> tuple[list[str], str]:
    """(each strategy in short words: its classes and knobs, but for what all have; what all have),
    both without knobs at their defaults and axes of one rank, where these are so in all.

    >>> from tpviz import Megatron
    >>> contrasted([Megatron(tp=2), Megatron(tp=4, sp=True)])
    (['tp 2', 'tp 4, sp'], 'Megatron')
    """
    told, seen = [list(_told(one)) for one in several], {}
    for key, words, _ in (item for one in told for item in one):
        seen.setdefault(key, []).append(words)
    same = {key for key, words in seen.items() if len(set(words)) == 1}
    every = {key for key in same if 1 < len(seen[key]) == len(told)}
    labels = [
        ", ".join(w for key, w, usual in one if w and key not in every | (same if usual else set()))
        for one in told
    ]
    if "" in labels or len(set(labels)) < len(labels):
        return [one.short for one in several], ""
    return labels, ", ".join(w for key, w, usual in told[0] if w and key in every and not usual)


def _told(strategy):
    """((class, knob), words, whether it is at its default, or an axis of one rank) of a strategy's
    classes and knobs; no words of a knob that is off."""
    if inner := getattr(strategy, "inner", None):
        yield from _told(inner)
    name = type(strategy).__name__
    yield (name, ""), name, False
    for f in fields(strategy):
        if f.metadata:
            value = getattr(strategy, f.name)
            between = "+" if isinstance(value, tuple) and str in map(type, value) else "x"
            shown = between.join(map(str, value)) if isinstance(value, tuple) else str(value)
            said = f"{f.name} {'own' if len(shown.splitlines()) > 1 else shown}"
            said = {"False": "", "None": "", "": "", "True": f.name}.get(shown, said)
            usual = value == (1 if f.name in strategy.axes else f.default)
            yield (name, f.name), said, usual
