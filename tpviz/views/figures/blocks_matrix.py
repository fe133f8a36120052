"""The matrices of the blocks view, each with its blocks by owner and the rows in flight.

A block has the numbers of the ranks that hold it. Cuts have the colour of their axis. The chosen
rank's blocks are filled; partial sums are translucent sheets, one behind the other.
"""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import product
from math import prod

from tpviz.core.mesh import Mesh
from tpviz.views.films.captions import Dim, Frame, Tensor

from .svg import FILM, SMALL, lines, outline, rect, text

Box = tuple[float, float, float, float]
PIXELS = {"T": 104.0, "2": 18.0, "1": 18.0, "n": 160.0}
HIDDEN = 64.0
MIDDLE, TALL = 204, 190  # px: the middle of the matrices, and their greatest height
SIGN = 22  # px for a sign between two matrices
FEW = 4  # ranks of a block that are named
SHEET, SHEETS = 16, 3  # how far the sheets of a sum stand apart, and how many are drawn behind
SHEER = "fill-opacity='.75' data-partial=''"  # of a partial sum
PALE = "fill-opacity='.16'"  # of what others hold


class Eyes:
    """From where the blocks are seen: the mesh, the chosen rank, the ink of each axis."""

    def __init__(self, mesh: Mesh, rank: int, keys: dict[str, str]):
        self.mesh, self.rank, self.keys = mesh, rank, keys
        self.coords = mesh.coords(rank)

    def at(self, rank: int) -> "Eyes":
        """The same, seen from another rank."""
        return Eyes(self.mesh, rank, self.keys)


def side(dim: Dim) -> float:
    """Pixels of a dim; widths grow with the root of the multiple of the hidden size."""
    if dim.letters in PIXELS:
        return PIXELS[dim.letters]
    return HIDDEN * float(dim.letters.rstrip("H") or 1) ** 0.5


def size(tensor: Tensor, scale: float = 1.0) -> tuple[float, float]:
    """(width, height) in px, without sheets and words."""
    return scale * side(tensor.cols), scale * side(tensor.rows)


def parts(dim: Dim, mesh: Mesh) -> list[dict[str, int]]:
    """[{axis: index}] of the parts along a dim, in order."""
    return [
        dict(zip(dim.axes, where)) for where in product(*(range(mesh.axes[a]) for a in dim.axes))
    ]


def owner(tensor: Tensor, held: dict[str, int], eyes: Eyes) -> str:
    """ "3", "0,2", "8 ranks": those that hold a block; of a partial sum, of the front sheet."""
    front = {axis: eyes.coords[axis] for axis in (tensor.partial, *tensor.later) if axis}
    where, ranks = {**held, **front}, [0]
    for axis, n in eyes.mesh.axes.items():
        there = [where[axis]] if axis in where else range(n)
        ranks = [rank * n + i for rank in ranks for i in there]
    return ",".join(map(str, ranks)) if len(ranks) <= FEW else f"{len(ranks)} ranks"


def matrix(
    tensor: Tensor,
    x: float,
    y: float,
    eyes: Eyes,
    chunk: tuple[int, ...] = (),
    future: bool = False,
    scale: float = 1,
    falls: bool = False,
) -> str:
    """A matrix with its top left corner at (x, y).

    chunk : (k, count, parts): these rows are marked, others pale; with ``future`` only those after.
    falls : whether the sheets of a partial sum fall together while a film plays.
    """
    width, height = size(tensor, scale)
    rows, cols = parts(tensor.rows, eyes.mesh), parts(tensor.cols, eyes.mesh)
    w, h = width / len(cols), height / len(rows)
    blocks = [
        ({**row, **col}, (x + c * w, y + r * h, w, h))
        for r, row in enumerate(rows)
        for c, col in enumerate(cols)
    ]
    out = [
        _sheets(tensor, blocks, (x, y, width, height), eyes, falls),
        *(_block(tensor, *block, eyes) for block in blocks),
        _cuts(tensor.rows, x, y, width, height, eyes, down=True),
        _cuts(tensor.cols, x, y, width, height, eyes, down=False),
        outline(x, y, width, height, "fg", 1.2),
    ]
    out += [outline(*box, "fg", 2.4) for held, box in blocks if _mine(held, eyes)]
    if chunk:
        out.append(_bands(x, y, width, height, chunk, future))
    for held, box in blocks:
        ink = "fg s-bg" if tensor.partial or not _mine(held, eyes) else f"halo-{tensor.kind}"
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
    return rect(*box, tensor.kind, SHEER * bool(tensor.partial) if mine else PALE)


