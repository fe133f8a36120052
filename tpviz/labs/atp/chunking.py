"""``chunk_curve``: exposed communication and step time against the number of chunks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tpviz.checks import one_of, whole_number
from tpviz.cluster import Cluster
from tpviz.cost import Clock, show_seconds
from tpviz.figures.charts_chunks import chunks_figure
from tpviz.mesh import Mesh
from tpviz.schemes.atp.chunks import check_kappa, slowdown
from tpviz.schemes.atp.strategy import ATP
from tpviz.tables import html_table
from tpviz.trace.faithful import is_faithful
from tpviz.verbs.predict import predict
from tpviz.workload import GPT

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

SOURCES = ("predicted", "with contention", "simulated", "measured")


class Times(NamedTuple):
    """Seconds of a step and of communication that its kernels wait for, medians of ``repeats``.

    repeats : ((step, exposed), ...) of what was measured; empty otherwise.
    """

    step: float
    exposed: float
    repeats: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class ChunkCurve:
    """The curve of one mesh on one cluster.

    counts : those that are possible. left_out : {count: why not}. times : {source of SOURCES:
    `Times` of each count}, as far as they were asked for. faithful : {count: whether the emulated
    run was as the model says}.
    """

    workload: GPT
    cluster: Cluster
    strategy: ATP
    counts: tuple[int, ...]
    left_out: dict[int, str]
    times: dict[str, tuple[Times, ...]]
    kappa: float = 1.0
    faithful: dict[int, bool] | None = None

    def best(self, source: str = "predicted") -> int:
        """The count with the shortest step; of equals, to rounding, the smallest."""
        one_of("source", source, tuple(self.times))
        steps = zip(self.times[source], self.counts)
        return min((float(f"{times.step:.9e}"), count) for times, count in steps)[1]

    @property
    def badges(self) -> list[str]:
        """Where the numbers come from."""
        words = {"with contention": "predicted", "measured": "emulated"}
        return list(dict.fromkeys(words.get(source, source) for source in self.times))

    @property
    def _name(self):
        """The strategy with its mesh and order, also where they are the default."""
        mesh, order = self.strategy.mesh, self.strategy.order
        return f"ATP(mesh={mesh}, order={order!r})"

    def scene(self) -> dict[str, Any]:
        """The chart as data: see `tpviz.figures.charts_chunks`."""
        lines = {}
        for source, found in self.times.items():
            lines[source] = {what: [getattr(t, what) for t in found] for what in Times._fields[:2]}
            if source == "measured":
                for name, pick in (("low", min), ("high", max)):
                    bounds = ([pick(column) for column in zip(*t.repeats)] for t in found)
                    lines[source][name] = dict(zip(Times._fields, map(list, zip(*bounds))))
        return {
            "title": f"Chunks of {self._name} on {self.cluster.caption}",
            "badges": self.badges,
            "counts": list(self.counts),
            "lines": lines,
            "best": {source: self.best(source) for source in self.times},
            "notes": self._notes(),
            "alt": self.describe(),
        }

    def figure(self, theme: str = "light") -> "Figure":
        """The U-curve as a plotly ``Figure``; theme "light" or "dark"."""
        return chunks_figure(self.scene(), theme)

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first; counts that are not possible have the reason."""
        head = [f"{source}, {what}" for source in self.times for what in ("step", "exposed")]
        rows = [["chunks", *head]]
        for count, *found in zip(self.counts, *self.times.values()):
            rows.append([str(count), *(show_seconds(s) for t in found for s in t[:2])])
        return rows + [
            [str(count), reason, *[""] * (len(head) - 1)] for count, reason in self.left_out.items()
        ]

    def describe(self) -> str:
        """The curve in words."""
        lines = [f"{self._name} on {self.cluster.caption}, chunking={self.strategy.chunking!r}."]
        for source, found in self.times.items():
            best = self.best(source)
            at = found[self.counts.index(best)]
            lines.append(
                f"{source.capitalize()}: {best} chunk{'s' * (best > 1)} best of "
                f"{', '.join(map(str, self.counts))}, {show_seconds(at.step)} a step of which "
                f"kernels wait {show_seconds(at.exposed)}; with {self.counts[0]}, "
                f"{show_seconds(found[0].step)} and {show_seconds(found[0].exposed)}."
            )
        return " ".join(lines + self._notes())

    def _notes(self):
        notes = [f"Left out: {count} chunks ({reason})." for count, reason in self.left_out.items()]
        if "with contention" in self.times:
            notes.append(
                f"With contention: a GEMM takes {self.kappa:.3g} times as long under a "
                "collective. What it loses counts as exposed."
            )
        if {"simulated", "measured"} & self.times.keys():
            notes.append(
                "On simulated and emulated clusters a collective slows no GEMM down "
                "(kappa = 1 by construction: waiting is sleeping)."
            )
        if "measured" in self.times:
            count = len(self.times["measured"][0].repeats)
            notes.append(
                "Measured on the emulated cluster: "
                + (
                    f"median of {count} steps, bars from the least to the most."
                    if count > 1
                    else "one step."
                )
            )
        late = [str(count) for count, true in (self.faithful or {}).items() if not true]
        if late:
            notes.append(
                f"Not faithful, events too short for this machine: {', '.join(late)} "
                "chunks. Slower motion helps."
            )
        return notes

    def __repr__(self):
        best = ", ".join(f"{source} best {self.best(source)}" for source in self.times)
        return f"<ChunkCurve {self._name} on {self.cluster.caption}: {best}>"

    def _repr_html_(self):
        return html_table(self.to_table(), "class='tpviz-lab'")


