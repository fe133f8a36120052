"""A simulated T3 run, tile by tile -> scene: the output's tiles by state, and lanes on one clock.

Works on `Played` runs of `tpviz.schemes.t3.hardware`, of which it needs the attributes alone. All
times are simulated. Where one GPU stands for all ("mirror"), the others are it with chunks turned.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np

from .svg import seconds
from .tiles_states import moments, stories

BADGE = "simulated"
WIDTH, LEFT, RIGHT, TOP = 1060, 110, 214, 84
NAMES = {"sequential": "sequential", "t3": "T3", "t3_mca": "T3-MCA"}
"""{config: what it is called}."""
MAX_PARTS, STEPS, SAMPLES = 2304, 120, 260
HIGH, LANE, GAP = 236, 34, 9
"""px: of a GPU's tiles at most; of a lane; between lanes."""
HEAD = 36
"""px of an act's name, and of names of chunks or GPUs, over its tiles."""
LABELS = 60, 196
"""px left and right of a GPU's tiles, where its chunks are named; without names: SMALL."""
SMALL = 7, 7


class Act:
    """One `Played`, and the GPUs whose tiles are drawn."""

    def __init__(self, run, gpus=(0,)):
        self.run, self.gpus = run, tuple(gpus)

    @property
    def name(self):
        """Of its configuration; for plain T3 with the memory's policy."""
        name = NAMES[self.run.config]
        return (
            f"{name}, {self.run.machine.policy.replace('_', ' ')}"
            if (self.run.config == "t3")
            else name
        )

    @cached_property
    def moments(self):
        """Per GPU drawn what `tiles_states.moments` gives."""
        return [moments(self.run, gpu) for gpu in self.gpus]

    @cached_property
    def stories(self):
        """Per GPU drawn, per part its story."""
        return [stories(found) for found in self.moments]

    @cached_property
    def series(self):
        """Of GPU 0 over time."""
        return self.run.series(SAMPLES)

    @cached_property
    def computing(self):
        """Tiles under way on GPU 0 at the times of `series`."""
        tiles = self.run.tiles
        first = tiles.wave == 0
        edges = [np.sort(getattr(tiles, what)[0][first]) for what in ("start", "computed")]
        begun, over = (np.searchsorted(e, self.series["time"], side="right") for e in edges)
        return begun - over


class Map(NamedTuple):
    """A GPU's tiles: which act and GPU, its left and top, px of a tile, names of chunks or not."""

    act: int
    gpu: int
    x: float
    y: float
    cell: float
    named: bool


class Layout(NamedTuple):
    """Where everything is, in px. maps : `Map`s. heads : (x, y) of each act's name. lanes : per act
    the top of its lanes. scale : px of a second."""

    maps: tuple
    heads: tuple
    lanes: tuple
    head: float
    bottom: float
    scale: float
    duration: float

    def x(self, time):
        """Of a time."""
        return LEFT + time * self.scale


def lay_out(acts):
    """The `Layout`: GPU 0 of the acts side by side; or all GPUs in a row, an act below another."""
    down, across = acts[0].run.gemm.tiles
    stacked = any(len(act.gpus) > 1 for act in acts)
    maps, heads, y = [], [], TOP + 12
    wide = (WIDTH - 24) / (1 if stacked else len(acts))
    for number, act in enumerate(acts):
        x = 12 + (0 if stacked else number * wide)
        heads.append((x, y))
        each = wide / len(act.gpus)
        sides = SMALL if stacked else LABELS
        cell = min((each - sum(sides)) / across, HIGH / down, 34.0)
        maps += [
            Map(number, gpu, x + i * each + sides[0], y + HEAD, cell, not stacked)
            for i, gpu in enumerate(act.gpus)
        ]
        if stacked:
            y += HEAD + down * cell + 22
    if not stacked:
        y += HEAD + down * maps[0].cell + 22
    head, lanes = y + 4, []
    y = head + 8
    for _ in acts:
        lanes.append(y + 18)
        y += 18 + len(LANES) * (LANE + GAP) + 6
    duration = max(act.run.seconds for act in acts)
    return Layout(
        tuple(maps),
        tuple(heads),
        tuple(lanes),
        head,
        y,
        (WIDTH - LEFT - RIGHT) / (duration or 1.0),
        duration,
    )


LANES = ("computing", "memory", "tracker", "link")


def tiles_scene(acts, title):
    """The scene of one or two `Act`s on one clock, ready for JSON; as `Film` wants it.

    Its ``stops`` are equal steps of time. In ``common`` every part is an empty ``<g>`` with
    ``data-at`` (px at which its state changes), ``data-is`` (the keys of its states, one more) and
    ``data-place`` (px); ``parts`` has what is drawn in it, by key, with "@" for its place. ``map``
    is how many parts a GPU has. Raises ``ValueError`` above `MAX_PARTS` parts.
    """
    from .tiles_svg import picture
    from .tiles_words import counts, facts

    check(sum(len(act.gpus) for act in acts), acts[0].run.gemm)
    layout = lay_out(acts)
    times = [layout.duration * step / STEPS for step in range(STEPS + 1)]
    return {
        "title": title,
        "badge": BADGE,
        "width": WIDTH,
        "top": TOP - 6,
        **picture(acts, layout),
        "map": len(acts[0].run.tiles.tile),
        "facts": facts(acts),
        "words": counts(acts, times),
        "stops": [round(layout.x(time), 2) for time in times],
        "captions": [f"at {seconds(t)} of {seconds(layout.duration)}" for t in times],
        "head": round(layout.head, 1),
        "foot": round(layout.bottom, 1),
    }


def check(gpus, gemm):
    """Raise ``ValueError`` where the parts of so many GPUs' outputs would not be legible."""
    down, across = gemm.tiles
    if gpus * down * across * gemm.wavefronts > MAX_PARTS:
        raise ValueError(
            f"{gpus} x {down} x {across} tiles, each of {gemm.wavefronts} to draw, are more than "
            f"the {MAX_PARTS} that this view shows: use larger tiles, fewer wavefronts, a smaller "
            "output, or shown='one'"
        )
