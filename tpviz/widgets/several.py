"""A control for any number of names: a check box each."""

from collections.abc import Collection

import ipywidgets
import traitlets


class Several(ipywidgets.HBox):
    """A check box for each of ``names``; ``value`` is the tuple of those that are checked."""

    value = traitlets.Tuple()

    def __init__(
        self,
        names: Collection[str],
        value: Collection[str],
        description: str,
        tooltip: str,
        layout: dict[str, str],
    ):
        self.boxes = {
            name: ipywidgets.Checkbox(
                name in value, description=name, indent=False, layout={"width": "60px"}
            )
            for name in names
        }
        label = ipywidgets.Label(
            description,
            tooltip=tooltip,
            layout={"width": "90px", "justify_content": "flex-end", "margin": "2px 8px 2px 2px"},
        )
        super().__init__([label, *self.boxes.values()], layout=layout)  # its view has no tooltip
        self.value, self._setting = tuple(value), False
        for box in self.boxes.values():
            box.observe(lambda change: self._checked(), "value")
        self.observe(lambda change: self._set(), "value")

    def _checked(self):
        if not self._setting:
            self.value = tuple(name for name, box in self.boxes.items() if box.value)

    def _set(self):
        self._setting = True
        for name, box in self.boxes.items():
            box.value = name in self.value
        self._setting = False
