"""``validation``: how well AxoNN's communication model, and ours of the step, rank the grids."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any, Literal, NamedTuple

from tpviz.cluster import Cluster
from tpviz.core.charts import axis, label, log_ticks, panel, points, unit_of
from tpviz.core.checks import one_of, whole_number
from tpviz.core.tables import show_seconds, table
from tpviz.core.workload import GPT
from tpviz.evidence.ranked import MODES, RankedRow, order, tau
from tpviz.evidence.report import Report, not_knobs, too_late
from tpviz.ranks.most import check_world_size
from tpviz.schemes.axonn.paper import ranking
from tpviz.schemes.axonn.rates import of_cluster
from tpviz.schemes.axonn.strategy import AxoNN
from tpviz.verbs.checks import check_cluster, check_workload
from tpviz.verbs.predict import predict
from tpviz.verbs.slow_motion import in_slow_motion

from .claims import VALIDATION as CLAIM
from .overlapping import grid_of

KINDS = {
    "z and data alone": ("axis3", "circle"),
    "x": ("axis0", "square"),
    "y": ("axis2", "diamond"),
    "x and y": ("axis4", "x"),
}
"""Which axes of the plane a grid has -> (ink, marker)."""
TITLES = {
    "communication": "communication model",
    "predicted": "predicted step",
    "measured": "measured step",
}
FAR = 5
"""From this ratio of the largest and the least on an axis is logarithmic."""
TOPS = (3, 10)


class Hits(NamedTuple):
    """Of ``top`` grids that a model puts first, ``found`` are among the ``top`` fastest of ``of``;
    by ``chance`` it would be top^2/of."""

    top: int
    found: int
    of: int

    @property
    def chance(self) -> float:
        """Expected hits of a random order."""
        return self.top**2 / self.of


@dataclass(frozen=True, eq=False, repr=False)
class GridValidation(Report):
    """Every grid: ``rows`` (`RankedRow`), in the order of the communication model."""

    workload: GPT
    cluster: Cluster
    rows: tuple[RankedRow, ...]

    @property
    def measured(self) -> tuple[RankedRow, ...]:
        """The rows that were run."""
        return tuple(r for r in self.rows if r.measured is not None)

    def order(
        self, mode: str = "communication", rows: Iterable[RankedRow] | None = None
    ) -> list[RankedRow]:
        """Rows by one of MODES, least first; of equals, to rounding, as the model has them."""
        rows = self.rows if rows is None else rows
        one_of("mode", mode, MODES)
        return order(rows, mode)

    def tau(self, first: str = "communication", second: str = "predicted") -> float | None:
        """Kendall's tau of two MODES, over the grids that have both; None for fewer than two."""
        first, second = (one_of("mode", mode, MODES) for mode in (first, second))
        return tau(self.rows, first, second)

    @property
    def against(self) -> str:
        """The reference of the models: "measured" steps, or "predicted" if none was run."""
        return "measured" if self.measured else "predicted"

    def hits(self, mode: str = "communication", top: int = 3) -> Hits | None:
        """The `Hits` of a model; None unless there are more than ``top`` grids to find them in."""
        run, top = self.measured or self.rows, whole_number("top", top)
        if len(run) <= top:
            return None
        fastest = {r.strategy for r in self.order(self.against, run)[:top]}
        first = [r.strategy for r in self.order(mode, run)[:top]]
        return Hits(top, sum(s in fastest for s in first), len(run))

    @property
    def badges(self) -> list[str]:
        """Sources of the numbers."""
        return ["predicted"] + ["emulated"] * bool(self.measured)

    def drawing(self) -> dict[str, Any]:
        """Scatter: each model against the measured step, a point a grid, the diagonal where both
        axes are steps; and each model's first grid. If none was run: the communication model
        against the predicted step."""
        rows, upward = self.measured or self.rows, self.against
        panels = [self._scatter(rows, mode, upward) for mode in MODES[1::-1] if mode != upward]
        ranks = self.rows[0].strategy.world_size
        title = f"AxoNN's grids of {ranks} ranks on {self.cluster.caption}"
        return {"title": title, "panels": panels}

    def _scatter(self, rows, mode, upward):
        """The panel of one model against what is upward."""
        seconds = {m: [getattr(r, m) for r in rows] for m in (mode, upward)}
        same = mode != "communication"  # steps on both axes, which are the same then
        both = seconds[mode] + seconds[upward]
        (x, x_axis), (y, y_axis) = (
            _axis(m, seconds[m], both if same else seconds[m], unit_of(both))
            for m in (mode, upward)
        )
        traces, marks = [], []
        if same:
            ends = [min(x + y), max(x + y)]
            diagonal = {"color": "ink:other", "dash": "dot", "width": 1.5}
            plain = {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "line": diagonal}
            traces.append({**plain, "name": "both equal", "x": ends, "y": ends})
        for kind, (ink, marker) in KINDS.items():
            own = [n for n, r in enumerate(rows) if kind_of(r.strategy) == kind]
            trace = points(kind, [x[n] for n in own], [y[n] for n in own], ink, marker, 10)
            trace["text"] = [f"x y z data = {grid_of(rows[n].strategy)}" for n in own]
            traces.append(trace)
        for number, words in _pointed(x, y).items():
            text = f"{words} {grid_of(rows[number].strategy)}"
            marks.append(label(text, x[number], y[number], "other"))
        title = f"{TITLES[mode]} against {TITLES[upward]}"
        return panel(title, traces, x_axis, y_axis, marks)

    def to_table(self, most: int | None = 40) -> list[list[str]]:
        """Rows of strings, header first: places and times of each grid."""
        columns = [("x y z data", lambda row: grid_of(row.strategy))]
        for mode in MODES:
            places = {row.strategy: str(n) for n, row in enumerate(self.order(mode), 1)}
            columns.append((mode, lambda row, mode=mode: row.words(mode)))
            columns.append(("place", lambda row, places=places: places.get(row.strategy, "")))
        return table(columns, ((row,) for row in self.rows[:most]))

    def words(self) -> list[str]:
        """The first grid by each model."""
        words = []
        for mode in MODES if self.measured else MODES[:2]:
            best = self.order(mode)[0]
            words.append(f"{mode}: {grid_of(best.strategy)}, {show_seconds(getattr(best, mode))}")
        return [
            f"{len(self.rows)} grids on {self.cluster.caption}. First (x y z data) by "
            f"{'; by '.join(words)}."
        ]

    def _agreement(self):
        """Kendall's taus and hits in words."""
        lines = []
        for first, second in combinations(MODES, 2):
            if (tau := self.tau(first, second)) is not None:
                known = "" if lines else " (1: the same order, 0: unrelated, -1: the reverse)"
                lines.append(f"Kendall's tau of {first} and {second}{known}: {tau:.2f}.")
        for top, mode in product(TOPS, MODES[: 1 + bool(self.measured)]):
            if hits := self.hits(mode, top):
                lines.append(self.say("hits", mode=mode, hits=hits))
        return lines

    def notes(self) -> list[str]:
        """Definitions of the models, their agreement, the paper's claim, and warnings."""
        said = "Measured step: the median on the emulated cluster. " * bool(self.measured)
        found, run, of = [self.say("validation", measured=said)], len(self.measured), len(self.rows)
        found += [self.say("few", run=run, of=of)] * (0 < run < of)
        late = [grid_of(r.strategy) for r in self.measured if not r.faithful]
        return [*found, *too_late(late, "; "), " ".join(self._agreement()), CLAIM]

    def __repr__(self):
        facts = {"tau": self.tau("communication", self.against), "badges": ", ".join(self.badges)}
        return f"<{self.say('GridValidation', count=len(self.rows), **facts)}>"


