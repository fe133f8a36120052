"""What the schedule view plays: schedules from a few numbers, or from Merak on a cluster."""

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tpviz.checks import number, one_of, settle, whole_number
from tpviz.figures.schedule_layout import Panel
from tpviz.figures.schedule_measured import measured
from tpviz.mesh import Mesh
from tpviz.schedules import SCHEDULES, formulas, schedule, timeline
from tpviz.schedules.measured import in_flight
from tpviz.schemes.merak.memory import memory_of, of_microbatch
from tpviz.schemes.merak.split import stage_of
from tpviz.schemes.merak.step import clock
from tpviz.strategy import knob
from tpviz.verbs.predict import check

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.schedules import Schedule
    from tpviz.schemes.merak.strategy import Merak
    from tpviz.trace import Trace
    from tpviz.workload import GPT

NONE, USUAL = "none", "usual"
LONGEST = 1e6


@dataclass(frozen=True)
class Sizes:
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
    p: int = knob(4, help="ranks of the pipeline", low=2, high=8)
    m: int = knob(8, help="microbatches", low=1, high=32)
    f: float = knob(
        1.0, help="time of a forward of a microbatch on all layers of a rank", low=0.0, high=LONGEST
    )
    b: float = knob(2.0, help="time of a backward, of input and weights", low=0.0, high=LONGEST)
    r: float = knob(1.0, help="time of a recomputation", low=0.0, high=LONGEST)
    w: float = knob(
        1.0,
        help="the part of b that is the weights' gradient, where a schedule does "
        "it apart (zb_h1, zb_v, dualpipe_v)",
        low=0.0,
        high=LONGEST,
    )
    latency: float = knob(0.0, help="time of a message from rank to rank", low=0.0, high=LONGEST)
    chunks: int | str = knob(
        USUAL,
        help="stages on a rank, where the schedule leaves it open",
        choices=(USUAL, 1, 2, 3, 4),
    )
    recompute: bool = knob(
        True, help="whether stages recompute; which of them and when, the schedule says"
    )
    overlapped: bool = knob(
        False, help="whether the two actions of a pair run side by side (dualpipe_v)"
    )

    def __post_init__(self):
        for f in fields(self):
            bounds = f.metadata
            if bounds["choices"] is not None:
                settle(self, f.name, one_of, bounds["choices"])
            elif isinstance(f.default, bool):
                settle(self, f.name, one_of, (True, False))
            else:
                check = whole_number if isinstance(f.default, int) else number
                settle(self, f.name, check, bounds["low"], bounds["high"])

    def act(self, name: str, like: "Schedule | None" = None) -> Panel:
        """The `Panel` of a schedule by name; with its closed form, where there is one that is
        exact.
        like : a `Schedule` that has the ranks and the microbatches."""
        least, _, most = SCHEDULES[name].chunks
        chunks = None if least == most or self.chunks == USUAL else self.chunks
        p, m = (self.p, self.m) if like is None else (like.ranks, like.microbatches)
        made = _schedule(name, p, m, chunks, self.recompute)
        formula = (
            None
            if self.latency
            else closed_form(name, p, m, *self.times(made), chunks, self.overlapped)
        )
        return self.on_the_clock(made, formula)

    def on_the_clock(
        self, made: "Schedule", formula: tuple[float, tuple[float, ...]] | None = None
    ) -> Panel:
        """The `Panel` of a `Schedule`."""
        times = self.times(made)
        line = timeline(made, *times, self.latency, self.overlapped)  # pyright: ignore[reportCallIssue]
        return Panel(line, (times[2],) * made.stages, formula)

    def times(self, made: "Schedule") -> list[float]:
        """[f, b, r, w] of a microbatch on one stage of a `Schedule`; r and w do not count where
        nothing is recomputed, or no weights' gradient is apart."""
        parts = any(a.kind == "W" for row in made.actions for a in row)
        whole = (
            self.f,
            self.b,
            self.r if any(made.recomputes) else 0.0,
            self.w if parts else self.b / 2,
        )
        return [time * made.ranks / made.stages for time in whole]


class ScheduleScene(NamedTuple):
    """What is played: `Panel`s, a title, the unit of times, and the bytes of a device or None."""

    acts: tuple[Panel, ...]
    title: str
    unit: str = ""
    device: float | None = None


def of_sizes(sizes: Sizes, own: "Schedule | None" = None) -> ScheduleScene:
    """The `ScheduleScene` of `Sizes`; own : a `Schedule` in the place of the first."""
    first = sizes.act(sizes.schedule) if own is None else sizes.on_the_clock(own)
    acts = [first] if sizes.against == NONE else [first, sizes.act(sizes.against, own)]
    p, m = (first.timeline.schedule.ranks, first.timeline.schedule.microbatches)
    title = f"p={p}, m={m}, f={sizes.f:g}, b={sizes.b:g}"
    if any(any(act.timeline.schedule.recomputes) for act in acts):
        title += f", r={sizes.r:g}"
    if any(a.kind == "W" for act in acts for row in act.timeline.schedule.actions for a in row):
        title += f", w={sizes.w:g}"
    return ScheduleScene(
        tuple(acts), title + (f", latency={sizes.latency:g}" * (sizes.latency > 0))
    )


def of_strategy(
    strategy: "Merak",
    against: str,
    workload: "GPT",
    cluster: "Cluster",
    trace: "Trace | None" = None,
) -> ScheduleScene:
    """The `ScheduleScene` of a `Merak`, with each stage's own times on a cluster.

    against : the name of a second schedule of the same strategy, or "none". trace : of a run of
    this strategy, drawn beside it, or None.
    """
    acts = [_of_merak(strategy, workload, cluster, trace)]
    if against != NONE:
        acts.append(_of_merak(replace(strategy, schedule=against), workload, cluster))
    return ScheduleScene(
        tuple(acts), f"{strategy.short} on {cluster.caption}", "s", cluster.device.memory
    )


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
    made = line.schedule
    formula = closed_form(s.schedule, s.pp, s.microbatches, f, b, r, w, s.stages // s.pp, False)
    return Panel(
        line,
        tuple(times["R"]),
        formula,
        tuple(memory_of(s, workload, place) for place in range(made.ranks)),
        None if trace is None else measured(trace, _counter(trace, s, workload)),
        of_microbatch(s, workload),
    )


def _counter(trace, s, w):
    """rank -> [(time, microbatches in flight)] of a run."""
    several = None if s.stages == s.pp else lambda layer: stage_of(layer, w, s.stages)
    return lambda rank: in_flight(trace, rank, several)


def closed_form(*sizes: Any) -> tuple[float, tuple[float, ...]] | None:
    """(makespan, idle time of each rank) by `formulas`, or None where there is none."""
    span = formulas.makespan(*sizes)
    return None if span is None else (span, formulas.bubble(*sizes))  # pyright: ignore[reportReturnType]


@lru_cache(maxsize=64)
def _schedule(name, ranks, microbatches, chunks, recompute):
    return schedule(name, ranks, microbatches, chunks, recompute)
