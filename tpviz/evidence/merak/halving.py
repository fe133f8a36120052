"""``halves``: the share of the tp all-reduces that each level of sub-pipelining hides.

The two halves of a microbatch go through the same layers; the all-reduces of one overlap the
kernels of the other (`tpviz.schemes.pipeline.subpipeline`). With c the time of the all-reduce of a
whole microbatch, and kernels as long as the all-reduces that they hide, kernels wait in a block and
direction for 2c, c and c/2 at levels 0, 1 and 2, and at level 3 for c/2 in a whole stage (derived
from the order of the phases).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tpviz.cluster import Cluster
from tpviz.cluster.clock.cost import by_axis, transfer
from tpviz.core.charts import FROM_ZERO, axis, curves, line, panel, words_of
from tpviz.core.checks import whole_number
from tpviz.core.mesh import Mesh
from tpviz.core.tables import show_seconds
from tpviz.core.trace.analyses import length, merge
from tpviz.core.workload import GPT
from tpviz.evidence.report import not_knobs, some, too_late
from tpviz.evidence.study import Outcome, Study, Variant, ask, outcome
from tpviz.schemes.gpt.step import payloads
from tpviz.schemes.merak.strategy import Merak
from tpviz.verbs.checks import check_cluster, check_workload
from tpviz.verbs.slow_motion import in_slow_motion

from .claims import told
from .ranks import clocked, sizes_in_words

LEVELS = {0: "none", 1: "in a layer", 2: "in a block", 3: "across blocks"}
PHASES = ("forward", "backward")
BLOCKS = {
    "forward": ("forward", "solid", "triangle-right"),
    "backward": ("backward", "dash", "triangle-left"),
    "expected": ("axis2", "dot", "star-open"),
}
"""{line: (ink, dash, marker)}."""


@dataclass(frozen=True)
class HalvesOutcome(Outcome):
    """An `Outcome` of which only tp counts. sums : seconds of the average rank in all all-reduces
    over tp, exposed or not."""

    sums: float = 0.0

    @property
    def hidden(self) -> float:
        """The share (0..1) of the all-reduces that is not exposed."""
        return max(0.0, 1 - self.waits / self.sums) if self.sums else 0.0


@dataclass(frozen=True)
class LevelVariant(Variant):
    """One level. blocks : {phase of PHASES: the average wait of a block, for one microbatch on
    stage 0, in units of c}. expected : the same if kernels are long enough (derived)."""

    blocks: dict[str, float]
    expected: float

    @property
    def level(self) -> int:
        """Of sub-pipelining."""
        return self.label


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Halves(Study):
    """A `Study` with a `LevelVariant` a level. one_sum : c, seconds of the all-reduce over tp of a
    whole microbatch."""

    one_sum: float
    kind, plural = "level", "levels"

    def gain(self, level: int, source: str = "predicted") -> float:
        """How much faster than level 0: its step over this level's, less 1."""
        return self.speedup(level, 0, source)

    def name(self, label: int) -> str:
        """A level in words."""
        return f"level {label}"

    @property
    def head(self) -> str:
        """The pipeline, and the cluster."""
        s = self.rows[0].strategy
        order = str(s.schedule).replace("_", " ")
        sizes = f"{sizes_in_words(s)}, {order}, {s.recompute} recomputation"
        return f"{sizes} on {self.cluster.caption}"

    def drawing(self) -> dict[str, Any]:
        """Seconds of a step; seconds that kernels wait for tp in it; the same of a block, in units
        of c, with the expected values."""
        x, levels = axis("level", type="category"), [str(row.level) for row in self.rows]
        blocks = {phase: [row.blocks[phase] for row in self.rows] for phase in PHASES}
        traces = [line(f"{p}, predicted", levels, c, BLOCKS[p]) for p, c in blocks.items()]
        expected = "expected, kernels long enough (derived)"
        traces.append(line(expected, levels, [r.expected for r in self.rows], BLOCKS["expected"]))
        return {
            "title": f"{self.head}, by level of sub-pipelining",
            "panels": [
                curves("a step", self.placed("step"), x=x),
                curves("waits for tp", self.placed("waits"), x=x, y=FROM_ZERO),
                panel("waits of a block (in c)", traces, x, FROM_ZERO),
            ],
        }

    def tick(self, label: int) -> str:
        """A level on an axis."""
        return str(label)

    def _columns(self):
        return [
            ("level", lambda row, source, t: f"{row.level}, {LEVELS[row.level]}"),
            ("source", lambda row, source, t: words_of(source)),
            ("step", lambda row, source, t: show_seconds(t.step)),
            ("gain", lambda row, source, t: self.percent(row.level, source, 0)),
            ("waits for tp", lambda row, source, t: show_seconds(t.waits)),
            ("sums hidden", lambda row, source, t: f"{100 * t.hidden:.0f} %"),
            ("a block forward", lambda row, source, t: f"{row.blocks['forward']:.3g} c"),
            ("backward", lambda row, source, t: f"{row.blocks['backward']:.3g} c"),
            ("expected", lambda row, source, t: f"{row.expected:.3g} c"),
        ]

    def phrase(self, row: LevelVariant, one: HalvesOutcome) -> str:
        """A level in words."""
        return self.say("level", row=row, one=one)

    def words(self) -> list[str]:
        """Communication hidden by each level."""
        blocks = "; ".join(self.say("block", row=row) for row in self.rows)
        return [*super().words(), f"A block of the first stage: {blocks}."]

    def notes(self) -> list[str]:
        """Definition of c, expected values, rows not halved, warnings, the paper's claim."""
        rows = self.rows[0].strategy.local(self.workload).batch
        found = [self.say("halves"), *[self.say("one row")] * (rows == 1)]
        found += [f"Halves of {rows} rows are not equal."] * (rows > 1 and rows % 2)
        late = [name.removeprefix("level ") for name in self.late()]
        late[:1] = [f"level {name}" for name in late[:1]]
        return [*found, *too_late(late), told()[0]]


