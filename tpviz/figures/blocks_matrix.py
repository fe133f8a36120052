"""One matrix of the blocks view: its outline, its blocks by owner, the rows in flight.

Blocks are lettered with the coordinates of who holds them, * for every rank along an axis. Cuts
have the colour of their axis. The blocks of the chosen rank are filled; terms of a sum are hatched,
one sheet behind the other.
"""

from collections.abc import Iterable, Sequence
from html import escape
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from .svg import outline, rect, swatch, text

if TYPE_CHECKING:
    from tpviz.films.captions import Dim, Tensor
    from tpviz.mesh import Mesh

Box = tuple[float, float, float, float]
PIXELS = {"T": 104.0, "2": 18.0, "1": 18.0, "n": 190.0}
HIDDEN = 76.0
SHEET, SHEETS = 5, 3  # how far the sheets of a sum stand apart, and how many are drawn behind
HATCH = (
    "<pattern id='tpv-partial' width='6' height='6' patternUnits='userSpaceOnUse'>"
    "<path d='M-1,1l2,-2M0,6l6,-6M5,7l2,-2' class='s-fg' fill='none' stroke-width='1.1'"
    " stroke-opacity='.75'/></pattern>"
)


class Eyes:
    """From where the blocks are seen: the mesh, the chosen rank, the ink of each axis."""

    def __init__(self, mesh: "Mesh", rank: int, keys: dict[str, str]):
        self.mesh, self.rank, self.keys = mesh, rank, keys
        self.coords = mesh.coords(rank)

    def at(self, rank: int) -> "Eyes":
        """The same, seen from another rank."""
        return Eyes(self.mesh, rank, self.keys)


def side(dim: "Dim") -> float:
    """Pixels of a dim; widths grow with the root of the multiple of the hidden size."""
    if dim.letters in PIXELS:
        return PIXELS[dim.letters]
    return HIDDEN * int(dim.letters.rstrip("H") or 1) ** 0.5


def size(tensor: "Tensor") -> tuple[float, float]:
    """(width, height) in px, without sheets and words."""
    return side(tensor.cols), side(tensor.rows)


def parts(dim: "Dim", mesh: "Mesh") -> list[dict[str, int]]:
    """[{axis: index}] of the parts along a dim, in order."""
    return [
        dict(zip(dim.axes, where)) for where in product(*(range(mesh.axes[a]) for a in dim.axes))
    ]


def owner(tensor: "Tensor", held: dict[str, int], eyes: Eyes) -> str:
    """ "0,1", "*,1": the coordinates of who holds a block; of a partial sum, of the front sheet."""
    front = {axis: eyes.coords[axis] for axis in (tensor.partial, *tensor.later) if axis}
    where = {**held, **front}
    return ",".join(str(where.get(axis, "*")) for axis in eyes.mesh.names)


def matrix(
    tensor: "Tensor",
    x: float,
    y: float,
    eyes: Eyes,
    chunk: tuple[int, ...] = (),
    future: bool = False,
) -> str:
    """A matrix with its top left corner at (x, y).

    chunk : (k, count, parts): these rows are marked, others pale; with ``future`` only those after.
    """
    width, height = size(tensor)
    rows, cols = parts(tensor.rows, eyes.mesh), parts(tensor.cols, eyes.mesh)
    w, h = width / len(cols), height / len(rows)
    blocks = [
        ({**row, **col}, (x + c * w, y + r * h, w, h))
        for r, row in enumerate(rows)
        for c, col in enumerate(cols)
    ]
    out = [
        _sheets(tensor, x, y, eyes),
        *(_block(tensor, *block, eyes) for block in blocks),
        _cuts(tensor.rows, x, y, width, height, eyes, down=True),
        _cuts(tensor.cols, x, y, width, height, eyes, down=False),
        outline(x, y, width, height, "fg", 1.2),
    ]
    out += [outline(*box, "fg", 2.4) for held, box in blocks if _mine(held, eyes)]
    if chunk:
        out.append(_bands(x, y, width, height, chunk, future))
    for held, box in blocks:
        ink = f"halo-{tensor.kind}" if _mine(held, eyes) else "fg s-bg"
        out.append(_letters(owner(tensor, held, eyes), _seen(box, y, height, chunk), ink))
    return "".join(out)


def _seen(box, y, height, chunk):
    """The part of a block that is not pale, for its letters: its first rows of the chunk."""
    if not chunk:
        return box
    k, count, pieces = chunk
    each = height / pieces
    piece = round((box[1] - y) / each) if box[3] < height else 0
    return [box[0], y + piece * each + k * each / count, box[2], each / count]


def _mine(held, eyes):
    return all(eyes.coords[axis] == i for axis, i in held.items())


def _block(tensor, held, box: Box, eyes):
    mine = _mine(held, eyes)
    out = rect(*box, tensor.kind, "" if mine else "fill-opacity='.16'")
    if tensor.partial:
        out += rect(*box, "", "fill='url(#tpv-partial)'")
    return out


def _letters(words, box, ink):
    """The owner in the middle of a block, upright where it fits, else turned, else nothing."""
    x, y, width, height = box
    for fits, turn in ((width, 0), (height, -90)):
        across = height if not turn else width
        points = min(12.0, (fits - 4) / (0.56 * len(words)), across - 1)
        if points >= 7:
            cx, cy = x + width / 2, y + height / 2
            spin = "stroke-width='3' paint-order='stroke' "
            spin += f"transform='rotate({turn} {cx:.1f} {cy:.1f})'" if turn else ""
            return text(cx, cy + 0.36 * points, words, ink, round(points, 1), "middle", 600, spin)
    return ""


