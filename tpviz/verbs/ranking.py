"""What a search found: strategies in order, with their times, and why the first is first."""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tpviz.cost import show_bytes, show_seconds
from tpviz.strategy import Strategy
from tpviz.tables import html_table

from .predict import Prediction
from .reasons import least, why

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.workload import GPT

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
    """A strategy that was not ranked: why not, and the cause: "sizes", "memory", "no formula"."""

    strategy: Strategy
    reason: str
    cause: str


@dataclass(frozen=True, eq=False, repr=False)
class Search:
    """The ranking: ``rows`` (`Row`, fastest first) and ``rejected`` (`Rejected`).

    The top rows, as far as they were simulated, come first, in the order of their simulated times;
    with the objective "communication" nothing but that formula decides the order.
    late : the strategies that were to be simulated and were not, for the search's ``seconds`` were
    over. untried : those that were not looked at at all, for the same reason.
    agreement : {"predicted, simulated": {"tau": Kendall's, "top": whether both have the same first,
    "rows": how many}, "simulated, measured": ...} as far as these were made.
    """

    workload: "GPT"
    cluster: "Cluster"
    rows: tuple[Row, ...]
    rejected: tuple[Rejected, ...]
    agreement: dict[str, dict[str, float]]
    objective: str = "step"
    late: tuple[Strategy, ...] = ()
    seconds: float | None = None
    untried: tuple[Strategy, ...] = ()

    @property
    def best(self) -> Strategy:
        """The winning strategy."""
        return self.rows[0].strategy

    def to_table(self, most: int = 20) -> list[list[str]]:
        """Rows of strings, header first; "ranked" says which column decides the order.

        With the objective "step" that is the simulated time where there is one.
        """
        columns = COLUMNS[self.objective == "step" :]
        ranked = [f"{name} (ranked)" if name == columns[0] else name for name in columns]
        table = [["strategy", *ranked, "compute", "exposed", "memory"]]
        for row in self.rows[:most]:
            p, times = row.prediction, [getattr(row, name) for name in columns]
            table.append(
                [
                    row.strategy.short,
                    *("" if t is None else show_seconds(t) for t in times),
                    show_seconds(p.parts["compute"]),
                    show_seconds(sum(p.exposed.values())),
                    show_bytes(p.memory().total),
                ]
            )
        return table

    def describe(self) -> str:
        """Why the winner wins, how far the rankings agree, and what was rejected, in words."""
        lines = why(self.rows) if self.objective == "step" else least(self.rows)
        for pair, found in self.agreement.items():
            first, second = pair.split(", ")
            lines.append(
                f"{first.capitalize()} and {second} times of {found['rows']} strategies have "
                f"Kendall's tau {found['tau']:.2f} and {'the same' if found['top'] else 'another'} "
                "first."
            )
        lines += self._time()
        causes = Counter(r.cause for r in self.rejected)
        words = {
            "sizes": "because sizes do not divide",
            "memory": "for want of memory",
            "no formula": "because they have no formula",
        }
        lines += [f"{n} more were rejected {words[cause]}." for cause, n in sorted(causes.items())]
        return " ".join(lines)

    def _time(self):
        """What the time did not allow."""
        if self.untried:
            most = len(self.rows) + len(self.rejected) + len(self.untried)
            return [
                f"{len(self.untried)} of {most} strategies were not looked at in the "
                f"{self.seconds:g} s allowed, and none was simulated: a larger seconds=, or "
                "None, looks at all."
            ]
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

    def _repr_html_(self):
        return html_table(self.to_table(), "class='tpviz-search'")
