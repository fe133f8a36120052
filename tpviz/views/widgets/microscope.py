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

    kind, _svg = "microscope", staticmethod(figure.microscope_svg)
    microscope: Microscope | None = None

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
        scene = figure.microscope_scene(microscope)
        self.microscope = microscope
        self.publish(scene=scene, step=scene["opens"], error="")

    def to_table(self) -> list[list[str]]:
        """Rows of strings: each message, its step, its bytes and its number."""
        return figure.to_table(self.microscope) if self.scene else [["step"]]  # pyright: ignore[reportArgumentType]

    def describe(self) -> str:
        """The collective and the step shown in words."""
        if not self.scene:
            return "Microscope view without a collective."
        return f"{self.microscope.describe()} Shown: {self._shown()}."  # pyright: ignore[reportOptionalMemberAccess]

    def _shown(self):
        last = len(self.scene["steps"])
        return f"step {self.step + 1} of {last}" if self.step < last else f"the end of {last} steps"

    def _words(self):
        return f"{self.scene['title']}, {self._shown()}" if self.scene else "empty"
