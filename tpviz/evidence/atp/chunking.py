"""``chunk_curve``: exposed communication and step time against the number of chunks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from tpviz.cluster import Cluster
from tpviz.cluster.clock.fast import Clock
from tpviz.core.charts import FROM_ZERO, LINES, axis, curves, label, unit_of, words_of
from tpviz.core.checks import one_of, whole_number
from tpviz.core.mesh import Mesh
from tpviz.core.tables import show_seconds, table
from tpviz.core.workload import GPT
from tpviz.evidence.report import listed, too_late, whole_numbers
from tpviz.evidence.study import Outcome, Study, ask
from tpviz.schemes.atp.chunks import check_kappa, slowdown
from tpviz.schemes.atp.strategy import ATP
from tpviz.verbs.predict import predict
from tpviz.verbs.slow_motion import in_slow_motion

SHOWN = ("exposed communication", "time of a step, truncated axis")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ChunkCurve(Study):
    """The curve of one mesh on one cluster: a `Study` whose labels are counts of chunks, with one
    source more, "with contention". left_out : {count: why it is not possible}."""

    strategy: ATP
    kappa: float = 1.0

    @property
    def counts(self) -> tuple[int, ...]:
        """Those that are possible."""
        return tuple(row.label for row in self.rows)

    @property
    def badges(self) -> list[str]:
        """Sources of the numbers."""
        return [badge for badge in super().badges if badge != "with contention"]

    @property
    def _name(self):
        """The strategy with its mesh and order, also where they are the default."""
        mesh, order = self.strategy.mesh, self.strategy.order
        return f"ATP(mesh={mesh}, order={order!r})"

    def drawing(self) -> dict[str, Any]:
        """The U-curve: a panel for each of SHOWN, a line for each source."""
        unit = unit_of([one.step for times in self.times.values() for one in times.values()])
        panels = []
        for column, title in enumerate(SHOWN):
            times = {
                source: {count: _median(one)[1 - column] for count, one in curve.items()}
                for source, curve in self.times.items()
            }
            ran = {s: one for s, one in self.times.items() if s == "measured"}
            spread = {s: _spread(one, 1 - column, unit[1]) for s, one in ran.items()}
            x = axis("chunks", self.counts)
            panels.append(curves(title, times, unit, spread=spread, x=x))
        panels[0]["y"] = FROM_ZERO
        panels[1]["marks"] = [
            label(
                f"{words_of(source)}: best {best}",
                best,
                times[source][best] / unit[1],
                LINES[source][0],
            )
            for source in times
            for best in [self.best(source)]
        ]
        (d1, d2), order = self.strategy.mesh, self.strategy.order
        title = f"Chunks of ATP, {d1} x {d2} mesh in {order} order, on {self.cluster.caption}"
        return {"title": title, "panels": panels}

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first; counts that are not possible have the reason."""
        columns = [("chunks", lambda row: str(row.label))]
        for source, (number, what) in product(self.sources, enumerate(("step", "exposed"))):
            cell = lambda row, s=source, n=number: show_seconds(_median(row.times[s])[n])
            columns.append((f"{source}, {what}", cell))
        rest = [""] * (len(columns) - 2)
        rows = table(columns, ((row,) for row in self.rows))
        return rows + [[str(count), why, *rest] for count, why in self.left_out.items()]

    def words(self) -> list[str]:
        """The curve in words."""
        lines = [f"{self._name} on {self.cluster.caption}, chunking={self.strategy.chunking!r}."]
        for source, times in self.times.items():
            best = self.best(source)
            facts = {
                "source": source.capitalize(),
                "plural": "s" * (best > 1),
                "counts": ", ".join(map(str, self.counts)),
                "at": _median(times[best]),
                "first": _median(times[self.counts[0]]),
            }
            lines.append(self.say("curve", best=best, **facts))
        return lines

    def notes(self) -> list[str]:
        """Omissions, the content of each source, and warnings."""
        notes = [f"Left out: {count} chunks ({reason})." for count, reason in self.left_out.items()]
        if "with contention" in self.sources:
            notes.append(self.say("with contention"))
        if {"simulated", "measured"} & {*self.sources}:
            notes.append(self.say("no contention"))
        if "measured" in self.sources:
            steps = len(self.rows[0].times["measured"].repeats)
            many = f"median of {steps} steps, bars from the least to the most."
            what = many if steps > 1 else "one step."
            notes.append(f"Measured on the emulated cluster: {what}")
        return notes + too_late(self.late(), noun=" chunks")

    def __repr__(self):
        best = ", ".join(f"{source} best {self.best(source)}" for source in self.sources)
        return f"<ChunkCurve {self._name} on {self.cluster.caption}: {best}>"


def _median(one):
    """(step, exposed communication), of what was measured the medians of its steps."""
    return tuple(np.median(one.repeats, axis=0).tolist()) if one.repeats else (one.step, one.waits)


def _spread(times, number, scale):
    """Bars from the least to the most of the repeats."""
    up, down = [], []
    for one in times.values():
        middle, repeats = _median(one)[number], [repeat[number] for repeat in one.repeats]
        up.append((max(repeats) - middle) / scale)
        down.append((middle - min(repeats)) / scale)
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down}


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
    run : True also trains on real ranks that are paced to the cluster: ``repeats`` steps. It is in
        faithful slow motion then, unless it is in another.
    progress : as `tpviz.launch` takes it. knobs : the other knobs of `ATP`.

    Raises ``ValueError`` where the mesh does not fit the workload or the cluster, and where no
    count is left.
    """
    kappa, repeats = check_kappa(kappa), whole_number("repeats", repeats)
    simulate, run = (one_of(n, v, (True, False)) for n, v in (("simulate", simulate), ("run", run)))
    plain = ATP(mesh=mesh, order=order, chunking=chunking, **knobs)
    predict(plain, workload, cluster)  # what is wrong without chunks is no reason to leave one out
    chosen, left_out = _split(plain, workload, counts)
    if run:
        cluster = in_slow_motion(chosen.values(), workload, cluster)
    sources = ["predicted"] + ["simulated"] * simulate + ["measured"] * run
    rows = ask(chosen, workload, cluster, sources, steps=repeats, progress=progress)
    if kappa > 1:
        rows = tuple(_slowed(row, workload, cluster, kappa) for row in rows)
    return ChunkCurve(workload, cluster, rows, left_out, strategy=plain, kappa=kappa)


def _split(plain, workload, counts):
    """({count: strategy that is possible}, {count: why another is not})."""
    counts, chosen, left_out = listed("counts", counts, "chunks", (1, 2, 4, 8)), {}, {}
    for count in whole_numbers("count of chunks", counts):
        try:
            chosen[count] = replace(plain, chunks=count)
            chosen[count].check(workload)
        except ValueError as error:
            chosen.pop(count, None)
            left_out[count] = str(error)
    if not chosen:
        reasons = "; ".join(left_out.values())
        raise ValueError(f"no count of chunks is left of counts={counts}: {reasons}")
    return chosen, left_out


def _slowed(row, workload, cluster, kappa):
    """The row with one more source: the prediction with what contention adds to it."""
    clock = Clock.of(cluster, Mesh(row.strategy.axes), workload.dtype)
    plain = row.times["predicted"]
    more = slowdown(row.strategy, workload, clock.seconds, clock.moved, kappa)
    slow = Outcome(plain.step + more, {**plain.exposed, "contention": more})
    first = {"predicted": plain, "with contention": slow}
    return replace(row, times={**first, **row.times})
