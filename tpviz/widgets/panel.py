"""The parts that ``explore`` shows and how they are laid out; what they do is in explore.py."""

import threading
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import ipywidgets

from tpviz.figures.cluster import cluster_scene, cluster_svg

from .guessing import GuessPane
from .knobs import WIDE
from .mesh import MeshView
from .model import ModelPane, fitted, message
from .results import ResultsPane
from .setting import Setting

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.mesh import Mesh

    from .knobs import Knobs

STEPS = 3


class Panel(ipywidgets.VBox):
    """Controls on the left, model and mesh on the right; results below.

    names: the strategies of the menu; cluster: the one chosen at first, or None; lock: of the view.
    ``error`` is the message shown, or "".
    """

    def __init__(self, names: Sequence[str], cluster: "Cluster | None", lock: threading.RLock):
        self.menu = ipywidgets.Dropdown(options=names, description="strategy", style=WIDE)
        self.knobs_box = ipywidgets.VBox()
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
        buttons = ipywidgets.HBox([self.run_button, self.stop_button, self.bar])
        left = [
            self.menu,
            self.knobs_box,
            self.setting,
            self.steps,
            self.guesses,
            buttons,
            self.status,
            self.message,
        ]
        half = {"flex": "1 1 440px", "min_width": "400px"}
        wrap = {"display": "flex", "flex_flow": "row wrap"}
        top = ipywidgets.Box(
            [
                ipywidgets.VBox(left, layout=half),
                ipywidgets.VBox([self.model, self.mesh], layout=half),
            ],
            layout=wrap,
        )
        return [self.facts, top, self.cluster_box, self.results]

    def show_knobs(self, inner: "Knobs", outer: "Knobs | None" = None) -> None:
        """Show the knobs of a strategy, and of one around it."""
        boxes = [inner]
        if outer:
            words = f"combined with {escape(outer.cls.__name__)}"
            boxes += [ipywidgets.HTML(f"<b>{words}</b>"), outer]
        self.knobs_box.children = boxes

    def show_cluster(self, cluster: "Cluster | None", mesh: "Mesh") -> None:
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
        self.cluster_picture.value = fitted(cluster_svg(scene, theme="page"))

    def show_error(self, error: BaseException | str) -> None:
        """Show an exception (or a text; "" clears it) under the controls."""
        plain = isinstance(error, ValueError | str)
        self.error = str(error) if plain else f"{type(error).__name__}: {error}"
        self.message.value = self.error and message(self.error)

    def say(self, text: str) -> None:
        """Say what is going on, under the buttons."""
        self.status.value = f"<div aria-live='polite' style='line-height:1.4'>{escape(text)}</div>"
