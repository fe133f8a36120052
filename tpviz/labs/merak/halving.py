"""``halves``: what each level of sub-pipelining hides of the sums over tp.

The two halves of a microbatch go through the same layers, each one's sums under the other's kernels
(`tpviz.schemes.merak.subpipeline`). With c a sum of a whole microbatch, and kernels as long as the
sums that they hide, kernels wait in a block and direction for 2c, c and c/2 at levels 0, 1 and 2,
and at level 3 for c/2 in a whole stage (derived from the order of the phases).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tpviz.checks import one_of, whole_number
from tpviz.cluster import Cluster
from tpviz.cost import by_axis, show_seconds, transfer
from tpviz.figures.charts_halves import halves_figure
from tpviz.mesh import Mesh
from tpviz.schemes.gpt.step import payloads
from tpviz.schemes.merak.split import layers_of
from tpviz.schemes.merak.strategy import Merak
from tpviz.tables import html_table
from tpviz.trace.analyses import length, merge
from tpviz.trace.faithful import is_faithful
from tpviz.verbs.checks import check_cluster, check_workload
from tpviz.verbs.predict import predict
from tpviz.workload import GPT

from .claims import told
from .ranks import BADGES, BySource, clocked, words_of

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

LEVELS = {0: "none", 1: "in a layer", 2: "in a block", 3: "across blocks"}
PHASES = ("forward", "backward")


class Times(NamedTuple):
    """Seconds: of a ``step``, and, of the average rank in it, that kernels wait for tp (``waits``)
    of all that tp's sums take (``sums``). faithful : whether a run was as the model says."""

    step: float
    waits: float
    sums: float
    faithful: bool = True

    @property
    def hidden(self) -> float:
        """The share (0..1) of the sums that kernels do not wait for."""
        return max(0.0, 1 - self.waits / self.sums) if self.sums else 0.0


class Row(NamedTuple):
    """One level. times : {"predicted", perhaps "measured": `Times`}. blocks : {phase of PHASES: of
    one microbatch and stage 0, what a block waits for on average, in sums of a whole microbatch}.
    expected : the same where kernels are long enough (derived)."""

    level: int
    strategy: Merak
    times: dict[str, Times]
    blocks: dict[str, float]
    expected: float


