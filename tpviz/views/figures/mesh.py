"""Mesh -> scene: each rank's coordinates, its groups, and which block of each weight it owns.

The grid shows one axis along columns, one along rows, one as slices (more axes: more slices).
Choosing a rank lights up its group along each axis in the colour of that axis. A parameter is
drawn as its matrix, cut as ``W[F_tp, D]`` says; the block of the chosen rank is filled. Of a large
mesh a square is a block of ranks, those along the inner axes, and the block of the chosen rank is
drawn apart.

>>> from tpviz.core.mesh import Mesh
>>> groups(mesh_scene(Mesh({"dp": 2, "tp": 2})), 3)
{'dp': [1, 3], 'tp': [2, 3]}
>>> mesh_scene(Mesh({"dp": 16, "pp": 8, "tp": 8}))["note"]
'1,024 ranks in 128 squares: each is a block x 8, all of tp, named by its first rank.'
"""

from collections.abc import Sequence
from math import ceil, prod
from typing import Any

from tpviz.core import checks
from tpviz.core.inks import axis_keys
from tpviz.core.mesh import Mesh
from tpviz.core.trace.meta import META
from tpviz.core.trace.shapes import fitting, short

from .legend import Look, legend
from .svg import VIEW, document, head, lines, outline, pattern_defs, rect, swatch, text, wrapped
from .tokens import INKS

WRAP = 16
SQUARES, MAX_RANKS = 256, 16384


def mesh_scene(
    mesh: Mesh, ownership: Sequence[dict[str, Any]] = (), title: str = "", badge: str = ""
) -> dict[str, Any]:
    """The scene of a mesh, ready for JSON.

    ownership: rows {"name", "shape", "notation", "splits": [{"dim", "axis"}]} and, for a flat
    shard, "flat": {"axis", "ranges": [[start, stop] per index]}, of a pipeline "at": {"axis",
    "indices" that have it}. Returns a dict: ``axes`` (name, size, key, and how many of it a square
    has "within"), ``ranks``, which are squares (first rank, coords, where, slice, row, column),
    ``block`` (ranks in a square: 1 up to 256 ranks), ``note`` (what is collapsed), ``slices``
    (captions), ``rows``, ``columns``, ``parameters`` (blocks in units of the matrix, and the block
    of each rank), and what `arranged` gives. Raises ValueError above 16,384 ranks or where a
    parameter names an axis that the mesh does not have.
    """
    if not isinstance(mesh, Mesh):
        raise ValueError(f'a mesh view needs a Mesh such as Mesh({{"tp": 4}}), not {mesh!r}')
    if mesh.size > MAX_RANKS:
        raise ValueError(
            f"a mesh view shows at most {MAX_RANKS:,} ranks, this mesh has {mesh.size:,}"
        )
    ownership = check_ownership(mesh, ownership)
    title, badge = checks.text("title", title), checks.text("badge", badge)
    keys, (outer, within) = axis_keys(mesh.names), collapsed(mesh)
    squares, block = Mesh(outer), prod(within.values())
    axes = " x ".join(f"{name} {size}" for name, size in mesh.axes.items())
    places = [_place(squares, square) for square in range(squares.size)]
    coords = [mesh.coords(rank) for rank in range(mesh.size)]
    scene = {
        "title": title or f"{axes}, {mesh.size:,} ranks",
        "badge": badge or "counted, not run",
        "axes": [
            {"name": n, "size": s, "key": keys[n], "pattern": INKS[keys[n]].pattern}
            | {"within": within.get(n, 1)}
            for n, s in mesh.axes.items()
        ],
        "block": block,
        "note": _note(mesh, squares, within),
        "ranks": [
            {"rank": i * block, "coords": list(squares.coords(i).values())}
            | {
                "where": _where(squares.coords(i), within),
                "slice": slice,
                "row": row,
                "column": column,
            }
            for i, (slice, row, column) in enumerate(places)
        ],
        "slices": _captions(squares),
        "rows": 1 + max(p[1] for p in places),
        "columns": 1 + max(p[2] for p in places),
        "parameters": [_parameter(mesh, row, coords) for row in ownership],
    }
    return scene | arranged(scene)


