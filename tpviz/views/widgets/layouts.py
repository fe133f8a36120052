"""The view of notebook 08: choose a measured layout, commit it, and see its measurements.

>>> view = LayoutView("llama-3B", gpus=64)                                       # doctest: +SKIP
"""

from typing import Any

import ipywidgets

from tpviz.evidence.layouts import Layouts, Turn, measured
from tpviz.evidence.layouts.group import KNOBS
from tpviz.views.figures.svg import fitted

from .base import Framed, View, named, shown
from .knobs import NARROW, WRAPPED, stepped


class LayoutKnobs(ipywidgets.VBox):
    """A slider or a menu for each choice of a group, and the button that commits."""

    def __init__(self, group: Layouts, values: dict[str, Any]):
        self.controls: dict[str, Any] = {
            name: stepped(name, values[name], KNOBS[name], stops, NARROW)
            for name, stops in group.knobs.items()
        }
        for box in self.controls.values():
            box.style.description_width = "80px"
        self.button = ipywidgets.Button(
            description="Commit", tooltip="fix this layout, and see what was measured"
        )
        sliders = ipywidgets.Box([*self.controls.values()], layout=WRAPPED)
        super().__init__([sliders, self.button])

    def values(self) -> dict[str, Any]:
        """{knob: value}."""
        return {name: box.value for name, box in self.controls.items()}


def scene_of(turn: Turn) -> dict[str, Any]:
    """The scene of a `Turn`."""
    scene = {"svg": fitted(turn.to_svg("page")), "title": turn.scene()["title"]}
    return {**scene, "captions": [turn.describe()], "says": turn.sizes}


class LayoutPicture(View):
    """The picture of `LayoutView`: `show` gives it a `Turn`."""

    kind, _figure, _scene_of = "picture", Turn, staticmethod(scene_of)

    def _draw(self, **options):
        return self.subject.to_svg(**options)

    def _words(self):
        return self.subject.words()[0]


class LayoutView(Framed):
    """Choose how to split a model over a cluster, among published, measured layouts.

    Parameters
    ----------
    model, gpus, source : of `tpviz.published`; their rows of one workload are the choices.
    knobs : where the sliders stand first: tp, pp, dp, micro_batch, zero, recompute or vpp, as far
        as the layouts differ in them. The nearest measured layout is shown.

    Before you commit a layout, the view shows only its memory and the bytes it sends. Then it also
    shows the measured and the predicted step, of this layout and of others you move to.
    ``group`` are the layouts, ``turn`` the one shown, ``committed`` the one committed or None.
    Raises ``ValueError`` where nothing was measured, and for unknown knobs.
    """

    picture: LayoutPicture  # pyright: ignore[reportIncompatibleVariableOverride]

    @named(*KNOBS)
    def __init__(self, model: str, gpus: int, source: str | None = None, **knobs: Any):
        self.group, self.committed = measured(model, gpus, source), None
        middle = {name: stops[len(stops) // 2] for name, stops in self.group.knobs.items()}
        start = self.group.nearest(knobs or middle)
        picture: Any = LayoutPicture()  # a view of one step, where others have films
        super().__init__(made := LayoutKnobs(self.group, start), picture)
        self._button = made.button
        self.picture.show(*self._read())
        self._button.on_click(lambda button: self.commit())

    def _read(self):
        return (self._turn_of(self.knobs.values()),)  # pyright: ignore[reportAttributeAccessIssue]

    def _gave_way(self, turned):
        """Only what was measured can be shown: others take the values of the nearest layout."""
        before = self.knobs.values()  # pyright: ignore[reportAttributeAccessIssue]
        nearest = self.group.nearest(before, turned[-1:])
        for name, value in nearest.items():
            self.controls[name].value = value
        return {n: (before[n], value) for n, value in nearest.items() if value != before[n]}

    def _turn_of(self, values):
        points = self.group.at(**values)
        return Turn(self.group, tuple(points), covered=self.committed is None)

    def _state_at(self, **values):
        """Of the nearest layout with these values, as where knobs move one after another."""
        try:
            self.group.at(**values)
        except ValueError as error:
            return {"error": str(error)}
        wanted = {**self.group.values_of(self.turn.points[0]), **values}
        picture = LayoutPicture()
        picture.show(self._turn_of(self.group.nearest(wanted, values)))
        try:
            return picture.state()
        finally:
            picture.close()

    @property
    def turn(self) -> Turn:
        """What is shown."""
        return self.picture.subject

    @shown
    def commit(self) -> None:
        """Fix the layout of the knobs as yours, and show what was measured; the first one stays."""
        with self._lock:
            if self.committed is None:
                self.committed = self.turn.points
                self._button.disabled = True
                self._redraw()
                self._draw_still()

    def reveal(self) -> Turn:
        """The layout committed, judged; that of the knobs is committed where none was."""
        self.commit()
        assert self.committed
        return Turn(self.group, self.committed)
