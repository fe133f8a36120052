"""The tile view: a GEMM whose tiles are tracked, trigger and leave, on simulated GPUs.

>>> view = TileView(gemm=(2048, 1024, 512), ranks=8, against="t3")              # doctest: +SKIP
"""

import threading
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import traitlets

from tpviz.figures import tiles as figure
from tpviz.figures import tiles_words
from tpviz.figures.assets import module, stylesheet
from tpviz.figures.tiles import look, tiles_svg, words_of
from tpviz.schemes.t3.hardware.small_gpu import SMALL_GPU

from .base import Film, Framed, check_names, shown
from .job import Latest
from .tiles_panels import Sizes, TileKnobs, sizes_of

if TYPE_CHECKING:
    from tpviz.figures.tiles_layout import Panel
    from tpviz.schemes.t3.hardware import Gemm, Machine, SimResult


class TileView(Framed):
    """Tiles of a GEMM's output by state over time, over lanes of memory, tracker and link.

    Parameters
    ----------
    gemm : `Gemm` of each GPU, or (m, n, k); its tiles are squares.
    ranks : GPUs over which the output is summed, 2 to 8.
    machine : `Machine`; None is a tenth of the paper's GPU, so that few tiles make many stages.
    autoplay : start playing (never where the reader prefers reduced motion).
    sizes : the other knobs. config and against ("none" for one alone) of "sequential", "t3",
        "t3_mca"; m, n, k; tile, wavefronts; link (GB/s), policy, tracker_sets; mode "auto",
        "mirror" or "full"; shown "one" or "all" GPUs: see `tiles_acts.Sizes`.

    ``step`` is the place of the play-head, 0 to 120, equal steps of the longest run's time;
    ``part`` the part of a tile that is looked at (-1: none); both can be set. ``error`` says why
    the knobs as they stand cannot be shown, or is "". ``runs`` are the `SimResult` shown.
    Everything is simulated. Raises ``ValueError`` on sizes that clash, with the nearest that work,
    and above `figures.tiles.MAX_PARTS` parts; ``TypeError`` on an argument that does not exist.
    """

    picture: "TileSteps"

    def __init__(
        self,
        gemm: "Gemm | tuple[int, int, int] | None" = None,
        ranks: int = 8,
        machine: "Machine | None" = None,
        *,
        autoplay: bool = False,
        **sizes: Any,
    ):
        known = [f.name for f in fields(Sizes)]
        check_names("TileView", sizes, ["gemm", "ranks", "machine", "autoplay", *known])
        self._lock, self._moved = threading.RLock(), Latest(self._redraw)
        self.machine = SMALL_GPU if machine is None else machine
        self.knobs = TileKnobs(sizes_of(gemm, ranks, self.machine, sizes))
        self.picture = TileSteps(autoplay)
        self.picture.show(*self._programme())
        super().__init__([self.knobs, self.picture])
        self.knobs.on_change(self._moved)

    def _programme(self):
        sizes = Sizes(**self.knobs.values())
        return sizes.acts(self.machine), sizes.title

    @shown
    def _redraw(self):
        """A knob moved: the new picture, or why there is none; the last good one stays."""
        with self._lock:
            try:
                programme = self._programme()
            except ValueError as error:
                self.picture.show_error(str(error))
                return
            self.picture.show(*programme)

    @property
    def runs(self) -> "tuple[SimResult, ...]":
        """The `SimResult` of each configuration shown."""
        return tuple(act.run for act in self.picture.acts)

    @property
    def part(self) -> int:
        """The part of a tile looked at, counted over all that is drawn, or -1."""
        return self.picture.part

    @part.setter
    def part(self, part: int) -> None:
        look(self.picture.acts, part)
        self.picture.publish(part=part)


class TileSteps(Film):
    """The picture of `TileView`: `show` gives it `figures.tiles.Panel`s."""

    _esm = module("tiles")
    _css = stylesheet()
    part = traitlets.Int(-1).tag(sync=True)
    look = traitlets.Dict().tag(sync=True)

    def __init__(self, autoplay: bool = False):
        super().__init__(autoplay)
        self.acts = ()

    def show(self, acts: "tuple[Panel, ...]", title: str) -> None:
        """Draw them; the play-head stays at its part of the whole, the part looked at if it is
        there."""
        scene = figure.tiles_scene(acts, title)
        with self._lock:
            same = self.part < scene["common"].count("data-at=")
            self.acts = acts
            self.publish(
                scene=scene,
                part=self.part if same else -1,
                error="",
                look=look(acts, self.part if same else -1),
            )

    @traitlets.observe("part")
    @shown
    def _chosen(self, change):
        """Another part was chosen, here or in the picture."""
        with self._lock:
            if self.acts and self.look.get("part") != self.part:
                self.publish(look=look(self.acts, self.part))

    def _draw(self, step=None, part=None, **options):
        looked = self.look if part is None else look(self.acts, part)
        return tiles_svg(self.scene, self.step if step is None else step, looked, **options)

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: what each run did."""
        return tiles_words.to_table(self.acts)

    def describe(self) -> str:
        """The runs in words, and what is shown of them."""
        return (
            f"{tiles_words.describe(self.acts)} Shown, {self.scene['captions'][self.step]}: "
            f"{words_of(self.scene, self.step, self.look)}"
        )

    def _words(self):
        names = " against ".join(act.name for act in self.acts)
        return f"{names}: {self.scene['title']}, {self.scene['captions'][self.step]}"