@dataclass(frozen=True, eq=False, repr=False)
class Halves(BySource):
    """``rows`` (`Row`), one a level. one_sum : c, seconds of the sum of a whole microbatch."""

    workload: GPT
    cluster: Cluster
    rows: tuple[Row, ...]
    one_sum: float

    def at(self, level: int) -> Row:
        """The `Row` of a level."""
        found = {row.level: row for row in self.rows}
        return found[one_of("level", level, tuple(found))]

    def gain(self, level: int, source: str = "predicted") -> float:
        """How much faster than level 0: its step over this level's, less 1."""
        rows = self.at(0), self.at(level)
        for row in rows:
            if source not in row.times:
                raise ValueError(
                    f"level {row.level} has no {source} times: use "
                    f"{' or '.join(map(repr, row.times))}, or run more levels"
                )
        none, this = (row.times[source].step for row in rows)
        return none / this - 1

    def scene(self) -> dict[str, Any]:
        """The chart as data: see `tpviz.figures.charts_halves`."""
        lines = {source: [r for r in self.rows if source in r.times] for source in self.sources}
        return {
            "title": f"{self._words} on {self.cluster.caption}, by level of sub-pipelining",
            "badges": self.badges,
            "levels": [r.level for r in self.rows],
            "sources": {
                source: {
                    "levels": [r.level for r in rows],
                    "step": [r.times[source].step for r in rows],
                    "waits": [r.times[source].waits for r in rows],
                }
                for source, rows in lines.items()
            },
            "blocks": {phase: [r.blocks[phase] for r in self.rows] for phase in PHASES},
            "expected": [r.expected for r in self.rows],
            "notes": self._notes(),
            "alt": self.describe(),
        }

    @property
    def _words(self):
        s = self.rows[0].strategy
        return f"{words_of(s)}, {s.schedule}, recompute {s.recompute}"

    def figure(self, theme: str = "light") -> "Figure":
        """Three panels as a plotly ``Figure``: step, waits, and waits of a block beside c."""
        return halves_figure(self.scene(), theme)

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: each level by each source."""
        table = [
            [
                "level",
                "source",
                "step",
                "gain",
                "waits for tp",
                "sums hidden",
                "a block forward",
                "backward",
                "expected",
            ]
        ]
        for row in self.rows:
            for source, t in row.times.items():
                gain = (
                    f"{100 * self.gain(row.level, source):+.1f} %"
                    if (self._has_none(source))
                    else ""
                )
                table.append(
                    [
                        f"{row.level}, {LEVELS[row.level]}",
                        BADGES.get(source, source),
                        show_seconds(t.step),
                        gain,
                        show_seconds(t.waits),
                        f"{100 * t.hidden:.0f} %",
                        *(f"{row.blocks[p]:.3g} c" for p in PHASES),
                        f"{row.expected:.3g} c",
                    ]
                )
        return table

    def _has_none(self, source):
        """Whether level 0 is there to compare with."""
        return any(r.level == 0 and source in r.times for r in self.rows)

    def describe(self) -> str:
        """What each level hides, in words."""
        lines = [f"{self._words} on {self.cluster.caption}."]
        for source in self.sources:
            found = [(r, r.times[source]) for r in self.rows if source in r.times]
            words = "; ".join(
                f"level {r.level} {show_seconds(t.step)}, {show_seconds(t.waits)} waiting for tp, "
                f"{100 * t.hidden:.0f} % of its sums hidden"
                for r, t in found
            )
            lines.append(f"{BADGES.get(source, source).capitalize()}: {words}.")
        blocks = "; ".join(
            f"level {r.level} {r.expected:.3g} c expected, "
            f"{r.blocks['forward']:.3g} c forward and {r.blocks['backward']:.3g} c "
            "backward found"
            for r in self.rows
        )
        return " ".join([*lines, f"A block of the first stage: {blocks}.", *self._notes()])

    def _notes(self):
        rows = self.rows[0].strategy.local(self.workload).batch
        notes = [
            f"c is a sum over tp of a whole microbatch, {show_seconds(self.one_sum)}. "
            "Expected, where kernels are as long as the sums that they hide: 2c, c and c/2 a "
            "block, c/2 a stage at level 3 (derived). Backward may wait for less at "
            "every level: here weights' gradients are computed under the sums of the input's "
            "(where the schedule does not leave them for later). Halves are smaller kernels "
            "and shorter messages, whose latency stays: a level may lose."
        ]
        notes += ["A microbatch has one row and cannot be halved: every level does the same."] * (
            rows == 1
        )
        notes += [f"Halves of {rows} rows are not equal."] * (rows > 1 and rows % 2)
        late = [str(r.level) for r in self.rows if not all(t.faithful for t in r.times.values())]
        notes += [
            f"Not faithful, events too short for this machine: level {', '.join(late)}. "
            "Slower motion helps."
        ] * bool(late)
        return [*notes, told()[0]]

    def __repr__(self):
        best = min(self.rows, key=lambda r: r.times["predicted"].step)
        return (
            f"<Halves of {self._words} on {self.cluster.caption}: level {best.level} fastest, "
            f"{show_seconds(best.times['predicted'].step)} a step, predicted>"
        )

    def _repr_html_(self):
        return html_table(self.to_table(), "class='tpviz-lab'")


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
        ``steps`` steps each.
    progress : as `tpviz.launch` takes it.

    Raises ``ValueError`` for tp=1, which sums nothing, and where sizes do not fit each other or the
    cluster.
    """
    check_workload(workload)
    check_cluster(cluster, "second")
    levels = tuple(dict.fromkeys(one_of("level", x, tuple(LEVELS)) for x in levels))
    if not levels:
        raise ValueError(f"levels is empty: give some of {', '.join(map(str, LEVELS))}")
    run, steps = whole_number("run", run, 0), whole_number("steps", steps)
    whole_number("tp", tp, 2)
    if "subpipeline" in knobs:
        raise ValueError(
            f"subpipeline={knobs['subpipeline']!r}: the lab tries several; give levels=(0, 2)"
        )
    rows = []
    for number, level in enumerate(levels):
        s = Merak(pp=pp, tp=tp, subpipeline=level, **knobs)
        row, one_sum = _row(s, workload, cluster)
        if number < run:
            row.times["measured"] = _trained(s, workload, cluster, steps, progress)
        rows.append(row)
    return Halves(workload, cluster, tuple(rows), one_sum)


def _row(s, w, cluster):
    found = clocked(s, w, cluster, predict(s, w, cluster).step_time)
    waits, under = (
        sum(by_axis(row, which).get("tp", 0.0) for row in found.segments) / s.pp
        for which in ("exposed", "hidden")
    )
    activation = payloads(s.local(w), s.tp).activation
    c = transfer(cluster, Mesh(s.axes), "tp", "all_reduce", activation).seconds
    count = len(layers_of(w.layers, s.stages)[0])
    blocks = {
        phase: _waits(found.pieces[kind, 0]) / count / c for phase, kind in zip(PHASES, ("F", "B"))
    }
    expected = {0: 2.0, 1: 1.0, 2: 0.5, 3: 0.5 / count}[s.subpipeline]
    times = Times(found.step, waits, waits + under)
    return Row(s.subpipeline, s, {"predicted": times}, blocks, expected), c


def _waits(segments):
    """Seconds that the kernels of blocks wait for tp."""
    return sum(x.exposed.get("tp", 0.0) for x in segments if x.layer.startswith("blocks"))


def _trained(s, w, cluster, steps, progress):
    from tpviz.verbs.run import run

    trace = run(s, w, cluster, steps=steps, memory=False, progress=progress)
    waits, sums = (
        sum(_seconds(trace, rank, kind) for rank in trace.ranks) / len(trace.ranks) / steps
        for kind in ("wait", "comm")
    )
    return Times(trace.step_time, waits, sums, is_faithful(trace.meta["late"]))


def _seconds(trace, rank, kind):
    found = trace.select(rank=rank, kind=kind, axis="tp")
    return length(merge(found["start"], found["end"]))
