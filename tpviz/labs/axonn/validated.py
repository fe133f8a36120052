"""``validation``: does AxoNN's communication model, or ours of the step, find the fastest grids?"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tpviz.checks import one_of, whole_number
from tpviz.cluster import Cluster
from tpviz.cost import show_seconds
from tpviz.figures.charts_validation import validation_figure
from tpviz.runtime.launch import check_world_size
from tpviz.schemes.axonn.paper import ranking
from tpviz.schemes.axonn.rates import of_cluster
from tpviz.schemes.axonn.strategy import AxoNN
from tpviz.tables import html_table
from tpviz.trace.faithful import is_faithful
from tpviz.verbs.agreement import kendall_tau, rounded
from tpviz.verbs.checks import check_cluster, check_workload
from tpviz.verbs.predict import predict
from tpviz.workload import GPT

from .claims import VALIDATION as CLAIM
from .overlapping import grid_of

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MODES = ("communication", "predicted", "measured")
TOPS = (3, 10)


class Row(NamedTuple):
    """A grid. Seconds: ``communication`` by the papers' kind of model, the ``predicted`` step, the
    ``measured`` one on the emulated cluster (None: not run; faithful : as the model says)."""

    strategy: AxoNN
    communication: float
    predicted: float
    measured: float | None = None
    faithful: bool = True


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
class Validation:
    """Every grid: ``rows`` (`Row`), in the order of the communication model."""

    workload: GPT
    cluster: Cluster
    rows: tuple[Row, ...]

    @property
    def measured(self) -> tuple[Row, ...]:
        """The rows that were run."""
        return tuple(r for r in self.rows if r.measured is not None)

    def order(self, mode: str = "communication", rows: Iterable[Row] | None = None) -> list[Row]:
        """Rows by one of MODES, least first; of equals, to rounding, as the model has them."""
        rows = self.rows if rows is None else rows
        one_of("mode", mode, MODES)
        return sorted(
            (r for r in rows if getattr(r, mode) is not None),
            key=lambda r: rounded(getattr(r, mode)),
        )

    def tau(self, first: str = "communication", second: str = "predicted") -> float | None:
        """Kendall's tau of two MODES, over the grids that have both; None for fewer than two."""
        first, second = (one_of("mode", mode, MODES) for mode in (first, second))
        pairs = [
            (rounded(getattr(r, first)), rounded(getattr(r, second)))
            for r in self.rows
            if None not in (getattr(r, first), getattr(r, second))
        ]
        return kendall_tau(*zip(*pairs)) if len(pairs) > 1 else None

    @property
    def against(self) -> str:
        """What models are held against: "measured" steps, or "predicted" where nothing was run."""
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
        """Where the numbers come from."""
        return ["predicted"] + ["emulated"] * bool(self.measured)

    def scene(self) -> dict[str, Any]:
        """The chart as data: see `tpviz.figures.charts_validation`."""
        against, rows = self.against, self.measured or self.rows
        return {
            "title": f"AxoNN's grids of {self.rows[0].strategy.world_size} ranks on "
            f"{self.cluster.caption}",
            "badges": self.badges,
            "against": against,
            "models": [m for m in MODES[1::-1] if m != against],
            "kinds": [kind_of(r.strategy) for r in rows],
            "names": [grid_of(r.strategy) for r in rows],
            "seconds": {
                m: [getattr(r, m) for r in rows] for m in MODES if m != "measured" or against == m
            },
            "notes": self._notes(),
            "alt": self.describe(),
        }

    def figure(self, theme: str = "light") -> "Figure":
        """Scatter as a plotly ``Figure``: each model against the measured step, a point a grid.

        Where nothing was run: the communication model against the predicted step.
        """
        return validation_figure(self.scene(), theme)

    def to_table(self, most: int | None = 40) -> list[list[str]]:
        """Rows of strings, header first: places and times of each grid."""
        places = {
            mode: {r.strategy: n for n, r in enumerate(self.order(mode), 1)} for mode in MODES
        }
        table = [["x y z data", *(word for mode in MODES for word in (mode, "place"))]]
        for r in self.rows[:most]:
            cells = [
                (show_seconds(getattr(r, m)), str(places[m][r.strategy]))
                if getattr(r, m) is not None
                else ("", "")
                for m in MODES
            ]
            table.append([grid_of(r.strategy), *(word for cell in cells for word in cell)])
        return table

    def describe(self) -> str:
        """Who is first by which model, and how far they agree, in words."""
        words = []
        for mode in MODES if self.measured else MODES[:2]:
            best = self.order(mode)[0]
            words.append(f"{mode}: {grid_of(best.strategy)}, {show_seconds(getattr(best, mode))}")
        lines = [
            f"{len(self.rows)} grids on {self.cluster.caption}. First (x y z data) by "
            f"{'; by '.join(words)}."
        ]
        return " ".join(lines + self._notes())

    def _agreement(self):
        """Kendall's taus and hits in words."""
        lines, against = [], self.against
        for first, second in combinations(MODES, 2):
            if (tau := self.tau(first, second)) is not None:
                lines.append(f"Kendall's tau of {first} and {second}: {tau:.2f}.")
        for top, mode in product(TOPS, MODES[: 1 + bool(self.measured)]):
            if hits := self.hits(mode, top):
                lines.append(
                    f"Of the first {top} by {mode}, {hits.found} are among the {top} "
                    f"fastest {against} of {hits.of} (by chance {hits.chance:.1f})."
                )
        return lines

    def _notes(self):
        notes = [
            "communication: bytes over bandwidth, nothing hidden, no compute, as the papers "
            "rank. predicted: the whole step, overlaps in it. Memory is not asked for."
            + (" measured: median step on the emulated cluster." if self.measured else "")
        ]
        if self.measured and len(self.measured) < len(self.rows):
            notes.append(
                f"Only the first {len(self.measured)} of {len(self.rows)} grids by the "
                "communication model were run."
            )
        late = [grid_of(r.strategy) for r in self.measured if not r.faithful]
        notes += [
            f"Not faithful, events too short for this machine: {'; '.join(late)}. Slower "
            "motion helps."
        ] * bool(late)
        return [*notes, " ".join(self._agreement()), CLAIM]

    def __repr__(self):
        against, tau = self.against, self.tau("communication", self.against)
        return (
            f"<Validation of {len(self.rows)} grids on {self.cluster.caption}: Kendall's tau "
            f"of communication and {against} {tau:.2f}; {', '.join(self.badges)}>"
        )

    def _repr_html_(self):
        return html_table(self.to_table(), "class='tpviz-lab'")


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
) -> Validation:
    """The `Validation` of all grids of `AxoNN` whose sizes divide.

    Parameters
    ----------
    run : how many of the first by the communication model are also run on the emulated cluster;
        "all" of them; None: none. Take a scale model in slow motion then, and a small workload.
    world_size : ranks, all devices of the cluster unless said.
    least : leave out grids whose x y z is less. Nobody asks whether memory fits; this is how the
        authors' script keeps out what does not (`tpviz.schemes.axonn.models.LEAST_RANKS`).
    steps, progress : of these runs. knobs : knobs of all grids, such as overlap or recompute.

    Raises ``ValueError`` where fewer than two grids divide the sizes.
    """
    check_workload(workload)
    check_cluster(cluster, "second")
    world_size = whole_number("world_size", cluster.size if world_size is None else world_size, 2)
    cluster.check_world(world_size)
    taken = next((name for name in ("x", "y", "z", "data") if name in knobs), None)
    if taken:
        raise ValueError(
            f"{taken}={knobs[taken]!r}: all grids are tried; leave {taken} out, or "
            "use tv.predict for one"
        )
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
    rows = [Row(s, seconds, predict(s, workload, cluster).step_time) for s, seconds in ranked]
    for number in range(min(count, len(rows))):
        rows[number] = _measured(rows[number], workload, cluster, steps, progress)
    return Validation(workload, cluster, tuple(rows))


def _measured(row, workload, cluster, steps, progress):
    from tpviz.verbs.run import run

    trace = run(row.strategy, workload, cluster, steps=steps, memory=False, progress=progress)
    return row._replace(measured=trace.step_time, faithful=is_faithful(trace.meta["late"]))
