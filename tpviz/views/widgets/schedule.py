"""The schedule view: a pipeline's simulated schedule, alone or against another.

>>> view = ScheduleView("shifted_critical_path", against="1f1b", p=4, m=8)      # doctest: +SKIP
>>> view = ScheduleView(tv.Merak(pp=4), tv.GPT(), tv.clusters.laptop(4))        # doctest: +SKIP
"""

from bisect import bisect_left
from dataclasses import fields
from typing import Any

import traitlets

from tpviz.cluster import Cluster
from tpviz.core.schedules import Schedule, schedule_errors
from tpviz.core.trace import Trace
from tpviz.core.workload import GPT
from tpviz.schemes.merak.strategy import Merak
from tpviz.views.figures import schedule as figure
from tpviz.views.figures.schedule_words import compared

from .base import Detailed, Framed, named
from .schedule_sources import NONE, ScheduleScene, ScheduleSizes, source_of


class ScheduleView(Framed):
    """Lanes of ranks over time: actions, their dependencies, activations held, the critical path.

    Parameters
    ----------
    schedule : the name of one in `SCHEDULES`; or a `Schedule` of your own, whose faults are shown
        if it cannot run; or a `tpviz.Merak`, whose stages have their own times on the cluster.
    workload, cluster : of a strategy; None is ``GPT()``, and a laptop with as many ranks.
    against : the name of a second schedule to compare with, on the same time axis, or "none".
    autoplay : start playing (never where the reader prefers reduced motion).
    sizes : p ranks, m microbatches, f, b, r, w the times of a forward, a backward, a recomputation
        and of the gradient of the weights (a part of b), latency of a message, chunks (stages on a
        rank), recompute and overlapped (bool); see `schedule_sources.Sizes`. Not with a strategy.

    Its static picture may have ``bubble=True``, each rank's idle time as one block, and
    ``critical=True``, the critical path: ``to_svg(bubble=True)``.

    ``step`` is the stop of the play-head (from 0) and ``row`` the selected lane (-1:
    none); both can be set. ``error`` says why the current knobs cannot be shown, or is "". Times
    are simulated. Raises ValueError on sizes that clash, with the nearest that work, above 16
    ranks; TypeError on an argument that does not exist.
    """

    picture: "ScheduleSteps"

    @named(*(f.name for f in fields(ScheduleSizes)))
    def __init__(
        self,
        schedule: str | Schedule | Merak = "shifted_critical_path",
        workload: GPT | None = None,
        cluster: Cluster | None = None,
        *,
        against: str = NONE,
        autoplay: bool = False,
        **sizes: Any,
    ):
        self._trace, picture = None, ScheduleSteps(autoplay)
        self.source = source_of(schedule, workload, cluster, against, sizes)
        picture.show(self.source.shown(None))
        super().__init__(self.source.knobs, picture)

    def _read(self):
        shown = self.source.shown(self._trace)
        for panel in getattr(shown, "panels", ()):
            figure.check(panel.timeline.schedule)
        return (shown,)

    def _made_with(self):
        return self.source.given()

    def measured(self, trace: Trace | None) -> None:
        """Draw a measured run under the simulated schedule; None takes it away.

        trace : the result of ``tv.run`` of this strategy. Where a knob makes it another strategy,
        the run is not drawn. Raises ``ValueError`` where the view has no strategy, or the trace is
        of another one.
        """
        if trace is not None:
            self.source.check(trace)
        self._trace = trace
        self._redraw()

    @property
    def row(self) -> int:
        """The selected lane, or -1: those of the first schedule, then of the second."""
        return self.picture.row

    @row.setter
    def row(self, row: int) -> None:
        self.picture.select(row)


def scene_of(shown: ScheduleScene | Schedule) -> dict[str, Any]:
    """The scene of what is shown; of a schedule with faults these."""
    if isinstance(shown, ScheduleScene):
        return figure.schedule_scene(*shown)
    return figure.faults_scene(shown, schedule_errors(shown))


class ScheduleSteps(Detailed):
    """The picture of `ScheduleView`: `show` gives it a `ScheduleScene`, or a `Schedule` with
    faults."""

    kind, _svg, _part = "schedule", staticmethod(figure.schedule_svg), "row"
    _scene_of = staticmethod(scene_of)
    row = traitlets.Int(-1).tag(sync=True)

    def _step_in(self, scene):
        """The stop at the same place, where the play-head was moved."""
        if not self.scene or self.scene.get("opens") == self.step:
            return super()._step_in(scene)
        at = bisect_left(scene["stops"], self.scene["stops"][self.step])
        return min(at, len(scene["stops"]) - 1)

    def _count(self, scene):
        return len(scene["rows"])

    @property
    def _panels(self):
        return getattr(self.subject, "panels", ())

    def _detail_of(self, number):
        return figure.schedule_detail(self._panels, number, getattr(self.subject, "unit", ""))

    def to_table(self) -> list[list[str]]:
        """Rows of strings: every rank, or the lines of a schedule with faults."""
        if self._panels:
            return figure.to_table(self._panels, self.subject.unit)
        return self.subject.to_table()

    def _told(self):
        panels, said = self._panels, [self.scene["finding"], *self.scene.get("words", ())]
        said = " ".join(compared(panels, self.subject.unit)) if panels else "\n".join(said)
        return f"{self.scene['badge'].capitalize()}: {said}"

    def _said(self):
        return figure.words_of(self.scene, self.step, self.detail) if self.detail["words"] else ""

    def _words(self):
        names = " against ".join(panel.name for panel in self._panels)
        title = self.scene.get("about") or self.scene["title"]
        title = f"{names}: {title}" if names else title
        return f"{title}, {self.scene['captions'][self.step]}"
