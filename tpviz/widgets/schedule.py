"""The schedule view: a pipeline's schedule on the clock, alone or against another.

>>> view = ScheduleView("shifted_critical_path", against="1f1b", p=4, m=8)      # doctest: +SKIP
>>> view = ScheduleView(tv.Merak(pp=4), tv.GPT(), tv.clusters.laptop(4))        # doctest: +SKIP
"""

import threading
from bisect import bisect_left
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import traitlets

from tpviz.figures import schedule as figure
from tpviz.figures.assets import module, stylesheet
from tpviz.figures.schedule import check_row, schedule_svg, words_of
from tpviz.figures.schedule_faults import faults_scene
from tpviz.figures.schedule_look import look
from tpviz.schedules import schedule_errors

from .base import Film, Framed, check_names, shown
from .job import Latest
from .schedule_panels import NONE, ScheduleScene, Sizes
from .schedule_sources import source_of

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.schedules import Schedule
    from tpviz.schemes.merak.strategy import Merak
    from tpviz.trace import Trace
    from tpviz.workload import GPT


class ScheduleView(Framed):
    """Lanes of ranks over time: every action, what it waits for, what is held, the critical path.

    Parameters
    ----------
    schedule : the name of one in `SCHEDULES`; or a `Schedule` of your own, whose faults are shown
        if it cannot run; or a `tpviz.Merak`, whose stages have their own times on the cluster.
    workload, cluster : of a strategy; None is ``GPT()``, and a laptop with as many ranks.
    against : the name of a second schedule to compare with, on the same time axis, or "none".
    autoplay : start playing (never where the reader prefers reduced motion).
    sizes : p ranks, m microbatches, f, b, r, w the times of a forward, a backward, a recomputation
        and of the gradient of the weights (a part of b), latency of a message, chunks (stages on a
        rank), recompute and overlapped (bool); see `schedule_acts.Sizes`. Not with a strategy.

    ``step`` is the stop of the play-head (from 0) and ``row`` the lane that is looked at (-1:
    none); both can be set. ``error`` says why the knobs as they stand cannot be shown, or is "".
    Times are simulated. Raises ValueError on sizes that clash, with the nearest that work, above 16
    ranks; TypeError on an argument that does not exist.
    """

    picture: "ScheduleSteps"

    def __init__(
        self,
        schedule: "str | Schedule | Merak" = "shifted_critical_path",
        workload: "GPT | None" = None,
        cluster: "Cluster | None" = None,
        *,
        against: str = NONE,
        autoplay: bool = False,
        **sizes: Any,
    ):
        known = [f.name for f in fields(Sizes) if f.name not in ("schedule", "against")]
        check_names(
            "ScheduleView",
            sizes,
            ["schedule", "workload", "cluster", "against", "autoplay", *known],
        )
        self._lock, self._moved = threading.RLock(), Latest(self._redraw)
        self._trace, self.picture = None, ScheduleSteps(autoplay)
        self.source = source_of(schedule, workload, cluster, against, sizes)
        self.knobs = self.source.knobs
        self.picture.show(self.source.shown(None))
        super().__init__([self.knobs, self.picture])
        self.knobs.on_change(self._moved)

    @shown
    def _redraw(self):
        """A knob moved: the new picture, or why there is none; the last good one stays."""
        with self._lock:
            try:
                shown = self.source.shown(self._trace)
                for act in getattr(shown, "acts", ()):
                    figure.check(act.timeline.schedule)
            except ValueError as error:
                self.picture.show_error(str(error))
                return
            self.picture.show(shown)

    def measured(self, trace: "Trace | None") -> None:
        """Draw what the ranks did in a run under what is simulated; None takes it away.

        trace : what ``tv.run`` of this strategy returned. Where a knob makes it another strategy,
        the run is not drawn. Raises ``ValueError`` where the view has no strategy, or the trace is
        of another one.
        """
        if trace is not None:
            self.source.check(trace)
        self._trace = trace
        self._redraw()

    @property
    def row(self) -> int:
        """The lane that is looked at, or -1: those of the first schedule, then of the second."""
        return self.picture.row

    @row.setter
    def row(self, row: int) -> None:
        check_row(self.picture.scene, row)
        self.picture.publish(row=row)


class ScheduleSteps(Film):
    """The picture of `ScheduleView`: `show` gives it a `ScheduleScene`, or a `Schedule` with
    faults."""

    _esm = module("schedule")
    _css = stylesheet()
    row = traitlets.Int(-1).tag(sync=True)
    look = traitlets.Dict().tag(sync=True)  # of the row alone: those of all would be much

    def __init__(self, autoplay: bool = False):
        super().__init__(autoplay)
        self.shown = None

    def show(self, shown: "ScheduleScene | Schedule") -> None:
        """Draw it; the play-head stays where it is."""
        if isinstance(shown, ScheduleScene):
            scene = figure.schedule_scene(*shown)
        else:
            scene = faults_scene(shown, schedule_errors(shown))
        step = 0
        if self.step and self.step < len(self.scene["stops"]):
            step = bisect_left(scene["stops"], self.scene["stops"][self.step])
        with self._lock:
            self.shown = shown
            row = min(self.row, len(scene["rows"]) - 1)
            self.publish(
                scene=scene,
                step=min(step, len(scene["stops"]) - 1),
                row=row,
                error="",
                look=self._look_at(row),
            )

    @traitlets.observe("row")
    @shown
    def _chosen(self, change):
        """Another row was chosen, here or in the picture."""
        with self._lock:
            if self.scene and self.look.get("row") != self.row:
                check_row(self.scene, self.row)
                self.publish(look=self._look_at(self.row))

    def _look_at(self, row):
        acts = getattr(self.shown, "acts", ())
        return look(acts, row, self.shown.unit) if acts else look((), -1)  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]

    def _draw(self, step=None, row=None, **options):
        row = self.row if row is None else row
        check_row(self.scene, row)
        return schedule_svg(
            self.scene, self.step if step is None else step, self._look_at(row), **options
        )

    def to_table(self) -> list[list[str]]:
        """Rows of strings: every rank, or the lines of a schedule with faults."""
        if isinstance(self.shown, ScheduleScene):
            return figure.to_table(self.shown.acts, self.shown.unit)
        return self.shown.to_table()  # pyright: ignore[reportOptionalMemberAccess]

    def describe(self) -> str:
        """The schedules, and what is looked at, in words."""
        if not self.look["words"]:
            return f"{self.scene['badge'].capitalize()}: {self.scene['says']}"
        return (
            f"{self.scene['badge'].capitalize()}: {self.scene['says']} Shown: "
            f"{words_of(self.scene, self.step, self.look)}"
        )

    def _words(self):
        acts = getattr(self.shown, "acts", ())
        names = " against ".join(act.name for act in acts)
        title = f"{names}: {self.scene['title']}" if names else self.scene["title"]
        return f"{title}, {self.scene['captions'][self.step]}"
