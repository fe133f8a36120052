"""``tradeoff``: time against memory as stages keep more of their layers' activations.

Stage-aware (k_s grows with the stage, `Merak.kept`) against the same fraction on all stages. Both
by formula; the first stage, which holds most microbatches, keeps equally much in both.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from tpviz.cluster import Cluster
from tpviz.core.charts import FROM_ZERO, axis, label, line, panel, unit_of
from tpviz.core.tables import show_bytes, show_seconds
from tpviz.core.workload import GPT
from tpviz.evidence.report import Report
from tpviz.schemes.merak.budget import keeps
from tpviz.schemes.merak.strategy import Merak
from tpviz.schemes.pipeline.memory import memory_of
from tpviz.verbs.checks import check_cluster, check_fit
from tpviz.verbs.predict import predict

from .ranks import sizes_in_words

STYLES = {
    "stage-aware": ("forward", "solid", "diamond"),
    "stage-aware, average rank": ("forward", "dashdot", "x"),
    "uniform": ("axis0", "dot", "circle-open"),
    "uniform, average rank": ("axis0", "dashdot", "cross"),
}
"""{line: (ink, dash, marker)}, as the legend has them."""
RULES = ("stage-aware", "uniform")
SIZES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))


class Uniform(Merak):
    """`Merak` whose stages all keep the same part of their layers; where the schedule does not
    recompute a stage, all of it."""

    def kept(self) -> list[float]:
        """{stage: k_s}, as `Merak.kept`."""
        return [self.keep] * self.stages


class TradePoint(NamedTuple):
    """One k0. step : seconds. needs : bytes of each place along pp. num_recomputed : layers of
    each stage that are recomputed."""

    keep: float
    step: float
    needs: tuple[float, ...]
    num_recomputed: tuple[int, ...]

    @property
    def most(self) -> float:
        """Bytes of the rank that needs most."""
        return max(self.needs)

    @property
    def average(self) -> float:
        """Bytes of the average rank."""
        return sum(self.needs) / len(self.needs)


@dataclass(frozen=True, eq=False, repr=False)
class Tradeoff(Report):
    """``points`` {rule of RULES: its `TradePoint`s, k0 from 0 to 1}; budget : bytes of a rank."""

    workload: GPT
    cluster: Cluster
    strategy: Merak
    budget: float
    points: dict[str, tuple[TradePoint, ...]]
    badges = ("predicted",)

    @property
    def picked(self) -> dict[str, TradePoint | None]:
        """{rule: the `TradePoint` with the largest k0 that fits the budget, None where none
        does}."""
        return {
            rule: next((p for p in reversed(points) if p.most <= self.budget), None)
            for rule, points in self.points.items()
        }

    @property
    def _words(self):
        order = str(self.strategy.schedule).replace("_", " ")
        return f"{sizes_in_words(self.strategy)}, {order},"

    def saving(self) -> dict[float, float]:
        """{k0: the part (0..1) of the uniform step that stage-aware recomputation saves}."""
        return {a.keep: 1 - a.step / u.step for a, u in zip(*(self.points[r] for r in RULES))}

    def drawing(self) -> dict[str, Any]:
        """Left: seconds of a step over k0. Right: bytes of the rank that needs most and of the
        average rank, the budget dashed."""
        every = [p for points in self.points.values() for p in points]
        unit, second = unit_of([p.step for p in every])
        most = max(p.most for p in every)
        size, byte = next((name, n) for name, n in SIZES if max(most, 1) >= n)
        steps, needs, marks = [], [], []
        for rule, points in self.points.items():
            keep = [p.keep for p in points]
            text = ["layers recomputed " + " ".join(map(str, p.num_recomputed)) for p in points]
            for name, values, traces in (
                (rule, [p.step / second for p in points], steps),
                (rule, [p.most / byte for p in points], needs),
                (f"{rule}, average rank", [p.average / byte for p in points], needs),
            ):
                traces.append(line(name, keep, values, STYLES[name], text=text))
            if fits := self.picked[rule]:
                at = fits.keep, fits.step / second
                marks.append(label(f"{rule}: fits", *at, STYLES[rule][0]))
        x = axis("k0: share of the first stage's layers that keep all", range=[-0.03, 1.03])
        # Further up it would flatten the curves.
        budget = [{"y": self.budget / byte, "dash": "dash", "text": "budget"}] * (
            self.budget <= 3 * most
        )
        return {
            "title": f"{self._words} on {self.cluster.caption}: recomputation against memory",
            "panels": [
                panel(f"a step ({unit})", steps, x, marks=marks),
                panel(f"{size}: fullest and average rank", needs, x, FROM_ZERO, rules=budget),
            ],
        }

    def _lines(self):
        pairs = zip(*(self.points[rule] for rule in RULES))
        return (row for pair in pairs for row in zip(RULES, pair))

    def _columns(self):
        return [
            ("k0", lambda rule, p: f"{p.keep:.3g}"),
            ("rule", lambda rule, p: rule),
            ("step", lambda rule, p: show_seconds(p.step)),
            ("most of a rank", lambda rule, p: show_bytes(p.most)),
            ("each place", lambda rule, p: ", ".join(map(show_bytes, p.needs))),
            ("layers recomputed", lambda rule, p: " ".join(map(str, p.num_recomputed))),
            ("fits", lambda rule, p: "yes" if p.most <= self.budget else "no"),
        ]

    def words(self) -> list[str]:
        """The cost and gain of keeping more."""
        aware = self.points["stage-aware"]
        low, high = aware[0], aware[-1]
        lines = [self.say("range", words=self._words, low=low, high=high)]
        for rule, p in self.picked.items():
            heading, least = "fits" if p else "nothing fits", self.points[rule][0]
            lines.append(self.say(heading, rule=rule.capitalize(), p=p, least=least))
        return lines

    def notes(self) -> list[str]:
        """The limits of both rules, and rounding to whole layers."""
        keep, saved = max(self.saving().items(), key=lambda item: item[1])
        return [self.say("tradeoff", saved=saved, keep=keep), self.say("rounding")]

    def __repr__(self):
        p = self.picked["stage-aware"]
        words = f"k0 = {p.keep:.3g} fits, {show_seconds(p.step)} a step" if p else "nothing fits"
        return f"<Tradeoff of {self._words} on {self.cluster.caption}: {words}, predicted>"


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
    return TradePoint(s.keep, predict(s, w, cluster).step_time, needs, tuple(s.num_recomputed(w)))
