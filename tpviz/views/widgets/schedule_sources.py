"""Sources of the schedule view: schedules from a few numbers, or from Merak on a cluster; and their
knobs."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from tpviz import clusters
from tpviz.cluster import Cluster
from tpviz.core.mesh import Mesh
from tpviz.core.schedules import SCHEDULES, Schedule, formulas, schedule, schedule_errors, timeline
from tpviz.core.schedules.measured import in_flight
from tpviz.core.trace import Trace
from tpviz.core.trace.pipeline import measured
from tpviz.core.workload import GPT
from tpviz.schemes.knobs import knob, settle_knobs
from tpviz.schemes.merak.strategy import Merak, as_merak
from tpviz.schemes.pipeline.memory import memory_of, of_microbatch
from tpviz.schemes.pipeline.step import clock
from tpviz.verbs.predict import check
from tpviz.views.figures.schedule_words import SchedulePanel

from .knobs import Knobs, control

NONE, USUAL = "none", "usual"
LONGEST = 1e6


def _time(default, help):
    return knob(default, help=help, low=0.0, high=LONGEST)


@dataclass(frozen=True)
class ScheduleSizes:
    """A schedule by name and numbers, and a second one to compare it with.

    f, b, r, w are times of one microbatch on all layers of a rank, so that schedules with several
    stages on a rank, each with its share of them, are compared on the same model.
    """

    schedule: str = knob(
        "shifted_critical_path", help="the order of each rank's actions", choices=tuple(SCHEDULES)
    )
    against: str = knob(
        NONE,
        help="a second schedule of the same numbers, to compare with",
        choices=(NONE, *SCHEDULES),
    )
    p: int = knob(4, help="ranks of the pipeline", low=2, high=16)
    m: int = knob(8, help="microbatches", low=1, high=64)
    f: float = _time(1.0, "time of a forward of a microbatch on all layers of a rank")
    b: float = _time(2.0, "time of a backward, of input and weights")
    r: float = _time(1.0, "time of a recomputation; a forward takes 1")
    w: float = _time(
        1.0,
        "the part of b for the weights' gradient, if a schedule splits it off (zb_h1, zb_v, "
        "dualpipe_v)",
    )
    latency: float = _time(0.0, "time of a message from rank to rank")
    chunks: int | str = knob(
        USUAL,
        help="stages on a rank, if the schedule allows any number",
        choices=(USUAL, 1, 2, 3, 4),
    )
    recompute: bool = knob(
        True, help="whether stages recompute; the schedule decides which and when"
    )
    overlapped: bool = knob(
        False, help="whether the two actions of a pair run side by side (dualpipe_v)"
    )

    def __post_init__(self):
        settle_knobs(self)

    def panel(self, name: str, like: Schedule | None = None) -> SchedulePanel:
        """The `SchedulePanel` of a schedule by name; with its closed form, where there is one that
        is exact.
        like : a `Schedule` that has the ranks and the microbatches."""
        least, _, most = SCHEDULES[name].chunks
        chunks = None if least == most or self.chunks == USUAL else self.chunks
        p, m = (self.p, self.m) if like is None else (like.ranks, like.microbatches)
        made = _schedule(name, p, m, chunks, self.recompute)
        if self.latency:
            return self.on_the_clock(made)
        sizes = name, p, m, *self.times(made), chunks, self.overlapped
        return self.on_the_clock(made, closed_form(*sizes))

    def on_the_clock(
        self, made: Schedule, formula: tuple[float, tuple[float, ...]] | None = None
    ) -> SchedulePanel:
        """The `SchedulePanel` of a `Schedule`."""
        times = self.times(made)
        line = timeline(made, *times, self.latency, self.overlapped)  # pyright: ignore[reportCallIssue]
        return SchedulePanel(line, (times[2],) * made.stages, formula)

    def times(self, made: Schedule) -> list[float]:
        """[f, b, r, w] of a microbatch on one stage of a `Schedule`; r and w do not count where
        nothing is recomputed, or no weights' gradient is apart."""
        parts = any(a.kind == "W" for row in made.actions for a in row)
        r, w = self.r if any(made.recomputes) else 0.0, self.w if parts else self.b / 2
        return [time * made.ranks / made.stages for time in (self.f, self.b, r, w)]


class ScheduleScene(NamedTuple):
    """What is played: `SchedulePanel`s, a title, the unit of times, the bytes of a device or None,
    and what the title leaves out."""

    panels: tuple[SchedulePanel, ...]
    title: str
    unit: str = ""
    device: float | None = None
    about: str = ""


