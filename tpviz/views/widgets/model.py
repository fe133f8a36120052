"""The model's pane of ``explore``: formulas for the current knobs. Runs nothing."""

import ipywidgets

from tpviz.core.mesh import Mesh
from tpviz.verbs.predict import Prediction
from tpviz.views.plans.pictures import model_html


class ModelPane(ipywidgets.VBox):
    """Predicted step time in parts, memory against the device's, bytes and link of every axis."""

    def __init__(self):
        self.picture, self.warning, self.axes = (ipywidgets.HTML() for _ in range(3))
        self.picture.add_class("tpviz-predicted")
        super().__init__([self.picture, self.warning, self.axes])
        self.clear()

    def clear(self) -> None:
        """Show nothing: there is no cluster to predict for."""
        self.picture.value = self.warning.value = self.axes.value = ""
        self.layout.display = "none"

    def show(self, prediction: Prediction, mesh: Mesh, covered: bool = False) -> None:
        """Draw a `Prediction` of a strategy whose mesh this is; ``covered`` hides times."""
        pictures, warning, axes = model_html(prediction, mesh, covered)
        self.picture.value, self.warning.value, self.axes.value = pictures, warning, axes
        self.layout.display = ""
