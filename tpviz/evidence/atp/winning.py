"""``winners``: the fastest mesh and order of ATP on each interconnect."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tpviz.cluster import Cluster
from tpviz.core.charts import heat_map, panel
from tpviz.core.checks import whole_number
from tpviz.core.workload import GPT
from tpviz.evidence.ranked import MODES, RankedRow, order, tau
from tpviz.evidence.report import Report, named, not_knobs
from tpviz.ranks.most import check_world_size
from tpviz.schemes.atp.strategy import ATP
from tpviz.verbs.checks import check_workload
from tpviz.verbs.predict import predict
from tpviz.verbs.slow_motion import in_slow_motion

CLAIM = "The claim of the paper's abstract beside ours: tv.claims('ATP')."
TITLES = {
    "communication": "communication alone (the paper's model)",
    "predicted": "whole step (extended)",
    "measured": "whole step, emulated",
}


@dataclass(frozen=True, eq=False, repr=False)
class Winners(Report):
    """The table: ``cells`` {(cluster's name, strategy): `RankedRow`}; every strategy on every
    cluster.

    The first strategy is 1D, the mesh (N, 1) in column order, which is Megatron's.
    """

    workload: GPT
    clusters: dict[str, Cluster]
    strategies: tuple[ATP, ...]
    cells: dict[tuple[str, ATP], RankedRow]

    @property
    def base(self) -> ATP:
        """Megatron's 1D mesh, to which gains refer."""
        return self.strategies[0]

    def ranking(self, cluster: str, mode: str = "predicted") -> list[tuple[float, ATP]]:
        """[(seconds, strategy)] of a cluster, fastest first; of equals the one nearest 1D.

        Strategies whose memory does not fit come last. mode : one of MODES.
        """
        rows = order((self.cells[cluster, s] for s in self.strategies), mode)
        return [(getattr(row, mode), row.strategy) for row in rows]

    def winner(self, cluster: str, mode: str = "predicted") -> ATP:
        """The fastest strategy of a cluster whose memory fits; of all where none fits."""
        return self.ranking(cluster, mode)[0][1]

    def _star(self, cluster, mode):
        """The number of the strategy that is marked as the fastest: None where none fits or ran."""
        ranked = self.ranking(cluster, mode)
        first = ranked[0][1] if ranked else None
        return self.strategies.index(first) if ranked and self.cells[cluster, first].fits else None  # pyright: ignore[reportArgumentType]

    def gain(self, cluster: str, strategy: ATP, mode: str = "predicted") -> float | None:
        """How much faster than 1D: its time over this one's, less 1; None where not measured."""
        own, base = (getattr(self.cells[cluster, s], mode) for s in (strategy, self.base))
        if own is None or base is None:
            return None
        return base / own - 1 if own else 0.0

    @cached_property
    def agreement(self) -> dict[str, float]:
        """{cluster: Kendall's tau of predicted and measured steps}, where two or more were run."""
        rows = {c: [self.cells[c, s] for s in self.strategies] for c in self.clusters}
        agreed = {name: tau(cells, "predicted", "measured") for name, cells in rows.items()}
        return {name: one for name, one in agreed.items() if one is not None}

    @property
    def badges(self) -> list[str]:
        """Sources of the numbers."""
        run = any(cell.measured is not None for cell in self.cells.values())
        return ["predicted"] + ["emulated"] * run

    def drawing(self) -> dict[str, Any]:
        """Heat maps of the gain in % of 1D's speed, one for each of MODES: blue faster, orange
        slower; the fastest of a column has a star."""
        modes = [m for m in MODES if m != "measured" or "emulated" in self.badges]
        percent = {
            m: [[_percent(self.gain(c, s, m)) for c in self.clusters] for s in self.strategies]
            for m in modes
        }
        gains = (g for rows in percent.values() for row in rows for g in row if g is not None)
        limit = min(max(1.0, *map(abs, gains)), 100.0)
        columns, rows = list(self.clusters), [_row(s) for s in self.strategies]
        name, y = f"gain in %, colours from -{limit:.0f} to {limit:.0f}", {"autorange": "reversed"}
        panels = []
        for mode in modes:
            trace = heat_map(columns, rows, percent[mode], self._cells(mode), limit, name)
            panels.append(panel(TITLES[mode], [trace], y=y))
        return {
            "title": f"ATP on {self.base.world_size} ranks: gain over 1D, in % of its speed",
            "panels": panels,
            "shared_y": True,
        }

    def _cells(self, mode):
        """The text of each cell: the gain, a star for the fastest, a word where memory is short."""
        stars = {name: self._star(name, mode) for name in self.clusters}

        def one(number, strategy, name):
            gain = self.gain(name, strategy, mode)
            if gain is None:
                return ""
            memory = "" if self.cells[name, strategy].fits else " (memory)"
            return f"{'★ ' * (stars[name] == number)}{_signed(100 * gain)}{memory}"

        return [
            [one(number, strategy, name) for name in self.clusters]
            for number, strategy in enumerate(self.strategies)
        ]

    def _lines(self):
        places = ((name, s) for name in self.clusters for s in self.strategies)
        return ((*place, self.cells[place]) for place in places)

    def _columns(self):
        def mesh(name, s, cell):
            return _row(s) + " (best)" * (s == self.winner(name) and cell.fits)

        def gain(name, s, cell):
            memory = "" if cell.fits else ", memory does not fit"
            return f"{100 * self.gain(name, s):+.0f} %{memory}"  # pyright: ignore[reportOperatorIssue]

        return [
            ("cluster", lambda name, s, cell: name),
            ("mesh, order", mesh),
            ("communication", lambda name, s, cell: cell.words("communication")),
            ("predicted step", lambda name, s, cell: cell.words("predicted")),
            ("gain", gain),
            ("measured", lambda name, s, cell: cell.words("measured")),
        ]

    def words(self) -> list[str]:
        """The winner on each cluster."""
        lines = []
        for name in self.clusters:
            paper, step = (self.winner(name, mode) for mode in MODES[:2])
            memory = "" if self.cells[name, step].fits else "no memory fits; "
            other = "it is first too" if paper == step else f"{_row(paper)} is first"
            facts = {"gain": self.gain(name, step), "other": other}
            lines.append(self.say("winner", name=name, memory=memory, step=_row(step), **facts))
        return lines

    def notes(self) -> list[str]:
        """The baseline, the paper's claim, the agreement of predictions and runs, and warnings."""
        notes = [self.say("winners", claim=CLAIM)]
        for name, agreed in self.agreement.items():
            count = sum(self.cells[name, s].measured is not None for s in self.strategies)
            slow = self.clusters[name].slow_motion
            slow = f" Its times are in {slow:,g} x slow motion." * (slow != 1)
            notes.append(self.say("agreement", name=name, count=count, tau=agreed, slow=slow))
        for kind, heading in (("faithful", "late"), ("fits", "memory")):
            cells = self.cells.items()
            some = [f"{_row(s)} on {c}" for (c, s), cell in cells if not getattr(cell, kind)]
            notes += [self.say(heading, cells=", ".join(some))] * bool(some)
        return notes

    def __repr__(self):
        first = "; ".join(f"{_row(self.winner(c))} on {c}" for c in self.clusters)
        return f"<Winners {first}; {', '.join(self.badges)}>"


def winners(
    workload: GPT,
    clusters: Cluster | Iterable[Cluster] | Mapping[str, Cluster],
    world_size: int = 8,
    run: int = 0,
    *,
    steps: int = 3,
    progress: Callable[[int, int, str], object] | bool | None = None,
    **knobs: Any,
) -> Winners:
    """The `Winners` of all meshes and orders of `ATP` on several clusters.

    Parameters
    ----------
    clusters : `Cluster`s in a list, or {name: `Cluster`}.
    run : how many of the fastest predictions, on each cluster, are also run on it emulated; 1D with
        them. Take scale models then, and a small workload: each is in slow motion that is faithful,
        unless it is in another.
    steps, progress : of these runs. knobs : the other knobs of `ATP`.

    Raises ``ValueError`` where 1D does not fit the workload or a cluster is too small, and for a
    mesh or an order: all of them are tried.
    """
    check_workload(workload)
    why = "winners tries all meshes in both orders; leave {} out, or use tv.predict for one"
    not_knobs(knobs, ("mesh", "order"), why)
    world_size = whole_number("world_size", world_size, 2)
    run, steps = whole_number("run", run, 0), whole_number("steps", steps)
    clusters = named("clusters", clusters, Cluster, "caption")
    if run:
        check_world_size(world_size)
    chosen = _chosen(workload, world_size, knobs)
    cells = {
        (name, strategy): _cell(strategy, workload, cluster)
        for name, cluster in clusters.items()
        for strategy in chosen
    }
    made = Winners(workload, clusters, chosen, cells)
    for name, cluster in clusters.items() if run else ():
        first = [s for _, s in made.ranking(name) if cells[name, s].fits][:run]
        tried = dict.fromkeys([*first, made.base])
        clusters[name] = cluster = in_slow_motion(tried, workload, cluster)
        cells |= {(name, strategy): _cell(strategy, workload, cluster) for strategy in chosen}
        for strategy in tried:
            row, options = cells[name, strategy], {"steps": steps, "progress": progress}
            cells[name, strategy] = row.run(workload, cluster, **options)
    return made


def _chosen(workload, world_size, knobs):
    """All meshes in both orders; the first is 1D and must be possible: then the others are too."""
    chosen = tuple(
        ATP(**{"mesh": shape.mesh, "order": shape.order, "attention": shape.attention, **knobs})
        for shape in ATP.meshes(workload, world_size)
    )
    try:
        chosen[0].check(workload)
    except ValueError as error:
        raise ValueError(f"1D, the baseline of the gains, is not possible: {error}") from None
    return chosen


def _cell(strategy, workload, cluster):
    prediction = predict(strategy, workload, cluster)
    # In scale models memory does not scale as one.
    fits = cluster.hidden_scale != 1 or prediction.fits
    communication = strategy.communication(workload, cluster)
    return RankedRow(strategy, communication, prediction.step_time, fits=fits)


def _row(strategy):
    """(4, 2) column."""
    return f"({strategy.mesh[0]}, {strategy.mesh[1]}) {strategy.order}"


def _percent(gain):
    return None if gain is None else 100 * gain


def _signed(number):
    """+12, -3, 0."""
    return f"{round(number):+d}" if round(number) else "0"
