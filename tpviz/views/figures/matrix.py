"""Communication matrix -> scene: the tier between each two ranks, and the groups of a mesh.

Ranks of one unit stand together, so the matrix of pairs is blocks within blocks along its diagonal,
one colour for each tier, with the bandwidth of a pair. On a mesh (d1, d2) every hop of a group's
ring is marked: d1 an open disc, d2 a full one.

>>> from tpviz import clusters, communication_matrix
>>> scene = matrix_scene(communication_matrix(clusters.nvlink_pairs()), (4, 2))
>>> scene["axes"][0]["words"]
'd1: 2 groups of 4 ranks, 2 apart: 17 GB/s, 10 µs a hop, derived'
"""

from textwrap import wrap
from typing import Any

from tpviz.core.inks import axis_keys
from tpviz.core.mesh import Mesh
from tpviz.views.matrix import CommunicationMatrix

from .svg import (
    Picture,
    amount,
    badge,
    document,
    image,
    lines,
    outline,
    pattern_defs,
    rect,
    swatch,
    text,
)
from .tokens import INKS

__all__ = ["Picture", "image", "matrix_scene", "matrix_svg"]

MAX_RANKS, MAX_ALONG = 64, 8
"""Ranks drawn in the matrix, and along one axis of the mesh."""
TIER_KEYS = ("axis2", "axis3", "axis4", "sync", "other")
"""Inks of the tiers, none of them one that d1 and d2 have."""


def matrix_scene(
    matrix: CommunicationMatrix, mesh: Mesh | tuple[int, int] | None = None
) -> dict[str, Any]:
    """The scene of a `CommunicationMatrix`, ready for JSON.

    mesh : (d1, d2) whose groups are shown. Returns a dict: ``tiers`` (name, words, ink, pattern,
    pair in bytes/s, whether ``drawn``), ``blocks`` (tier, first rank, ranks; outer ones first),
    ``numbers`` (tier, row, column, ranks: where there is one rate for the whole block), ``hops``
    (axis, from, to), ``axes`` (words, stride, size, rates), ``rows`` of all meshes, ``captions``.
    Raises ValueError where the mesh does not have the matrix's ranks.
    """
    if not isinstance(matrix, CommunicationMatrix):
        raise ValueError(
            f"a picture of a matrix needs a tv.communication_matrix(cluster), not {matrix!r}"
        )
    shown = _shown(matrix)
    blocks, numbers = _blocks(matrix, shown)
    mesh = None if mesh is None else Mesh(dict(zip(("d1", "d2"), matrix.check_mesh(mesh))))
    seen = {block["tier"] for block in blocks}
    return {
        "title": f"{matrix.cluster.caption}, {matrix.world_size} ranks",
        "badge": matrix.badge,
        "size": matrix.world_size,
        "shown": shown,
        "tiers": [_tier(matrix, number, number in seen) for number in range(len(matrix.tiers))],
        "blocks": blocks,
        "numbers": numbers,
        "mesh": dict(mesh.axes) if mesh else {},
        "axes": [_axis(matrix, mesh, k) for k in range(2)] if mesh else [],
        "hops": _hops(mesh, shown) if mesh else [],
        "rows": matrix.to_table(),
        "captions": _captions(matrix, shown),
    }


def _shown(matrix):
    """How many ranks are drawn: as many whole units as there is room for."""
    if matrix.world_size <= MAX_RANKS:
        return matrix.world_size
    inner = 1
    for tier in matrix.tiers:
        if inner * tier.units > MAX_RANKS:
            break
        inner *= tier.units
    return MAX_RANKS // inner * inner


def _tier(matrix, number, drawn):
    tier, key = matrix.tiers[number], TIER_KEYS[number % len(TIER_KEYS)]
    row = {"name": tier.name, "words": matrix.words(tier), "key": key, "drawn": drawn}
    return row | {"pattern": INKS[key].pattern, "pair": tier.p2p}


def _blocks(matrix, shown):
    """(units along the diagonal, outer tiers first; the blocks between two units of a tier)."""
    blocks, numbers, inner = [], [], 1
    for number, tier in enumerate(matrix.tiers):
        outer = inner * tier.units
        if shown > inner:
            blocks = [
                {"tier": number, "first": first, "ranks": min(outer, shown - first)}
                for first in range(0, shown, outer)
                if shown - first > inner
            ] + blocks
        if matrix.cluster.levels or len({t.p2p for t in matrix.tiers[: number + 1]}) == 1:
            units = range(0, shown - inner + 1, inner)
            numbers += [
                {"tier": number, "row": a, "column": b, "ranks": inner}
                for a in units
                for b in units
                if a != b and a // outer == b // outer
            ]
        inner = outer
    return blocks, numbers


