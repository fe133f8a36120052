"""``schedules``: the same pipeline in one schedule after another, by formula and on real ranks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tpviz.cluster import Cluster
from tpviz.core.charts import words_of
from tpviz.core.checks import one_of, whole_number
from tpviz.core.mesh import Mesh
from tpviz.core.schedules import SCHEDULES
from tpviz.core.schedules.formulas import bubble, makespan
from tpviz.core.tables import show_bytes, show_seconds
from tpviz.core.trace.pipeline import measured as bars_of
from tpviz.core.workload import GPT
from tpviz.evidence.report import not_knobs, some, too_late
from tpviz.evidence.study import GAIN, Outcome, Study, Variant, ask, outcome
from tpviz.schemes.merak.strategy import Merak
from tpviz.schemes.pipeline.memory import memory_of
from tpviz.verbs.checks import check_cluster, check_workload
from tpviz.verbs.slow_motion import in_slow_motion

from .claims import told
from .ranks import PlaceParts, clocked, flight, mean, read, sizes_in_words

STACK = {
    "kernels": ("kernels", "forward", ""),
    "recompute": ("recomputation", "recompute", "."),
    "exposed": ("exposed communication", "exposed", "x"),
    "bubble": ("bubble", "wait", "/"),
}
"""{part: (words, ink, pattern)}, bottom first."""


@dataclass(frozen=True)
class ScheduleOutcome(Outcome):
    """An `Outcome` of one schedule. makespan : seconds from the first forward to the last backward.
    places : per place along pp its `PlaceParts`. flight : per place the most microbatches, times
    stages, that are held at once. peaks, activations : per place its bytes at the peak, of all and
    of activations alone; none of a simulation."""

    makespan: float = 0.0
    places: tuple[PlaceParts, ...] = ()
    flight: tuple[int, ...] = ()
    peaks: tuple[float, ...] = ()
    activations: tuple[float, ...] = ()

    @property
    def bubbles(self) -> tuple[float, ...]:
        """Per place, the idle share (0..1) of the step."""
        return tuple(parts.bubble / sum(parts) for parts in self.places)


@dataclass(frozen=True)
class ScheduleVariant(Variant):
    """One schedule.

    form : its makespan by the closed form with the middle stage's seconds, None where it does not
    apply; idle : per place the share (0..1) of it without work, by the same; uneven : how much
    longer a microbatch takes on the slowest stage than on that one (1: as long).
    """

    form: float | None
    idle: tuple[float, ...] | None
    uneven: float

    @property
    def name(self) -> str:
        """The schedule's."""
        return self.label


@dataclass(frozen=True, eq=False, repr=False)
class Schedules(Study):
    """A `Study` with a `ScheduleVariant` a schedule; left_out : {schedule: why it refuses the
    sizes}."""

    kind, plural = "schedule", "of the schedules"

    @property
    def refused(self) -> dict[str, str]:
        """What is left out."""
        return self.left_out

    def gain(
        self,
        name: str = "shifted_critical_path",
        over: str = "early_recompute",
        source: str = "predicted",
    ) -> float:
        """How much faster a schedule's step is: the other's time over its own, less 1."""
        return self.speedup(name, over, source)

    @property
    def head(self) -> str:
        """The pipeline, and the cluster."""
        s = self.rows[0].strategy
        sizes = f"{sizes_in_words(s)}, {s.recompute} recomputation"
        return f"{sizes} on {self.cluster.caption}"

    def tick(self, label: str) -> str:
        """A schedule under its bar."""
        return label.replace("_", " ")

    def drawing(self) -> dict[str, Any]:
        """Stacked bars: the step of the average rank by part; above each bar its speedup over the
        first."""
        drawn = self.stacked(STACK, lambda t: mean(t.places)._asdict())
        return {**drawn, "title": f"{self.head}, by schedule"}

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: each schedule by each source, and those refused."""
        refused = [[name, "refused", why, *[""] * 5] for name, why in self.refused.items()]
        return super().to_table() + refused

    def _columns(self):
        return [
            ("schedule", lambda row, source, t: row.name),
            ("source", lambda row, source, t: words_of(source)),
            ("step", lambda row, source, t: show_seconds(t.step)),
            ("makespan", lambda row, source, t: show_seconds(t.makespan)),
            ("closed form", lambda row, source, t: show_seconds(row.form) if row.form else "none"),
            ("bubble of each rank", lambda row, source, t: _percents(t.bubbles)),
            ("in flight", lambda row, source, t: " ".join(map(str, t.flight))),
            ("most of a rank", lambda row, source, t: show_bytes(max(t.peaks)) if t.peaks else ""),
        ]

    def words(self) -> list[str]:
        """The schedules by speed, and their bubbles."""
        lines = [f"{self.head}."]
        for source, times in self.times.items():
            words = ", ".join(
                self.say("schedule", name=name, one=t, idle=(100 * min(t.bubbles), max(t.bubbles)))
                for name, t in sorted(times.items(), key=lambda item: item[1].step)
            )
            lines.append(f"{words_of(source).capitalize()}, fastest first: {words}.")
        return lines

    def notes(self) -> list[str]:
        """Definitions of bars and closed forms, the paper's claim, warnings, omissions."""
        found = [f"{self.say('bars')} {GAIN}"]
        forms = [
            f"{r.name} {100 * (r.form / r.times['predicted'].makespan - 1):+.1f} % ({r.uneven:.2f})"
            for r in self.rows
            if r.form
        ]
        found += [self.say("closed forms", errors=", ".join(forms))] * bool(forms)
        if {"shifted_critical_path", "early_recompute"} <= {r.name for r in self.rows}:
            found.append(self.say("gain here", gain=self.gain()))
        found += [*told(), *too_late(self.late())]
        return found + [f"Left out: {n}, {why}." for n, why in self.refused.items()]

    def __repr__(self):
        return super().__repr__().replace(" fastest,", f" fastest of {len(self.rows)},")