def halves(
    workload: GPT,
    cluster: Cluster,
    pp: int = 1,
    tp: int = 2,
    levels: Iterable[int] = tuple(LEVELS),
    *,
    run: int = 0,
    steps: int = 2,
    progress: Callable[[int, int, str], object] | bool | None = None,
    **knobs: Any,
) -> Halves:
    """The `Halves` of one pipeline: the same step at each level of sub-pipelining.

    Parameters
    ----------
    pp, tp, knobs : as `Merak` takes them, but ``subpipeline``.
    levels : of `LEVELS`.
    run : how many of the first levels are also trained on real ranks, paced to the cluster, for
        ``steps`` steps each: in faithful slow motion, unless it is in another.
    progress : as `tpviz.launch` takes it.

    Raises ``ValueError`` for tp=1, which has no all-reduce, and where sizes do not fit each other
    or the cluster.
    """
    check_workload(workload)
    check_cluster(cluster, "second")
    levels = some("level", levels, tuple(LEVELS), "levels")
    run, steps = whole_number("run", run, 0), whole_number("steps", steps)
    whole_number("tp", tp, 2)
    not_knobs(knobs, ["subpipeline"], "the lab tries several; give levels=(0, 2)")
    tried = {x: Merak(pp=pp, tp=tp, subpipeline=x, **knobs) for x in levels}
    if run:
        cluster = in_slow_motion(list(tried.values())[:run], workload, cluster)
    sources = ["predicted"] + ["measured"] * bool(run)
    options = {"run": run, "steps": steps, "progress": progress}
    asked = ask(tried, workload, cluster, sources, _times, **options)
    rows, sums = zip(*(_row(one, workload, cluster) for one in asked))
    return Halves(workload, cluster, rows, one_sum=sums[-1])


def _row(variant, w, cluster):
    """(the `LevelVariant` of a level, c)."""
    s, plain = variant.strategy, variant.times["predicted"]
    clock = clocked(s, w, cluster, plain.step)
    waits, under = (
        sum(by_axis(segments, which).get("tp", 0.0) for segments in clock.segments) / s.pp
        for which in ("exposed", "hidden")
    )
    activation = payloads(s.local(w), s.tp).activation
    c = transfer(cluster, Mesh(s.axes), "tp", "all_reduce", activation).seconds
    count = len(s.blocks(w)[0])
    blocks = {
        phase: _waits(clock.pieces[kind, 0]) / count / c for phase, kind in zip(PHASES, ("F", "B"))
    }
    expected = {0: 2.0, 1: 1.0, 2: 0.5, 3: 0.5 / count}[s.subpipeline]
    times = HalvesOutcome(clock.step, {"tp": waits}, badge=plain.badge, sums=waits + under)
    return LevelVariant(
        s.subpipeline, s, {**variant.times, "predicted": times}, blocks, expected
    ), c


def _waits(segments):
    """Seconds that the kernels of blocks wait for tp."""
    return sum(x.exposed.get("tp", 0.0) for x in segments if x.layer.startswith("blocks"))


def _times(result, strategy):
    """The `HalvesOutcome` of a run; of a prediction its `Outcome`."""
    times = outcome(result, strategy)
    if times.badge == "predicted":
        return times
    ranks, steps = result.ranks, len(result.steps)
    waits, sums = (
        sum(_seconds(result, rank, kind) for rank in ranks) / len(ranks) / steps
        for kind in ("wait", "comm")
    )
    return HalvesOutcome(**{**vars(times), "exposed": {"tp": waits}}, sums=sums)


def _seconds(trace, rank, kind):
    events = trace.select(rank=rank, kind=kind, axis="tp")
    return length(merge(events["start"], events["end"]))
