"""``overlaps``: what each of AxoNN's three overlaps hides, alone and together."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tpviz.checks import one_of, whole_number
from tpviz.cluster import Cluster
from tpviz.cost import show_seconds
from tpviz.figures.charts_overlaps import overlaps_figure
from tpviz.schemes.axonn.step import PREFETCH
from tpviz.schemes.axonn.strategy import OVERLAPS, AxoNN
from tpviz.tables import html_table
from tpviz.trace.faithful import is_faithful
from tpviz.verbs.predict import predict
from tpviz.workload import GPT

from .claims import OVERLAPS as CLAIM

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

SUBSETS = {
    "all": tuple(c for n in range(4) for c in combinations(OVERLAPS, n)),
    "alone": ((), *((name,) for name in OVERLAPS), OVERLAPS),
}
"""Which sets of overlaps to try: all eight, or none, each alone, and all three."""
SOURCES = ("predicted", "simulated", "measured")
BADGES = {"measured": "emulated"}


class Times(NamedTuple):
    """Seconds of a step, and {axis: seconds that kernels wait for its communication}.

    faithful : whether an emulated run was as the model says.
    """

    step: float
    exposed: dict[str, float]
    faithful: bool = True

    @property
    def waits(self) -> float:
        """Seconds of all axes."""
        return sum(self.exposed.values())


@dataclass(frozen=True, eq=False, repr=False)
class Overlaps:
    """One grid with every set of overlaps: ``times`` {source of SOURCES: {set: `Times`}}."""

    workload: GPT
    cluster: Cluster
    strategy: AxoNN
    times: dict[str, dict[tuple[str, ...], Times]]

    @property
    def subsets(self) -> tuple[tuple[str, ...], ...]:
        """The sets that were tried, from none to all."""
        return tuple(self.times["predicted"])

    def gain(self, subset: str | Iterable[str] = OVERLAPS, source: str = "predicted") -> float:
        """How much faster than without any overlap: the time without over its own, less 1.

        subset : overlaps in any order, or the name of one.
        """
        subset = replace(self.strategy, overlap=subset).overlap
        times = self.times[one_of("source", source, tuple(self.times))]
        if subset not in times:
            raise ValueError(
                f"{name_of(subset)} was not tried: use one of {', '.join(map(repr, times))}"
            )
        return times[()].step / times[subset].step - 1

    @property
    def badges(self) -> list[str]:
        """Where the numbers come from."""
        return [BADGES.get(source, source) for source in self.times]

    def scene(self) -> dict[str, Any]:
        """The chart as data: see `tpviz.figures.charts_overlaps`."""
        return {
            "title": f"AxoNN's overlaps, x y z data = {grid_of(self.strategy)}, "
            f"{self.cluster.caption}",
            "badges": self.badges,
            "bars": [name_of(s) for s in self.subsets],
            "axes": self._axes(),
            "notes": self._notes(),
            "alt": self.describe(),
            "sources": {
                source: {
                    "compute": [t.step - t.waits for t in found.values()],
                    "exposed": [t.exposed for t in found.values()],
                    "step": [t.step for t in found.values()],
                    "gain": [self.gain(s, source) for s in found],
                }
                for source, found in self.times.items()
            },
        }

    def _axes(self):
        """Axes that some kernel waits for, outer first."""
        waited = {
            axis
            for found in self.times.values()
            for t in found.values()
            for axis, seconds in t.exposed.items()
            if seconds
        }
        return [axis for axis in self.strategy.axes if axis in waited]

    def figure(self, theme: str = "light") -> "Figure":
        """Stacked bars as a plotly ``Figure``: compute, and what is waited for on each axis."""
        return overlaps_figure(self.scene(), theme)

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: each set of overlaps by each source."""
        axes = self._axes()
        rows = [["overlaps", "source", "step", "gain", "waits", *(f"on {a}" for a in axes)]]
        for subset in self.subsets:
            for source, found in self.times.items():
                t = found[subset]
                rows.append(
                    [
                        name_of(subset),
                        BADGES.get(source, source),
                        show_seconds(t.step),
                        f"{100 * self.gain(subset, source):+.1f} %",
                        show_seconds(t.waits),
                        *(show_seconds(t.exposed.get(a, 0.0)) for a in axes),
                    ]
                )
        return rows

    def describe(self) -> str:
        """What the overlaps hide, in words."""
        lines = [f"Grid x y z data = {grid_of(self.strategy)} on {self.cluster.caption}."]
        for source, found in self.times.items():
            none, every = found[()], found[OVERLAPS]
            alone = ", ".join(
                f"{name} {100 * self.gain((name,), source):+.1f} %" for name in OVERLAPS
            )
            axes = ", ".join(
                f"{a} {show_seconds(none.exposed.get(a, 0.0))} to "
                f"{show_seconds(every.exposed.get(a, 0.0))}"
                for a in self._axes()
            )
            lines.append(
                f"{BADGES.get(source, source).capitalize()}: the step goes from "
                f"{show_seconds(none.step)} to {show_seconds(every.step)} with all overlaps, "
                f"{100 * self.gain(source=source):+.1f} %; each alone {alone}"
                + (f"; kernels wait for {axes}." if axes else "; nothing is waited for.")
            )
        return " ".join(lines + self._notes())

    def _notes(self):
        notes = [
            "oar: input's gradient is summed under the weight's GEMM. ors: weights' gradients "
            "are scattered under all that follows. oag: the next weight is sent for ahead.",
            CLAIM,
        ]
        late = [name_of(s) for s, t in self.times.get("measured", {}).items() if not t.faithful]
        notes += [
            f"Not faithful, events too short for this machine: {'; '.join(late)}. Slower "
            "motion helps."
        ] * bool(late)
        return notes

    def __repr__(self):
        gains = ", ".join(
            f"{100 * self.gain(source=s):+.1f} % {BADGES.get(s, s)}" for s in self.times
        )
        return f"<Overlaps of AxoNN {grid_of(self.strategy)} on {self.cluster.caption}: {gains}>"

    def _repr_html_(self):
        return html_table(self.to_table(), "class='tpviz-lab'")


