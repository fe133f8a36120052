"""The ranks of a block's mesh -> SVG: a cube of cells, lines between neighbours, and what each has.

The first of up to four axes runs to the right, the second down, the third into the depth, and the
last has its planes or cubes side by side. It is seen obliquely and pulled apart: every plane lies a
row higher and further to the right than the one in front of it, so that no rank covers another and
all lines run between the cells.
"""

from collections.abc import Sequence
from itertools import pairwise

from tpviz.views.films.captions import Frame

from .blocks_matrix import SHEER, Eyes, own, size, spread, travelling
from .lanes import box
from .svg import clickable, outline, rect, text

ROOM = (446, 200)  # px for the cells

DEEP = 0.56  # of a cell's width, from a plane to the next: lines down pass beside its cells
AISLE = 18  # between two rows of cells
CELL, ROW = 104, 96  # largest width, and largest height with the aisle, in px
ARROWS = "→", "↓", "↗", "side by side"
WIDE = 80  # px of a cell in which all tensors have room, not the result alone


class Cube:
    """Where the cells stand, in a field of `ROOM` from (x, y) on.

    axes : those of the mesh of ``eyes``, in the order of the places of `ARROWS`.
    """

    def __init__(self, eyes: Eyes, axes: Sequence[str], x: float, y: float):
        self.mesh, self.axes, self.x, self.y = eyes.mesh, axes, x, y
        sizes = [self.mesh.axes.get(axis, 1) for axis in axes]
        nx, ny, nz, nd = self.sizes = [*sizes, 1, 1, 1][:4]
        gap, alone = 18 if nx * nd <= 4 else 6, nx * nz == 1
        self.between = 34 if nd <= 4 else 6 if alone else 14
        across = (nx - 1) + DEEP * (nz - 1) + 1
        space = ROOM[0] - (nd - 1) * self.between - nd * (nx - 1) * gap
        self.width = min(CELL, space / (nd * across))
        left = space - nd * across * self.width
        steps = nd * (nx - 1 + (nz - 1) / 2)
        more = min(60, left / steps) if steps else 0  # apart as far as there is room
        self.gap, self.deep = gap + more, DEEP * self.width + more / 2
        rows = ny * nz
        self.down = max(27, min(ROW, ROOM[1] / rows), min(40, 320 / rows))
        self.height = self.down - AISLE * min(1, self.down / 40)
        self.replica = nx * self.width + (nx - 1) * self.gap + (nz - 1) * self.deep + self.between
        self.bottom = y + ny * nz * self.down
        self.corners = [self._corner(rank) for rank in range(self.mesh.size)]
        self.groups = {axis: self.mesh.groups(axis) for axis, n in self.mesh.axes.items() if n > 1}
        self.eyes = [eyes.at(rank) for rank in range(self.mesh.size)]

    def _corner(self, rank):
        """Top left corner of a rank's cell."""
        where = [self.mesh.coords(rank).get(axis, 0) for axis in self.axes]
        (x, y, z, data), nz = [*where, 0, 0, 0][:4], self.sizes[2]
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
    """Every rank's own blocks of the tensors in the picture, of the result alone where there is
    little room, in small outlines; one path a kind, for there are many."""
    outlines, filled, tensors = "", {}, frame.product or frame.moving
    for tensor, x, y, scale in spread(tensors[-1 - 2 * (place.width >= WIDE) :], *place.inside):
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
    for axis, n, arrow in zip(place.axes, place.sizes, ARROWS):
        words = f"{axis} = {n} {arrow}"
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
    number = place.axes.index(axis)
    if number == 0:
        return f"M{x0 + width:.1f},{y0 + height / 2:.1f}H{x1:.1f}"
    if number == 1:
        return _behind(x0 + width / 2, y0 + height, y1, place)
    if number == 2:
        return f"M{x0 + 0.72 * width:.1f},{y0:.1f}L{x1 + 0.28 * width:.1f},{y1 + height:.1f}"
    lanes, lane = place.sizes[0], place.mesh.coords(here).get(place.axes[0], 0)
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
    name = f"rank {rank}" if min(width / 2, height) >= 34 else rank
    out += text(x + 5, y + 13, name, weight=700 if mine else "")
    words = ", ".join(f"{axis} {i}" for axis, i in coords.items())
    return clickable(f"rank='{rank}'", out, f"rank {rank} at {words}")
