"""The ranks of the blocks view: a cell each with what it holds, and the groups that communicate."""

from itertools import pairwise
from typing import TYPE_CHECKING

from .blocks_matrix import Eyes, size, small
from .svg import outline, rect, text

if TYPE_CHECKING:
    from tpviz.films.captions import Frame
    from tpviz.mesh import Mesh

GAP, PAD = 18, 6  # between cells, for the ring of a group; from a cell to its ring
ROOM = 596, 280  # for the cells, in px
SCALE = 0.36


class Grid:
    """Where the cells stand: the first of two axes runs down, the last one across."""

    def __init__(self, mesh: "Mesh", x: float, y: float):
        self.mesh, self.x, self.y = mesh, x, y
        *down, across = mesh.shape
        self.rows, self.columns = (down or [1])[0], across
        self.width = min(150, ROOM[0] / self.columns - GAP)
        self.height = max(min(84, ROOM[1] / self.rows - GAP), 25)

    @property
    def bottom(self) -> float:
        """Where the last row of cells ends."""
        return self.y + self.rows * (self.height + GAP)

    def corner(self, rank: int) -> tuple[float, float]:
        """Top left corner of a rank's cell."""
        row, column = divmod(rank, self.columns)
        return self.x + column * (self.width + GAP), self.y + row * (self.height + GAP)


def ranks(frame: "Frame", grid: Grid, eyes: Eyes) -> str:
    """All cells, the rings of the groups behind them, the names of the axes."""
    out = [_names(grid, eyes)]
    if frame.move:
        out += [
            _ring(group, frame.move.axis, grid, eyes) for group in eyes.mesh.groups(frame.move.axis)
        ]
    return "".join(out + [_cell(rank, frame, grid, eyes) for rank in range(eyes.mesh.size)])


def _names(grid, eyes):
    axes, keys = eyes.mesh.axes, eyes.keys
    *down, across = axes
    x, y = grid.x, grid.y - 14
    out = text(x, y, f"{across} = {axes[across]} →", keys[across], 12, weight=700)
    out += text(x + 70, y, "what each rank holds of the matrices above", "muted", 11)
    if down:
        words = f"{down[0]} = {axes[down[0]]} ↓"
        out += text(x - 12, grid.y + 20, words, keys[down[0]], 12, "end", 700)
    return out


def _ring(group, axis, grid, eyes):
    """A closed line around the ranks that communicate; that of the chosen rank is filled."""
    (x0, y0), (x1, y1) = grid.corner(group[0]), grid.corner(group[-1])
    box = x0 - PAD, y0 - PAD, x1 - x0 + grid.width + 2 * PAD, y1 - y0 + grid.height + 2 * PAD
    key, mine = eyes.keys[axis], eyes.rank in group
    out = rect(*box, key, "rx='11' fill-opacity='.2'") if mine else ""
    out += outline(*box, f"{key} tpv-flow", 4 if mine else 2.2, 11, "stroke-dasharray='9 5'")
    for here, there in pairwise(group):
        out += _link(grid.corner(here), grid.corner(there), grid, key)
    return out


def _link(here, there, grid, key):
    """A thick line with two heads between neighbours of a group."""
    (x, y), turn = here, 90 if there[1] > here[1] else 0
    cx, cy = x + grid.width + GAP / 2, y + grid.height / 2
    if turn:
        cx, cy = x + grid.width / 2, y + grid.height + GAP / 2
    d = "M-7,0l5,-4v2.5h4v-2.5l5,4l-5,4v-2.5h-4v2.5z"
    place = f"translate({cx:.1f},{cy:.1f})rotate({turn})"
    return f"<path d='{d}' class='f-{key}' transform='{place}'/>"


def _cell(rank, frame, grid, eyes):
    x, y = grid.corner(rank)
    mine, here = rank == eyes.rank, eyes.at(rank)
    edge = ("fg", 3) if mine else ("muted", 1)
    where = ",".join(map(str, here.coords.values()))
    out = rect(x, y, grid.width, grid.height, "bg", "rx='6'")
    out += outline(x, y, grid.width, grid.height, *edge, 6)
    tall, wide = grid.height >= 46, grid.width >= 60
    words = f"rank {rank}" if wide else str(rank)
    weight = 700 if mine else ""
    out += text(x + 6, y + 14, words, size=11, weight=weight)
    if len(eyes.mesh.axes) > 1:
        if wide:
            out += text(x + grid.width - 6, y + 14, where, "muted", 11, "end")
        else:
            out += text(x + 6, y + 24, where, "muted", 9)
    left, top, width, height = 50, 3, grid.width - 84, grid.height - 6
    if tall:
        left, top, width, height = 4, 19, grid.width - 8, grid.height - 22
    out += _holds(frame, x + left, y + top, width, height, here)
    return (
        f"<g data-rank='{rank}' style='cursor:pointer'><title>rank {rank} at {where}</title>"
        f"{out}</g>"
    )


def _holds(frame, x, y, width, height, eyes):
    """The rank's own blocks of the tensors in the picture, side by side, as large as fits."""
    tensors = frame.product or frame.moving
    sizes = [size(t) for t in tensors]
    gaps = 6 * (len(tensors) - 1)
    scale = min(SCALE, (width - gaps) / sum(w for w, _ in sizes), height / max(h for _, h in sizes))
    out, x = "", x + (width - gaps - scale * sum(w for w, _ in sizes)) / 2
    for tensor, (w, h) in zip(tensors, sizes):
        out += small(tensor, x, y + (height - scale * h) / 2, eyes, scale)
        x += scale * w + 6
    return out
