"""``measured``: every layout of one model that was measured on one cluster, and who picks best.

A pick is judged by its regret: how much slower its measured step is than the fastest measured one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean, median
from typing import Any

from tpviz.core.charts import axis, label, line, log_ticks, panel, points
from tpviz.core.tables import show_seconds, text_table
from tpviz.evidence.published import scoreboard as score
from tpviz.evidence.published.adapter import fabric_alone
from tpviz.evidence.published.rows import PublishedRow, published
from tpviz.evidence.published.scoreboard import ScorePoint
from tpviz.evidence.published.validate import checked_rows
from tpviz.evidence.report import Report
from tpviz.verbs.search import Search, search

KNOBS = {
    "tp": "GPUs that share every layer: tensor parallelism",
    "pp": "stages of the pipeline",
    "dp": "replicas of the model: data parallelism",
    "vpp": "stages on each GPU: an interleaved pipeline",
    "micro_batch": "sequences in a microbatch",
    "zero": "ZeRO's stage, what replicas shard: 0 nothing, 1 the optimizer's state",
    "recompute": "activations that backward computes again",
}
"""Columns of a row that are choices -> what they are."""
FASTEST, SEARCH, MOST, RANDOM, YOU = (
    "fastest measured",
    "tv.search",
    "most data parallelism",
    "a random layout",
    "you",
)
STYLES = {
    FASTEST: ("backward", "star", 15),
    SEARCH: ("forward", "diamond", 12),
    MOST: ("axis2", "triangle-up", 12),
    RANDOM: ("fg", "cross", 12),
    YOU: ("axis0", "square", 12),
}
"""Who picks -> (ink, marker, its size in px)."""
WIDE = 4
"""Axes are logarithmic where their largest value is more than this many times the least."""


def knobs_of(row: PublishedRow) -> dict[str, Any]:
    """{knob of `KNOBS`: its value}."""
    usual = {"zero": 0, "recompute": "none"}
    return {name: getattr(row, name) or usual.get(name, 1) for name in KNOBS}


def one_layout(picked: Sequence[ScorePoint]) -> bool:
    """Whether some points are runs of one layout."""
    return len({p.row.layout for p in picked}) == 1


def names_of(picked: Sequence[ScorePoint]) -> str:
    """The layout of some points, or how many there are."""
    return picked[0].row.layout if one_layout(picked) else f"{len(picked)} layouts, their mean"


def times_fastest(title: str, worst: float) -> dict[str, Any]:
    """The axis of steps over the fastest, up to the worst; logarithmic where that is far."""
    ticks = [t for t in (1, 1.5, *log_ticks([2, max(2, worst)])) if t <= worst]
    return axis(title, ticks if worst > WIDE else None)


def rows_of(names: Iterable[str]) -> dict[str, Any]:
    """The axis of names in rows, the first on top."""
    return axis(type="category", categoryarray=list(names), autorange="reversed")


def most_parallel(every: Sequence[ScorePoint]) -> list[ScorePoint]:
    """Those with most data parallelism, and of these the largest microbatch."""
    most = max((p.row.dp, p.row.micro_batch) for p in every)
    return [p for p in every if (p.row.dp, p.row.micro_batch) == most]


def regret(picked: Iterable[ScorePoint], every: Iterable[ScorePoint]) -> float:
    """How much slower than the fastest measured step the picked ones are on average, as a share."""
    return mean(p.measured for p in picked) / min(p.measured for p in every) - 1


@dataclass(frozen=True, eq=False, repr=False)
class Layouts(Report):
    """Layouts of one model and batch on one cluster: ``points``, each predicted and measured.

    found : what `tpviz.search` says of their strategies, by formula. failed : configurations that
    the source could not run. left : measured rows that are not modelled, or are
    of a model of other sizes that has the same name.
    """

    points: tuple[ScorePoint, ...]
    found: Search
    failed: int = 0
    left: int = 0
    badges = ("predicted", "measured by others")

    # -- the choices -------------------------------------------------------------------------------
    @cached_property
    def knobs(self) -> dict[str, list[Any]]:
        """{knob of `KNOBS`: the values that were measured}, of those with several."""
        every = [knobs_of(p.row) for p in self.points]
        values = {name: sorted({knobs[name] for knobs in every}) for name in KNOBS}
        return {name: several for name, several in values.items() if len(several) > 1}

    def values_of(self, point: ScorePoint) -> dict[str, Any]:
        """{knob of ``knobs``: its value} of a layout."""
        return {name: value for name, value in knobs_of(point.row).items() if name in self.knobs}

    def at(self, **knobs: Any) -> list[ScorePoint]:
        """The points with these values of ``knobs``. Raises ``ValueError`` where there is none,
        with the nearest layout that was measured, and for an unknown knob."""
        found = [p for p in self.points if knobs.items() <= self.values_of(p).items()]
        if not found:
            words = ", ".join(f"{name}={value!r}" for name, value in knobs.items())
            near = self.nearest(knobs)
            told = ", ".join(f"{name}={near[name]!r}" for name in knobs)
            raise ValueError(f"no layout with {words} was measured; the nearest is {told}")
        return found

    def nearest(self, wanted: dict[str, Any], keep: Iterable[str] = ()) -> dict[str, Any]:
        """The values of ``knobs`` of the measured layout that is nearest to those wanted: fewest
        others, and those by the fewest stops. keep : knobs that must not change. Raises
        ``ValueError`` for a knob in which the layouts do not differ."""
        for name in wanted:
            if name not in self.knobs:
                raise ValueError(
                    f"{name}={wanted[name]!r}: layouts differ in {', '.join(self.knobs)}"
                )
        every = [self.values_of(p) for p in self.points]
        held = {name: wanted[name] for name in keep}
        kept = [values for values in every if held.items() <= values.items()]
        stops = self.knobs

        def far(values):
            steps = [
                abs(_stop(stops[name], values[name]) - _stop(stops[name], value))
                for name, value in wanted.items()
            ]
            return sum(step > 0 for step in steps), sum(steps)

        return min(kept or every, key=far)

    # -- who picks what ----------------------------------------------------------------------------
    @cached_property
    def fastest(self) -> ScorePoint:
        """The point with the least measured step."""
        return min(self.points, key=lambda p: p.measured)

    def picks(self, you: Sequence[ScorePoint] = ()) -> dict[str, list[ScorePoint]]:
        """{who picks: the points picked}. Several stand for their mean: a random layout is all of
        them; of the layouts with most data parallelism those with the largest microbatch tie."""
        best = self.found.best
        return {
            FASTEST: [self.fastest],
            SEARCH: [p for p in self.points if p.plan.strategy == best],
            MOST: most_parallel(self.points),
            RANDOM: list(self.points),
            **({YOU: list(you)} if you else {}),
        }

    def regret(self, picked: Iterable[ScorePoint]) -> float:
        """How much slower than the fastest measured step these are, on average, as a share."""
        return regret(picked, self.points)

    def place(self, picked: Iterable[ScorePoint]) -> int:
        """How many layouts are faster than these on average, and 1."""
        step = mean(p.measured for p in picked)
        return 1 + sum(p.measured < step for p in self.points)

    @cached_property
    def correlation(self) -> float:
        """Spearman's rank correlation of predicted and measured steps."""
        return score.spearman(*zip(*((p.predicted, p.measured) for p in self.points)))

    # -- in words and pictures ---------------------------------------------------------------------
    @property
    def title(self) -> str:
        """Model, cluster and batch."""
        row = self.points[0].row
        return self.say("title", row=row)

    @property
    def fitted(self) -> bool:
        """Whether coefficients of the model may have been fitted on these rows."""
        return self.points[0].row.part == "fit"

    def drawing(self, you: Sequence[ScorePoint] = ()) -> dict[str, Any]:
        """Predicted and measured steps of all layouts, and the steps of who picks."""
        picks = self.picks(you)
        return {"title": self.title, "panels": [self.scatter(picks), self._strips(picks)]}

    def scatter(self, picks: dict[str, list[ScorePoint]]) -> dict[str, Any]:
        """The panel of predicted and measured steps; single picks are marked."""
        ends = [f(t for p in self.points for t in p[2:]) for f in (min, max)]
        traces = [
            line("predicted = measured", ends, ends, ("muted", "dash", "circle"), mode="lines"),
            self._dots("a layout", self.points, ("other", "circle-open", 7)),
        ]
        marks = []
        for who, own in picks.items():
            if who != RANDOM:
                traces.append(self._dots(who, own, STYLES[who]))
                marks.append(label(who, own[0].predicted, own[0].measured, STYLES[who][0]))
        ticks = log_ticks(ends) if ends[1] > WIDE * ends[0] else None
        x, y = axis("predicted (s)", ticks), axis("measured (s)", ticks)
        return panel("each layout's step", traces, x, y, marks)

    @staticmethod
    def _dots(name, own, style):
        words = [p.row.layout for p in own]
        pairs = [p.predicted for p in own], [p.measured for p in own]
        return points(name, *pairs, *style, text=words)

    def _strips(self, picks):
        """The panel with a row for each pick: all its layouts, and their mean."""
        best, traces = self.fastest.measured, []
        for who, own in picks.items():
            ink, symbol, size = STYLES[who]
            times = [p.measured / best for p in own]
            words = [p.row.layout for p in own]
            if len(own) > 1:
                name = "a layout"
                traces.append(
                    points(name, times, [who] * len(own), "other", "circle-open", 7, text=words)
                )
            traces.append(points(who, [mean(times)], [who], ink, symbol, size))
        x = times_fastest("measured / fastest", max(p.measured for p in self.points) / best)
        return panel("how slow the picks are", traces, x, rows_of(picks))

    def words(self) -> list[str]:
        """What was measured, who picks what, and how well the model ranks."""
        times = [p.measured for p in self.points]
        different = len({p.row.layout for p in self.points})
        runs = f"{len(times)} runs of " if len(times) > different else ""
        found = [self.say("steps", runs=runs, count=different, ends=(min(times), max(times)))]
        picks = self.picks()
        for who in (SEARCH, MOST, RANDOM):
            facts = {"layout": names_of(picks[who]), "regret": self.regret(picks[who])}
            found.append(self.say("pick", who=who, **facts))
        middle = median(times) / self.fastest.measured - 1
        return [*found, self.say("half", middle=middle), self.say("correlation")]

    def notes(self) -> list[str]:
        """Whether rows were fitted on, and what is left out."""
        refused = len(self.found.rejected)
        told = {
            "fitted": self.fitted,
            "not fitted": not self.fitted,
            "not modelled": self.left,
            "do not fit": refused,
            "failed": self.failed,
        }
        return [self.say(heading, refused=refused) for heading, many in told.items() if many]

    def to_table(self, you: Sequence[ScorePoint] = ()) -> list[list[str]]:
        """Rows of strings, header first: who picks what, its step, its place and its regret."""
        rows = [["who", "layout", "predicted", "measured", "place", "regret"]]
        for who, own in self.picks(you).items():
            times = [show_seconds(mean(t)) for t in zip(*(p[2:] for p in own))]
            place = f"{self.place(own)} of {len(self.points)}" if one_layout(own) else ""
            regret = f"{100 * self.regret(own):.1f} %"
            rows.append([who, names_of(own), *times, place, regret])
        return rows

    def __repr__(self):
        return "\n".join([self.title, *text_table(self.to_table(), right=(2, 3, 4, 5))])


