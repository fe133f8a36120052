"""The tile view: a GEMM whose tiles are tracked, triggered and sent, on simulated GPUs.

>>> view = TileView(gemm=(2048, 1024, 512), ranks=8, against="t3")              # doctest: +SKIP
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import traitlets

from tpviz.evidence.t3_hardware import Gemm, Machine, SimResult, simulate
from tpviz.evidence.t3_hardware.machine import POLICIES
from tpviz.evidence.t3_hardware.small_gpu import SMALL_GPU
from tpviz.evidence.t3_hardware.tiling import Tiling
from tpviz.schemes.knobs import knob, settle_knobs
from tpviz.views.figures import tiles as figure
from tpviz.views.figures import tiles_states
from tpviz.views.figures.tiles_states import NAMES, TilesPanel

from .base import Detailed, Framed, named
from .knobs import Knobs

NONE, AUTO = "none", "auto"


@dataclass(frozen=True)
class TileSizes:
    """The knobs: output m x n, reduced over ``ranks``, each with k of the inner dim.

    link in GB/s in each direction. "ideal" configurations have no tiles that wait for each other,
    so they are left out.
    """

    config: str = knob(
        "t3_mca",
        help="sequential: GEMM, then reduce-scatter by compute units; t3: tracked and triggered; "
        "t3_mca: its memory controller serves the GEMM first",
        choices=tuple(NAMES),
    )
    against: str = knob(
        "sequential", help="a second configuration, on the same clock", choices=(NONE, *NAMES)
    )
    ranks: int = knob(8, help="GPUs, and chunks of the output", low=2, high=8)
    m: int = knob(2048, help="rows of the output: tokens", low=1, high=65536)
    n: int = knob(1024, help="columns of the output: hidden size", low=1, high=65536)
    k: int = knob(1024, help="inner dim on each GPU: how long a tile computes", low=1, high=65536)
    tile: int = knob(
        128,
        help="rows and columns of a tile, which a workgroup computes",
        choices=(32, 64, 128, 256),
    )
    wavefronts: int = knob(
        1, help="parts of a tile, each stored, tracked and sent separately", choices=(1, 2, 4)
    )
    link: float = knob(15.0, help="GB/s of the link in each direction", low=0.001, high=1e6)
    policy: str = knob(
        SMALL_GPU.policy,
        help="memory arbitration in plain T3: no effect unless config or against is t3",
        choices=tuple(name for name in POLICIES if name != "mca"),
    )
    tracker_sets: int = knob(
        SMALL_GPU.tracker_sets,
        help="sets of the tracker's table; where all "
        "records of a set are used, updates wait: no effect unless config or "
        "against is t3 or t3_mca",
        low=1,
        high=1 << 20,
    )
    mode: str = knob(
        AUTO,
        help="mirror: one GPU stands for all; full: each is simulated; auto: "
        "mirror where chunks are alike",
        choices=(AUTO, "mirror", "full"),
    )
    shown: str = knob("one", help="GPU 0, or all", choices=("one", "all"))

    def __post_init__(self):
        settle_knobs(self)

    @property
    def gemm(self) -> Gemm:
        """The `Gemm` of each GPU."""
        return Gemm(self.m, self.n, self.k, tile=(self.tile, self.tile), wavefronts=self.wavefronts)

    @property
    def title(self) -> str:
        """In one line."""
        return (
            f"GEMM {self.m} × {self.n} × {self.k} on {self.ranks} GPUs, link "
            f"{self.link:g} GB/s, tiles of {self.tile} × {self.tile}"
        )

    def panels(self, machine: Machine = SMALL_GPU) -> tuple[TilesPanel, ...]:
        """One or two `TilesPanel`s. machine : the values without a knob.

        Raises ``ValueError`` on sizes that clash, and where tiles would not be legible.
        """
        machine = replace(
            machine, link=self.link * 1e9, policy=self.policy, tracker_sets=self.tracker_sets
        )
        gpus = range(self.ranks) if self.shown == "all" else (0,)
        names = [self.config] if self.against == NONE else [self.config, self.against]
        figure.check(len(names) * len(gpus), self.gemm)
        return tuple(TilesPanel(self._play(name, machine), gpus) for name in names)

    def _play(self, name, machine):
        mode = self.mode
        if mode == AUTO:
            mode = "mirror" if Tiling(self.gemm, self.ranks).alike else "full"
        return simulate(self.gemm, self.ranks, machine, name, mode=mode)


def sizes_of(
    gemm: Gemm | tuple[int, int, int] | None, ranks: int, machine: Machine, sizes: dict[str, Any]
) -> TileSizes:
    """`TileSizes` of a `TileView`'s arguments: a `Gemm` or (m, n, k) or None, a `Machine`, knobs.

    Raises ``ValueError`` for other types, and for a knob given twice.
    """
    if not isinstance(machine, Machine):
        raise ValueError(f"TileView runs on a Machine, not {machine!r}")
    given = {
        "link": machine.link / 1e9,
        "policy": machine.policy,
        "tracker_sets": machine.tracker_sets,
        "ranks": ranks,
    }
    if machine.policy == "mca":
        del given["policy"]  # t3_mca has it; plain T3's is one of the others
    if gemm is None:
        return TileSizes(**{**given, **sizes})
    if not isinstance(gemm, tuple) or len(gemm) not in (3, len(Gemm._fields)):
        raise ValueError(f"gemm={gemm!r} must be a Gemm, or (m, n, k) as in (2048, 1024, 1024)")
    whole = gemm if isinstance(gemm, Gemm) else Gemm(*gemm)
    own = {"m": whole.m, "n": whole.n, "k": whole.k}
    if isinstance(gemm, Gemm):
        own |= {"tile": whole.tile[0], "wavefronts": whole.wavefronts}
    for name in own:
        if name in sizes:
            raise ValueError(f"{name} is the gemm's own, {own[name]}: give it once")
    made = TileSizes(**{**given, **own, **sizes})
    if isinstance(gemm, Gemm) and made.gemm != whole:
        raise ValueError(
            f"tile={whole.tile}, itemsize={whole.itemsize}: this view shows square "
            f"tiles of 2-byte numbers, as in {made.gemm}"
        )
    return made


class TileKnobs(Knobs):
    """The knobs of `TileSizes`, in as few lines as they fit; sizes are sliders with round steps."""

    def __init__(self, sizes: TileSizes):
        super().__init__(TileSizes, vars(sizes), compact=True, sliders=SLIDERS)
        for name in ("config", "against"):
            self.controls[name].observe(self._disable, "value")
        self._disable()

    def _disable(self, change=None):
        """Knobs without effect in the configurations shown."""
        shown = {self.controls[name].value for name in ("config", "against")}
        for name, configs in USED_BY.items():
            self.controls[name].disabled = not shown & configs


SLIDERS = {
    "m": (256, 4096, 256),
    "n": (128, 2048, 128),
    "k": (128, 4096, 128),
    "link": (1.0, 60.0, 0.5),
    "tracker_sets": (1, 64, 1),
}
"""{knob: ends and step of its slider}."""

USED_BY = {"policy": {"t3"}, "tracker_sets": {"t3", "t3_mca"}}
"""{knob: the configurations in which it has an effect}."""


class TileView(Framed):
    """Tiles of a GEMM's output by state over time, over lanes of memory, tracker and link.

    Parameters
    ----------
    gemm : `Gemm` of each GPU, or (m, n, k); its tiles are squares.
    ranks : GPUs over which the output is reduced, 2 to 8.
    machine : `Machine`; None is a tenth of the paper's GPU, so that few tiles make many waves.
    autoplay : start playing (never where the reader prefers reduced motion).
    sizes : the other knobs. config and against ("none" for one alone) of "sequential", "t3",
        "t3_mca"; m, n, k; tile, wavefronts; link (GB/s), policy, tracker_sets; mode "auto",
        "mirror" or "full"; shown "one" or "all" GPUs: see `TileSizes`.

    ``step`` is the place of the play-head, 0 to 120, equal steps of the longest run's time;
    ``part`` the selected part of a tile (-1: none); both can be set. ``error`` says why the current
    knobs cannot be shown, or is "". ``runs`` are the `SimResult` shown. Everything is simulated.
    Raises ``ValueError`` on sizes that clash, with the nearest that work, and above
    `figures.tiles.MAX_PARTS` parts; ``TypeError`` on an argument that does not exist.
    """

    picture: "TileSteps"

    @named(*(f.name for f in fields(TileSizes)))
    def __init__(
        self,
        gemm: Gemm | tuple[int, int, int] | None = None,
        ranks: int = 8,
        machine: Machine | None = None,
        *,
        autoplay: bool = False,
        **sizes: Any,
    ):
        self.machine = SMALL_GPU if machine is None else machine
        knobs = TileKnobs(sizes_of(gemm, ranks, self.machine, sizes))
        super().__init__(knobs, TileSteps(autoplay))
        self.picture.show(*self._read())

    def _read(self):
        sizes = TileSizes(**self.knobs.values())  # pyright: ignore[reportAttributeAccessIssue]
        return sizes.panels(self.machine), sizes.title

    def _made_with(self):
        usual, own = TileSizes(), self.knobs.values()  # pyright: ignore[reportAttributeAccessIssue]
        given = {name: value for name, value in own.items() if value != getattr(usual, name)}
        return given if self.machine == SMALL_GPU else {"machine": self.machine, **given}

    @property
    def runs(self) -> tuple[SimResult, ...]:
        """The `SimResult` of each configuration shown."""
        return tuple(panel.run for panel in self.picture.subject)

    @property
    def part(self) -> int:
        """The selected part of a tile, counted over all that is drawn, or -1."""
        return self.picture.part

    @part.setter
    def part(self, part: int) -> None:
        self.picture.select(part)


class TileSteps(Detailed):
    """The picture of `TileView`: `show` gives it `TilesPanel`s and a title."""

    kind, _svg, _part = "tiles", staticmethod(figure.tiles_svg), "part"
    _figure, _scene_of = tiles_states, staticmethod(figure.tiles_scene)
    part = traitlets.Int(-1).tag(sync=True)

    def _count(self, scene):
        return len(scene["tiles"])

    def _detail_of(self, number):
        return figure.tiles_detail(self.subject, number)

    def _said(self):
        return figure.words_of(self.scene, self.step, self.detail)

    def _words(self):
        names = " against ".join(panel.name for panel in self.subject)
        return f"{names}: {super()._words()}"