def _axis(mode, seconds, reach, of):
    """(values in the unit ``of`` `unit_of`, the axis), which must include ``reach``."""
    unit, scale = of
    values, title = [s / scale for s in seconds], f"{TITLES[mode]} ({unit})"
    if min(reach) <= 0 or max(reach) / min(reach) <= FAR:
        return values, axis(title)
    return values, axis(title, log_ticks(values))


def _pointed(x, y):
    """{number of a point: words}: the model's first, and the fastest."""
    first, fastest = (min(range(len(values)), key=values.__getitem__) for values in (x, y))
    if first == fastest:
        return {first: "model's first, and fastest:"}
    return {first: "model's first:", fastest: "fastest:"}


def kind_of(strategy: AxoNN) -> str:
    """Which of the plane's axes a grid has: "z and data alone", "x", "y" or "x and y"."""
    plane = [axis for axis in ("x", "y") if strategy.axes[axis] > 1]
    return " and ".join(plane) or "z and data alone"


def validation(
    workload: GPT,
    cluster: Cluster,
    run: int | Literal["all"] | None = None,
    *,
    world_size: int | None = None,
    least: int = 1,
    steps: int = 3,
    progress: Callable[[int, int, str], object] | bool | None = None,
    **knobs: Any,
) -> GridValidation:
    """The `GridValidation` of all grids of `AxoNN` whose sizes divide.

    Parameters
    ----------
    run : how many of the first by the communication model are also run on the emulated cluster;
        "all" of them; None: none. Take a scale model then, and a small workload. It is in faithful
        slow motion then, unless it is in another.
    world_size : ranks, by default all devices of the cluster.
    least : leave out grids whose x y z is less. Memory is not checked; the authors' script excludes
        grids that do not fit in this way (`tpviz.schemes.axonn.models.LEAST_RANKS`).
    steps, progress : of these runs. knobs : knobs of all grids, such as overlap or recompute.

    Raises ``ValueError`` where fewer than two grids divide the sizes.
    """
    check_workload(workload)
    check_cluster(cluster, "second")
    world_size = whole_number("world_size", cluster.size if world_size is None else world_size, 2)
    cluster.check_world(world_size)
    why = "all grids are tried; leave {} out, or use tv.predict for one"
    not_knobs(knobs, ("x", "y", "z", "data"), why)
    least = whole_number("least", least, 1, world_size)
    grids = [replace(s, **knobs) for s in AxoNN.space(workload, world_size)]
    ranked = ranking(grids, workload, of_cluster(cluster, world_size), least)
    if len(ranked) < 2:
        raise ValueError(
            f"{len(ranked)} of {len(grids)} grids of {world_size} ranks divide the "
            f"sizes with x y z >= {least}, and to rank takes two: use another "
            "world_size, batch or least"
        )
    count = 0 if run is None else len(ranked) if run == "all" else whole_number("run", run, 2)
    steps = whole_number("steps", steps)
    if count:
        check_world_size(world_size)
        cluster = in_slow_motion([s for s, _ in ranked[:count]], workload, cluster)
        ranked = ranking(grids, workload, of_cluster(cluster, world_size), least)
    rows = [RankedRow(s, seconds, predict(s, workload, cluster).step_time) for s, seconds in ranked]
    for number in range(min(count, len(rows))):
        rows[number] = rows[number].run(workload, cluster, steps=steps, progress=progress)
    return GridValidation(workload, cluster, tuple(rows))