def _axis(matrix, mesh, number):
    """The bandwidth of one axis of the mesh, in numbers and words."""
    name, entry = mesh.names[number], matrix.on(mesh)[number]
    key, size = axis_keys(mesh.names)[name], mesh.shape[number]
    row = {"name": name, "size": size, "key": key, "pattern": INKS[key].pattern}
    if entry is None:
        words = f"{name}: one rank, nothing is sent"
        return row | {"bandwidth": None, "latency": 0.0, "source": "", "words": words}
    count = mesh.size // size
    where = "neighbours" if entry.stride == 1 else f"{entry.stride} apart"
    rates = matrix.to_table()[1 + matrix.meshes.index(mesh.shape)][1 + 3 * number : 4 + 3 * number]
    words = "{}, {} a hop, {}".format(*rates)
    return row | {
        "stride": entry.stride,
        "bandwidth": entry.bandwidth,
        "latency": entry.latency,
        "source": entry.source,
        "words": f"{name}: {count} group{'s' * (count > 1)} of {size} ranks, {where}: {words}",
    }


def _hops(mesh, shown):
    """Every hop of the groups' rings between ranks that are drawn."""
    return [
        {"axis": axis, "from": a, "to": b}
        for axis in mesh.names
        for group in (mesh.groups(axis) if mesh.axes[axis] > 1 else ())
        for a, b in zip(group, group[1:] + group[:1])
        if max(a, b) < shown
    ]


def _captions(matrix, shown):
    unit = "" if matrix.cluster.torus else "; unit: a rank, or the group one level below"
    lines = [
        f"in the matrix: bandwidth of one pair of ranks{unit}",
        "of an axis: bus bandwidth of each rank while all groups of the axis communicate",
    ]
    if shown < matrix.world_size:
        lines.append(f"the first {shown} of {matrix.world_size:,} ranks are drawn")
    return lines + ([f"source: {matrix.cluster.source}"] if matrix.cluster.source else [])


# -- the picture -----------------------------------------------------------------------------------
LEFT, TOP, SIDE, GAP = 44, 76, 288, 44
CELL, STEP = 34, 46
LETTER, LINE = 6.1, 105
"""Width of a letter of 11 px, about; the most letters in a line of text below the picture."""


def matrix_svg(scene: dict[str, Any], theme: str = "auto") -> str:
    """Draw the scene: nested blocks, and beside them the mesh, or without one the bandwidths of
    every mesh. theme "light", "dark", "auto" or "page"."""
    right = LEFT + SIDE + GAP
    beside, width, height = (_mesh if scene["mesh"] else _rows)(scene, right, TOP)
    below, bottom, longest = _below(scene, TOP + max(SIDE, height) + 28)
    frame, pill = badge(10, 8, scene["badge"])
    body = [
        pattern_defs(),
        frame,
        text(pill + 20, 22, scene["title"], "muted"),
        text(LEFT, 46, f"{_unit(scene)[1]} between two ranks", weight=700),
        _matrix(scene),
        beside,
        below,
    ]
    width = max(right + width + 14, 40 + LETTER * longest, pill + 30 + 6 * len(scene["title"]))
    label = f"Communication matrix of {scene['title']}"
    if scene["mesh"]:
        label += ", mesh " + " x ".join(f"{n} {size}" for n, size in scene["mesh"].items())
    return document(width, bottom + 12, body, label, theme)


def _ink(entry, x, y, width, height):
    return swatch(x, y, width, height, entry["key"], entry["pattern"])


def _matrix(scene):
    cell = SIDE / scene["shown"]
    out = [_ranks(scene, cell)]
    for block in scene["blocks"]:
        place, side = block["first"] * cell, block["ranks"] * cell
        square = LEFT + place, TOP + place, side, side
        out.append(_ink(scene["tiers"][block["tier"]], *square) + outline(*square, "bg"))
    diagonal = "".join(
        f"M{LEFT + i * cell:.2f},{TOP + i * cell:.2f}h{cell:.2f}v{cell:.2f}h-{cell:.2f}z"
        for i in range(scene["shown"])
    )  # a rank and itself: empty
    out.append(f"<path d='{diagonal}' class='f-bg s-rule' stroke-width='0.6'/>")
    out += [
        _number(scene, number, cell) for number in scene["numbers"] if number["ranks"] * cell >= 30
    ]
    radius = max(1.6, min(4.5, 0.13 * cell))
    for hop in scene["hops"]:
        x, y = LEFT + (hop["to"] + 0.5) * cell, TOP + (hop["from"] + 0.82) * cell
        out.append(_hop(x, y, hop["axis"], radius))
    return "".join(out)


