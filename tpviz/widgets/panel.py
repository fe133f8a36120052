"""The parts that ``explore`` shows and how they are laid out; what they do is in explore.py."""

from html import escape

import ipywidgets

from .knobs import WIDE
from .mesh import MeshView
from .timeline import Timeline

STEPS = 3


class Panel(ipywidgets.VBox):
    """Controls on the left, the mesh on the right; ledger, timeline and losses below.

    names: the strategies of the menu. ``error`` is the message shown, or "".
    """

    def __init__(self, names):
        self.menu = ipywidgets.Dropdown(options=names, description="strategy", style=WIDE)
        self.knobs_box = ipywidgets.VBox()
        self.steps = ipywidgets.IntSlider(STEPS, min=1, max=20, description="steps", style=WIDE)
        self.run_button = ipywidgets.Button(
            description="Run", button_style="primary", icon="play", tooltip="run on real ranks"
        )
        self.stop_button = ipywidgets.Button(
            description="Stop", icon="stop", disabled=True, tooltip="end the ranks of this run"
        )
        self.bar = ipywidgets.IntProgress(value=0, max=1, layout={"width": "160px"})
        self.status, self.message = ipywidgets.HTML(), ipywidgets.HTML()
        self.facts, self.ledger, self.losses = (ipywidgets.HTML() for _ in range(3))
        self.mesh, self.timeline = MeshView(), Timeline()
        ipywidgets.jslink((self.mesh, "rank"), (self.timeline, "rank"))
        self.error = ""
        super().__init__(self._rows())

    def _rows(self):
        buttons = ipywidgets.HBox([self.run_button, self.stop_button, self.bar])
        left = [self.menu, self.knobs_box, self.steps, buttons, self.status, self.message]
        half = {"flex": "1 1 420px", "min_width": "380px"}
        top = ipywidgets.Box(
            [ipywidgets.VBox(left, layout=half), ipywidgets.Box([self.mesh], layout=half)],
            layout={"display": "flex", "flex_flow": "row wrap"},
        )
        return [self.facts, top, self.ledger, self.timeline, self.losses]

    def show_knobs(self, inner, outer=None):
        """Show the knobs of a strategy, and of one around it."""
        boxes = [inner]
        if outer:
            words = f"combined with {escape(outer.cls.__name__)}"
            boxes += [ipywidgets.HTML(f"<b>{words}</b>"), outer]
        self.knobs_box.children = boxes

    def show_error(self, error):
        """Show an exception (or a text; "" clears it) under the controls."""
        plain = isinstance(error, ValueError | str)
        self.error = str(error) if plain else f"{type(error).__name__}: {error}"
        self.message.value = self.error and (
            "<div class='tpv-message' role='alert' style='border-left:4px solid #D55E00;"
            f"padding:4px 8px;white-space:pre-wrap;line-height:1.4'>{escape(self.error)}</div>"
        )

    def say(self, text):
        """Say what is going on, under the buttons."""
        self.status.value = f"<span aria-live='polite'>{escape(text)}</span>"
