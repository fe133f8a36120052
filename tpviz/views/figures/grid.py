"""A block of AxoNN, animated -> scene: the cube of ranks, weights in flight, special cases.

Built as `tpviz.views.figures.blocks`, which counts and describes the frames; this adds the depth
axis and the replicas. Everything is counted from the program's operations; there are no times here.

Ranks stand in a cube: x to the right, y down, z into the depth, replicas side by side. It is seen
obliquely and pulled apart: every plane of z lies a row higher and further to the right than the one
in front of it, so that no rank covers another and all lines run between the cells.
"""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tpviz.core.inks import axis_keys
from tpviz.core.mesh import Mesh
from tpviz.views.films.captions import Frame

from . import blocks
from .blocks import (
    HIDDEN,
    OWNERS,
    PANEL,
    Story,
    check,
    explained,
    here,
    in_flight,
    matrices,
    panel,
    scene_of,
    scrubber,
)
from .blocks_matrix import SHEER, Eyes, own, size, spread, travelling
from .lanes import box
from .svg import FILM, clickable, outline, pattern_defs, rect, text

if TYPE_CHECKING:
    from tpviz.schemes.axonn.strategy import AxoNN


def grid_scene(story: Story, rank: int = 0) -> dict[str, Any]:
    """The scene of a `Story` of a grid, ready for JSON, with the fields of
    `tpviz.views.figures.blocks.blocks_scene`.

    Raises ValueError for a rank that does not exist, and above 16 ranks.
    """
    check(story.mesh, rank)
    return scene_of(story, rank, pictures(story, rank))


def mesh_of(strategy: "AxoNN") -> Mesh:
    """The axes of more than one rank; x where there is none."""
    return Mesh({axis: n for axis, n in strategy.axes.items() if n > 1} or {"x": 1})


def grid(strategy: "AxoNN") -> dict[str, int]:
    """{axis: ranks} as the paper writes them: x, y, z, data."""
    return {axis: strategy.axes[axis] for axis in ("x", "y", "z", "data")}


def to_table(story: Story) -> list[list[str]]:
    """Rows of strings, header first: one frame each."""
    flights = ["in flight", *(" ".join(in_flight(frame)) for frame in story.frames)]
    return [[*row, words] for row, words in zip(blocks.to_table(story), flights)]


CUBE, ROOM = (16, 384), (446, 200)


def pictures(story: Story, rank: int) -> dict[str, Any]:
    """{"width", "height", "common", "frames"}: what all frames share, and each of them, as SVG."""
    keys = axis_keys(story.strategy.axes)  # pyright: ignore[reportOptionalMemberAccess]
    eyes = Eyes(story.mesh, rank, keys)
    place = Cube(eyes, grid(story.strategy), *CUBE, ROOM)  # pyright: ignore[reportArgumentType]
    totals = blocks.running(story)
    track, places = scrubber(story)
    shown = {}  # forward comes twice where it is recomputed
    for frame in story.frames:
        if frame.tensors not in shown:
            shown[frame.tensors] = matrices(frame, eyes), holdings(frame, place)
    frames = [
        here(frame, places[number])
        + shown[frame.tensors][0]
        + moment(frame, place, eyes)
        + shown[frame.tensors][1]
        + panel(number, eyes, totals, PANEL, CUBE[1] - 14)
        for number, frame in enumerate(story.frames)
    ]
    legend, bottom = explained(eyes, max(place.bottom, CUBE[1] + 26 * len(totals[-1])) + 8)
    return {
        "width": FILM,
        "height": round(bottom + 18),
        "frames": frames,
        "common": f"{pattern_defs()}{track}{cube(place, eyes)}{legend}",
        "notes": [f"The same cut as {case.name.removeprefix('like ')}" for case in story.cases],
        "help": [
            *_letters(story),
            *(f"{case.what} Known from: {', '.join(case.source)}." for case in story.cases),
        ],
    }


def _letters(story):
    """What the letters of the picture say."""
    micro = " of a microbatch" * (story.strategy.accumulation > 1)
    cuts = "A[I_z, J_x]: rows of A cut over z, columns over x."
    return [f"{OWNERS} T = b s tokens{micro} (b batch, s sequence), {HIDDEN}", cuts]


# -- the cube of ranks ----------------------------------------------------------------------------
DEEP = 0.56  # of a cell's width, from a plane to the next: lines down pass beside its cells
AISLE = 18  # between two rows of cells
CELL, ROW = 104, 96  # largest width, and largest height with the aisle, in px
ARROWS = {"x": "→", "y": "↓", "z": "↗", "data": "side by side"}