def _letters(words, box, ink):
    """The owner in the middle of a block, upright where it fits, else turned, else nothing."""
    x, y, width, height = box
    for fits, turn in ((width, 0), (height, -90)):
        across = height if not turn else width
        if min((fits - 2) / (0.6 * len(words)), across - 3) >= SMALL:
            cx, cy = x + width / 2, y + height / 2
            spin = "stroke-width='3' paint-order='stroke' "
            spin += f"transform='rotate({turn} {cx:.1f} {cy:.1f})'" if turn else ""
            return text(cx, cy + 0.36 * SMALL, words, ink, SMALL, "middle", 600, spin)
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


def _sheets(tensor, blocks, front: Box, eyes, falls):
    """The other ranks' partial sums, as sheets behind: their ranks where a sheet is seen, over the
    blocks of the first row and beside those of others."""
    if not tensor.partial:
        return ""
    x, y, width, height = front
    key, out, group = eyes.keys[tensor.partial], "", eyes.mesh.group(eyes.rank, tensor.partial)
    for k in range(_lift(tensor, eyes) // SHEET, 0, -1):
        by = SHEET * k
        box = x + by, y - by, width, height
        sheet = rect(*box, "bg") + rect(*box, tensor.kind, PALE) + outline(*box, key, 1.4)
        fellow = eyes.at([r for r in group if r != eyes.rank][k - 1])
        for held, (left, top, wide, high) in blocks:
            if top == y:
                box = left + by, y - by, wide, SHEET
            elif left + wide > x + width - 1:
                box = x + width + by - SHEET, top - by, SHEET, high
            else:
                continue
            if not falls:  # one that moves would cut them
                sheet += _letters(owner(tensor, held, fellow), box, "fg s-bg")
        path = f"data-path='{[0, 0, -by / 2, by / 2, -by, by]}' data-lag='0' " * falls
        out += f"<g {path}transform='translate(0,0)'>{sheet}</g>"
    return out + rect(*front, "bg")


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


def own(tensor: Tensor, x: float, y: float, eyes: Eyes, scale: float) -> Box:
    """(x, y, width, height) of a rank's own block of a matrix whose top left corner is (x, y)."""
    box = [x, y, *size(tensor, scale)]
    for index, dim in ((0, tensor.cols), (1, tensor.rows)):
        number, count = 0, 1
        for axis in dim.axes:
            size_of = eyes.mesh.axes[axis]
            number, count = number * size_of + eyes.coords[axis], count * size_of
        box[2 + index] /= count
        box[index] += number * box[2 + index]
        box[2 + index] = max(box[2 + index], 2)  # never a hairline
    return box[0], box[1], box[2], box[3]


# -- the matrices of a frame -----------------------------------------------------------------------
def matrices(frame: Frame, eyes: Eyes) -> str:
    """The product, and beside it the collective in flight meanwhile; or the collective alone; as
    large as there is room."""
    tensors = frame.product + frame.moving
    room = FILM - 24 - 40 * bool(frame.product and frame.moving)
    tall = TALL - 24 * bool(frame.move)  # a collective has a name above
    scale = min(2.0, tall / max(size(tensor)[1] for tensor in tensors))
    needs = [(side(tensor.cols), _words(tensor, eyes), _lift(tensor, eyes)) for tensor in tensors]
    while scale > 0.6 and _row_width(needs, scale) > room:
        scale *= 0.96
    signs = {3: ("·", "="), 2: ("→",)}
    out, x = "", 12 + max(0.0, (room - _row_width(needs, scale)) / 2)
    if frame.product:
        chunk = frame.chunk * (len(frame.product) == 3)  # rows of input and result are marked
        shown = [(t, chunk * (i != 1), i == 2) for i, t in enumerate(frame.product)]
        out, x = _row(shown, signs[len(shown)], x, eyes, scale)
    if frame.move:
        key, words = eyes.keys[frame.move.axis], frame.move.collective.replace("_", "-")
        words += f" over {frame.move.axis}"
        if frame.product:
            x, words = x + 2, f"meanwhile: {words}"
            looks = f"class='s-{key}' stroke-dasharray='4 4' stroke-width='1.6'"
            out += f"<path d='M{x:.1f},{MIDDLE - 116}v232' {looks}/>"
            x += 9
        out += text(x, MIDDLE - 154, words, key, weight=700)
        shown = [(t, frame.moved_chunk, False) for t in frame.moving]
        out += _row(shown, ("→",), x, eyes, scale, falls=True)[0]
    return out


def _lift(tensor, eyes):
    """px for the sheets of a sum."""
    return SHEET * min(eyes.mesh.axes[tensor.partial] - 1, SHEETS) if tensor.partial else 0


def _words(tensor, eyes):
    """px across that the words of a matrix need."""
    dims = tensor.rows, tensor.cols
    title = len(tensor.name) + 4 + sum(len(d.letters) + len("".join(d.axes)) for d in dims)
    return max(6.5 * title, 6.6 * max(map(len, _below(tensor, eyes))))


def _row_width(needs, scale):
    return sum(max(scale * wide, words) + lift + SIGN for wide, words, lift in needs) - SIGN


def _row(shown, signs, x, eyes, scale, falls=False):
    """Matrices from left to right with signs between them; returns (SVG, x after them)."""
    out = ""
    for i, (tensor, chunk, future) in enumerate(shown):
        if i:
            out += text(x + SIGN / 2 - 3, MIDDLE + 7, signs[i - 1], size=20, anchor="middle")
            x += SIGN - 3
        width, height = size(tensor, scale)
        lift = _lift(tensor, eyes)
        room = max(width, _words(tensor, eyes))
        left, top, middle = x + (room - width) / 2, MIDDLE - height / 2, x + room / 2
        out += (
            f"<text x='{middle:.1f}' y='{top - 8 - lift:.1f}' class='f-fg' font-size='13' "
            "text-anchor='middle' font-weight='600'>"
            f"{notation(tensor, eyes.keys)}</text>"
        )
        out += matrix(tensor, left, top, eyes, chunk, future, scale, falls)
        out += lines(middle, top + height + 16, _below(tensor, eyes), 15, "muted", anchor="middle")
        x += room + 3 + lift
    return out, x


def _below(tensor, eyes):
    """A rank's part of it, and of how many such sheets it is the sum."""
    rows, cols = tensor.local(eyes.mesh.axes)
    numbers = tensor.rows.size * tensor.cols.size // prod(eyes.mesh.axes[a] for a in tensor.axes)
    even = rows * cols == numbers  # a flat piece of a weight may end within a feature
    whose = f"rank {eyes.rank}: " * bool(tensor.axes)
    words = [f"{whose}{rows} × {cols}" if even else f"{numbers:,} numbers"]
    if tensor.partial:
        terms = f"{eyes.mesh.axes[tensor.partial]} sheets, over {tensor.partial}"
        more = (f", {eyes.mesh.axes[axis]} over {axis}" for axis in tensor.later)
        words.append(terms + "".join(more))
    return words


# -- in the cells of ranks -------------------------------------------------------------------------
LARGE, LEAST = 0.4, 0.06  # of the matrices in a cell


def travelling(
    groups: Iterable[Sequence[int]], middle: Callable[[int], tuple[float, float]], ink: str
) -> str:
    """A part of a tensor on its way from every rank of each group to the next, as on a ring; seen
    where a film plays. middle : of a rank's cell, in px."""
    out = ""
    for group in groups:
        for here, there in zip(group, [*group[1:], group[0]]):
            (x0, y0), (x1, y1) = middle(here), middle(there)
            bend = 0.2 if there == group[0] else 0.0  # the way back to the first, beside the others
            by = (x0 + x1) / 2 + bend * (y0 - y1), (y0 + y1) / 2 + bend * (x1 - x0)
            path = [round(v, 1) for v in (x0, y0, *by, x1, y1)]
            out += (
                f"<g class='tpv-token' visibility='hidden' data-path='{path}' data-lag='0' "
                f"transform='translate({x0:.1f},{y0:.1f})'>"
                f"<path d='M-7,-6h14v12h-14z' class='f-{ink} s-bg' stroke-width='1.5'/></g>"
            )
    return f"<g pointer-events='none'>{out}</g>"


def spread(
    tensors: Sequence[Tensor], x: float, y: float, width: float, height: float
) -> list[tuple[Tensor, float, float, float]]:
    """[(tensor, x, y, scale)] side by side, or one below the other, in a field of a cell; nothing
    where there is no room."""
    along = 1 if width < 40 < height else 0
    room, across = ((width, height), (height, width))[along]
    sizes = [size(tensor) for tensor in tensors]
    total = sum(pair[along] for pair in sizes)
    gap = 6 if not along else 4
    fits = (room - gap * (len(sizes) - 1)) / total
    scale = min(LARGE, fits, across / max(pair[1 - along] for pair in sizes))
    placed, at = [], (room - gap * (len(sizes) - 1) - scale * total) / 2
    for tensor, pair in zip(tensors, sizes):
        beside = (across - scale * pair[1 - along]) / 2
        placed.append((tensor, *((x + beside, y + at) if along else (x + at, y + beside)), scale))
        at += scale * pair[along] + gap
    return placed if scale > LEAST else []


# -- notation --------------------------------------------------------------------------------------
def notation(tensor: Tensor, keys: dict[str, str]) -> str:
    """X[T, H_d2] as SVG tspans, axes small and in their ink."""
    dims = ", ".join(_dim(dim, keys) for dim in (tensor.rows, tensor.cols))
    return f"{escape(tensor.name)}[{dims}]"


def plain(tensor: Tensor) -> str:
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
    low = f"<tspan dy='3'>{axes}</tspan>"
    return f"{dim.letters}{low}<tspan dy='-3'>&#8203;</tspan>"  # a letter that takes no room
