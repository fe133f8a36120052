"""The ranks of the grid as a cube: x to the right, y down, z into the depth, replicas side by side.

Seen obliquely and pulled apart: every plane of z lies a row higher and further to the right than
the one in front of it, so that no rank covers another and all lines run between the cells.
"""

from itertools import pairwise
from typing import TYPE_CHECKING

from .blocks_matrix import Eyes, own, size
from .svg import outline, rect, text

if TYPE_CHECKING:
    from tpviz.films.captions import Frame

DEEP = 0.56  # of a cell's width, from a plane to the next: lines down pass beside its cells
AISLE = 18  # between two rows of cells
CELL, ROW = 104, 96  # largest width, and largest height with the aisle, in px
SCALE, LEAST = 0.4, 0.06  # of the matrices in a cell
ARROWS = {"x": "→", "y": "↓", "z": "↗", "data": "side by side"}


class Cube:
    """Where the cells stand, in a field of ``room`` px from (x, y) on.

    eyes : one `tpviz.figures.blocks_matrix.Eyes`. sizes : {"x", "y", "z", "data": ranks}, also
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


def moment(frame: "Frame", place: Cube, eyes: Eyes) -> str:
    """What a frame adds: the groups that communicate, and gathers and scatters under way."""
    out, moved = "", frame.move.axis if frame.move else ""
    if frame.in_flight and moved != "z":
        mine = next(group for group in place.groups["z"] if eyes.rank in group)
        out += _flow(mine, "z", place, eyes, "stroke-width='3' stroke-dasharray='2 4'")
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
    return f"<g pointer-events='none'>{out}</g>"


def holdings(frame: "Frame", place: Cube) -> str:
    """Every rank's own blocks of the tensors in the picture, in small outlines; one path a kind,
    for there are many."""
    outlines, filled = "", {}
    for tensor, x, y, scale in _spread(frame.product or frame.moving, *place.inside):
        width, height = (scale * side for side in size(tensor))
        for (left, top), eyes in zip(place.corners, place.eyes):
            outlines += _box(left + x, top + y, width, height)
            block = _box(*own(tensor, left + x, top + y, eyes, scale))
            for key in (tensor.kind, "partial" if tensor.partial else ""):
                filled[key] = filled.get(key, "") + block
    filled.pop("", None)
    looks = {key: f"class='f-{key}'" for key in filled} | {"partial": "fill='url(#tpv-partial)'"}
    # kinds first, hatching over them
    blocks = "".join(
        f"<path d='{filled[key]}' {looks[key]}/>" for key in sorted(filled, key="partial".__eq__)
    )
    return (
        f"<g pointer-events='none'><path d='{outlines}' fill='none' class='s-muted' "
        f"stroke-width='.8'/>{blocks}</g>"
    )


def _spread(tensors, x, y, width, height):
    """[(tensor, x, y, scale)] side by side, or one below the other, in a field of a cell; nothing
    where there is no room."""
    along = 1 if width < 40 < height else 0
    room, across = ((width, height), (height, width))[along]
    sizes = [size(tensor) for tensor in tensors]
    total = sum(pair[along] for pair in sizes)
    gap = 6 if not along else 4
    fits = (room - gap * (len(sizes) - 1)) / total
    scale = min(SCALE, fits, across / max(pair[1 - along] for pair in sizes))
    spread, at = [], (room - gap * (len(sizes) - 1) - scale * total) / 2
    for tensor, pair in zip(tensors, sizes):
        beside = (across - scale * pair[1 - along]) / 2
        spread.append((tensor, *((x + beside, y + at) if along else (x + at, y + beside)), scale))
        at += scale * pair[along] + gap
    return spread if scale > LEAST else []


def _ring(rank, place):
    """The outline of a rank's cell."""
    (x, y), wide, high = place.corners[rank], place.width - 10, place.height - 10
    return (
        f"M{x + 5:.1f},{y:.1f}h{wide:.1f}a5,5 0 0 1 5,5v{high:.1f}a5,5 0 0 1 -5,5"
        f"h{-wide:.1f}a5,5 0 0 1 -5,-5v{-high:.1f}a5,5 0 0 1 5,-5z"
    )


def _box(x, y, width, height):
    return f"M{x:.1f},{y:.1f}h{width:.1f}v{height:.1f}h{-width:.1f}z"


def _names(place, eyes):
    """The axes with their arrows."""
    out, x = "", place.x
    for axis, n in place.sizes.items():
        words = f"{axis} = {n} {ARROWS[axis]}" if n > 1 else f"{axis} = 1"
        key, weight = (eyes.keys[axis], 700) if n > 1 else ("muted", "")
        out += text(x, place.y - 23, words, key, 12, weight=weight)
        x += 7 * len(words) + 16
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
    """A rank's number and coordinates."""
    (x, y), width, height = place.corners[rank], place.width, place.height
    coords, mine = place.eyes[rank].coords, rank == eyes.rank
    out = rect(x, y, width, height, "bg", "rx='5'")
    out += outline(x, y, width, height, *(("fg", 3) if mine else ("muted", 1)), 5)
    out += text(x + 5, y + 13, rank, size=11, weight=700 if mine else "")
    where = ",".join(map(str, coords.values()))
    if height >= 34 and 6 * len(where) + 26 <= width:
        out += text(x + width - 5, y + 13, where, "muted", 10, "end")
    words = ", ".join(f"{axis} {i}" for axis, i in coords.items())
    return (
        f"<g data-rank='{rank}' style='cursor:pointer'><title>rank {rank} at {words}</title>"
        f"{out}</g>"
    )