class Cube:
    """Where the cells stand, in a field of ``room`` px from (x, y) on.

    eyes : one `blocks_matrix.Eyes`. sizes : {"x", "y", "z", "data": ranks}, also
    those of one rank.
    """

    def __init__(
        self, eyes: Eyes, sizes: dict[str, int], x: float, y: float, room: tuple[float, float]
    ):
        self.mesh, self.sizes, self.x, self.y = eyes.mesh, sizes, x, y
        nx, ny, nz, nd = sizes.values()
        gap, alone = 18 if nx * nd <= 4 else 6, nx * nz == 1
        self.between = 34 if nd <= 4 else 6 if alone else 14
        across = (nx - 1) + DEEP * (nz - 1) + 1
        space = room[0] - (nd - 1) * self.between - nd * (nx - 1) * gap
        self.width = min(CELL, space / (nd * across))
        left = space - nd * across * self.width
        steps = nd * (nx - 1 + (nz - 1) / 2)
        more = min(60, left / steps) if steps else 0  # apart as far as there is room
        self.gap, self.deep = gap + more, DEEP * self.width + more / 2
        rows = ny * nz
        self.down = max(27, min(ROW, room[1] / rows), min(40, 320 / rows))
        self.height = self.down - AISLE * min(1, self.down / 40)
        self.replica = nx * self.width + (nx - 1) * self.gap + (nz - 1) * self.deep + self.between
        self.bottom = y + ny * nz * self.down
        self.corners = [self._corner(rank) for rank in range(self.mesh.size)]
        self.groups = {axis: self.mesh.groups(axis) for axis, n in self.mesh.axes.items() if n > 1}
        self.eyes = [eyes.at(rank) for rank in range(self.mesh.size)]

    def _corner(self, rank):
        """Top left corner of a rank's cell."""
        x, y, z, data = (self.mesh.coords(rank).get(axis, 0) for axis in self.sizes)
        nz = self.sizes["z"]
        return (
            self.x + data * self.replica + x * (self.width + self.gap) + z * self.deep,
            self.y + (y * nz + nz - 1 - z) * self.down,
        )

    def middle(self, rank: int) -> tuple[float, float]:
        """Of a rank's cell."""
        x, y = self.corners[rank]
        return x + self.width / 2, y + self.height / 2

    @property
    def inside(self) -> tuple[float, float, float, float]:
        """(x, y, width, height) in a cell, where it shows what the rank holds: under its number,
        or beside it."""
        if self.height >= 34:
            return 4, 17, self.width - 8, self.height - 20
        return 22, 2, self.width - 26, self.height - 4


def cube(place: Cube, eyes: Eyes) -> str:
    """What is the same in every frame: axes, faint lines between neighbours, and the cells."""
    out = [_names(place, eyes)]
    for axis, groups in place.groups.items():
        d = "".join(_road(*pair, axis, place) for group in groups for pair in pairwise(group))
        out.append(
            f"<path d='{d}' fill='none' class='s-{eyes.keys[axis]}' stroke-width='1.6' "
            "stroke-opacity='.55'/>"
        )
    return "".join(out + [_cell(rank, place, eyes) for rank in range(eyes.mesh.size)])


def moment(frame: Frame, place: Cube, eyes: Eyes) -> str:
    """The parts that differ by frame: communicating groups, all-gathers and reduce-scatters."""
    out, moved = "", frame.move.axis if frame.move else ""
    if frame.in_flight and moved != "z":
        groups = place.groups["z"]
        for group in groups:
            out += _flow(group, "z", place, eyes, "stroke-width='3' stroke-dasharray='2 4'")
        gathers = any(f.collective == "all_gather" for f in frame.in_flight)
        out += travelling(groups, place.middle, "parameters" if gathers else "gradients")
    for group in place.groups.get(moved, ()):
        mine = eyes.rank in group
        looks = f"stroke-width='{6 if mine else 3}' stroke-dasharray='9 5' data-group='{moved}'"
        out += _flow(group, moved, place, eyes, looks)
        rings = "".join(_ring(rank, place) for rank in group if rank != eyes.rank)
        key = eyes.keys[moved]
        out += (
            f"<path d='{rings}' fill='none' class='s-{key}' stroke-width='{2.6 if mine else 1.2}'/>"
        )
        if mine:
            out += f"<path d='{rings}{_ring(eyes.rank, place)}' class='f-{key}' fill-opacity='.2'/>"
    if frame.move:
        out += travelling(place.groups.get(moved, ()), place.middle, frame.moving[0].kind)
    return f"<g pointer-events='none'>{out}</g>"


