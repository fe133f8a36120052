"""``modes``: the same GEMMs with their sums fused by tile, by chunk, or not, on real ranks.

One training step of a GPT in each mode of `tpviz.T3`: predicted (formula), simulated (its own
program on a virtual clock) and, if asked for, on real ranks paced to the cluster (emulated). Beside
the step stands one sublayer, forward FC-2: its GEMM, reduce-scatter and all-gather.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tpviz.checks import one_of, whole_number
from tpviz.cluster import Cluster, Device, Level
from tpviz.cost import show_seconds
from tpviz.figures.charts_t3_modes import modes_figure
from tpviz.schemes.gpt.step import kernels
from tpviz.schemes.t3.hardware import Machine
from tpviz.schemes.t3.strategy import T3
from tpviz.tables import html_table
from tpviz.trace.faithful import is_faithful
from tpviz.verbs.checks import check_cluster, check_workload
from tpviz.verbs.predict import predict
from tpviz.verbs.simulate import simulate
from tpviz.workload import GPT

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MODES = ("sequential", "chunk", "tile")
BADGES = {"measured": "emulated"}
FC2 = ".mlp.down"


class Times(NamedTuple):
    """Seconds of a ``step``, and of FC-2 of the average layer in it: GEMM, sum and all-gather.
    faithful : whether a run was as the model says."""

    step: float
    sublayer: float
    faithful: bool = True


class Row(NamedTuple):
    """One mode: its strategy, and {source: `Times`}."""

    mode: str
    strategy: T3
    times: dict[str, Times]


@dataclass(frozen=True, repr=False)
class Modes:
    """``rows`` of `Row` for one workload on one cluster."""

    workload: GPT
    cluster: Cluster
    rows: tuple[Row, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """Where numbers come from."""
        return tuple(dict.fromkeys(source for row in self.rows for source in row.times))

    @property
    def badges(self) -> list[str]:
        """The sources as the figure names them."""
        return [BADGES.get(source, source) for source in self.sources]

    def times(self, mode: str, source: str = "predicted") -> Times:
        """The `Times` of a mode. Raises ``ValueError`` on one that is not here."""
        rows = {row.mode: row for row in self.rows}
        row = rows[one_of("mode", mode, tuple(rows))]
        return row.times[one_of("source", source, tuple(row.times))]

    def gain(self, mode: str = "tile", source: str = "predicted", what: str = "sublayer") -> float:
        """The part by which sequential takes longer than a mode; what : "sublayer" or "step"."""
        what = one_of("what", what, ("sublayer", "step"))
        slow, fast = (getattr(self.times(m, source), what) for m in ("sequential", mode))
        return slow / fast - 1

    def scene(self) -> dict[str, Any]:
        """What `figures.charts_t3_modes` draws."""
        lines = {source: [r for r in self.rows if source in r.times] for source in self.sources}
        s = self.rows[0].strategy
        return {
            "title": f"T3 on {s.tp} ranks, gather {s.gather}: sums fused with their GEMMs, or "
            "after them",
            "badges": self.badges,
            "modes": [r.mode for r in self.rows],
            "sources": {
                source: {
                    "modes": [r.mode for r in rows],
                    "step": [r.times[source].step for r in rows],
                    "sublayer": [r.times[source].sublayer for r in rows],
                }
                for source, rows in lines.items()
            },
            "notes": self._notes(),
            "alt": self.describe(),
        }

    @property
    def _words(self):
        s = self.rows[0].strategy
        return f"T3, {s.tp} ranks, gather {s.gather}, on {self.cluster.caption}"

    def figure(self, theme: str = "light") -> "Figure":
        """Step and sublayer of each mode as a plotly ``Figure``."""
        return modes_figure(self.scene(), theme)

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: each mode by each source."""
        first = self.rows[0].mode
        return [["mode", "source", "step", f"over {first}'s", "FC-2", f"over {first}'s"]] + [
            [
                r.mode,
                BADGES.get(source, source),
                show_seconds(t.step),
                *_gained(self.rows[0].times, source, t.step, "step"),
                show_seconds(t.sublayer),
                *_gained(self.rows[0].times, source, t.sublayer, "sublayer"),
            ]
            for r in self.rows
            for source, t in r.times.items()
        ]

    def describe(self) -> str:
        """Each mode in words."""
        lines = []
        for source in self.sources:
            words = "; ".join(
                f"{r.mode} {show_seconds(r.times[source].step)} a step, FC-2 "
                f"{show_seconds(r.times[source].sublayer)}"
                for r in self.rows
                if source in r.times
            )
            lines.append(f"{BADGES.get(source, source).capitalize()}: {words}.")
        return " ".join([f"{self._words}.", *lines, *self._notes()])

    def _notes(self):
        notes = [
            f"On {self.cluster.caption}. FC-2 is its GEMM with the reduce-scatter and the "
            "all-gather after it, forward, in the average layer. The tracker here is "
            "software, and the processor adds; a DMA engine and sums in memory are only in "
            "the simulated GPU."
        ]
        late = [r.mode for r in self.rows if not all(t.faithful for t in r.times.values())]
        notes += [
            f"Not faithful, events too short for this machine: {', '.join(late)}. Slower "
            "motion helps."
        ] * bool(late)
        return notes

    def __repr__(self):
        best = min(self.rows, key=lambda r: r.times["predicted"].sublayer)
        return (
            f"<Modes of {self._words}: FC-2 fastest by {best.mode}, "
            f"{show_seconds(best.times['predicted'].sublayer)}, predicted>"
        )

    def _repr_html_(self):
        return html_table(self.to_table(), "class='tpviz-lab'")


