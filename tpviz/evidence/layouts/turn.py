"""``Turn``: a learner's layout, first without any measurement, then judged."""

from dataclasses import dataclass
from typing import Any

from tpviz.core.charts import axis, bar, panel
from tpviz.core.inks import MEMORY_KINDS
from tpviz.core.tables import show_bytes, show_seconds
from tpviz.evidence.published.adapter import memory
from tpviz.evidence.published.scoreboard import ScorePoint
from tpviz.evidence.report import Report

from .group import Layouts
from .why import PATTERNS, why

KINDS = dict(zip(MEMORY_KINDS, ("", "\\", ".", "-")))
"""Kind of memory -> its bar's pattern."""
INKS = {"tp": "axis0", "dp": "axis1", "pp": "axis2"}
GIGA = 1e9


@dataclass(frozen=True, eq=False, repr=False)
class Turn(Report):
    """One layout of a group: ``points``, its runs. covered : no time is shown, only what follows
    from the layout's sizes: the memory of a GPU, and the bytes that it sends."""

    group: Layouts
    points: tuple[ScorePoint, ...]
    covered: bool = False

    @property
    def badges(self) -> tuple[str, ...]:
        """Sources of the numbers."""
        return ("derived",) if self.covered else self.group.badges

    @property
    def layout(self) -> str:
        """The layout in short."""
        return self.points[0].row.layout.replace("mbs", "micro batch")

    def memory(self) -> dict[str, float]:
        """{kind: bytes} of a GPU, by formula."""
        return dict(memory(self.points[0].plan, self.points[0].row))

    def sent(self) -> dict[str, float]:
        """{axis: bytes that a GPU sends in a step}, by formula; each axis that sends any."""
        plan, found = self.points[0].plan, {}
        for row in plan.strategy.ledger(plan.workload):
            name = row.axis if row.axis in INKS else "pp"
            found[name] = found.get(name, 0.0) + row.wire_bytes
        return {name: size for name, size in found.items() if size}

    def drawing(self) -> dict[str, Any]:
        """Covered: memory and bytes. Else all layouts with this one marked, and parts of steps."""
        if not self.covered:
            picks = self.group.picks(self.points)
            panels = [self.group.scatter(picks), why(self.group, self.points).panel()]
            return {"title": f"{self.layout}: {self.verdict}", "panels": panels, "stack": True}
        place, device = ["a GPU"], self.points[0].plan.cluster.device
        bars = [
            bar(kind, place, [size / GIGA], MEMORY_KINDS[kind], KINDS[kind])
            for kind, size in self.memory().items()
        ]
        room = {"y": device.memory / GIGA, "dash": "dash", "text": show_bytes(device.memory)}
        panels = [panel("memory (GB)", bars, axis(), rules=[room])]
        sent = self.sent()
        sends = [
            bar(f"sent on {name}", [name], [size / GIGA], INKS[name], PATTERNS[name])
            for name, size in sent.items()
        ]
        if sends:
            panels.append(panel("a GPU sends in a step (GB)", sends, axis()))
        return {"title": self.layout, "panels": panels, "stack": True}

    @property
    def verdict(self) -> str:
        """The measured step, its place and its regret."""
        own, group = self.points, self.group
        step = sum(p.measured for p in own) / len(own)
        regret = group.regret(own)
        slower = f"{100 * regret:.1f} % slower than the fastest" if regret else "the fastest"
        return f"{show_seconds(step)}, place {group.place(own)} of {len(group.points)}, {slower}"

    @property
    def sizes(self) -> str:
        """Microbatches, stages and memory, in a sentence."""
        row, needs = self.points[0].row, sum(self.memory().values())
        stages = f", to fill a pipeline of {row.pp} stages" if row.pp > 1 else ""
        return self.say("sizes", count=round(row.microbatches), stages=stages, needs=needs)

    def words(self) -> list[str]:
        """The layout, and what is known of it."""
        model = self.group.points[0].row.model
        found = [f"{self.layout} for {model}."]
        found += [f"It sends {show_bytes(size)} on {name}." for name, size in self.sent().items()]
        if not self.covered:
            found += [self.sizes, f"Measured: {self.verdict}."]
            found += why(self.group, self.points).words()
        return found

    def notes(self) -> list[str]:
        """Covered: sizes, and what to do. Else the group's notes."""
        if self.covered:
            return [f"{self.group.title}. {self.sizes}", self.say("covered")]
        return self.group.notes()

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: the group's; covered, memory and bytes sent."""
        if not self.covered:
            return self.group.to_table(self.points)
        rows = [[kind, show_bytes(size)] for kind, size in self.memory().items()]
        rows += [[f"sent on {name}", show_bytes(size)] for name, size in self.sent().items()]
        return [["of a GPU", "bytes"], *rows]

    def __repr__(self):
        return f"<Turn {self.layout}: {'covered' if self.covered else self.verdict}>"