def holdings(frame: Frame, place: Cube) -> str:
    """Every rank's own block of the result in the picture, in a small outline; one path a kind,
    for there are many."""
    outlines, filled = "", {}
    for tensor, x, y, scale in spread((frame.product or frame.moving)[-1:], *place.inside):
        width, height = size(tensor, scale)
        for (left, top), eyes in zip(place.corners, place.eyes):
            outlines += box(left + x, top + y, width, height)
            block = box(*own(tensor, left + x, top + y, eyes, scale))
            looks = f"class='f-{tensor.kind}' {SHEER * bool(tensor.partial)}"
            filled[looks] = filled.get(looks, "") + block
    blocks = "".join(f"<path d='{path}' {looks}/>" for looks, path in filled.items())
    return (
        f"<g pointer-events='none'><path d='{outlines}' fill='none' class='s-muted' "
        f"stroke-width='.8'/>{blocks}</g>"
    )


def _ring(rank, place):
    """The outline of a rank's cell."""
    (x, y), wide, high = place.corners[rank], place.width - 10, place.height - 10
    return (
        f"M{x + 5:.1f},{y:.1f}h{wide:.1f}a5,5 0 0 1 5,5v{high:.1f}a5,5 0 0 1 -5,5"
        f"h{-wide:.1f}a5,5 0 0 1 -5,-5v{-high:.1f}a5,5 0 0 1 5,-5z"
    )


def _names(place, eyes):
    """The axes of more than one rank with their arrows."""
    out, x = "", place.x
    for axis, n in place.sizes.items():
        words = f"{axis} = {n} {ARROWS[axis]}"
        if n > 1:
            out += text(x, place.y - 23, words, eyes.keys[axis], weight=700)
            x += 8 * len(words) + 14
    return out


def _flow(group, axis, place, eyes, looks):
    """The line of a group that communicates."""
    d = "".join(_road(*pair, axis, place) for pair in pairwise(group))
    return f"<path d='{d}' fill='none' class='s-{eyes.keys[axis]} tpv-flow' {looks}/>"


def _road(here, there, axis, place):
    """From a cell's border to that of its neighbour; between replicas in the aisle above."""
    (x0, y0), (x1, y1) = place.corners[here], place.corners[there]
    width, height = place.width, place.height
    if axis == "x":
        return f"M{x0 + width:.1f},{y0 + height / 2:.1f}H{x1:.1f}"
    if axis == "y":
        return _behind(x0 + width / 2, y0 + height, y1, place)
    if axis == "z":
        return f"M{x0 + 0.72 * width:.1f},{y0:.1f}L{x1 + 0.28 * width:.1f},{y1 + height:.1f}"
    lanes, lane = place.sizes["x"], place.mesh.coords(here).get("x", 0)
    aisle = place.down - height
    lift = 3 + (aisle - 5) * (lane + 0.5) / lanes
    return f"M{x0 + 0.4 * width:.1f},{y0:.1f}v{-lift:.1f}H{x1 + 0.4 * width:.1f}v{lift:.1f}"


def _behind(x, top, bottom, place):
    """A line down, interrupted by the cells that it passes behind."""
    hidden = sorted(
        y for left, y in place.corners if left < x < left + place.width and top < y < bottom
    )
    ends = [top, *(edge for y in hidden for edge in (y, y + place.height)), bottom]
    return "".join(f"M{x:.1f},{a:.1f}V{b:.1f}" for a, b in zip(ends[::2], ends[1::2]))


def _cell(rank, place, eyes):
    """A rank's number, and its coordinates where one points."""
    (x, y), width, height = place.corners[rank], place.width, place.height
    coords, mine = place.eyes[rank].coords, rank == eyes.rank
    out = rect(x, y, width, height, "bg", "rx='5'")
    out += outline(x, y, width, height, *(("fg", 3) if mine else ("muted", 1)), 5)
    out += text(x + 5, y + 13, rank, weight=700 if mine else "")
    words = ", ".join(f"{axis} {i}" for axis, i in coords.items())
    return clickable(f"rank='{rank}'", out, f"rank {rank} at {words}")