def _cuts(dim, x, y, width, height, eyes, down):
    """Lines between the parts, in the ink of the axis that cuts there."""
    out, count = [], 1
    total = prod(eyes.mesh.axes[a] for a in dim.axes)
    for depth, axis in enumerate(dim.axes):
        count *= eyes.mesh.axes[axis]
        part = (height if down else width) / count
        thick = min(2.6 if depth == 0 else 1.8, part / 6)
        for i in range(1, count):
            if depth and i % eyes.mesh.axes[axis] == 0:
                continue  # the outer axis cuts here already
            at = i * (total // count) / total
            d = f"M{x + at * width:.1f},{y:.1f}v{height:.1f}"
            d = f"M{x:.1f},{y + at * height:.1f}h{width:.1f}" if down else d
            for ink, wide in (("bg", 2 * thick), (eyes.keys[axis], thick)):
                out.append(f"<path d='{d}' class='s-{ink}' stroke-width='{wide:.1f}'/>")
    return "".join(out)


def _sheets(tensor, x, y, eyes):
    """The other terms of a sum, as sheets behind."""
    if not tensor.partial:
        return ""
    width, height = size(tensor)
    behind = min(eyes.mesh.axes[tensor.partial] - 1, SHEETS)
    out = ""
    for k in range(behind, 0, -1):
        box = x + SHEET * k, y - SHEET * k, width, height
        key = eyes.keys[tensor.partial]
        out += rect(*box, "bg") + rect(*box, tensor.kind, "fill-opacity='.3'")
        out += rect(*box, "", "fill='url(#tpv-partial)'")
        out += outline(*box, key, 1.4)
    return out + rect(x, y, width, height, "bg")


def _bands(x, y, width, height, chunk, future):
    """The rows of a chunk framed; the others pale."""
    k, count, pieces = chunk
    out = []
    for piece in range(pieces):
        top, each = y + height * piece / pieces, height / pieces / count
        others = range(k + 1, count) if future else [i for i in range(count) if i != k]
        for i in others:
            out.append(rect(x - 1, top + i * each, width + 2, each, "bg", "fill-opacity='.8'"))
        out.append(outline(x - 3, top + k * each, width + 6, each, "fg", 2.4, 2))
    return "".join(out)


def small(tensor: "Tensor", x: float, y: float, eyes: Eyes, scale: float) -> str:
    """A rank's own block in a small outline of the matrix."""
    width, height = (scale * s for s in size(tensor))
    hatch = "partial" if tensor.partial else ""
    out = outline(x, y, width, height, "muted", 0.8)
    return out + swatch(*own(tensor, x, y, eyes, scale), tensor.kind, hatch)


def own(tensor: "Tensor", x: float, y: float, eyes: Eyes, scale: float) -> Box:
    """(x, y, width, height) of a rank's own block of a matrix whose top left corner is (x, y)."""
    box = [x, y, *(scale * s for s in size(tensor))]
    for index, dim in ((0, tensor.cols), (1, tensor.rows)):
        number, count = 0, 1
        for axis in dim.axes:
            size_of = eyes.mesh.axes[axis]
            number, count = number * size_of + eyes.coords[axis], count * size_of
        box[2 + index] /= count
        box[index] += number * box[2 + index]
        box[2 + index] = max(box[2 + index], 2)  # never a hairline
    return box[0], box[1], box[2], box[3]


# -- notation --------------------------------------------------------------------------------------
def notation(tensor: "Tensor", keys: dict[str, str], name: bool = True) -> str:
    """X[T, H_d2] as SVG tspans, axes small and in their ink."""
    dims = ", ".join(_dim(dim, keys) for dim in (tensor.rows, tensor.cols))
    words = f"{escape(tensor.name) if name else ''}[{dims}]"
    if tensor.partial:
        axes = (_axis(axis, keys) for axis in (tensor.partial, *tensor.later))
        words += " partial over " + " and ".join(axes)
    return words


def plain(tensor: "Tensor") -> str:
    """X[T, H_d2] as text."""
    dims = ", ".join(
        d.letters + (f"_{joined(d.axes, d.axes)}" if d.axes else "")
        for d in (tensor.rows, tensor.cols)
    )
    axes = " and ".join((tensor.partial, *tensor.later))
    partial = f" partial over {axes}" if tensor.partial else ""
    return f"{tensor.name}[{dims}]{partial}"


def joined(words: Iterable[str], axes: Sequence[str]) -> str:
    """The axes of a dim side by side, with a dot between names that would run together."""
    return ("·" if max(map(len, axes)) > 2 else "").join(words)


def _axis(axis, keys):
    return f"<tspan class='f-{keys[axis]}' font-weight='700'>{escape(axis)}</tspan>"


def _dim(dim, keys):
    if not dim.axes:
        return dim.letters
    axes = joined([_axis(axis, keys) for axis in dim.axes], dim.axes)
    low = f"<tspan dy='3' font-size='80%'>{axes}</tspan>"
    return f"{dim.letters}{low}<tspan dy='-3'>&#8203;</tspan>"  # a letter that takes no room