def _ranks(scene, cell):
    """Rank numbers along both sides, as many as there is room for."""
    step = next(s for s in (1, 2, 4, 8, 16, 32) if s * cell >= 17)
    out = text(10, TOP - 17, "from ↓ to →", "muted")
    for rank in range(0, scene["shown"], step):
        place = (rank + 0.5) * cell
        out += text(LEFT + place, TOP - 5, rank, "muted", anchor="middle")
        out += text(LEFT - 5, TOP + place + 3.5, rank, "muted", anchor="end")
    return out


def _unit(scene):
    """(bytes/s, name) in which the rates of pairs are given."""
    most = max((t["pair"] for t in scene["tiers"] if t["pair"] < float("inf")), default=1e9)
    _, name = amount(most, "B/s").split()
    return {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}.get(name[0], 1.0), name


def _number(scene, number, cell):
    """A pair's rate in the middle of a block between two units."""
    tier = scene["tiers"][number["tier"]]
    x, y = ((number[way] + number["ranks"] / 2) * cell for way in ("column", "row"))
    words = f"{tier['pair'] / _unit(scene)[0]:.3g}"
    size = 13 if number["ranks"] * cell >= 60 else 10
    return text(LEFT + x, TOP + y + size / 3, words, f"halo-{tier['key']}", size, "middle", 600)


def _hop(x, y, axis, radius):
    ink = "f-bg s-fg" if axis == "d1" else "f-fg s-bg"
    return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{radius:.1f}' class='{ink}' stroke-width='1.2'/>"


# -- beside it -------------------------------------------------------------------------------------
def _mesh(scene, x, y):
    """(the mesh with a bar along every group, width, height)."""
    d1, d2 = scene["mesh"].values()
    rows, columns = min(d1, MAX_ALONG), min(d2, MAX_ALONG)
    out = [text(x, 46, f"mesh d1 {d1} x d2 {d2}", weight=700)]
    middle, length, left = CELL / 2 - 5, STEP - CELL, x + 38
    down, across = scene["axes"]
    out.append(text(x, y + 22, "d1 ↓", down["key"], weight=700))
    for k in range(columns if down["size"] > 1 else 0):
        out.append(_ink(down, left + k * STEP + middle, y, 10, rows * STEP - length))
    out.append(text(left, y - 8, "d2 →", across["key"], weight=700))
    for k in range(rows if across["size"] > 1 else 0):
        out.append(_ink(across, left, y + k * STEP + middle, columns * STEP - length, 10))
    for row in range(rows):
        for column in range(columns):
            place = left + column * STEP, y + row * STEP, CELL, CELL
            out.append(rect(*place, "bg", "rx='6'") + outline(*place, rx=6))
            number, where = row * d2 + column, (place[0] + CELL / 2, place[1] + 22)
            out.append(text(*where, number, "fg", 12, "middle", 700))
    height = rows * STEP
    if rows < d1 or columns < d2:
        words = f"{rows} x {columns} of {d1} x {d2} drawn"
        out.append(text(left, y + height + 4, words, "muted", extra="font-style='italic'"))
        height += 14
    return "".join(out), 38 + columns * STEP, height


def _rows(scene, x, y):
    """(the table of all meshes, width, height)."""
    out, columns = [text(x, 46, "bus bandwidth of each mesh", weight=700)], (0, 70, 160)
    for number, row in enumerate(scene["rows"]):
        cells = row[0], *(f"{row[k]}{'*' * (row[k + 2] == 'measured')}" for k in (1, 4))
        for dx, cell in zip(columns, cells):
            out.append(text(x + dx, y + 18 * number, cell, "fg" if number else "muted"))
    bottom = 18 * len(scene["rows"])
    if any("measured" in row for row in scene["rows"]):
        out.append(text(x, y + bottom, "* measured, the others derived", "muted"))
    return "".join(out), 260, bottom


# -- below it --------------------------------------------------------------------------------------
def _below(scene, y):
    """(axes, tiers and captions as lines of text, y of the last, the longest in letters)."""
    out, longest = "", 0
    for axis in scene["axes"]:
        out += _ink(axis, 10, y - 9.5, 14, 11) + _hop(33, y - 4, axis["name"], 4)
        out += text(44, y, axis["words"], weight=600)
        longest, y = max(longest, 1.1 * len(axis["words"])), y + 17
    for tier in scene["tiers"]:
        words = tier["words"] + ("" if tier["drawn"] else " (not drawn)")
        out += _ink(tier, 10, y - 9.5, 14, 11) + text(30, y, words)
        longest, y = max(longest, len(words)), y + 17
    captions = [line for words in scene["captions"] for line in wrap(words, LINE)]
    out += lines(10, y, captions, 16, "muted")
    return out, y + 16 * (len(captions) - 1), max(longest, *map(len, captions))