def _gained(first, source, seconds, what):
    if source not in first:
        return [""]
    return [f"{100 * (seconds / getattr(first[source], what) - 1):+.1f} %"]


def ring(gpus: int = 4, machine: Machine | None = None) -> Cluster:
    """The `Cluster` of ``gpus`` simulated `Machine`s in a ring: the links and the rate of T3's."""
    gpus, m = whole_number("gpus", gpus, 2, 64), Machine() if machine is None else machine
    return Cluster(
        "T3's ring",
        Device({"float16": m.rate}, 32e9, m.dram),
        (Level("link", gpus, m.link, m.link, m.latency),),
    )


def modes(
    workload: GPT,
    cluster: Cluster,
    tp: int = 4,
    modes: Iterable[str] = MODES,
    *,
    run: int = 0,
    steps: int = 1,
    progress: Callable[[int, int, str], object] | bool | None = None,
    **knobs: Any,
) -> Modes:
    """The `Modes` of T3 on ``tp`` ranks.

    Parameters
    ----------
    modes : of `MODES`.
    run : how many of the first modes are also trained on real ranks, paced to the cluster, for
        ``steps`` steps each.
    progress : as `tpviz.launch` takes it. knobs : others of `T3`.

    Raises ``ValueError`` where sizes do not fit each other or the cluster, and for tp=1, which sums
    nothing.
    """
    check_workload(workload)
    check_cluster(cluster, "second")
    chosen = tuple(dict.fromkeys(one_of("mode", mode, MODES) for mode in modes))
    if not chosen:
        raise ValueError(f"modes is empty: give some of {', '.join(MODES)}")
    tp, run, steps = (
        whole_number("tp", tp, 2),
        whole_number("run", run, 0),
        whole_number("steps", steps),
    )
    rows = []
    for number, mode in enumerate(chosen):
        s = replace(T3(tp=tp, **knobs), mode=mode)
        found = {
            "predicted": _predicted(s, workload, cluster),
            "simulated": _read(simulate(s, workload, cluster), ranks=(0,)),
        }
        if number < run:
            found["measured"] = _trained(s, workload, cluster, steps, progress)
        rows.append(Row(mode, s, found))
    return Modes(workload, cluster, tuple(rows))


def _predicted(s, w, cluster):
    made = predict(s, w, cluster)
    kernel = kernels(w, s.tp).up[0]
    up = cluster.device.time(kernel.flops, kernel.bytes, w.dtype)
    spans = [
        x.seconds - up for x in made.segments if x.phase == "forward" and x.layer.endswith(".mlp")
    ]
    return Times(made.step_time, sum(spans) / len(spans))


def _trained(s, w, cluster, steps, progress):
    from tpviz.verbs.run import run

    trace = run(s, w, cluster, steps=steps, memory=False, progress=progress)
    return _read(trace)._replace(faithful=is_faithful(trace.meta["late"]))


def _read(trace, ranks=None):
    """The `Times` in a trace: FC-2 from its first event to its last, averaged."""
    spans = []
    for rank in trace.ranks if ranks is None else ranks:
        mine = trace.select(rank=rank, phase="forward")
        for step in trace.steps:
            for layer in sorted(set(mine["layer"].tolist())):
                if layer.endswith(FC2):
                    here = (mine["layer"] == layer) & (mine["step"] == step)
                    spans.append(mine["end"][here].max() - mine["start"][here].min())
    return Times(trace.step_time, float(sum(spans) / len(spans)))
