"""The controls and panes of ``explore``, and where they stand."""

import threading
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import ipywidgets

from tpviz.cluster import Cluster
from tpviz.core.mesh import Mesh
from tpviz.views.figures.cluster import cluster_scene, cluster_svg
from tpviz.views.figures.svg import scrolled
from tpviz.views.plans.fields import gave_words

from .guessing import GuessPane
from .knobs import WIDE, WRAPPED, Knobs
from .mesh import MeshView
from .model import ModelPane
from .pins import PinsPane
from .results import ResultsPane
from .setting import Setting
from .still import Still

STEPS = 3


class Panel(Still, ipywidgets.VBox):
    """Controls on the left, model and mesh on the right; results below.

    names: the strategies of the menu; cluster: the one chosen at first, or None; lock: of the view.
    ``error`` is the message shown, or "".
    """

    def __init__(self, names: Sequence[str], cluster: Cluster | None, lock: threading.RLock):
        self.menu = ipywidgets.Dropdown(options=names, description="strategy", style=WIDE)
        self.knobs_box, self.gave = ipywidgets.VBox(), ipywidgets.HTML()
        self.setting, self.guesses = Setting(cluster), GuessPane(lock)
        self.steps = ipywidgets.IntSlider(STEPS, min=1, max=20, description="steps", style=WIDE)
        self.run_button = ipywidgets.Button(
            description="Run", button_style="primary", icon="play", tooltip="run on real ranks"
        )
        self.stop_button = ipywidgets.Button(
            description="Stop", icon="stop", disabled=True, tooltip="end the ranks of this run"
        )
        self.bar = ipywidgets.IntProgress(value=0, max=1, layout={"width": "160px"})
        self.status, self.message, self.facts = (ipywidgets.HTML() for _ in range(3))
        self.model, self.results, self.mesh = ModelPane(), ResultsPane(), MeshView()
        self.pins = PinsPane(self.step_of)
        self.timeline, self.ledger = self.results.timeline, self.results.ledger
        self.losses = self.results.losses
        self.axis = ipywidgets.ToggleButtons(style={"button_width": "64px"})
        self.cluster_picture = ipywidgets.HTML()
        traffic = ipywidgets.HBox([ipywidgets.Label("traffic of axis"), self.axis])
        self.cluster_box = ipywidgets.VBox([traffic, self.cluster_picture])
        ipywidgets.jslink((self.mesh, "rank"), (self.timeline, "rank"))
        self.error = ""
        super().__init__(self._rows())

    def _rows(self):
        """What is chosen on the left; on the right what is predicted, the guess and the run."""
        buttons = ipywidgets.HBox([self.run_button, self.stop_button, self.bar])
        half = {"flex": "1 1 440px", "min_width": "400px"}
        chosen = [self.menu, self.knobs_box, self.gave, self.message, self.setting, self.steps]
        shown = [self.model, self.mesh, self.pins, self.guesses, buttons, self.status]
        sides = [ipywidgets.VBox(side, layout=half) for side in (chosen, shown)]
        # One above the other, the picture comes first: below so many knobs it is out of sight.
        beside = ipywidgets.Box(sides, layout={**WRAPPED, "flex_flow": "row wrap-reverse"})
        return [self.facts, beside, self.cluster_box, self.results]

    def step_of(self, choice: Any) -> float | None:
        """Seconds of a measured step of a choice, None where it was not run."""
        return None

    def show_knobs(self, sizes: Knobs, *factors: Knobs) -> None:
        """Show the knobs of a strategy, of those around it, and those of the model."""
        boxes: list[ipywidgets.DOMWidget] = [factors[0]]
        for outer in factors[1:]:
            words = f"combined with {escape(outer.cls.__name__)}"
            boxes += [ipywidgets.HTML(f"<b>{words}</b>"), outer]
        self.knobs_box.children = [*boxes, ipywidgets.HTML("<b>the model and its batch</b>"), sizes]

    def show_gave(self, gave: Mapping[str, tuple[Any, Any]]) -> None:
        """Say which knobs gave way to the one moved, {name: (before, after)}."""
        words = gave_words(gave)
        self.gave.value = f"<div aria-live='polite' style='line-height:1.4'>{escape(words)}</div>"

    def show_cluster(self, cluster: Cluster | None, mesh: Mesh) -> None:
        """The cluster with the mesh laid on it, and the traffic of the axis chosen; None hides."""
        self.cluster_box.layout.display = "none" if cluster is None else ""
        if cluster is None:
            self.cluster_picture.value = ""
            return
        if self.axis.options != mesh.names:
            chosen = self.axis.value
            self.axis.options = mesh.names
            self.axis.value = chosen if chosen in mesh.names else mesh.names[-1]
        scene = cluster_scene(cluster, mesh, self.axis.value)
        self.cluster_picture.value = scrolled(cluster_svg(scene, theme="page"))

    def say(self, text: str) -> None:
        """Show a status under the buttons."""
        self.status.value = f"<div aria-live='polite' style='line-height:1.4'>{escape(text)}</div>"
