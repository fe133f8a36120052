"""The timeline as a widget: play, zoom, hover and step through the events of a trace.

>>> view = Timeline(tv.run(tv.Megatron(tp=4), tv.GPT()))      # doctest: +SKIP
"""

from os import PathLike

import traitlets

from tpviz.core.checks import one_of
from tpviz.core.trace import Trace
from tpviz.files.load import load_trace
from tpviz.views.figures import timeline as figure

from .base import View, named, shown
from .dropped import Dropped

AROUND = 0.25  # of the window on either side, so that little steps need no more detail


class Timeline(View):
    """A lane of every rank over time; below, where the step went, or the memory of a rank.

    Parameters
    ----------
    trace : Trace, or the path of what `tpviz.load_trace` reads: a file of ours, a Chrome or Kineto
        trace, a folder of ranks; None for an empty view to be filled with `show`. Such files can
        be dropped onto the view too.
    critical : outline the critical path.
    autoplay : start with the play-head moving (never where the reader prefers reduced motion).

    Of several steps the median one is shown at first. Of a trace of many events the shortest are
    merged; the ``detail`` of the ``window`` (s) zoomed to is sent on request. ``selected`` is the
    id of the event chosen, -1 for none; ``rank`` the rank chosen. ``to_svg(axes=True)`` has a lane
    for each axis and stream. Raises ValueError on a trace without events, what `tpviz.load_trace`
    does, TypeError on an argument that does not exist.
    """

    kind = "timeline"
    selected = traitlets.Int(-1).tag(sync=True)
    autoplay = traitlets.Bool(False).tag(sync=True)
    window = traitlets.List(traitlets.Float()).tag(sync=True)
    detail = traitlets.Dict().tag(sync=True)

    @named()
    def __init__(
        self,
        trace: Trace | str | PathLike[str] | None = None,
        *,
        critical: bool = False,
        autoplay: bool = False,
    ):
        super().__init__()
        self._critical, self._bars = one_of("critical", critical, (True, False)), None
        self.observe(self._zoomed, "window")
        self.autoplay = one_of("autoplay", autoplay, (True, False))
        self._dropped = Dropped(self.send, self.show)
        self.on_msg(self._heard)
        if trace is not None:
            self.show(trace)

    @shown
    def _heard(self, _, message, buffers):
        self._dropped.hear(message, buffers)

    def show(self, trace: Trace | str | PathLike[str]) -> None:
        """Draw another trace, or that of a path."""
        if isinstance(trace, (str, PathLike)):
            trace = load_trace(trace)
        scene, bars = figure.timeline_levels(trace, self._critical)
        rank = self.rank if self.rank in scene["ranks"] else scene["ranks"][0]
        with self._lock:
            self._bars = bars if "cut" in scene else None
            self.publish(scene=scene, rank=rank, selected=-1, error="", window=[], detail={})

    @shown
    def _zoomed(self, change):
        """Send the detail of the window that the reader zoomed to, and of some time around it."""
        bars, window = self._bars, change["new"]
        if bars is None or len(window) != 2:
            return
        low, high = window
        detail = bars.level(low - AROUND * (high - low), high + AROUND * (high - low))
        with self._lock:
            if self._bars is bars and self.window == window:  # else the reader has moved on
                self.publish(detail=detail)

    def _draw(self, **options):
        scene, bars = self.scene, self._bars
        rank = self.rank if self.rank in scene["ranks"] else None  # a linked mesh may have more
        if bars is not None and options.get("window"):
            window = figure.check_window(options["window"])  # pyright: ignore[reportArgumentType]
            scene = {**scene, "detail": bars.level(*window)}  # pyright: ignore[reportArgumentType]
        return figure.timeline_svg(scene, **{"rank": rank, **options})

    def to_table(self) -> list[list[str]]:
        """Rows of strings: count and time per rank, lane and kind of event."""
        return figure.to_table(self.scene) if self.scene else [[*figure.HEADER]]

    def describe(self) -> str:
        """The timeline in words."""
        return figure.describe(self.scene) if self.scene else "Timeline without a trace."

    def _words(self):
        return f"{len(self.scene['ranks'])} ranks, {self.scene['events']} events"