def collapsed(mesh: Mesh) -> tuple[dict[str, int], dict[str, int]]:
    """(axes of the squares, axes within a square): inner axes are collapsed until there are at most
    `SQUARES`, and then a part of the first axis."""
    outer, within = dict(mesh.axes), {}
    while prod(outer.values()) > SQUARES:
        name, size = outer.popitem()
        part = size
        if not outer:
            part = next(n for n in range(2, size + 1) if size % n == 0 and size // n <= SQUARES)
            outer = {name: size // part}
        within = {name: part, **within}
    return outer, within


def _note(mesh, squares, within):
    if not within:
        return ""
    parts = [
        f"all of {name}" if size == mesh.axes[name] else f"{size} along {name}"
        for name, size in within.items()
    ]
    return (
        f"{mesh.size:,} ranks in {squares.size} squares: each is a block "
        f"{' '.join(f'x {size}' for size in within.values())}, {', '.join(parts)}, named by its "
        "first rank."
    )


def _where(coords, within):
    """The coordinates of a square in words, "dp 3", or "dp 6 to 7" of a part of an axis."""
    words = []
    for name, index in coords.items():
        size = within.get(name, 1)
        first = index * size
        words.append(f"{name} {first}" + (f" to {first + size - 1}" if size > 1 else ""))
    return ", ".join(words)


def groups(scene: dict[str, Any], rank: int) -> dict[str, list[int]]:
    """{axis: the ranks of the group of a rank}, in order."""
    found, stride = {}, 1
    for axis in reversed(scene["axes"]):
        name, size = axis["name"], axis["size"]
        first = rank - rank // stride % size * stride
        found[name] = list(range(first, first + size * stride, stride))
        stride *= size
    return {axis["name"]: found[axis["name"]] for axis in scene["axes"]}


def listed(ranks: Sequence[int]) -> str:
    """ "0, 1, 2, 3"; of many the first ones and the last: "0, 8, 16, ... 1016 (128 ranks)"."""
    if len(ranks) <= LISTED:
        return ", ".join(map(str, ranks))
    return f"{', '.join(map(str, ranks[:3]))}, ... {ranks[-1]} ({len(ranks)} ranks)"


def _place(mesh, rank):
    """(slice, row, column): the last axis across, the one before it down, the others as slices."""
    coords = list(mesh.coords(rank).values())
    if len(coords) == 1:
        return 0, coords[0] // WRAP, coords[0] % WRAP
    number = 0
    for size, index in zip(mesh.shape[:-2], coords[:-2]):
        number = number * size + index
    return number, coords[-2], coords[-1]


def _captions(mesh):
    """One caption per slice, "pp 0"; a single empty one if there is one slice."""
    outer = mesh.names[:-2]
    if not outer:
        return [""]
    seen = {_place(mesh, r)[0]: mesh.coords(r) for r in range(mesh.size)}
    return [", ".join(f"{a} {seen[i][a]}" for a in outer) for i in sorted(seen)]


def check_ownership(mesh: Mesh, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows as plain lists. Raises ValueError for others than `mesh_scene` draws."""
    rows = fitting(META["ownership"], rows, "ownership: ")
    for row in rows:
        for axis in _axes(row):
            if axis not in mesh.axes:
                raise ValueError(
                    f"{row['name']} is split over {axis!r}, but the mesh has "
                    f"{', '.join(mesh.names)}"
                )
        if row.get("flat"):
            ranges, size = row["flat"]["ranges"], mesh.axes[row["flat"]["axis"]]
            if len(ranges) != size or any(len(pair) != 2 for pair in ranges):
                raise ValueError(
                    f"{row['name']} has the ranges {short(ranges)}: give a [start, "
                    f"stop] for each of the {size} places on {row['flat']['axis']}"
                )
    return rows  # pyright: ignore[reportReturnType]


def _axes(row):
    axes = [cut["axis"] for cut in row["splits"]]
    return axes + [row[what]["axis"] for what in ("flat", "at") if row.get(what)]


def _parameter(mesh, row, coords):
    """A parameter as blocks [x, y, width, height] of a unit matrix, and every rank's block."""
    axes, owners, known = _axes(row), [], {}
    blocks: dict[tuple[float, ...], int] = {}
    for place in coords:
        own = tuple(place[axis] for axis in axes)
        if own not in known:
            known[own] = _block(mesh, row, place)
        owners.append(blocks.setdefault(known[own], len(blocks)))
    return {
        "name": row["name"],
        "notation": row["notation"],
        "shape": list(row["shape"]),
        "elements": prod(row["shape"]),
        "blocks": [
            {"box": list(b), "ranks": [r for r, o in enumerate(owners) if o == i]}
            for b, i in blocks.items()
        ],
        "block_of": owners,
        "axes": axes,
    }


def _block(mesh, row, coords):
    """The part at these coordinates: dim 0 runs down, dim 1 across; a vector runs across.

    A flat shard is drawn as a band of rows: exact in area, and in place up to part of a row.
    """
    if row.get("at") and coords[row["at"]["axis"]] not in row["at"]["indices"]:
        return 0.0, 0.0, 0.0, 0.0
    low, high = [0.0, 0.0], [1.0, 1.0]
    for cut in reversed(row["splits"]):  # the outer cut of a dim first
        side = 0 if len(row["shape"]) == 1 else 1 - min(cut["dim"], 1)
        length = (high[side] - low[side]) / mesh.axes[cut["axis"]]
        low[side] += coords[cut["axis"]] * length
        high[side] = low[side] + length
    if row.get("flat"):
        start, stop = row["flat"]["ranges"][coords[row["flat"]["axis"]]]
        local = max(max(end for _, end in row["flat"]["ranges"]), 1)
        side = 0 if len(row["shape"]) == 1 else 1
        first, length = low[side], high[side] - low[side]
        low[side], high[side] = (first + length * edge / local for edge in (start, stop))
    return tuple(round(v, 6) for v in (low[0], low[1], high[0] - low[0], high[1] - low[1]))


def share(parameter: dict[str, Any], rank: int) -> float:
    """Fraction 0..1 of a parameter that the rank owns."""
    _, _, width, height = parameter["blocks"][parameter["block_of"][rank]]["box"]
    return width * height


def to_table(scene: dict[str, Any]) -> list[list[str]]:
    """Rows of strings, header first: each parameter, its sharding, the part of every rank."""
    table = [["parameter", "shape", "notation", "blocks", "share of a rank"]]
    for p in scene["parameters"]:
        areas = {width * height for *_, width, height in (b["box"] for b in p["blocks"])}
        shares = sorted(f"{100 * area:.4g} %" for area in areas)
        shape = " x ".join(map(str, p["shape"]))
        table.append([p["name"], shape, p["notation"], str(len(p["blocks"])), " to ".join(shares)])
    return table


def describe(scene: dict[str, Any], rank: int = 0) -> str:
    """The mesh and the groups of one rank in words. Raises ValueError for an unknown rank."""
    check_rank(scene, rank)
    axes = ", ".join(f"{a['name']} of {a['size']}" for a in scene["axes"])
    mine = groups(scene, rank)
    where = ", ".join(f"{name} {group.index(rank)}" for name, group in mine.items())
    words = "; ".join(f"{name} with ranks {listed(group)}" for name, group in mine.items())
    return (
        f"Mesh of {size(scene):,} ranks, axes {axes}. Rank {rank} is at {where}; its "
        f"groups: {words}.{' Drawn: ' * bool(scene['note'])}{scene['note']}"
    )


def size(scene: dict[str, Any]) -> int:
    """The ranks of a scene's mesh."""
    return prod(axis["size"] for axis in scene["axes"])


def check_rank(scene: dict[str, Any], rank: int) -> None:
    """Raise ``ValueError`` unless the scene has this rank."""
    if not 0 <= rank < size(scene):
        raise ValueError(
            f"rank={rank} is not in this mesh of {size(scene)}: use 0 to {size(scene) - 1}"
        )


LEFT, TOP, GAP, SLICE_GAP = 60, 78, 12, 40
SMALL = 6  # px between the squares of many ranks
CELL, HIGH = 46, 440  # px of a square, at least, and to which the squares of few ranks grow
MANY = 32  # ranks that are drawn smaller, without their coordinates
LISTED = 16  # ranks of a group that are all named
APART = 64  # ranks of a block that are drawn apart
MATRIX = 200
LOOK = Look(letter=7)


def mesh_svg(
    scene: dict[str, Any], rank: int = 0, parameter: str | None = None, theme: str = "auto"
) -> str:
    """Draw a mesh scene.

    rank: the one chosen; parameter: a name (default: the first that is cut). theme "light", "dark"
    or "auto". Raises ValueError for an unknown rank or parameter.
    """
    check_rank(scene, rank)
    width, height, axes = scene["width"], scene["height"], scene["axes"]
    mine, block = groups(scene, rank), scene["block"]
    body = [scene["common"], head(scene)]
    for here, (x, y) in zip(scene["ranks"], scene["places"]):
        ranks = range(here["rank"], here["rank"] + block)
        body.append(_rank(scene, x, y, ranks, here["coords"], rank, mine))
    for j, (x, y) in enumerate(scene["apart"]):
        each = rank // block * block + j
        body.append(_rank(scene, x, y, range(each, each + 1), (), rank, mine))
    if scene["parameters"] or parameter is not None:
        chosen = find_parameter(scene, parameter)
        body.append(_matrix(chosen, rank, width + 30, TOP - 16))
        width, height = width + 60 + MATRIX, max(height, TOP + MATRIX + 40)
    width = max(width, 420)
    items = [(a["key"], f"{a['name']}: ranks {listed(mine[a['name']])}") for a in axes]
    here = ", ".join(f"{name} {group.index(rank)}" for name, group in mine.items())
    body.append(text(10, height + 13.5, f"rank {rank} is at {here}; its groups:"))
    drawn, bottom = legend(items, 10.0, height + 22, width, LOOK)
    body.append(drawn)
    label = f"Mesh {scene['title']}, rank {rank}"
    return document(width, bottom + 22, body, label, theme)


def find_parameter(scene: dict[str, Any], name: str | None = None) -> dict[str, Any]:
    """The parameter of that name; without one, the first matrix that is cut, else the first."""
    names = [p["name"] for p in scene["parameters"]]
    if name is not None and name not in names:
        raise ValueError(
            f"parameter {name!r} is not in this view; it has {', '.join(names) or 'none'}"
        )
    cut = [p for p in scene["parameters"] if len(p["blocks"]) > 1 and len(p["shape"]) > 1]
    default = (cut or scene["parameters"])[0]
    return next((p for p in scene["parameters"] if p["name"] == name), default)


def arranged(scene: dict[str, Any]) -> dict[str, Any]:
    """{"cell", "places", "apart", "width", "height", "top", "common"}: px of a rank's square, the
    corner of each, and of each rank of one block where squares are blocks; the size of the grid
    with its margins, px of head that a page shows itself, and the SVG that does not depend on the
    choice. Slices stand side by side, four in a row, or as many as fit into a view."""
    block, digits = scene["block"], len(str(size(scene) - 1))
    cell, gap, last = _cell(scene), GAP, len(scene["slices"]) - 1
    if len(scene["ranks"]) > MANY:
        cell, gap = 30 + 7 * max(digits - 3, 0), SMALL
    step = cell + gap
    wide, high = (scene[many] * step + SLICE_GAP for many in ("columns", "rows"))
    row = max(1, min(4, VIEW // wide))
    corner = lambda i: (LEFT + i % row * wide, TOP + i // row * high)  # of a slice
    places = []
    for here in scene["ranks"]:
        x, y = corner(here["slice"])
        places.append([x + here["column"] * step, y + here["row"] * step])
    captions = "".join(
        text(x, y - 10, caption, "muted")
        for (x, y), caption in zip(map(corner, range(last + 1)), scene["slices"])
    )
    width, height = (max(place[i] for place in places) + step for i in (0, 1))
    apart = []
    if block > 1:
        words = [*wrapped(scene["note"], 60), "The block of the chosen rank:" * (block <= APART)]
        captions += lines(LEFT, height + 10, words, 15, "muted")
        width, height = max(width, LEFT + 400), height + 10 + 15 * len(words)
    if 1 < block <= APART:
        many = next(n for n in range(min(block, WRAP), 0, -1) if block % n == 0)
        apart = [[LEFT + j % many * step, height + j // many * step] for j in range(block)]
        width, height = max(width, LEFT + many * step), apart[-1][1] + step
    return {
        "cell": cell,
        "places": places,
        "apart": apart,
        "top": TOP - 42,
        "width": width,
        "height": height,
        "common": pattern_defs() + captions + _axis_names(scene, cell),
    }


def _cell(scene):
    """px of a square of few ranks: as large as there is room."""
    beside = min(slices := len(scene["slices"]), 4)
    across = ((VIEW - LEFT) / beside - SLICE_GAP) / scene["columns"] - GAP
    down = (HIGH / ceil(slices / beside) - SLICE_GAP) / scene["rows"] - GAP
    return max(CELL, min(2 * CELL, int(across), int(down)))


def _axis_names(scene, cell):
    """Arrows along the last axis (across) and the one before it (down), of those of squares."""
    shown = [a for a in scene["axes"] if a["within"] < a["size"] or a["size"] == 1]
    out = ""
    for across in shown[-1:]:
        out += text(LEFT, TOP - 26, f"{across['name']} →", across["key"], weight=700)
    for down in shown[-2:-1]:
        words, y = f"{down['name']} ↓", TOP + cell / 2 + 4
        out += text(LEFT - 12, y, words, down["key"], anchor="end", weight=700)
    return out


def _rank(scene, x, y, ranks, coords, chosen, mine):
    """A square of one rank or of a block: the chosen one filled, others in the ink of the axis
    whose group joins them with it."""
    cell, axes = scene["cell"], scene["axes"]
    axis = next((a for a in axes if any(rank in ranks for rank in mine[a["name"]])), None)
    if chosen in ranks:
        face, ink, under, axis = rect(x, y, cell, cell, "fg", "rx='7'"), "bg", "bg", None
    elif axis:
        face = swatch(x, y, cell, cell, axis["key"], extra="rx='7'")
        ink = under = f"halo-{axis['key']}"
    else:
        face = outline(x, y, cell, cell, "muted", rx=7)
        ink, under = "fg", "muted"
    x += cell / 2
    if len(scene["ranks"]) > MANY:
        return face + text(x, y + cell / 2 + 4, ranks[0], ink, anchor="middle", weight=700)
    below = ",".join(map(str, coords)) if len(axes) > 1 else f"{axes[0]['name']} {ranks[0]}"
    return (
        face
        + text(x, y + cell / 2 - 2, ranks[0], ink, 16, "middle", 700)
        + text(x, y + cell / 2 + 13, below, under, anchor="middle")
    )


def matrix_size(shape: Sequence[int]) -> tuple[float, float]:
    """(width, height) px of a matrix drawn to scale within MATRIX, never thinner than 36."""
    across, down = (shape[0], 1) if len(shape) == 1 else (shape[1], shape[0])
    scale = MATRIX / max(across, down)
    return max(across * scale, 36), max(down * scale, 36)


def _matrix(parameter, rank, x, y):
    width, height = matrix_size(parameter["shape"])
    shape = " x ".join(map(str, parameter["shape"]))
    out = [
        text(x, y - 16, parameter["name"], weight=700),
        text(x, y, f"{parameter['notation']}   {shape}", "muted", extra="xml:space='preserve'"),
    ]
    top = y + 10
    own = parameter["blocks"][parameter["block_of"][rank]]
    for block in [*(b for b in parameter["blocks"] if b is not own), own]:
        bx, by, bw, bh = block["box"]
        if bw * bh == 0:
            continue
        box = [x + bx * width, top + by * height, bw * width, bh * height]
        out.append(_frame(box, block["ranks"], block is own))
    return "".join(out)


def _frame(box, ranks, mine):
    """One block with its owners; the chosen rank's is filled, never a hairline."""
    least = 3 if mine else 0
    box[2:] = [max(side, least) for side in box[2:]]
    x, y, width, height = box
    out = rect(x, y, width, height, "fg" * mine, "fill='none'" * (not mine))
    out += outline(x, y, width, height)
    names = ",".join(map(str, ranks))
    if height >= 12 and width >= 6.5 * len(names):
        out += text(
            x + width / 2, y + height / 2 + 4, names, "bg" if mine else "muted", anchor="middle"
        )
    return out
