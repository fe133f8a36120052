"""``tradeoff``: time against memory as stages keep more of their layers' activations.

Stage-aware (k_s grows with the stage, `Merak.kept`) beside the same part on all stages. Both by
formula; the first stage, which holds most microbatches, keeps as much in both.
"""

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tpviz.cluster import Cluster
from tpviz.cost import show_bytes, show_seconds
from tpviz.figures.charts_tradeoff import tradeoff_figure
from tpviz.schemes.merak.budget import keeps
from tpviz.schemes.merak.memory import memory_of
from tpviz.schemes.merak.strategy import Merak
from tpviz.tables import html_table
from tpviz.verbs.checks import check_cluster, check_fit
from tpviz.verbs.predict import predict
from tpviz.workload import GPT

from .ranks import words_of

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

RULES = ("stage-aware", "uniform")


class Uniform(Merak):
    """`Merak` whose stages all keep the same part of their layers; where the schedule does not
    recompute a stage, all of it."""

    def kept(self) -> list[float]:
        """{stage: k_s}, as `Merak.kept`."""
        return [self.keep] * self.stages


class Point(NamedTuple):
    """One k0. step : seconds. needs : bytes of each place along pp. drops : layers of each stage
    that are recomputed."""

    keep: float
    step: float
    needs: tuple[float, ...]
    num_recomputed: tuple[int, ...]

    @property
    def most(self) -> float:
        """Bytes of the rank that needs most."""
        return max(self.needs)


@dataclass(frozen=True, eq=False, repr=False)
class Tradeoff:
    """``points`` {rule of RULES: its `Point`s, k0 from 0 to 1}; budget : bytes of a rank."""

    workload: GPT
    cluster: Cluster
    strategy: Merak
    budget: float
    points: dict[str, tuple[Point, ...]]
    badges = ("predicted",)

    @property
    def picked(self) -> dict[str, Point | None]:
        """{rule: the `Point` with the largest k0 that fits the budget, None where none does}."""
        return {
            rule: next((p for p in reversed(found) if p.most <= self.budget), None)
            for rule, found in self.points.items()
        }

    @property
    def _words(self):
        return f"{words_of(self.strategy)}, {self.strategy.schedule},"

    def saving(self) -> dict[float, float]:
        """{k0: the part (0..1) of the uniform step that stage-aware recomputation saves}."""
        return {a.keep: 1 - a.step / u.step for a, u in zip(*(self.points[r] for r in RULES))}

    def scene(self) -> dict[str, Any]:
        """The chart as data: see `tpviz.figures.charts_tradeoff`."""
        return {
            "title": f"{self._words} on {self.cluster.caption}: recomputation against memory",
            "badges": list(self.badges),
            "budget": self.budget,
            "lines": {
                rule: {
                    "keep": [p.keep for p in found],
                    "step": [p.step for p in found],
                    "bytes": [p.most for p in found],
                    "average": [sum(p.needs) / len(p.needs) for p in found],
                    "drops": [" ".join(map(str, p.num_recomputed)) for p in found],
                }
                for rule, found in self.points.items()
            },
            "picked": {rule: p.keep for rule, p in self.picked.items() if p},
            "notes": self._notes(),
            "alt": self.describe(),
        }

    def figure(self, theme: str = "light") -> "Figure":
        """Two panels as a plotly ``Figure``: the step and the bytes over k0, the budget a line."""
        return tradeoff_figure(self.scene(), theme)

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: every k0 under both rules."""
        rows = [["k0", "rule", "step", "most of a rank", "each place", "layers recomputed", "fits"]]
        for pair in zip(*(self.points[rule] for rule in RULES)):
            for rule, p in zip(RULES, pair):
                rows.append(
                    [
                        f"{p.keep:.3g}",
                        rule,
                        show_seconds(p.step),
                        show_bytes(p.most),
                        ", ".join(map(show_bytes, p.needs)),
                        " ".join(map(str, p.num_recomputed)),
                        "yes" if p.most <= self.budget else "no",
                    ]
                )
        return rows

    def describe(self) -> str:
        """What keeping more costs and saves, in words."""
        aware = self.points["stage-aware"]
        low, high = aware[0], aware[-1]
        lines = [
            f"Predicted: {self._words} on {self.cluster.caption}. From k0 = 0 to 1 "
            f"stage-aware the step goes from {show_seconds(low.step)} to "
            f"{show_seconds(high.step)} and the rank that needs most from "
            f"{show_bytes(low.most)} to {show_bytes(high.most)}."
        ]
        for rule, p in self.picked.items():
            lines.append(
                f"{rule.capitalize()}, {show_bytes(self.budget)} a rank "
                + (
                    f"allow k0 = {p.keep:.3g}: {show_seconds(p.step)}, {show_bytes(p.most)}."
                    if p
                    else f"are less than recomputing everything takes, "
                    f"{show_bytes(self.points[rule][0].most)}."
                )
            )
        return " ".join(lines + self._notes())

    def _notes(self):
        keep, saved = max(self.saving().items(), key=lambda item: item[1])
        return [
            "The first stage keeps the same part under both rules and bounds the step: most of "
            "the gain over recomputing everything is that of k0 itself; what later stages "
            "keep more shortens fill and drain (derived). Here it saves at most "
            f"{100 * saved:.1f} % of the uniform step, at k0 = {keep:.3g}.",
            "Layers are whole: k0 has an effect in steps. A stage of L layers recomputes "
            "floor(L (1 - k)).",
        ]

    def __repr__(self):
        p = self.picked["stage-aware"]
        words = f"k0 = {p.keep:.3g} fits, {show_seconds(p.step)} a step" if p else "nothing fits"
        return f"<Tradeoff of {self._words} on {self.cluster.caption}: {words}, predicted>"

    def _repr_html_(self):
        return html_table(self.to_table(), "class='tpviz-lab'")


def tradeoff(
    workload: GPT, cluster: Cluster, strategy: Merak, budget: float | None = None
) -> Tradeoff:
    """The `Tradeoff` of a `Merak`: every k0 that changes something, under both rules.

    strategy : its recompute and keep are set here. budget : bytes of a rank; None: the device's.
    Raises ``ValueError`` where the sizes do not fit each other or the cluster.
    """
    if not isinstance(strategy, Merak):
        raise ValueError(f"third comes a strategy such as tv.Merak(pp=4), not {strategy!r}")
    check_fit(strategy, workload)
    check_cluster(cluster, "second")
    if budget is None:
        budget = cluster.device.memory
    elif isinstance(budget, bool) or not isinstance(budget, int | float) or not budget > 0:
        raise ValueError(
            f"budget={budget!r}: give bytes of a rank, as in 40e9, or None for the device's"
        )
    aware = replace(strategy, recompute="stage_aware", keep=0.0)
    even = Uniform(**{f.name: getattr(aware, f.name) for f in fields(aware)})
    ladder = keeps(aware, workload)[::-1]
    points = {
        rule: tuple(_point(replace(s, keep=keep), workload, cluster) for keep in ladder)
        for rule, s in zip(RULES, (aware, even))
    }
    return Tradeoff(workload, cluster, aware, budget, points)


def _point(s, w, cluster):
    needs = tuple(memory_of(s, w, place).total for place in range(s.pp))
    return Point(s.keep, predict(s, w, cluster).step_time, needs, tuple(s.num_recomputed(w)))
