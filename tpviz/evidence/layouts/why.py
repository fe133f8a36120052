"""``Why``: where the predicted step of a layout goes, and what it leaves out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tpviz.core.charts import axis, bar, panel, unit_of
from tpviz.core.inks import axis_keys
from tpviz.core.tables import show_seconds
from tpviz.evidence.published import scoreboard as score
from tpviz.evidence.published.scoreboard import ScorePoint
from tpviz.evidence.report import Report
from tpviz.verbs.predict import predict

from .group import FASTEST, SEARCH, YOU, Layouts

EXPOSED = "exposed on "
WAITS = ("bandwidth wait", "latency wait")
"""Parts of a prediction that are exposed communication."""
PATTERNS = {"tp": "|", "pp": "/", "dp": "\\"}


def parts(point: ScorePoint) -> dict[str, float]:
    """{part: seconds} of a predicted step: compute, the exposed communication of each axis, and the
    pipeline's bubble."""
    plan = point.plan
    step = predict(plan.strategy, plan.workload, plan.cluster)
    exposed = {EXPOSED + axis: seconds for axis, seconds in step.exposed.items()}
    rest = {name: s for name, s in step.parts.items() if name not in WAITS}
    return {"compute": rest.pop("compute"), **exposed, **rest}


@dataclass(frozen=True, eq=False, repr=False)
class Why(Report):
    """The parts of predicted steps beside the measured ones.

    The residual of a layout is its measured step less the predicted one. A published row has no
    trace, so the residual has no parts; `scoreboard.guess` says what it may be.
    """

    group: Layouts
    you: tuple[ScorePoint, ...] = ()
    badges = ("predicted", "measured by others")

    @property
    def picks(self) -> dict[str, ScorePoint]:
        """{who picks: the layout}."""
        found = self.group.picks(self.you)
        return {who: found[who][0] for who in (FASTEST, SEARCH, YOU) if who in found}

    def residual(self, point: ScorePoint) -> float:
        """Seconds measured that are not predicted; below 0 where too much is."""
        return point.measured - sum(parts(point).values())

    def panel(self) -> dict[str, Any]:
        """Stacks of predicted parts beside measured steps."""
        picks = self.picks
        split = {who: parts(point) for who, point in picks.items()}
        unit, scale = unit_of([t for p in picks.values() for t in (p.measured, p.predicted)])
        names = dict.fromkeys(name for one in split.values() for name in one)
        keys = axis_keys([name.removeprefix(EXPOSED) for name in names if name.startswith(EXPOSED)])
        places = [f"{who}: {what}" for who in picks for what in ("predicted", "measured")]
        traces = []
        for name in names:
            pairs = ((one.get(name, 0.0) / scale, 0.0) for one in split.values())
            axis_name = name.removeprefix(EXPOSED)
            ink, shape = {"compute": ("other", ""), "bubble": ("wait", "x")}.get(
                name, (keys.get(axis_name, "sync"), PATTERNS.get(axis_name, "."))
            )
            heights = [height for pair in pairs for height in pair]
            if any(heights):
                waits = name.startswith(EXPOSED)
                traces.append(bar(name, places, heights, ink, shape, waits))
        heights = [h for p in picks.values() for h in (0.0, p.measured / scale)]
        traces.append(bar("measured", places, heights, "forward", ""))
        return panel(f"where the step goes ({unit})", traces, axis())

    def drawing(self) -> dict[str, Any]:
        """The stacks."""
        return {"title": self.group.title, "panels": [self.panel()], "stack": True}

    def words(self) -> list[str]:
        """Each pick's parts and residual, and in which part the pick seems to win."""
        found = []
        for who, point in self.picks.items():
            split = parts(point)
            total = sum(split.values())
            shares = ", ".join(f"{name} {100 * s / total:.0f} %" for name, s in split.items() if s)
            facts = {"off": self.residual(point) / point.measured, "guess": score.guess(point)}
            found.append(self.say("why", who=who, p=point, total=total, shares=shares, **facts))
        return [*found, self.preference]

    @property
    def preference(self) -> str:
        """Why the search prefers its pick to the fastest layout, in one sentence."""
        best, pick = self.group.fastest, self.picks[SEARCH]
        if pick.plan.strategy == best.plan.strategy:
            return "tv.search picks the fastest measured layout."
        ours, theirs = parts(pick), parts(best)
        gains = {name: theirs.get(name, 0.0) - ours.get(name, 0.0) for name in (*theirs, *ours)}
        name = max(gains, key=gains.__getitem__)
        facts = {"less": sum(gains.values()), "gain": gains[name], "name": name}
        return self.say("preference", slower=pick.measured - best.measured, **facts)

    def notes(self) -> list[str]:
        """What a residual here is."""
        return [self.say("residual")]

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: parts in rows, picks in columns."""
        picks, split = self.picks, {who: parts(point) for who, point in self.picks.items()}
        names = dict.fromkeys(name for one in split.values() for name in one)
        rows = [["part", *picks], ["layout", *(p.row.layout for p in picks.values())]]
        rows += [
            [name, *(show_seconds(one.get(name, 0.0)) for one in split.values())] for name in names
        ]
        told: Sequence[tuple[str, Any]] = (
            ("predicted", lambda p: show_seconds(sum(parts(p).values()))),
            ("measured", lambda p: show_seconds(p.measured)),
            ("residual", lambda p: show_seconds(self.residual(p))),
        )
        return rows + [[name, *(say(p) for p in picks.values())] for name, say in told]

    def __repr__(self):
        return f"<Why {self.describe()}>"


def why(group: Layouts, you: Sequence[ScorePoint] = ()) -> Why:
    """The `Why` of a group's fastest layout, of the search's pick, and of yours: points of it."""
    return Why(group, tuple(you))
