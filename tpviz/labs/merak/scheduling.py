"""``schedules``: the same pipeline in one schedule after another, by formula and on real ranks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tpviz.checks import one_of, whole_number
from tpviz.cluster import Cluster
from tpviz.cost import show_bytes, show_seconds
from tpviz.figures.charts_schedules import schedules_figure
from tpviz.figures.schedule_measured import measured as bars_of
from tpviz.schedules import SCHEDULES
from tpviz.schedules.formulas import bubble, makespan
from tpviz.schemes.merak.memory import memory_of
from tpviz.schemes.merak.strategy import Merak
from tpviz.tables import html_table
from tpviz.trace.faithful import is_faithful
from tpviz.verbs.checks import check_cluster, check_workload
from tpviz.verbs.predict import predict
from tpviz.workload import GPT

from .claims import told
from .ranks import BADGES, BySource, Parts, clocked, flight, mean, read, words_of

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class Times(NamedTuple):
    """A step of one schedule. Seconds: the ``step``; its ``makespan``, from the first forward to
    the last backward. places : per place along pp its `Parts`. flight : per place the most
    microbatches, times stages, that are held at once. peaks, activations : per place its bytes at
    the peak, of all and of activations alone; none of a simulation. faithful : whether an emulated
    run was as the model says."""

    step: float
    makespan: float
    places: tuple[Parts, ...]
    flight: tuple[int, ...]
    peaks: tuple[float, ...] = ()
    activations: tuple[float, ...] = ()
    faithful: bool = True

    @property
    def bubbles(self) -> tuple[float, ...]:
        """Per place, the share (0..1) of the step in which it has nothing to do."""
        return tuple(parts.bubble / sum(parts) for parts in self.places)


class Row(NamedTuple):
    """One schedule. times : {"predicted", perhaps "simulated" and "measured": `Times`}.

    form : its makespan by the closed form with the middle stage's seconds, None where that has no
    say; idle : per place the share (0..1) of it without work, by the same; uneven : how much longer
    a microbatch takes on the slowest stage than on that one (1: as long).
    """

    strategy: Merak
    times: dict[str, Times]
    form: float | None
    idle: tuple[float, ...] | None
    uneven: float

    @property
    def name(self) -> str:
        """The schedule's."""
        return self.strategy.schedule


@dataclass(frozen=True, eq=False, repr=False)
class Schedules(BySource):
    """``rows`` (`Row`), in the order asked for; ``refused`` {schedule: why it is left out}."""

    workload: GPT
    cluster: Cluster
    rows: tuple[Row, ...]
    refused: dict[str, str]

    def at(self, name: str) -> Row:
        """The `Row` of a schedule."""
        found = {row.name: row for row in self.rows}
        return found[one_of("schedule", name, tuple(found))]

    def gain(
        self,
        name: str = "shifted_critical_path",
        over: str = "early_recompute",
        source: str = "predicted",
    ) -> float:
        """How much faster a schedule's step is: the other's time over its own, less 1."""
        first, other = (_times(self.at(n), source) for n in (over, name))
        return first.step / other.step - 1

    def scene(self) -> dict[str, Any]:
        """The chart as data: see `tpviz.figures.charts_schedules`."""
        bars = {}
        for source in self.sources:
            rows = [row for row in self.rows if source in row.times]
            average = [mean(row.times[source].places) for row in rows]
            bars[source] = {
                "names": [row.name for row in rows],
                "step": [row.times[source].step for row in rows],
                "parts": {part: [getattr(x, part) for x in average] for part in Parts._fields},
            }
        return {
            "title": f"{_words(self.rows[0].strategy)} on {self.cluster.caption}, by schedule",
            "badges": self.badges,
            "sources": bars,
            "notes": self._notes(),
            "alt": self.describe(),
        }

    def figure(self, theme: str = "light") -> "Figure":
        """Stacked bars as a plotly ``Figure``: where the average rank spends the step."""
        return schedules_figure(self.scene(), theme)

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: each schedule by each source."""
        table = [
            [
                "schedule",
                "source",
                "step",
                "makespan",
                "closed form",
                "bubble of each rank",
                "in flight",
                "most of a rank",
            ]
        ]
        for row in self.rows:
            for source, t in row.times.items():
                table.append(
                    [
                        row.name,
                        BADGES.get(source, source),
                        show_seconds(t.step),
                        show_seconds(t.makespan),
                        show_seconds(row.form) if row.form else "none",
                        " ".join(f"{100 * b:.1f}" for b in t.bubbles) + " %",
                        " ".join(map(str, t.flight)),
                        show_bytes(max(t.peaks)) if t.peaks else "",
                    ]
                )
        return table + [[name, "refused", why, *[""] * 5] for name, why in self.refused.items()]

    def describe(self) -> str:
        """Which schedule is fastest and where its ranks idle, in words."""
        lines = [f"{_words(self.rows[0].strategy)} on {self.cluster.caption}."]
        for source in self.sources:
            found = sorted(
                (r for r in self.rows if source in r.times), key=lambda r: r.times[source].step
            )
            words = ", ".join(
                f"{r.name} {show_seconds(r.times[source].step)} (bubble "
                f"{100 * min(r.times[source].bubbles):.1f} to "
                f"{100 * max(r.times[source].bubbles):.1f} %)"
                for r in found
            )
            lines.append(f"{BADGES.get(source, source).capitalize()}, fastest first: {words}.")
        return " ".join(lines + self._notes())

    def _notes(self):
        notes = [
            "Bars: the average of the ranks, and the step beside the first's; bubble: neither "
            "kernels nor bytes under way."
        ]
        forms = [
            f"{r.name} {100 * (r.form / r.times['predicted'].makespan - 1):+.1f} % ({r.uneven:.2f})"
            for r in self.rows
            if r.form
        ]
        notes += [
            f"Closed forms are of equal stages and free messages: with the seconds of the "
            f"middle stage for all they are off the predicted makespan, {', '.join(forms)}. "
            "In brackets the slowest stage's seconds over the middle one's: not all have as "
            "many layers, and two have embedding and head."
        ] * bool(forms)
        if {"shifted_critical_path", "early_recompute"} <= {r.name for r in self.rows}:
            notes.append(
                f"Here the shifted critical path's step is {100 * self.gain():+.1f} % "
                "faster than early recomputation's, predicted."
            )
        notes += told()
        late = [r.name for r in self.rows if not all(t.faithful for t in r.times.values())]
        notes += [
            f"Not faithful, events too short for this machine: {', '.join(late)}. Slower "
            "motion helps."
        ] * bool(late)
        return notes + [f"Left out: {n}, {why}." for n, why in self.refused.items()]

    def __repr__(self):
        best = min(self.rows, key=lambda r: r.times["predicted"].step)
        return (
            f"<Schedules of {_words(best.strategy)} on {self.cluster.caption}: {best.name} "
            f"fastest of {len(self.rows)}, "
            f"{show_seconds(best.times['predicted'].step)} a step, predicted>"
        )

    def _repr_html_(self):
        return html_table(self.to_table(), "class='tpviz-lab'")


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
        steps each. simulate : True also replays each on the virtual clock, seconds each.
    progress : as `tpviz.launch` takes it.

    Raises ``ValueError`` where no schedule takes the sizes, or the ranks do not fit the cluster.
    """
    check_workload(workload)
    check_cluster(cluster, "second")
    names = [one_of("schedule", name, tuple(SCHEDULES)) for name in _list(names)]
    run, steps = whole_number("run", run, 0), whole_number("steps", steps)
    simulate = one_of("simulate", simulate, (True, False))
    if "schedule" in knobs:
        raise ValueError(f"schedule={knobs['schedule']!r}: the lab tries several; give names=(..,)")
    made, refused = [], {}
    for name in names:
        s = Merak(
            pp=pp,
            tp=tp,
            dp=dp,
            microbatches=microbatches,
            recompute=recompute,
            schedule=name,
            **knobs,
        )
        try:
            s.check(workload)
        except ValueError as error:
            refused[name] = str(error)
        else:
            made.append(s)
    if not made:
        raise ValueError(
            "no schedule takes these sizes: "
            + "; ".join(f"{name}: {why}" for name, why in refused.items())
        )
    rows = []
    for number, s in enumerate(made):
        row = _row(s, workload, cluster)
        if simulate:
            row.times["simulated"] = _replayed(s, workload, cluster)
        if number < run:
            row.times["measured"] = _trained(s, workload, cluster, steps, progress)
        rows.append(row)
    return Schedules(workload, cluster, tuple(rows), refused)