def of_sizes(sizes: ScheduleSizes, own: Schedule | None = None) -> ScheduleScene:
    """The `ScheduleScene` of `ScheduleSizes`; own : a `Schedule` in the place of the first."""
    first = sizes.panel(sizes.schedule) if own is None else sizes.on_the_clock(own)
    panels = [first] if sizes.against == NONE else [first, sizes.panel(sizes.against, own)]
    p, m = (first.timeline.schedule.ranks, first.timeline.schedule.microbatches)
    told = [("f", "forward", sizes.f), ("b", "backward", sizes.b)]
    if any(any(panel.timeline.schedule.recomputes) for panel in panels):
        told.append(("r", "recomputation", sizes.r))
    if any(
        a.kind == "W" for panel in panels for row in panel.timeline.schedule.actions for a in row
    ):
        told.append(("w", "weights' gradient", sizes.w))
    if sizes.latency > 0:
        told.append(("latency", "a message", sizes.latency))
    about = ", ".join([f"p={p}", f"m={m}", *(f"{name}={time:g}" for name, _, time in told)])
    words = ", ".join(f"{what} {time:g}" for _, what, time in told)
    title = f"{p} ranks, {m} microbatches: {words}"
    return ScheduleScene(tuple(panels), title, about=about)


def of_strategy(
    strategy: Merak, against: str, workload: GPT, cluster: Cluster, trace: Trace | None = None
) -> ScheduleScene:
    """The `ScheduleScene` of a `Merak`, with each stage's own times on a cluster.

    against : the name of a second schedule of the same strategy, or "none". trace : of a run of
    this strategy, drawn beside it, or None.
    """
    panels = [_of_merak(strategy, workload, cluster, trace)]
    if against != NONE:
        panels.append(_of_merak(replace(strategy, schedule=against), workload, cluster))
    title = f"{type(strategy).__name__} on {cluster.caption}"
    about = f"{strategy.short} on {cluster.caption}"
    return ScheduleScene(tuple(panels), title, "s", cluster.device.memory, about)


def _of_merak(s, workload, cluster, trace=None):
    check(s, workload, cluster)
    line, parts = clock(s, workload, cluster, Mesh(s.axes))
    times = {
        kind: [sum(segment.seconds for segment in parts[kind, stage]) for stage in range(s.stages)]
        for kind in "FBRW"
    }
    again = [r for r, does in zip(times["R"], line.schedule.recomputes) if does]
    f, b, w = (sum(times[kind]) / s.stages for kind in "FBW")
    r = sum(again) / len(again) if again else 0.0
    each = s.stages // s.pp
    formula = closed_form(s.schedule, s.pp, s.microbatches, f, b, r, w, each, False)
    memory = tuple(memory_of(s, workload, place) for place in range(line.schedule.ranks))
    ran = None if trace is None else measured(trace, _counter(trace, s, workload))
    return SchedulePanel(line, tuple(times["R"]), formula, memory, ran, of_microbatch(s, workload))


def _counter(trace, s, w):
    """rank -> [(time, microbatches in flight)] of a run."""
    several = None if s.stages == s.pp else lambda layer: s.stage_of(layer, w)
    return lambda rank: in_flight(trace, rank, several)


def closed_form(name: str, *sizes: Any) -> tuple[float, tuple[float, ...]] | None:
    """(makespan, idle time of each rank) by `formulas`, or None where there is none."""
    span = formulas.makespan(name, *sizes) if name in SCHEDULES else None
    return None if span is None else (span, formulas.bubble(name, *sizes))  # pyright: ignore[reportReturnType]


@lru_cache(maxsize=64)
def _schedule(name, ranks, microbatches, chunks, recompute):
    return schedule(name, ranks, microbatches, chunks, recompute)


TIMES = {
    name: (0.0, most, 0.25)
    for name, most in {"f": 4.0, "b": 8.0, "r": 4.0, "w": 4.0, "latency": 2.0}.items()
}
"""{knob: ends and step of its slider}."""


def source_of(
    schedule: str | Schedule | Merak,
    workload: GPT | None,
    cluster: Cluster | None,
    against: str,
    sizes: dict[str, Any],
) -> "ByName | ByStrategy":
    """The source of what a `ScheduleView` is given: it has ``knobs``, and gives a ``shown``.

    Raises ``ValueError`` on what is no schedule, and where the arguments do not go together.
    """
    schedule = as_merak(schedule)
    make = {str: ByName, Schedule: Own, Merak: ByStrategy}.get(type(schedule))
    if make is None:
        raise ValueError(
            "ScheduleView shows a schedule's name, a Schedule of your own or a "
            f"tv.Merak, not {schedule!r}: names are {', '.join(SCHEDULES)}"
        )
    return make(schedule, workload, cluster, against, sizes)


