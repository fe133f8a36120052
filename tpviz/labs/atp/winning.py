"""``winners``: which mesh and order of ATP is fastest on which interconnect."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from tpviz.checks import whole_number
from tpviz.cluster import Cluster
from tpviz.cost import show_seconds
from tpviz.figures.charts_winners import winners_figure
from tpviz.runtime.launch import check_world_size
from tpviz.schemes.atp.strategy import ATP
from tpviz.tables import html_table
from tpviz.trace.faithful import is_faithful
from tpviz.verbs.checks import check_workload
from tpviz.verbs.predict import predict
from tpviz.verbs.search import kendall_tau
from tpviz.workload import GPT

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

CLAIM = (
    'The paper\'s abstract claims 37-64 % faster training "on specific interconnects": its '
    "claim, on its machines, not reproduced here."
)
MODES = ("communication", "predicted", "measured")


class Cell(NamedTuple):
    """One strategy on one cluster, seconds.

    communication : of the blocks by the paper's kind of formula ("paper mode"). predicted : the
    whole step ("extended"). fits : whether a rank's memory fits. measured : the step on the
    emulated cluster, None where it was not run; faithful : whether that was as the model says.
    """

    communication: float
    predicted: float
    fits: bool
    measured: float | None = None
    faithful: bool = True


@dataclass(frozen=True, eq=False, repr=False)
class Winners:
    """The table: ``cells`` {(cluster's name, strategy): `Cell`}; every strategy on every cluster.

    The first strategy is 1D, the mesh (N, 1) in column order, which is Megatron's.
    """

    workload: GPT
    clusters: dict[str, Cluster]
    strategies: tuple[ATP, ...]
    cells: dict[tuple[str, ATP], Cell]

    @property
    def base(self) -> ATP:
        """Megatron's 1D mesh, to which gains refer."""
        return self.strategies[0]

    def ranking(self, cluster: str, mode: str = "predicted") -> list[tuple[float, ATP]]:
        """[(seconds, strategy)] of a cluster, fastest first; of equals the one nearest 1D.

        Strategies whose memory does not fit come last. mode : one of MODES.
        """
        found = []
        for number, strategy in enumerate(self.strategies):
            cell = self.cells[cluster, strategy]
            seconds = getattr(cell, mode)
            if seconds is not None:
                found.append((not cell.fits, float(f"{seconds:.9e}"), number, strategy))
        return [(seconds, strategy) for _, seconds, _, strategy in sorted(found)]

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
        found = {}
        for name in self.clusters:
            cells = [self.cells[name, s] for s in self.strategies]
            run = [(c.predicted, c.measured) for c in cells if c.measured is not None]
            if len(run) > 1:
                found[name] = kendall_tau(*zip(*run))
        return found

    @property
    def badges(self) -> list[str]:
        """Where the numbers come from."""
        run = any(cell.measured is not None for cell in self.cells.values())
        return ["predicted"] + ["emulated"] * run

    def scene(self) -> dict[str, Any]:
        """The chart as data: see `tpviz.figures.charts_winners`."""
        modes = [m for m in MODES if m != "measured" or "emulated" in self.badges]
        return {
            "title": f"ATP on {self.base.world_size} ranks: gain over 1D, in % of its speed",
            "badges": self.badges,
            "columns": list(self.clusters),
            "rows": [_row(s) for s in self.strategies],
            "alt": self.describe(),
            "gains": {
                m: [[self.gain(c, s, m) for c in self.clusters] for s in self.strategies]
                for m in modes
            },
            "fits": [[self.cells[c, s].fits for c in self.clusters] for s in self.strategies],
            "winners": {m: [self._star(c, m) for c in self.clusters] for m in modes},
            "notes": self._notes(),
        }

    def figure(self, theme: str = "light") -> "Figure":
        """Heat maps as a plotly ``Figure``: communication alone, the whole step, measured steps."""
        return winners_figure(self.scene(), theme)

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: the times, and the gain of the step over 1D."""
        rows = [["cluster", "mesh, order", "communication", "predicted step", "gain", "measured"]]
        for name in self.clusters:
            for s in self.strategies:
                cell = self.cells[name, s]
                best = " (best)" if s == self.winner(name) and cell.fits else ""
                memory = "" if cell.fits else ", memory does not fit"
                rows.append(
                    [
                        name,
                        _row(s) + best,
                        show_seconds(cell.communication),
                        show_seconds(cell.predicted),
                        f"{100 * self.gain(name, s):+.0f} %{memory}",  # pyright: ignore[reportOperatorIssue]
                        "" if cell.measured is None else show_seconds(cell.measured),
                    ]
                )
        return rows

    def describe(self) -> str:
        """Who wins where, in words."""
        lines = []
        for name in self.clusters:
            paper, step = (self.winner(name, mode) for mode in MODES[:2])
            lines.append(
                f"{name}: {'' if self.cells[name, step].fits else 'no memory fits; '}"
                f"{_row(step)} has the shortest predicted step, "
                f"{100 * self.gain(name, step):+.0f} % to 1D; by communication alone "  # pyright: ignore[reportOperatorIssue]
                + ("it is first too." if paper == step else f"{_row(paper)} is first.")
            )
        return " ".join(lines + self._notes())

    def _notes(self):
        notes = [
            "Predicted: by formula on described clusters. 1D is Megatron's mesh "
            f"({self.base.world_size}, 1) in column order; ★ marks the fastest. " + CLAIM
        ]
        for name, tau in self.agreement.items():
            count = sum(self.cells[name, s].measured is not None for s in self.strategies)
            notes.append(
                f"{name}: {count} strategies also run on the emulated cluster; Kendall's "
                f"tau of predicted and measured steps {tau:.2f}."
            )
        late = [f"{_row(s)} on {c}" for (c, s), cell in self.cells.items() if not cell.faithful]
        notes += [f"Not faithful, events too short for this machine: {', '.join(late)}."] * bool(
            late
        )
        full = [f"{_row(s)} on {c}" for (c, s), cell in self.cells.items() if not cell.fits]
        notes += [f"Memory does not fit (shown, never marked): {', '.join(full)}."] * bool(full)
        return notes

    def __repr__(self):
        found = "; ".join(f"{_row(self.winner(c))} on {c}" for c in self.clusters)
        return f"<Winners {found}; {', '.join(self.badges)}>"

    def _repr_html_(self):
        return html_table(self.to_table(), "class='tpviz-lab'")


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
        them. Take scale models in slow motion then, and a small workload.
    steps, progress : of these runs. knobs : the other knobs of `ATP`.

    Raises ``ValueError`` where 1D does not fit the workload or a cluster is too small, and for a
    mesh or an order: all of them are tried.
    """
    check_workload(workload)
    taken = next((name for name in ("mesh", "order") if name in knobs), None)
    if taken:
        raise ValueError(
            f"{taken}={knobs[taken]!r}: winners tries all meshes in both orders; "
            f"leave {taken} out, or use tv.predict for one"
        )
    world_size = whole_number("world_size", world_size, 2)
    run, steps = whole_number("run", run, 0), whole_number("steps", steps)
    clusters = _named(clusters)
    if run:
        check_world_size(world_size)
    chosen = _chosen(workload, world_size, knobs)
    cells = {
        (name, strategy): _cell(strategy, workload, cluster)
        for name, cluster in clusters.items()
        for strategy in chosen
    }
    found = Winners(workload, clusters, chosen, cells)
    for name, cluster in clusters.items() if run else ():
        first = [s for _, s in found.ranking(name) if cells[name, s].fits][:run]
        for strategy in dict.fromkeys([*first, found.base]):
            cells[name, strategy] = _measured(
                cells[name, strategy], strategy, workload, cluster, steps, progress
            )
    return found


def _named(clusters) -> dict[str, Cluster]:
    """{name: cluster} of one cluster, several, or such a dict."""
    given = [clusters] if isinstance(clusters, Cluster) else clusters
    if not isinstance(given, Iterable) or not given:
        raise ValueError(f"clusters={clusters!r}: give clusters in a list, or {{name: cluster}}")
    pairs = (
        list(given.items())
        if isinstance(given, Mapping)
        else [(getattr(cluster, "caption", ""), cluster) for cluster in given]
    )
    wrong = next((c for _, c in pairs if not isinstance(c, Cluster)), None)
    if wrong is not None:
        raise ValueError(f"clusters has {wrong!r}: give tv.Clusters, such as those of tv.clusters")
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ValueError(
            f"two clusters are named {twice!r}: give them names, as in "
            '{"one ring": cluster, "several rings": other}'
        )
    return dict(pairs)


def _chosen(workload, world_size, knobs):
    """All meshes in both orders; the first is 1D and must be possible: then the others are too."""
    chosen = tuple(
        ATP(**{"mesh": shape.mesh, "order": shape.order, "attention": shape.attention, **knobs})
        for shape in ATP.meshes(workload, world_size)
    )
    try:
        chosen[0].check(workload)
    except ValueError as error:
        raise ValueError(f"1D, to which gains refer, is not possible: {error}") from None
    return chosen


def _cell(strategy, workload, cluster):
    found = predict(strategy, workload, cluster)
    fits = cluster.hidden_scale != 1 or found.fits  # in scale models memory does not scale as one
    return Cell(strategy.communication(workload, cluster), found.step_time, fits)


def _measured(cell, strategy, workload, cluster, steps, progress):
    from tpviz.verbs.run import run

    trace = run(strategy, workload, cluster, steps=steps, memory=False, progress=progress)
    return cell._replace(measured=trace.step_time, faithful=is_faithful(trace.meta["late"]))


def _row(strategy):
    """(4, 2) column."""
    return f"({strategy.mesh[0]}, {strategy.mesh[1]}) {strategy.order}"