def grid_of(strategy: AxoNN) -> str:
    """The sizes of x, y, z and data: "2 1 2 1"."""
    return f"{strategy.x} {strategy.y} {strategy.z} {strategy.data}"


def name_of(subset: Iterable[str]) -> str:
    """ "none", "oar" or "oar + ors"."""
    return " + ".join(subset) or "none"


def overlaps(
    workload: GPT,
    cluster: Cluster,
    grid: tuple[int, int, int, int] = (2, 1, 2, 1),
    which: str = "all",
    *,
    simulate: bool = True,
    run: bool = False,
    steps: int = 3,
    progress: Callable[[int, int, str], object] | bool | None = None,
    **knobs: Any,
) -> Overlaps:
    """The `Overlaps` of one grid of `AxoNN`: the same step with every set of overlaps.

    Parameters
    ----------
    grid : (x, y, z, data).
    which : "all" eight sets, or "alone": none, each alone, all three.
    simulate : False leaves the simulations away, which take seconds each where layers are many.
    run : True also trains on real ranks that are paced to the cluster: ``steps`` steps of each set.
    progress : as `tpviz.launch` takes it. knobs : the other knobs of `AxoNN`, but ``overlap``.

    Raises ``ValueError`` where the grid fits neither workload nor cluster.
    """
    one_of("which", which, tuple(SUBSETS))
    simulate, run = (one_of(n, v, (True, False)) for n, v in (("simulate", simulate), ("run", run)))
    strategy, steps = made(grid, knobs), whole_number("steps", steps)
    tried = {subset: replace(strategy, overlap=subset) for subset in SUBSETS[which]}
    asked = (
        [(_predicted, ())] + [(_simulated, ())] * simulate + [(_measured, (steps, progress))] * run
    )
    times = {}
    for ask, more in asked:
        source = ask.__name__.removeprefix("_")
        times[source] = {s: ask(one, workload, cluster, *more) for s, one in tried.items()}
    return Overlaps(workload, cluster, strategy, times)


def made(grid: tuple[int, int, int, int], knobs: dict[str, Any]) -> AxoNN:
    """`AxoNN` of a grid (x, y, z, data)."""
    if not isinstance(grid, (tuple, list)) or len(grid) != 4:
        raise ValueError(
            f"grid={grid!r} must be four numbers of ranks, along x, y, z and data, "
            "as in (2, 1, 2, 1)"
        )
    taken = next((n for n in ("x", "y", "z", "data", "overlap") if n in knobs), None)
    if taken:
        raise ValueError(
            f"{taken}={knobs[taken]!r}: the lab tries all overlaps of one grid; give "
            "grid=(x, y, z, data) and no overlap, or use tv.predict for one"
        )
    return AxoNN(**dict(zip(("x", "y", "z", "data"), grid)), **knobs)


def _predicted(strategy, workload, cluster):
    found = predict(strategy, workload, cluster)
    return Times(found.step_time, _joined(found.exposed))


def _simulated(strategy, workload, cluster):
    from tpviz.verbs.simulate import simulate

    return _read(simulate(strategy, workload, cluster))


def _measured(strategy, workload, cluster, steps, progress):
    from tpviz.verbs.run import run

    trace = run(strategy, workload, cluster, steps=steps, memory=False, progress=progress)
    return _read(trace)._replace(faithful=is_faithful(trace.meta["late"]))


def _read(trace):
    """The `Times` of a trace: its median step; waits of a rank and step on average."""
    waits, found = trace["kind"] == "wait", Counter()
    seconds, axes = (trace["end"] - trace["start"])[waits], trace["axis"][waits]
    for axis in np.unique(axes):
        found[str(axis)] = float(seconds[axes == axis].sum()) / len(trace.ranks) / len(trace.steps)  # pyright: ignore[reportArgumentType]
    return Times(trace.step_time, _joined(found))


def _joined(exposed) -> dict[str, float]:
    """Gathers that are sent for ahead have a queue of their own, but are z's."""
    found = Counter()
    for axis, seconds in exposed.items():
        found["z" if axis == PREFETCH else axis] += seconds  # pyright: ignore[reportArgumentType]
    return dict(found)  # pyright: ignore[reportReturnType]
