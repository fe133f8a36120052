"""``modes``: the same GEMMs, their reduce-scatter fused by tile, by chunk, or not, on real ranks.

One training step of a GPT in each mode of `tpviz.T3`: predicted (formula), simulated (its own
program on a virtual clock) and, if asked for, on real ranks paced to the cluster (emulated). Also
one sublayer, forward FC-2 (the MLP's second layer): its GEMM, reduce-scatter and all-gather.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tpviz.cluster import Cluster, Device, Level
from tpviz.core.charts import FROM_ZERO, axis, curves, words_of
from tpviz.core.checks import one_of, whole_number
from tpviz.core.tables import show_seconds
from tpviz.core.workload import GPT
from tpviz.evidence.report import some, too_late
from tpviz.evidence.study import GAIN, Outcome, Study, Variant, ask, outcome
from tpviz.evidence.t3_hardware import Machine
from tpviz.schemes.gpt.step import kernels
from tpviz.schemes.t3.strategy import T3
from tpviz.verbs.checks import check_cluster, check_workload
from tpviz.verbs.slow_motion import in_slow_motion

MODES = ("sequential", "chunk", "tile")
FC2 = ".mlp.down"


@dataclass(frozen=True)
class ModeOutcome(Outcome):
    """An `Outcome`, and the seconds of FC-2 of the average layer in it: GEMM, reduce-scatter and
    all-gather."""

    sublayer: float = 0.0


class Modes(Study):
    """A `Study` of T3 with a row a mode: one workload on one cluster."""

    kind, plural = "mode", "modes"

    def gain(self, mode: str = "tile", source: str = "predicted", what: str = "sublayer") -> float:
        """The part by which sequential takes longer than a mode; what : "sublayer" or "step"."""
        what = one_of("what", what, ("sublayer", "step"))
        return self.speedup(mode, "sequential", source, what)

    def drawing(self) -> dict[str, Any]:
        """Seconds of a step, and of FC-2 in it."""
        s, x = self.rows[0].strategy, axis(type="category")
        shown = (("step", "a step"), ("sublayer", "FC-2 with its collectives, forward"))
        return {
            "title": f"T3 on {s.tp} ranks, gather {s.gather}: reduce-scatters fused with their "
            "GEMMs, or after them",
            "panels": [curves(head, self.placed(what), x=x, y=FROM_ZERO) for what, head in shown],
        }

    @property
    def head(self) -> str:
        """T3, and the cluster."""
        s = self.rows[0].strategy
        return f"T3, {s.tp} ranks, gather {s.gather}, on {self.cluster.caption}"

    def _columns(self):
        first = self.rows[0]

        def over(what):
            def cell(row, source, t):
                if source not in first.times:
                    return ""
                return f"{100 * self.speedup(row.label, source=source, what=what):+.1f} %"

            return f"gain over {first.label}", cell

        return [
            ("mode", lambda row, source, t: row.label),
            ("source", lambda row, source, t: words_of(source)),
            ("step", lambda row, source, t: show_seconds(t.step)),
            over("step"),
            ("FC-2", lambda row, source, t: show_seconds(t.sublayer)),
            over("sublayer"),
        ]

    def phrase(self, row: Variant, one: ModeOutcome) -> str:
        """A mode in words."""
        step, sublayer = map(show_seconds, (one.step, one.sublayer))
        return f"{row.label} {step} a step, FC-2 {sublayer}"

    def notes(self) -> list[str]:
        """Definition of FC-2, the parts in software, and warnings."""
        return [
            self.say("modes"),
            GAIN.replace("Gain", "The table's gain", 1),
            *too_late(self.late()),
        ]

    def __repr__(self):
        best = min(self.rows, key=lambda r: r.times["predicted"].sublayer)
        return f"<{self.say('Modes', best=best, times=best.times['predicted'])}>"


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
        ``steps`` steps each: in faithful slow motion, unless it is in another.
    progress : as `tpviz.launch` takes it. knobs : others of `T3`.

    Raises ``ValueError`` where sizes do not fit each other or the cluster, and for tp=1, which has
    no reduce-scatter.
    """
    check_workload(workload)
    check_cluster(cluster, "second")
    chosen = some("mode", modes, MODES, "modes")
    tp, run, steps = (
        whole_number(name, value, low)
        for name, value, low in (("tp", tp, 2), ("run", run, 0), ("steps", steps, 1))
    )
    tried = {mode: T3(**{"tp": tp, **knobs, "mode": mode}) for mode in chosen}
    if run:
        cluster = in_slow_motion(list(tried.values())[:run], workload, cluster)
    sources = ["predicted", "simulated"] + ["measured"] * bool(run)
    read = lambda result, strategy: _times(result, strategy, workload, cluster)
    options = {"run": run, "steps": steps, "progress": progress}
    return Modes(workload, cluster, ask(tried, workload, cluster, sources, read, **options))


def _times(result, strategy, workload, cluster):
    """The `ModeOutcome` in a prediction or a trace: FC-2 from its first event to its last,
    averaged."""
    times = outcome(result, strategy)
    if times.badge == "predicted":
        kernel = kernels(workload, strategy.tp).up[0]
        up = cluster.device.time(kernel.flops, kernel.bytes, workload.dtype)
        mlps = (s for s in result.segments if s.phase == "forward" and s.layer.endswith(".mlp"))
        spans = [segment.seconds - up for segment in mlps]
    else:
        ranks = (0,) if times.badge == "simulated" else result.ranks
        spans = [span for rank in ranks for span in _spans(result, rank)]
    return ModeOutcome(**vars(times), sublayer=float(sum(spans) / len(spans)))


def _spans(trace, rank):
    """Seconds of FC-2 of each step and layer of a rank."""
    mine = trace.select(rank=rank, phase="forward")
    for step in trace.steps:
        for layer in sorted(set(mine["layer"].tolist())):
            if layer.endswith(FC2):
                here = (mine["layer"] == layer) & (mine["step"] == step)
                yield mine["end"][here].max() - mine["start"][here].min()
