"""``overlaps``: communication hidden by each of AxoNN's three overlaps, alone and together."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from tpviz.cluster import Cluster
from tpviz.core.charts import words_of
from tpviz.core.checks import one_of, whole_number
from tpviz.core.tables import show_seconds
from tpviz.core.workload import GPT
from tpviz.evidence.report import not_knobs, too_late
from tpviz.evidence.study import GAIN, Study, ask
from tpviz.schemes.axonn.strategy import OVERLAPS, AxoNN
from tpviz.verbs.slow_motion import in_slow_motion

from .claims import OVERLAPS as CLAIM

SUBSETS = {
    "all": tuple(c for n in range(4) for c in combinations(OVERLAPS, n)),
    "alone": ((), *((name,) for name in OVERLAPS), OVERLAPS),
}
"""Which sets of overlaps to try: all eight, or none, each alone, and all three."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Overlaps(Study):
    """One grid with every set of overlaps: a `Study` whose labels are these sets, from none on."""

    strategy: AxoNN
    plural, heads = "sets", ("overlaps", "waits")

    @property
    def subsets(self) -> tuple[tuple[str, ...], ...]:
        """The sets that were tried, from none to all."""
        return tuple(row.label for row in self.rows)

    def gain(self, subset: str | Iterable[str] = OVERLAPS, source: str = "predicted") -> float:
        """How much faster than without any overlap: the time without over its own, less 1.

        subset : overlaps in any order, or the name of one.
        """
        subset = replace(self.strategy, overlap=subset).overlap
        if subset not in self.subsets:
            tried = ", ".join(map(repr, self.subsets))
            raise ValueError(f"{name_of(subset)} was not tried: use one of {tried}")
        return self.speedup(subset, source=source)

    def name(self, label: tuple[str, ...]) -> str:
        """A set in words."""
        return name_of(label)

    def drawing(self) -> dict[str, Any]:
        """Stacked bars: compute, and the wait for each axis; above each bar its speedup over
        none."""
        grid = grid_of(self.strategy)
        title = f"AxoNN's overlaps, x y z data = {grid}, {self.cluster.caption}"
        return {**super().drawing("exposed"), "title": title}

    def words(self) -> list[str]:
        """The effect of the overlaps, in words."""
        lines = [f"Grid x y z data = {grid_of(self.strategy)} on {self.cluster.caption}."]
        for source, times in self.times.items():
            none, every = times[()], times[OVERLAPS]
            alone = [f"{name} {self.percent((name,), source)}" for name in OVERLAPS]
            ends = (
                [a, *(show_seconds(t.exposed.get(a, 0.0)) for t in (none, every))]
                for a in self.axes
            )
            axes = ", ".join(f"{a} {start} to {end}" for a, start, end in ends) or "no axis"
            facts = {"gain": self.gain(source=source), "alone": ", ".join(alone), "axes": axes}
            named = words_of(source).capitalize()
            lines.append(self.say("effect", source=named, none=none, every=every, **facts))
        return lines

    def notes(self) -> list[str]:
        """Definitions of the overlaps, the paper's claim, and warnings."""
        return [self.say("overlaps"), GAIN, CLAIM, *too_late(self.late(), "; ")]

    def __repr__(self):
        gains = ", ".join(f"{100 * self.gain(source=s):+.1f} % {words_of(s)}" for s in self.sources)
        return f"<Overlaps of AxoNN {grid_of(self.strategy)} on {self.cluster.caption}: {gains}>"


def grid_of(strategy: AxoNN) -> str:
    """ "2 1 2 1": x, y, z and data."""
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
        It is in faithful slow motion then, unless it is in another.
    progress : as `tpviz.launch` takes it. knobs : the other knobs of `AxoNN`, but ``overlap``.

    Raises ``ValueError`` where the grid fits neither workload nor cluster.
    """
    one_of("which", which, tuple(SUBSETS))
    simulate, run = (one_of(n, v, (True, False)) for n, v in (("simulate", simulate), ("run", run)))
    strategy, steps = made(grid, knobs), whole_number("steps", steps)
    tried = {subset: replace(strategy, overlap=subset) for subset in SUBSETS[which]}
    if run:
        cluster = in_slow_motion(tried.values(), workload, cluster)
    sources = ["predicted"] + ["simulated"] * simulate + ["measured"] * run
    rows = ask(tried, workload, cluster, sources, steps=steps, progress=progress)
    return Overlaps(workload, cluster, rows, strategy=strategy)


def made(grid: tuple[int, int, int, int], knobs: dict[str, Any]) -> AxoNN:
    """`AxoNN` of a grid (x, y, z, data)."""
    if not isinstance(grid, (tuple, list)) or len(grid) != 4:
        raise ValueError(
            f"grid={grid!r} must be four numbers of ranks, along x, y, z and data, "
            "as in (2, 1, 2, 1)"
        )
    why = "the lab tries all overlaps of one grid; give grid=(x, y, z, data) and no overlap, or"
    not_knobs(knobs, ("x", "y", "z", "data", "overlap"), f"{why} use tv.predict for one")
    return AxoNN(**dict(zip(("x", "y", "z", "data"), grid)), **knobs)
