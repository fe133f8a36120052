"""The best plans of a search, as they are found: a list to choose from."""

from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

import ipywidgets

from tpviz.cluster import Cluster
from tpviz.core.tables import show_apart, show_bytes
from tpviz.core.workload import GPT
from tpviz.ranks.bar import ProgressView
from tpviz.schemes.strategy import Strategy
from tpviz.verbs.ranking import Row, Search, plans, same_words
from tpviz.verbs.room import Training
from tpviz.verbs.search import search
from tpviz.verbs.why import left_out
from tpviz.views.plans.fields import small_html

from .base import shown
from .job import Job, Working

MOST = 8
HELP = (
    "The fastest plans by predicted step that fit in memory; x 2 and so on: strategies that differ "
    "only in knobs without effect. Click one to set the knobs."
)


class PlansAsked(NamedTuple):
    """What plans are searched for."""

    workload: GPT
    cluster: Cluster
    world_size: int
    training: Training | None = None


class PlansPane(Working, ipywidgets.VBox):
    """A button that searches in a worker thread, and the plans found so far.

    take : called with the strategy that was clicked. show_error : as of the view around it. add :
    called with the rows that are listed.
    ``rows`` : the `Row`s listed, one for each plan; ``found`` : the `Search` that they are of, None
    before one.
    """

    def __init__(
        self,
        take: Callable[[Strategy], Any],
        show_error: Callable[[Any], Any],
        add: Callable[[list[Row]], Any],
    ):
        self._take, self.show_error, self._add = take, show_error, add
        self.rows: list[Row] = []
        self.found: Search | None = None
        self._for: PlansAsked | None = None
        self._filling = False
        self.search_button = ipywidgets.Button(
            description="Search the best plans",
            icon="search",
            tooltip="rank all strategies for this model on these GPUs, by formula",
            layout={"width": "190px"},
        )
        self.stop_button = ipywidgets.Button(description="Stop", icon="stop", disabled=True)
        self.bar = ipywidgets.IntProgress(value=0, max=1, layout={"width": "160px"})
        self.status = ipywidgets.HTML()
        self.list = ipywidgets.Select(options=[], rows=MOST, layout={"width": "auto"})
        self.list.add_class("tpviz-plans")
        self.box = ipywidgets.VBox(
            [ipywidgets.HTML(small_html(HELP)), self.list], layout={"display": "none"}
        )
        buttons = ipywidgets.HBox([self.search_button, self.stop_button, self.bar])
        super().__init__([buttons, self.status, self.box])
        self.stop_button.on_click(lambda button: self.stop())
        self.list.observe(lambda change: self._clicked(), "index")

    def start(self, asked: PlansAsked) -> None:
        """Search; nothing where a search goes on."""
        if self._job and self._job.running:
            return
        self._for, self.found = asked, None
        self._show([])
        self.stop_button.disabled, self.search_button.disabled = False, True
        stream = _Stream(self)

        def work():
            return search(
                asked.workload,
                asked.cluster,
                simulate=False,
                world_size=asked.world_size,
                training=asked.training,
                seconds=None,
                progress=stream,
            )

        self._job = Job(work, self._ended)

    def look(self, asked: PlansAsked) -> None:
        """What is in view now: a search for something else ends, and its plans are cleared."""
        if self._for not in (None, asked):
            self._for = None
            self.stop()
            self.found = None
            self._show([])
            self._say("The model, its states or the GPUs changed: search again.")

    @shown
    def _ended(self, result, error, stopped):
        self.stop_button.disabled, self.search_button.disabled = True, False
        if error is None:
            self.bar.value = self.bar.max
            self.take_found(result)
            ranked = f"{len(result.rows):,} strategies ranked."
            self._say(" ".join([ranked, *left_out(result)]))
        elif not stopped:
            self._say(str(error))
        elif self._for is not None:
            self._say("Stopped: these are the best found until then.")

    def take_found(self, result: Search) -> None:
        """List the first plans of a `Search`."""
        if self._for and (result.workload, result.cluster) == self._for[:2]:
            self.found = result
            self._show(list(islice(plans(result.rows), MOST)))

    def told(self, done: int, total: int, text: str) -> None:
        """How far the search is."""
        self.bar.max, self.bar.value = max(total, 1), done
        self._say(f"{done:,} of {total:,} {text}")

    def _show(self, found):
        """List plans, each a list of rows that are the same."""
        self.rows = [plan[0] for plan in found]
        labels = [" | ".join(filter(None, row)) for row in self.to_table(found)[1:]]
        self._filling = True
        try:
            self.list.options = labels
            self.list.index = None
        finally:
            self._filling = False
        self.box.layout.display = "" if labels else "none"
        self._add(self.rows)

    def to_table(self, found: list[list[Row]] | None = None) -> list[list[str]]:
        """Rows of strings, header first: of plans, or of those listed."""
        found = [[row] for row in self.rows] if found is None else found
        times = show_apart(plan[0].step_time for plan in found)
        return [["step", "MFU", "memory of a GPU", "strategy", "same plan"]] + [
            [
                time,
                f"MFU {100 * plan[0].prediction.mfu:.1f} %",
                f"{show_bytes(plan[0].prediction.memory().total)} a GPU",
                plan[0].strategy.short,
                same_words(plan),
            ]
            for time, plan in zip(times, found)
        ]

    def _say(self, text):
        self.status.value = f"<div aria-live='polite'>{small_html(text)}</div>"

    @shown
    def _clicked(self):
        index = self.list.index
        if not self._filling and index is not None:
            self._take(self.rows[index].strategy)


class _Stream(ProgressView):
    """What a search tells, shown in a pane."""

    def __init__(self, pane: PlansPane):
        self._pane = pane

    def __call__(self, done: int, total: int, text: str) -> None:
        self._pane.told(done, total, text)

    def found(self, result: Search) -> None:
        self._pane.take_found(result)