def chunk_curve(
    workload: GPT,
    cluster: Cluster,
    mesh: tuple[int, int] = (2, 2),
    order: str = "column",
    counts: Iterable[int] = (1, 2, 4, 8),
    chunking: str = "batch",
    *,
    kappa: float = 1.0,
    simulate: bool = True,
    run: bool = False,
    repeats: int = 3,
    progress: Callable[[int, int, str], object] | bool | None = None,
    **knobs: Any,
) -> ChunkCurve:
    """The `ChunkCurve` of an `ATP` mesh on a cluster.

    Parameters
    ----------
    counts : numbers of chunks. Those that do not divide what is cut are left out, and named.
    kappa : contention to add to the prediction, as one more line; see `contention`.
    simulate : False leaves the simulation away.
    run : True also trains on real ranks that are paced to the cluster: ``repeats`` steps.
    progress : as `tpviz.launch` takes it. knobs : the other knobs of `ATP`.

    Raises ``ValueError`` where the mesh does not fit the workload or the cluster, and where no
    count is left.
    """
    kappa, repeats = check_kappa(kappa), whole_number("repeats", repeats)
    simulate, run = (one_of(n, v, (True, False)) for n, v in (("simulate", simulate), ("run", run)))
    plain = ATP(mesh=mesh, order=order, chunking=chunking, **knobs)
    predict(plain, workload, cluster)  # what is wrong without chunks is no reason to leave one out
    chosen, left_out = _split(plain, workload, counts)
    times, faithful = {"predicted": [], "with contention": [], "simulated": [], "measured": []}, {}
    for strategy in chosen:
        times["predicted"].append(_predicted(strategy, workload, cluster))
        if kappa > 1:
            times["with contention"].append(
                _slowed(strategy, workload, cluster, kappa, times["predicted"][-1])
            )
        if simulate:
            times["simulated"].append(_simulated(strategy, workload, cluster))
    for strategy in chosen if run else ():
        measured, as_said = _measured(strategy, workload, cluster, repeats, progress)
        times["measured"].append(measured)
        faithful[strategy.chunks] = as_said
    times = {source: tuple(found) for source, found in times.items() if found}
    return ChunkCurve(
        workload, cluster, plain, tuple(s.chunks for s in chosen), left_out, times, kappa, faithful
    )


def _split(plain, workload, counts):
    """(strategies that are possible, {count: why the others are not})."""
    if isinstance(counts, str) or not isinstance(counts, Iterable):
        raise ValueError(f"counts={counts!r}: give numbers of chunks in a list, as in (1, 2, 4, 8)")
    counts, chosen, left_out = tuple(counts), [], {}
    for count in sorted({whole_number("count of chunks", count) for count in counts}):
        try:
            strategy = replace(plain, chunks=count)
            strategy.check(workload)
            chosen.append(strategy)
        except ValueError as error:
            left_out[count] = str(error)
    if not chosen:
        reasons = "; ".join(left_out.values()) or "none was given"
        raise ValueError(f"no count of chunks is left of counts={counts}: {reasons}")
    return chosen, left_out


def _predicted(strategy, workload, cluster):
    found = predict(strategy, workload, cluster)
    return Times(found.step_time, sum(found.exposed.values()))


def _slowed(strategy, workload, cluster, kappa, plain):
    """The prediction with what contention adds to it."""
    clock = Clock.of(cluster, Mesh(strategy.axes), workload.dtype)
    more = slowdown(strategy, workload, clock.seconds, clock.moved, kappa)
    return Times(plain.step + more, plain.exposed + more)


def _simulated(strategy, workload, cluster):
    from tpviz.verbs.simulate import simulate

    trace = simulate(strategy, workload, cluster)
    return Times(trace.step_time, trace.exposed_communication())


def _measured(strategy, workload, cluster, repeats, progress):
    """(`Times` of an emulated run, whether it was faithful)."""
    from tpviz.verbs.run import run

    trace = run(strategy, workload, cluster, steps=repeats, memory=False, progress=progress)
    steps = [trace.select(step=step) for step in trace.steps]
    found = tuple((step.step_time, step.exposed_communication()) for step in steps)
    return Times(*np.median(found, axis=0).tolist(), found), is_faithful(trace.meta["late"])  # pyright: ignore[reportCallIssue]
