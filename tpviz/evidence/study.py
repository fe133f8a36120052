"""``study``: compares variants of a strategy by formula, by simulation and on real ranks."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tpviz.cluster import Cluster
from tpviz.core.charts import FROM_ZERO, axis, bars, curves, stacks, words_of
from tpviz.core.checks import one_of, whole_number
from tpviz.core.inks import AXIS_INKS, MORE, axis_keys
from tpviz.core.tables import show_seconds
from tpviz.core.trace.faithful import is_faithful
from tpviz.core.trace.steps import median_step
from tpviz.core.workload import GPT
from tpviz.ranks.bar import viewer
from tpviz.schemes.strategy import Strategy
from tpviz.verbs.checks import check_cluster, check_workload
from tpviz.verbs.predict import Prediction, check, predict
from tpviz.verbs.ranking import rounded
from tpviz.verbs.simulate import check_place, simulate
from tpviz.verbs.slow_motion import in_slow_motion

from .report import Report, named, some, too_late

if TYPE_CHECKING:
    from tpviz.core.trace import Trace

SOURCES = ("predicted", "simulated", "measured")
KINDS = ("bars", "exposed", "curve")
GAIN = "Gain in speed: the time of the first over its own, minus 1; +50 % takes a third less time."
FAR = 20  # times between the least and the largest value of a knob: its axis is logarithmic then
IN_TABLE = GAIN.replace("Gain", "The table's gain", 1)
SHAPES = dict(zip([*AXIS_INKS, *MORE], ("/", ".", "\\", "x", "+", "-", "|", "x")))
"""{ink of an axis: its pattern}, so that colour is never the only sign."""


@dataclass(frozen=True)
class Outcome:
    """One variant by one source: seconds of a ``step``, and {axis: seconds} of the exposed
    communication in it, which kernels wait for, of the average rank.

    faithful : whether an emulated run was as the model says; ``badge`` has it in words. repeats :
    of each step of a trace (its seconds, those of exposed communication of the rank with most).
    """

    step: float
    exposed: dict[str, float] = field(default_factory=dict)
    faithful: bool = True
    badge: str = ""
    repeats: tuple[tuple[float, float], ...] = ()

    @property
    def waits(self) -> float:
        """Seconds of exposed communication on all axes."""
        return sum(self.exposed.values())


@dataclass(frozen=True)
class Variant:
    """One row of a `Study`. times : {source: `Outcome`}, as far as it was asked for."""

    label: Any
    strategy: Strategy
    times: dict[str, Any]


@dataclass(frozen=True, eq=False, repr=False)
class Study(Report):
    """``rows``, a `Variant` each, in the order given; left_out : {label: reason}."""

    workload: GPT
    cluster: Cluster
    rows: tuple[Any, ...]
    left_out: dict[Any, str] = field(default_factory=dict)
    kind, plural, heads = "variant", "variants", ("variant", "exposed")

    # -- numbers -----------------------------------------------------------------------------------
    @property
    def sources(self) -> tuple[str, ...]:
        """Sources of the numbers."""
        return tuple(dict.fromkeys(source for row in self.rows for source in row.times))

    @property
    def badges(self) -> list[str]:
        """The sources as named in a figure."""
        return [words_of(source) for source in self.sources]

    @property
    def times(self) -> dict[str, dict[Any, Any]]:
        """{source: {label: `Outcome`}}."""
        return {
            source: {row.label: row.times[source] for row in self.rows if source in row.times}
            for source in self.sources
        }

    @property
    def axes(self) -> list[str]:
        """Axes that some kernel waits for, outer first."""
        waited = {
            axis
            for row in self.rows
            for one in row.times.values()
            for axis, seconds in one.exposed.items()
            if seconds
        }
        known = dict.fromkeys(axis for row in self.rows for axis in row.strategy.axes)
        return [axis for axis in (*known, *sorted(waited - known.keys())) if axis in waited]

    def at(self, label: Any) -> Any:
        """The row of a variant. Raises ``ValueError`` for an unknown one."""
        rows = {row.label: row for row in self.rows}
        return rows[one_of(self.kind, label, tuple(rows))]

    def outcome(self, label: Any, source: str = "predicted") -> Any:
        """The `Outcome` of a variant. Raises ``ValueError`` for an unknown one."""
        times = self.at(label).times
        if source not in times:
            raise ValueError(
                f"{self.name(label)} has no {source} times: use "
                f"{' or '.join(map(repr, times))}, or run more {self.plural}"
            )
        return times[source]

    def speedup(
        self, label: Any, over: Any = None, source: str = "predicted", what: str = "step"
    ) -> float:
        """How much faster a variant is than another, by default the first: the other's seconds over
        its own, less 1."""
        over = self.rows[0].label if over is None else over
        slow, fast = (getattr(self.outcome(one, source), what) for one in (over, label))
        return slow / fast - 1

    def best(self, source: str = "predicted") -> Any:
        """The label with the shortest step; of equals, to rounding, the first."""
        times = self.times[one_of("source", source, self.sources)]
        return min(times, key=lambda label: rounded(times[label].step))

    # -- words -------------------------------------------------------------------------------------
    def name(self, label: Any) -> str:
        """A label in words."""
        return str(label)

    def tick(self, label: Any) -> str:
        """A label where it stands beside others on an axis."""
        return self.name(label)

    def late(self) -> list[str]:
        """Names of variants whose emulated run was not faithful."""
        rows = (r for r in self.rows if not all(one.faithful for one in r.times.values()))
        return [self.name(row.label) for row in rows]

    def phrase(self, row: Any, one: Any) -> str:
        """An `Outcome` in words."""
        step, exposed = show_seconds(one.step), show_seconds(one.waits)
        return f"{self.name(row.label)} {step} a step, {exposed} exposed communication"

    @property
    def head(self) -> str:
        """The variants and the cluster."""
        return f"{len(self.rows)} variants on {self.cluster.caption}"

    def words(self) -> list[str]:
        """The variants, and a sentence for each source."""
        lines = {source: [] for source in self.sources}
        for row, source, one in self.cells:
            lines[source].append(self.phrase(row, one))
        return [f"{self.head}."] + [
            f"{words_of(source).capitalize()}: {'; '.join(phrases)}."
            for source, phrases in lines.items()
        ]

    def notes(self) -> list[str]:
        """What a gain is, runs that were not faithful, and omissions."""
        formula = [self.name(r.label) for r in self.rows if "predicted" not in r.times]
        asked = "predicted" in self.sources
        return [
            *[IN_TABLE] * (len(self.rows) > 1),
            *too_late(self.late()),
            *[f"No formula, so not predicted: {', '.join(formula)}."] * bool(asked and formula),
            *(f"Left out: {self.name(label)} ({why})." for label, why in self.left_out.items()),
        ]

    def _lines(self):
        return self.cells

    def _columns(self):
        columns: list[tuple[str, Callable[..., str]]] = [
            (self.heads[0], lambda row, source, one: self.name(row.label)),
            ("source", lambda row, source, one: one.badge or words_of(source)),
            ("step", lambda row, source, one: show_seconds(one.step)),
            ("gain", lambda row, source, one: self.percent(row.label, source)),
            (self.heads[1], lambda row, source, one: show_seconds(one.waits)),
        ]
        for name in self.axes:
            waits = lambda row, source, one, name=name: show_seconds(one.exposed.get(name, 0.0))
            columns.append((f"on {name}", waits))
        return columns

    @property
    def cells(self) -> list[tuple[Any, str, Any]]:
        """(row, source, its `Outcome`) of all, row by row."""
        return [(row, source, one) for row in self.rows for source, one in row.times.items()]

    def percent(self, label: Any, source: str, over: Any = None, digits: int = 1) -> str:
        """The speedup in percent; "" where the other has no such times."""
        gain = self._gain(label, source, over)
        if gain is None:
            return ""
        return f"{100 * gain:+.{digits}f} %" if round(100 * gain, digits) or digits else "0 %"

    def _times(self, label: Any, source: str) -> str:
        """ "2.67x", above a stack: how many times as fast as the first."""
        gain = self._gain(label, source)
        return "" if gain is None else f"{1 + gain:.3g}x"

    def _gain(self, label: Any, source: str, over: Any = None) -> float | None:
        """The speedup over another, by default the first; None where that has no such times."""
        over = self.rows[0].label if over is None else over
        return self.speedup(label, over, source) if over in self.times[source] else None

    def __repr__(self):
        source = self.sources[0]
        best = self.best(source)
        step = show_seconds(self.outcome(best, source).step)
        fastest = f"{self.name(best)} fastest, {step} a step, {words_of(source)}"
        return f"<{type(self).__name__} of {self.head}: {fastest}>"

    # -- pictures ----------------------------------------------------------------------------------
    def drawing(self, kind: str = "bars", knob: str | None = None) -> dict[str, Any]:
        """kind : "bars", the step by source; "exposed", a stack of kernels and of exposed
        communication by axis; "curve", both over a ``knob`` of the strategies (None: the labels).

        Raises ``ValueError`` on another kind, and on a knob that some variant has not.
        """
        one_of("kind", kind, KINDS)
        head = {"title": self.head}
        if kind == "exposed":
            notes = [GAIN if note == IN_TABLE else note for note in self.notes()]
            return {**head, **self._exposed(), "notes": notes}
        if kind == "bars":
            panels = [bars("a step", self.placed("step"), y=FROM_ZERO)]
            return {**head, "panels": panels}
        x = axis(self.kind) if knob is None else axis(knob, self._ticks(knob))
        shown = (("waits", "exposed communication"), ("step", "a step"))
        panels = [curves(title, self.placed(what, knob), x=x, y=FROM_ZERO) for what, title in shown]
        return {**head, "panels": panels}

    def placed(self, what: str, knob: str | None = None) -> dict[str, dict[Any, float]]:
        """{source: {place on the x axis: seconds}} of ``what``: "step", or "waits"."""
        places = {row.label: self._place(row, knob) for row in self.rows}
        if len(set(places.values())) < len(places):
            values = ", ".join(map(str, places.values()))
            raise ValueError(f"knob={knob!r} is the same in some variants ({values}): leave it out")
        return {
            source: {places[label]: getattr(one, what) for label, one in times.items()}
            for source, times in self.times.items()
        }

    def _ticks(self, knob: str) -> list[float] | None:
        """The values of a knob where only a logarithmic axis tells the least apart."""
        values: list[Any] = [self._place(row, knob) for row in self.rows]
        positive = all(isinstance(value, int | float) and value > 0 for value in values)
        return values if positive and max(values) > FAR * min(values) else None

    def _place(self, row: Variant, knob: str | None):
        if knob is None:
            return self.tick(row.label)
        if not hasattr(row.strategy, knob):
            raise ValueError(f"knob={knob!r}: {row.strategy.short} has none of that name")
        value = getattr(row.strategy, knob)
        return value if isinstance(value, int | float) else str(value)

    def stacked(
        self,
        styles: Mapping[str, tuple[Any, ...]],
        parts: Callable[[Any], dict[str, float]],
    ) -> dict[str, Any]:
        """A stack for each variant, with its speedup over the first. parts : `Outcome` -> {part:
        seconds}. styles : as `tpviz.core.charts.stacks` takes them."""
        steps = {
            source: {
                self.tick(label): (one.step, self._times(label, source), parts(one))
                for label, one in times.items()
            }
            for source, times in self.times.items()
        }
        return stacks(steps, styles)

    def _exposed(self):
        """Stacks of kernels and waits."""
        styles: dict[str, Any] = {"kernels": ("kernels", "forward", "")}
        for name, ink in axis_keys(self.axes).items():
            styles[name] = f"waiting for {name}", ink, SHAPES[ink], True
        parts = lambda one: {"kernels": one.step - one.waits, **one.exposed}
        return self.stacked(styles, parts)


# -- asking ----------------------------------------------------------------------------------------
def study(
    variants: Mapping[Any, Strategy] | Iterable[Strategy] | Strategy,
    workload: GPT,
    cluster: Cluster,
    sources: str | Iterable[str] = SOURCES,
    *,
    steps: int = 3,
    progress: Callable[[int, int, str], object] | bool | None = None,
) -> Study:
    """The `Study` of several strategies: each one's step and exposed communication by each source.

    Parameters
    ----------
    variants : {label: strategy}, or strategies in a list, whose labels are their code.
    sources : of "predicted" (formula), "simulated" (its program on a virtual clock) and "measured"
        (real ranks, paced to the cluster: take a scale model, and a small workload). A cluster at
        full speed is then taken in the slow motion that is faithful (`tpviz.in_slow_motion`).
    steps, progress : of these runs, as `tpviz.run` takes them.

    >>> import tpviz as tv
    >>> variants = {"whole": tv.ATP(mesh=(2, 2)), "chunks": tv.ATP(mesh=(2, 2), chunks=2)}
    >>> made = tv.study(variants, tv.GPT(), tv.clusters.nvswitch(4), sources="predicted")
    >>> made
    <Study of 2 variants on NVSwitch node: whole fastest, 203 µs a step, predicted>
    >>> made.to_table()[2]
    ['chunks', 'predicted', '250 µs', '-19.0 %', '249 µs', '98.8 µs', '151 µs']
    >>> made.show(kind="exposed")  # doctest: +SKIP

    Raises ``ValueError`` before anything is simulated or run: on a source that is none of these, on
    no variants, and, with the numbers that clash, on a variant that does not fit.
    """
    asked = some("source", [sources] if isinstance(sources, str) else sources, SOURCES, "sources")
    sources, steps = [s for s in SOURCES if s in asked], whole_number("steps", steps)
    check_workload(workload, "second")
    check_cluster(cluster)
    strategies = named("variants", variants, Strategy, "short")
    for label, strategy in strategies.items():
        try:
            _check(strategy, workload, cluster, sources)
        except ValueError as error:
            raise ValueError(f"variant {label}: {error}") from error
    if "measured" in sources:
        cluster = in_slow_motion(strategies.values(), workload, cluster)
    rows = ask(strategies, workload, cluster, sources, steps=steps, progress=progress)
    if not any(row.times for row in rows):
        raise ValueError("none of these has a formula: use sources=('simulated', 'measured')")
    return Study(workload, cluster, rows)


def _check(strategy: Strategy, workload: GPT, cluster: Cluster, sources: Sequence[str]):
    """Raise ``ValueError`` unless it fits, its memory too where it is simulated or run."""
    fits = check if sources == ["predicted"] else check_place
    fits(strategy, workload, cluster)
    if "measured" in sources:
        from tpviz.ranks.most import check_world_size

        check_world_size(strategy.world_size)


def ask(
    strategies: Mapping[Any, Strategy],
    workload: GPT,
    cluster: Cluster,
    sources: Iterable[str],
    read: Callable[[Any, Any], Any] | None = None,
    run: int | None = None,
    **options: Any,
) -> tuple[Variant, ...]:
    """A `Variant` for each strategy; one that has no formula is not predicted.

    read : (`Prediction` or `Trace`, strategy) -> `Outcome`. run : how many of the first are
    measured, None: all. options : of `tpviz.run`; memory is not recorded unless said. One bar shows
    the progress of all.
    """
    read, rows = read or outcome, []
    with closing(viewer(options.pop("progress", None))) as show:
        options = {"memory": False, "progress": show, **options}
        for number, (label, strategy) in enumerate(strategies.items()):
            times = {}
            for source in sources:
                if source == "measured" and run is not None and number >= run:
                    continue
                if source == "simulated":
                    show(number, len(strategies), f"simulating {label}")
                result = _result(source, strategy, workload, cluster, options)
                if result is not None:
                    times[source] = read(result, strategy)
            rows.append(Variant(label, strategy, times))
    return tuple(rows)


def _result(
    source: str, strategy: Strategy, workload: GPT, cluster: Cluster, options: dict[str, Any]
):
    """The `Prediction` or `Trace` of one source, None where there is no formula."""
    if source == "predicted":
        try:
            return predict(strategy, workload, cluster)
        except NotImplementedError:
            return None
    if source == "simulated":
        return simulate(strategy, workload, cluster)
    from tpviz.verbs.run import run

    with warnings.catch_warnings():  # `too_late` says it with the numbers
        warnings.filterwarnings("ignore", "this emulated run")
        return run(strategy, workload, cluster, **options)


def outcome(result: "Prediction | Trace", strategy: Strategy) -> Outcome:
    """The `Outcome` in a prediction or a trace: the median step, and the waits of its average
    rank."""
    if isinstance(result, Prediction):
        return Outcome(result.step_time, _joined(result.exposed, strategy), badge=result.badge)
    steps = [result.select(step=step) for step in result.steps]
    return Outcome(
        result.step_time,
        _joined(_waits(median_step(result)), strategy),
        is_faithful(result.fact("late")),
        result.badge,
        tuple((step.step_time, step.exposed_communication()) for step in steps),
    )


def _waits(trace: "Trace"):
    """{axis: seconds that a rank waits for it, on average}; a large simulation has the rows of one
    rank of each kind."""
    rows = trace["kind"] == "wait"
    alike = Counter(map(trace.model_of, trace.ranks))
    seconds, axes = (trace["end"] - trace["start"])[rows], trace["axis"][rows]
    seconds = seconds * [alike[rank] for rank in trace["rank"][rows].tolist()] / len(trace.ranks)
    return {str(axis): float(seconds[axes == axis].sum()) for axis in np.unique(axes)}


def _joined(exposed: Mapping[str, float], strategy: Strategy) -> dict[str, float]:
    """Queues that are a part of a mesh axis count as that axis."""
    joined = {}
    for queue, seconds in exposed.items():
        parent = strategy.parent_axis.get(queue, queue)
        joined[parent] = joined.get(parent, 0.0) + seconds
    return joined
