"""The microscope as a widget: a collective's messages between the ranks, step by step.

>>> view = MicroscopeView(tv.microscope(algorithm="ring"))      # doctest: +SKIP
"""

from tpviz.views.collectives import Microscope
from tpviz.views.figures import microscope as figure

from .base import Film, named


class MicroscopeView(Film):
    """Buffers of all ranks, with their numbers, and the recorded messages.

    Parameters
    ----------
    microscope : the result of `tpviz.microscope`, or None for an empty view to be filled with
        `show`.
    autoplay : start playing (never where the reader prefers reduced motion).

    ``step`` is the step shown, 0 to the number of steps (the end). Raises ValueError on what is no
    Microscope, TypeError on an argument that does not exist.
    """

    kind, _figure, _scene_of = "microscope", figure, staticmethod(figure.microscope_scene)

    @named()
    def __init__(self, microscope: Microscope | None = None, *, autoplay: bool = False):
        super().__init__(autoplay)
        if microscope is not None:
            self.show(microscope)

    def show(self, microscope: Microscope) -> None:
        """Look at another collective."""
        if not isinstance(microscope, Microscope):
            raise ValueError(
                f"a microscope view needs the result of tv.microscope(...), not {microscope!r}"
            )
        super().show(microscope)

    def to_table(self) -> list[list[str]]:
        """Rows of strings: each message, its step, its bytes and its number."""
        return super().to_table() if self.scene else [["step"]]

    def describe(self) -> str:
        """The collective and the step shown in words."""
        return super().describe() if self.scene else "Microscope view without a collective."

    def _step_in(self, scene):
        return scene["opens"]  # other sums are under way at other steps

    def _words(self):
        return super()._words().partition(":")[0]  # times differ