def _stop(stops, value):
    """The place of a value among the stops of its knob, or of the nearest below."""
    return sum(stop < value for stop in stops)


def measured(model: str, gpus: int, source: str | None = None) -> Layouts:
    """The `Layouts` of a model on a number of GPUs: those of one source, GPU, shape of the model
    and batch, the most that there are.

    model, gpus, source : as `tpviz.published` takes them. Raises ``ValueError`` where there is no
    such model, or fewer than `scoreboard.LEAST` of its layouts are modelled.
    """
    rows = published(model, gpus, source=source)
    modelled = score.points(checked_rows(rows, fabric_alone).rows)
    groups = score.by(modelled, lambda p: (_key(p.row), repr(p.plan.workload)))
    if max(map(len, groups.values()), default=0) < score.LEAST:
        raise ValueError(
            f"model={model!r}, gpus={gpus}: fewer than {score.LEAST} of these {len(rows)} rows are "
            "layouts of one workload that are modelled; try "
            'tpviz.evidence.layouts.measured("llama-3B", gpus=64)'
        )
    (key, _), own = max(groups.items(), key=lambda item: len(item[1]))
    plan, strategies = own[0].plan, [p.plan.strategy for p in own]
    found = search(plan.workload, plan.cluster, strategies, simulate=False, seconds=None)
    same = [r for r in rows if _key(r) == key]
    failed = sum(_key(r) == key for r in published(kind="failed"))
    return Layouts(tuple(own), found, failed, len(same) - len(own))


def _key(row):
    return row.source, row.model, row.n_gpus, row.gpu, row.seq, row.global_batch