def _list(names):
    if isinstance(names, str):
        return [names]
    names = list(dict.fromkeys(names))
    if not names:
        raise ValueError(f"names is empty: give some of {', '.join(map(repr, SCHEDULES))}")
    return names


def _row(s, w, cluster):
    found = clocked(s, w, cluster, predict(s, w, cluster).step_time)
    middle = (s.stages - 1) // 2
    each = [
        {kind: sum(x.seconds for x in found.pieces[kind, n]) for kind in ("F", "B", "R", "W")}
        for n in range(s.stages)
    ]
    again = [one["R"] * on for one, on in zip(each, found.line.schedule.recomputes)]
    whole = [one["F"] + one["B"] + r for one, r in zip(each, again)]
    one, form, idle = each[middle], None, None
    if s.recompute != "stage_aware":  # its stages recompute unequal parts
        sizes = (
            s.schedule,
            s.pp,
            s.microbatches,
            one["F"],
            one["B"],
            again[middle],
            one["W"],
            s.stages // s.pp,
        )
        form = makespan(*sizes)
        idle = form and tuple(seconds / form for seconds in bubble(*sizes))  # pyright: ignore[reportOptionalIterable]
    peaks = [memory_of(s, w, place) for place in range(s.pp)]
    times = Times(
        found.step,
        found.line.makespan,
        found.places,
        found.line.peak_in_flight,
        tuple(m.total for m in peaks),
        tuple(m["activations"] for m in peaks),
    )
    return Row(s, {"predicted": times}, form, idle, max(whole) / whole[middle])  # pyright: ignore[reportArgumentType]


def _replayed(s, w, cluster):
    from tpviz.verbs.simulate import simulate

    trace = simulate(s, w, cluster)
    return Times(trace.step_time, bars_of(trace).makespan, read(trace, s), flight(trace, s, w))


def _trained(s, w, cluster, steps, progress):
    from tpviz.mesh import Mesh
    from tpviz.verbs.run import run

    trace = run(s, w, cluster, steps=steps, progress=progress)
    used = [trace.memory(rank) for rank in Mesh(s.axes).group(0, "pp")]
    return Times(
        trace.step_time,
        bars_of(trace).makespan,
        read(trace, s),
        flight(trace, s, w),
        tuple(m.peak for m in used),
        tuple(m.peaks["activations"] for m in used),
        is_faithful(trace.meta["late"]),
    )


def _times(row, source):
    if source not in row.times:
        raise ValueError(
            f"{row.name} has no {source} times: use "
            f"{' or '.join(map(repr, row.times))}, or run more of the schedules"
        )
    return row.times[source]


def _words(s):
    return f"{words_of(s)}, recompute {s.recompute}"