def schedules(
    workload: GPT,
    cluster: Cluster,
    names: str | Iterable[str] = tuple(SCHEDULES),
    pp: int = 4,
    microbatches: int = 8,
    tp: int = 1,
    dp: int = 1,
    recompute: str = "full",
    *,
    run: int = 0,
    steps: int = 2,
    simulate: bool = False,
    progress: Callable[[int, int, str], object] | bool | None = None,
    **knobs: Any,
) -> Schedules:
    """The `Schedules` of one pipeline: the same model, ranks and microbatches in each.

    Parameters
    ----------
    names : schedules, of `SCHEDULES`. Those that refuse the sizes are listed with the reason.
    pp, microbatches, tp, dp, recompute, knobs : as `Merak` takes them.
    run : how many of the first are also trained on real ranks, paced to the cluster, for ``steps``
        steps each: in faithful slow motion, unless it is in another.
    simulate : True also replays each on the virtual clock, seconds each.
    progress : as `tpviz.launch` takes it.

    Raises ``ValueError`` where no schedule takes the sizes, or the ranks do not fit the cluster.
    """
    check_workload(workload)
    check_cluster(cluster, "second")
    names = [names] if isinstance(names, str) else names
    names = some("schedule", names, tuple(SCHEDULES), "names")
    run, steps = whole_number("run", run, 0), whole_number("steps", steps)
    simulate = one_of("simulate", simulate, (True, False))
    not_knobs(knobs, ["schedule"], "the lab tries several; give names=(..,)")
    sizes = {"pp": pp, "tp": tp, "dp": dp, "microbatches": microbatches, "recompute": recompute}
    tried, refused = {}, {}
    for name in names:
        strategy = Merak(schedule=name, **sizes, **knobs)
        try:
            strategy.check(workload)
        except ValueError as error:
            refused[name] = str(error)
        else:
            tried[name] = strategy
    if not tried:
        reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
        raise ValueError(f"no schedule takes these sizes: {reasons}")
    if run:
        cluster = in_slow_motion(list(tried.values())[:run], workload, cluster)
    sources = ["predicted"] + ["simulated"] * simulate + ["measured"] * bool(run)
    options = {"run": run, "steps": steps, "memory": True, "progress": progress}
    read_times = lambda result, strategy: _times(result, strategy, workload)
    asked = ask(tried, workload, cluster, sources, read_times, **options)
    rows = tuple(_row(one, workload, cluster) for one in asked)
    return Schedules(workload, cluster, rows, refused)


def _row(variant, w, cluster):
    """The `ScheduleVariant` of a schedule, its prediction place by place."""
    s, plain = variant.strategy, variant.times["predicted"]
    clock = clocked(s, w, cluster, plain.step)
    middle = (s.stages - 1) // 2
    each = [
        {kind: sum(x.seconds for x in clock.pieces[kind, n]) for kind in ("F", "B", "R", "W")}
        for n in range(s.stages)
    ]
    again = [one["R"] * on for one, on in zip(each, clock.line.schedule.recomputes)]
    whole = [one["F"] + one["B"] + r for one, r in zip(each, again)]
    one, form, idle = each[middle], None, None
    if s.recompute != "stage_aware":  # its stages recompute unequal parts
        times = one["F"], one["B"], again[middle], one["W"]
        sizes = (s.schedule, s.pp, s.microbatches, *times, s.stages // s.pp)
        form = makespan(*sizes)
        idle = form and tuple(seconds / form for seconds in bubble(*sizes))  # pyright: ignore[reportOptionalIterable]
    peaks = [memory_of(s, w, place) for place in range(s.pp)]
    predicted = ScheduleOutcome(
        **vars(plain),
        makespan=clock.line.makespan,
        places=clock.places,
        flight=clock.line.peak_in_flight,
        peaks=tuple(m.total for m in peaks),
        activations=tuple(m["activations"] for m in peaks),
    )
    times = {**variant.times, "predicted": predicted}
    return ScheduleVariant(s.schedule, s, times, form, idle, max(whole) / whole[middle])  # pyright: ignore[reportArgumentType]


def _times(result, strategy, workload):
    """The `ScheduleOutcome` of a trace; of a prediction its `Outcome`."""
    plain = outcome(result, strategy)
    if plain.badge == "predicted":
        return plain
    ranks = () if plain.badge == "simulated" else Mesh(strategy.axes).group(0, "pp")
    used = [result.memory(rank) for rank in ranks]
    return ScheduleOutcome(
        **vars(plain),
        makespan=bars_of(result).makespan,
        places=read(result, strategy),
        flight=flight(result, strategy, workload),
        peaks=tuple(m.peak for m in used),
        activations=tuple(m.peaks["activations"] for m in used),
    )


def _percents(shares):
    return " ".join(f"{100 * share:.1f}" for share in shares) + " %"
