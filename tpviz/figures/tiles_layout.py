"""What the tile view shows, and where: acts, maps of tiles, lanes, and the scale of time."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from .tiles_states import moments, stories

if TYPE_CHECKING:
    from tpviz.schemes.t3.hardware import SimResult

Time = TypeVar("Time", float, np.ndarray)

WIDTH, LEFT, RIGHT, TOP = 1060, 110, 214, 84


NAMES = {"sequential": "sequential", "t3": "T3", "t3_mca": "T3-MCA"}


MAX_PARTS, STEPS, SAMPLES = 2304, 120, 260


HIGH, LANE, GAP = 236, 34, 9


HEAD = 36


LABELS = 60, 196


SMALL = 7, 7


class Panel:
    """One `SimResult`, and the GPUs whose tiles are drawn."""

    def __init__(self, run: "SimResult", gpus: Iterable[int] = (0,)):
        self.run, self.gpus = run, tuple(gpus)

    @property
    def name(self) -> str:
        """Of its configuration; for plain T3 with the memory's policy."""
        name = NAMES[self.run.config]
        return (
            f"{name}, {self.run.machine.policy.replace('_', ' ')}"
            if (self.run.config == "t3")
            else name
        )

    @cached_property
    def moments(self) -> list[dict[str, np.ndarray]]:
        """Per GPU drawn what `tiles_states.moments` gives."""
        return [moments(self.run, gpu) for gpu in self.gpus]

    @cached_property
    def stories(self) -> list[list[tuple[tuple[float, ...], str]]]:
        """Per GPU drawn, per part its story."""
        return [stories(found) for found in self.moments]

    @cached_property
    def series(self) -> dict[str, np.ndarray]:
        """Of GPU 0 over time."""
        return self.run.series(SAMPLES)

    @cached_property
    def computing(self) -> np.ndarray:
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

    maps: tuple[Map, ...]
    heads: tuple[tuple[float, float], ...]
    lanes: tuple[float, ...]
    head: float
    bottom: float
    scale: float
    duration: float

    def x(self, time: Time) -> Time:
        """Of a time."""
        return LEFT + time * self.scale


def lay_out(acts: Sequence[Panel]) -> Layout:
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
