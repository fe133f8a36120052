"""The timeline as a widget: play, zoom, hover and step through the events of a trace.

>>> view = Timeline(tv.run(tv.Megatron(tp=4), tv.GPT()))      # doctest: +SKIP
"""

import traitlets

from tpviz.checks import one_of
from tpviz.figures import timeline as figure
from tpviz.figures.assets import module, stylesheet
from tpviz.figures.timeline_svg import timeline_svg

from .base import View, check_names


class Timeline(View):
    """Lanes of every rank over time, with memory of the selected rank underneath.

    Parameters
    ----------
    trace : Trace, or None for an empty view to be filled with `show`.
    critical : outline the critical path.
    autoplay : start with the play-head moving (never where the reader prefers reduced motion).

    ``selected`` is the id of the event chosen, -1 for none; ``rank`` the rank chosen. Raises
    ValueError on a trace without events, TypeError on an argument that does not exist.
    """

    _esm = module("timeline")
    _css = stylesheet()
    selected = traitlets.Int(-1).tag(sync=True)
    autoplay = traitlets.Bool(False).tag(sync=True)

    def __init__(self, trace=None, *, critical=False, autoplay=False, **unknown):
        check_names("Timeline", unknown, ["trace", "critical", "autoplay"])
        super().__init__()
        self._critical = one_of("critical", critical, (True, False))
        self.autoplay = one_of("autoplay", autoplay, (True, False))
        if trace is not None:
            self.show(trace)

    def show(self, trace):
        """Draw another trace."""
        scene = figure.timeline_scene(trace, self._critical)
        rank = self.rank if self.rank in scene["ranks"] else scene["ranks"][0]
        self.publish(scene=scene, rank=rank, selected=-1, error="")

    def _draw(self, **options):
        if not self.scene:
            return ""
        rank = (
            self.rank if self.rank in self.scene["ranks"] else None
        )  # a linked mesh may have more ranks
        return timeline_svg(self.scene, **{"rank": rank, **options})

    def to_table(self):
        """Rows of strings: count and time per rank, lane and kind of event."""
        return (
            figure.to_table(self.scene)
            if self.scene
            else [["rank", "lane", "what", "count", "time", "bytes"]]
        )

    def describe(self):
        """The timeline in words."""
        return figure.describe(self.scene) if self.scene else "Timeline without a trace."

    def _words(self):
        if not self.scene:
            return "empty"
        return f"{len(self.scene['ranks'])} ranks, {len(self.scene['bars']['id'])} events"