class ByName:
    """A schedule by its name: all knobs."""

    hidden = ()

    def __init__(
        self,
        schedule: str | Schedule,
        workload: GPT | None,
        cluster: Cluster | None,
        against: str,
        sizes: dict[str, Any],
    ):
        if workload is not None or cluster is not None:
            raise ValueError(
                "workload and cluster are for a tv.Merak: a schedule by its name has "
                "times f, b, r, w and latency"
            )
        self.own = None if isinstance(schedule, str) else schedule
        values = vars(self._sizes(schedule, against, sizes))
        self.knobs = Knobs(ScheduleSizes, values, compact=True, sliders=TIMES, hidden=self.hidden)

    def _sizes(self, schedule, against, sizes):
        return ScheduleSizes(schedule=schedule, against=against, **sizes)

    def shown(self, trace: Trace | None) -> ScheduleScene | Schedule:
        """What the knobs say."""
        return of_sizes(ScheduleSizes(**self.knobs.values()), self.own)

    def given(self) -> dict[str, Any]:
        """The arguments of a view with these knobs."""
        usual, own = ScheduleSizes(), {} if self.own is None else {"schedule": self.own}
        values = {**self.knobs.values(), **own}
        return {name: value for name, value in values.items() if value != getattr(usual, name)}

    def check(self, trace: Trace) -> None:
        """Refuse a run."""
        raise ValueError(
            "this view has no strategy, its times have no unit: to draw a run, give "
            "it the strategy, the workload and the cluster of the run"
        )


class Own(ByName):
    """A schedule of one's own: its ranks and microbatches are given."""

    hidden = ("schedule", "p", "m", "chunks", "recompute")

    def _sizes(self, schedule, against, sizes):
        given = [name for name in self.hidden if name in sizes]
        if given:
            raise ValueError(f"{given[0]} is the schedule's own: leave it out")
        return ScheduleSizes(against=against, recompute=any(schedule.recomputes), **sizes)

    def shown(self, trace: Trace | None) -> ScheduleScene | Schedule:
        """What the knobs say; the schedule itself where it has faults."""
        return self.own if schedule_errors(self.own) else super().shown(trace)  # pyright: ignore[reportArgumentType, reportReturnType]


class ByStrategy:
    """A strategy on a cluster: its knobs."""

    def __init__(
        self,
        strategy: Merak,
        workload: GPT | None,
        cluster: Cluster | None,
        against: str,
        sizes: dict[str, Any],
    ):
        if sizes:
            raise ValueError(
                f"{next(iter(sizes))} is not for a strategy: its sizes are its own "
                "knobs, its times those of the cluster"
            )
        self.workload = GPT() if workload is None else workload
        self.cluster = clusters.laptop(strategy.world_size) if cluster is None else cluster
        self.strategy = strategy
        second = control("against", against, choices=(NONE, *SCHEDULES))
        self.knobs = Knobs(Merak, vars(strategy), 8, True, more={"against": second})
        self.knobs.controls["microbatches"].max = max(32, strategy.microbatches)

    def shown(self, trace: Trace | None) -> ScheduleScene:
        """What the knobs say."""
        values = self.knobs.values()
        against = values.pop("against")
        self.strategy = Merak(**values)
        same = trace is not None and trace.meta["strategy"] == repr(self.strategy)
        on = self.workload, self.cluster
        return of_strategy(self.strategy, against, *on, trace if same else None)

    def given(self) -> dict[str, Any]:
        """The arguments of a view with these knobs."""
        against = self.knobs.values()["against"]
        on = {"workload": self.workload, "cluster": self.cluster, "against": against}
        return {"schedule": self.strategy, **on}

    def check(self, trace: Trace) -> None:
        """Refuse the run of another strategy, workload or cluster."""
        shown = {"strategy": repr(self.strategy), "workload": repr(self.workload)}
        for name, mine in (shown | {"cluster": self.cluster.caption}).items():
            its = trace.meta.get(name, mine if name == "cluster" else None)
            if its != mine:
                raise ValueError(
                    f"the trace is of another {name}: {its}, and this view shows {mine}"
                )
