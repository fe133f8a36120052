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

import re
from collections.abc import Sequence
from math import ceil, prod
from typing import Any

from tpviz.core import checks
from tpviz.core.inks import axis_keys
from tpviz.core.mesh import Mesh
from tpviz.core.trace.meta import META
from tpviz.core.trace.shapes import fitting, short

from .lanes import box
from .legend import legend
from .svg import LINE, VIEW, document, head, lines, pattern_defs, swatch, text, width_of, wrapped
from .tokens import INKS

WRAP, FEW = 16, 4  # squares of one axis in a row: of many, of few
SQUARES, MAX_RANKS = 256, 16384


def mesh_scene(
    mesh: Mesh, ownership: Sequence[dict[str, Any]] = (), title: str = "", badge: str = ""
) -> dict[str, Any]:
    """The scene of a mesh, ready for JSON.

    ownership: rows {"name", "shape", "notation", "splits": [{"dim", "axis"}]} and, for a flat
    shard, "flat": {"axis", "ranges": [[start, stop] per index]}, of a pipeline "at": {"axis",
    "indices" that have it}. Returns a dict: ``axes`` (name, size, key, how many of it a square has
    "within", and the "stride" from rank to rank), ``ranks``, which are squares (first rank, coords,
    where, slice, row, column), ``block`` (ranks in a square: 1 up to 256 ranks), ``note`` (what is
    collapsed), ``slices`` (captions), ``rows``, ``columns``, ``parameters`` (blocks in units of the
    matrix, and the block of each rank), and what `arrange` adds. Raises ValueError above 16,384
    ranks or where a parameter names an axis that the mesh does not have.
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
            | {"within": within.get(n, 1), "stride": prod(mesh.shape[i + 1 :])}
            for i, (n, s) in enumerate(mesh.axes.items())
        ],
        "block": block,
        "note": _note(mesh, squares, within),
        "ranks": [
            {"rank": i * block, "coords": list(squares.coords(i).values())}
            | {"where": _where(squares.coords(i), within)}
            | dict(zip(("slice", "row", "column"), place))
            for i, place in enumerate(places)
        ],
        "slices": _captions(squares),
        "rows": 1 + max(p[1] for p in places),
        "columns": 1 + max(p[2] for p in places),
        "parameters": _parameters(mesh, ownership, coords),
    }
    arrange(scene)
    return scene


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
    found = {}
    for axis in scene["axes"]:
        stride, span = axis["stride"], axis["size"] * axis["stride"]
        first = rank - rank % span + rank % stride
        found[axis["name"]] = list(range(first, first + span, stride))
    return found


def listed(ranks: Sequence[int]) -> str:
    """ "0, 1, 2, 3"; of many the first ones and the last: "0, 8, 16, ... 1016 (128 ranks)"."""
    if len(ranks) <= LISTED:
        return ", ".join(map(str, ranks))
    return f"{', '.join(map(str, ranks[:3]))}, ... {ranks[-1]} ({len(ranks)} ranks)"


def _place(mesh, rank):
    """(slice, row, column): the last axis across, the one before it down, the others as slices."""
    coords = list(mesh.coords(rank).values())
    if len(coords) == 1:
        return 0, *divmod(coords[0], FEW if mesh.size <= WRAP else WRAP)
    return rank // prod(mesh.shape[-2:]), coords[-2], coords[-1]


def _captions(mesh):
    """One caption per slice, "pp 0"; a single empty one if there is one slice."""
    seen = {_place(mesh, r)[0]: mesh.coords(r) for r in range(mesh.size)}
    return [", ".join(f"{a} {seen[i][a]}" for a in mesh.names[:-2]) for i in sorted(seen)]


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
            ranges, size = row["flat"]["ranges"], mesh.ranks_along(row["flat"]["axis"])
            if len(ranges) != size or any(len(pair) != 2 for pair in ranges):
                raise ValueError(
                    f"{row['name']} has the ranges {short(ranges)}: give a [start, "
                    f"stop] for each of the {size} places on {row['flat']['axis']}"
                )
    return rows  # pyright: ignore[reportReturnType]


def _axes(row):
    cuts = *row["splits"], *(row[what] for what in ("flat", "at") if row.get(what))
    return [axis for cut in cuts for axis in cut["axis"].split("*")]  # "dp*cp": of both


def _parameters(mesh, rows, coords):
    """Each parameter as blocks [x, y, width, height] of a unit matrix, and every rank's block;
    those that are cut alike share all but their name."""
    parts = "notation", "shape", "splits", "flat", "at"
    how = [repr([*map(row.get, parts)]) for row in rows]
    cuts = {key: _cut(mesh, row, coords) for key, row in dict(zip(how, rows)).items()}
    return [{"name": row["name"], **cuts[key]} for key, row in zip(how, rows)]


def _cut(mesh, row, coords):
    axes, owners, known = _axes(row), [], {}
    blocks: dict[tuple[float, ...], int] = {}
    for place in coords:
        own = tuple(place[axis] for axis in axes)
        if own not in known:
            known[own] = _block(mesh, row, place)
        owners.append(blocks.setdefault(known[own], len(blocks)))
    return {
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
        start, stop = row["flat"]["ranges"][mesh.index_along(coords, row["flat"]["axis"])]
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


def said(scene: dict[str, Any], rank: int) -> tuple[str, list[str]]:
    """(where a rank is, its group along each axis) in words, as mesh.js says them."""
    mine = groups(scene, rank)
    where = ", ".join(f"{name} {group.index(rank)}" for name, group in mine.items())
    words = [f"{name}: ranks {listed(group)}" for name, group in mine.items()]
    return f"rank {rank} is at {where}", words


def describe(scene: dict[str, Any], rank: int = 0) -> str:
    """The mesh and the groups of one rank in words. Raises ValueError for an unknown rank."""
    check_rank(scene, rank)
    axes = ", ".join(f"{a['name']} of {a['size']}" for a in scene["axes"])
    where, words = said(scene, rank)
    return (
        f"Mesh of {size(scene):,} ranks, axes {axes}. R{where[1:]}; its groups: "
        f"{'; '.join(words)}.{' Drawn: ' * bool(scene['note'])}{scene['note']}"
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


LEFT, TOP, GAP, SLICE_GAP = 10, 78, 12, 40
SMALL = 30, 6  # px of a square of many ranks, and between two
CELL, WIDE, HIGH = 46, 180, 92  # px of a square of few ranks: at least, and at most
FIELD = 440  # px down, to which those grow
MANY = 32  # ranks that are drawn small, without their coordinates
DIGITS = 3  # of a rank's number in a small square; longer ones are named by rows
LISTED, APART = 16, 64  # ranks of a group that are all named; of a block that are drawn apart
BESIDE, BELOW, THIN = 250, 200, 150
"""px of a matrix: beside the ranks, at least; below them, at most; across, at least."""


def mesh_svg(
    scene: dict[str, Any], rank: int = 0, parameter: str | None = None, theme: str = "auto"
) -> str:
    """Draw a mesh scene.

    rank: the one chosen; parameter: a name (default: the first that is cut). theme "light", "dark"
    or "auto". Raises ValueError for an unknown rank or parameter.
    """
    check_rank(scene, rank)
    body = [scene["ground"], head(scene), *_squares(scene, rank)]
    if scene["parameters"] or parameter is not None:
        body.append(_owned(find_parameter(scene, parameter), rank))
    where, words = said(scene, rank)
    body.append(text(10, scene["height"] + 13.5, f"{where}; its groups:"))
    own = lambda x, y: f"<path d='{box(x, y, 14, 11)}' class='f-fg'/>"
    keys = own, *(axis["key"] for axis in scene["axes"])
    items = zip(keys, [f"rank {rank}, and what it owns", *words])
    width = max(scene["width"], 420)
    drawn, bottom = legend(items, 10.0, scene["height"] + 22, width)
    return document(
        width, bottom + 22, [*body, drawn], f"Mesh {scene['title']}, rank {rank}", theme
    )


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


def arrange(scene: dict[str, Any]) -> None:
    """Add to a scene where everything is, in px, and what does not depend on the choice.

    ``cell`` (width and height of a rank's square), ``places`` (the corner of each), ``apart``
    (those of the ranks of one block where squares are blocks), ``width``, ``height``, ``top`` (of
    head, which a page shows itself); as SVG ``ground``, ``squares``, and of each parameter
    ``drawn``, its matrix: beside the ranks, or below where there is no room; ``stack`` moves it
    from beside to below in a narrow window (px right, down; width and height then). Slices stand
    side by side, four in a row, or as many as fit into a view.
    """
    block, left, last = scene["block"], _left(scene), len(scene["slices"]) - 1
    scene["cell"], gap = _cell(scene)
    steps = across, down = [side + gap for side in scene["cell"]]
    wide, high = (scene[n] * step + SLICE_GAP for n, step in zip(("columns", "rows"), steps))
    row = max(1, min(4, VIEW // wide))
    corners = [(left + i % row * wide, TOP + i // row * high) for i in range(last + 1)]
    scene["places"] = [
        [x + here["column"] * across, y + here["row"] * down]
        for here in scene["ranks"]
        for x, y in [corners[here["slice"]]]
    ]
    ground = "".join(
        text(x, y - 10, caption, "muted") for (x, y), caption in zip(corners, scene["slices"])
    )
    width, height = (max(place[i] for place in scene["places"]) + steps[i] for i in (0, 1))
    under, scene["apart"] = left, []
    if block > 1:
        words = [*wrapped(scene["note"], 92), "The block of the chosen rank:" * (block <= APART)]
        ground += lines(left, height + 12, words, LINE, "muted")
        width, height = max(width, left + 540), height + LINE * len(words) + 8
    if 1 < block <= APART:
        many = next(n for n in range(min(block, WRAP), 0, -1) if block % n == 0)
        places = [[left + j % many * across, height + j // many * down] for j in range(block)]
        scene["apart"], under = places, left + many * across + 30
        width, below = max(width, under), places[-1][1] + down
        under, height = (under, height) if VIEW - under >= BESIDE else (left, below)
    if scene["parameters"]:
        room, place = (VIEW - width - 20, height - TOP), (width + 20, TOP)
        scene["stack"] = [left - place[0], height + 44 - TOP, max(width, left + room[0])]
        if room[0] < BESIDE:
            room, place, scene["stack"] = (VIEW - under, BELOW), (under, height + 44), []
        tallest = _draw_matrices(scene["parameters"], *place, room) + GAP
        scene["stack"] += [height + 44 + tallest] * bool(scene["stack"])
        width, height = max(VIEW, width), max(height, place[1] + tallest)
    scene |= {"top": TOP - 42, "width": width, "height": height}
    scene["ground"] = pattern_defs() + ground + _axis_names(scene)
    scene["squares"] = "".join(_squares(scene))


def _left(scene):
    """px of the first square: rows have a number before them where squares have none."""
    return LEFT if _named(scene) else LEFT + 40


def _cell(scene):
    """([width, height] of a square, px between two): few ranks as large as there is room."""
    if len(scene["ranks"]) > MANY:
        return [SMALL[0]] * 2, SMALL[1]
    beside = min(slices := len(scene["slices"]), 4)
    wides = [
        ((VIEW - _left(scene) - aside) / beside - SLICE_GAP * (slices > 1)) / scene["columns"] - GAP
        for aside in ((BESIDE + 20) * bool(scene["parameters"]), 0)
    ]
    across = next((wide for wide in wides if wide >= CELL), CELL)
    down = (FIELD / ceil(slices / beside) - SLICE_GAP) / scene["rows"] - GAP
    return [min(WIDE, int(across)), max(CELL, min(HIGH, int(down)))], GAP


def _axis_names(scene):
    """Arrows along the last axis (across) and the one before it (down), of those of squares; of
    many ranks with long numbers the first one of each row."""
    shown = [a for a in scene["axes"] if a["within"] < a["size"] or a["size"] == 1]
    out, x, y = "", _left(scene), TOP - (26 if scene["slices"][0] else 14)
    for axis, arrow in [*zip(shown[-2:-1], "↓"), *zip(shown[-1:], "→")]:
        words = f"{axis['name']} {arrow}"
        out += text(x, y, words, axis["key"], weight=700)
        x += width_of(words) + 18
    if not _named(scene):
        for here, (x, y) in zip(scene["ranks"], scene["places"]):
            if not here["column"]:
                out += text(x - 6, y + SMALL[0] / 2 + 4, here["rank"], "muted", anchor="end")
    return out


def _named(scene):
    """Whether squares have their numbers."""
    return len(scene["ranks"]) <= MANY or len(str(size(scene) - 1)) <= DIGITS


def _squares(scene, chosen=None):
    """Each square, then those of the block that is drawn apart, as SVG; lit where a rank is
    chosen, as mesh.js lights them."""
    block, mine = scene["block"], {} if chosen is None else groups(scene, chosen)
    first = (chosen or 0) // block * block
    several = [(here["rank"], block, here, _named(scene)) for here in scene["ranks"]]
    several += [(first + j, 1, {}, True) for j in range(len(scene["apart"]))]
    for (rank, many, here, named), place in zip(several, scene["places"] + scene["apart"]):
        ranks = range(rank, rank + many)
        lit = [a for a in scene["axes"] if any(r in ranks for r in mine.get(a["name"], ()))]
        look = ("fg", "solid", "bg") if chosen in ranks else ("bg s-muted", "solid", "fg")
        if lit and chosen not in ranks:
            look = (lit[0]["key"], lit[0]["pattern"], f"halo-{lit[0]['key']}")
        yield _square(scene, place, ranks, here, look, named)


def _square(scene, place, ranks, here, look, named):
    """One rank, or a block of ranks. look : its ink, its pattern, the ink of its words."""
    (x, y), (wide, high), (ink, pattern, words) = place, scene["cell"], look
    many = f"s {ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else f" {ranks[0]}"
    where = here.get("where", "")
    out = f"<title>rank{many}{': ' * bool(where)}{where}</title>"
    out += swatch(x, y, wide, high, ink, pattern, "rx='7'")
    x, y = x + wide / 2, y + high / 2
    if len(scene["ranks"]) <= MANY:
        below = where if width_of(where) + 8 <= wide else ",".join(map(str, here.get("coords", ())))
        out += text(x, y - 2, ranks[0], words, 16, "middle", 700)
        out += text(x, y + 14, below, words, anchor="middle")
    elif named:
        out += text(x, y + 4, ranks[0], words, anchor="middle", weight=700)
    return f"<g role='option' data-rank='{ranks[0]}' style='cursor:pointer'>{out}</g>"


def _draw_matrices(parameters, x, y, room):
    """Give each parameter ``drawn``, its name over its `_matrix`; returns the tallest's height."""
    alike = {id(p["blocks"]): p for p in parameters}
    matrices = {own: _matrix(p, x, y, room) for own, p in alike.items()}
    for p in parameters:
        p["drawn"] = text(x, y - 26, p["name"], weight=700) + matrices[id(p["blocks"])][1]
    return max(height for height, _ in matrices.values())


def _matrix(parameter, x, y, room):
    """(height, SVG) of a parameter's notation and matrix, to scale within the room, never thinner
    than `THIN`: its blocks as one path, and their owners."""
    shape = parameter["shape"]
    across, down = (shape[0], 1) if len(shape) == 1 else (shape[1], shape[0])
    scale = min(room[0] / across, room[1] / down)
    width, height = max(across * scale, min(THIN, room[0])), max(down * scale, 36)
    path, names = "", ""
    for number, block in enumerate(parameter["blocks"]):
        left, top, wide, high = (v * side for v, side in zip(block["box"], (width, height) * 2))
        path += box(x + left, y + top, wide, high)
        words = ",".join(map(str, block["ranks"]))
        if high >= 12 and wide >= 7.6 * len(words):
            at, extra = (x + left + wide / 2, y + top + high / 2 + 4), f"data-block='{number}'"
            names += text(*at, words, "muted", anchor="middle", extra=extra)
    said = f"{parameter['notation']} of {' x '.join(map(str, shape))}"
    said = text(x, y - 9, said, "muted")
    return height, f"{said}<path d='{path}' class='s-fg' fill='none'/>{names}"


def _owned(parameter, rank):
    """The matrix that is drawn, and over it the block of a rank, filled, never a hairline; as in
    mesh.js."""
    number, drawn = parameter["block_of"][rank], parameter["drawn"]
    if not share(parameter, rank):
        return drawn
    path = re.findall(r"M[^M]+?z", drawn)[number]
    name = re.search(rf"<text [^>]*data-block='{number}'>.*?</text>", drawn)
    drawn = drawn.replace(name[0], "") if name else drawn
    over = name[0].replace("f-muted", "f-bg") if name else ""
    return f"{drawn}<path d='{path}' class='f-fg s-fg' stroke-width='3'/>{over}"
