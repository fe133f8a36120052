"""Mesh -> scene: who sits where, who talks to whom, and which block of each weight a rank owns.

The grid shows one axis along columns, one along rows, one as slices (more axes: more slices).
Choosing a rank lights up its group along each axis in the colour of that axis. A parameter is
drawn as its matrix, cut as ``W[F_tp, D]`` says; the block of the chosen rank is filled.

>>> from tpviz.mesh import Mesh
>>> scene = mesh_scene(Mesh({"dp": 2, "tp": 2}))
>>> scene["ranks"][3]["groups"]
{'dp': [1, 3], 'tp': [2, 3]}
"""

from tpviz.checks import text
from tpviz.mesh import Mesh
from tpviz.trace.meta import META
from tpviz.trace.shapes import fitting, short

from .palette import INKS, axis_keys

WRAP = 16
MAX_RANKS = 256


def mesh_scene(mesh, ownership=(), title="", badge=""):
    """The scene of a mesh, ready for JSON.

    ownership: rows {"name", "shape", "notation", "splits": [{"dim", "axis"}]} and, for a flat
    shard, "flat": {"axis", "ranges": [[start, stop] per index]}, of a pipeline "at": {"axis",
    "indices" that have it}. Returns a dict: ``axes`` (name, size, key), ``ranks`` (rank, coords,
    slice, row, column, groups), ``slices`` (captions), ``rows``, ``columns``, ``parameters``
    (blocks in units of the matrix, and the block of each rank), and what `mesh_svg.arranged` gives.
    Raises ValueError above 256 ranks or where a parameter names an axis that the mesh does not
    have.
    """
    from .mesh_svg import arranged

    if not isinstance(mesh, Mesh):
        raise ValueError(f'a mesh view needs a Mesh such as Mesh({{"tp": 4}}), not {mesh!r}')
    if mesh.size > MAX_RANKS:
        raise ValueError(f"a mesh view shows at most {MAX_RANKS} ranks, this mesh has {mesh.size}")
    ownership = check_ownership(mesh, ownership)
    title, badge = text("title", title), text("badge", badge)
    keys = axis_keys(mesh.names)
    places = [_place(mesh, rank) for rank in range(mesh.size)]
    scene = {
        "title": title or " x ".join(f"{name} {size}" for name, size in mesh.axes.items()),
        "badge": badge or f"{mesh.size} ranks",
        "axes": [
            {"name": n, "size": s, "key": keys[n], "pattern": INKS[keys[n]].pattern}
            for n, s in mesh.axes.items()
        ],
        "ranks": [
            {
                "rank": r,
                "coords": mesh.coords(r),
                "slice": place[0],
                "row": place[1],
                "column": place[2],
                "groups": {a: mesh.group(r, a) for a in mesh.names},
            }
            for r, place in enumerate(places)
        ],
        "slices": _captions(mesh),
        "rows": 1 + max(p[1] for p in places),
        "columns": 1 + max(p[2] for p in places),
        "parameters": [_parameter(mesh, row) for row in ownership],
    }
    return scene | arranged(scene)


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
    """One caption per slice, "pp 0"; a single empty one where there is nothing to tell apart."""
    outer = mesh.names[:-2]
    if not outer:
        return [""]
    seen = {_place(mesh, r)[0]: mesh.coords(r) for r in range(mesh.size)}
    return [", ".join(f"{a} {seen[i][a]}" for a in outer) for i in sorted(seen)]


def check_ownership(mesh, rows):
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
    return rows


def _axes(row):
    axes = [cut["axis"] for cut in row["splits"]]
    return axes + [row[what]["axis"] for what in ("flat", "at") if row.get(what)]


def _parameter(mesh, row):
    """A parameter as blocks [x, y, width, height] of a unit matrix, and every rank's block."""
    axes = _axes(row)
    blocks, owners = [], []
    for rank in range(mesh.size):
        block = _block(mesh, row, rank)
        if block not in blocks:
            blocks.append(block)
        owners.append(blocks.index(block))
    size = 1
    for n in row["shape"]:
        size *= n
    return {
        "name": row["name"],
        "notation": row["notation"],
        "shape": list(row["shape"]),
        "elements": size,
        "blocks": [
            {"box": b, "ranks": [r for r, o in enumerate(owners) if o == i]}
            for i, b in enumerate(blocks)
        ],
        "block_of": owners,
        "axes": axes,
    }


def _block(mesh, row, rank):
    """The rank's part: dim 0 runs down, dim 1 across; a vector runs across.

    A flat shard is drawn as a band of rows: exact in area, and in place up to part of a row.
    """
    coords = mesh.coords(rank)
    if row.get("at") and coords[row["at"]["axis"]] not in row["at"]["indices"]:
        return [0.0, 0.0, 0.0, 0.0]
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
        length = high[side] - low[side]
        low[side], high[side] = (
            low[side] + length * start / local,
            low[side] + length * stop / local,
        )
    return [round(v, 6) for v in (low[0], low[1], high[0] - low[0], high[1] - low[1])]


def share(parameter, rank):
    """Fraction 0..1 of a parameter that the rank owns."""
    _, _, width, height = parameter["blocks"][parameter["block_of"][rank]]["box"]
    return width * height


def to_table(scene):
    """Rows of strings, header first: each parameter, how it is cut, what every rank owns of it."""
    table = [["parameter", "shape", "notation", "blocks", "share of a rank"]]
    for p in scene["parameters"]:
        shares = sorted({f"{100 * share(p, r['rank']):.4g} %" for r in scene["ranks"]})
        shape = " x ".join(map(str, p["shape"]))
        table.append([p["name"], shape, p["notation"], str(len(p["blocks"])), " to ".join(shares)])
    return table


def describe(scene, rank=0):
    """The mesh and the groups of one rank in words. Raises ValueError on a rank not there."""
    check_rank(scene, rank)
    axes = ", ".join(f"{a['name']} of {a['size']}" for a in scene["axes"])
    here = scene["ranks"][rank]
    where = ", ".join(f"{a} {i}" for a, i in here["coords"].items())
    groups = "; ".join(
        f"{a} with ranks {', '.join(map(str, g))}" for a, g in here["groups"].items()
    )
    return (
        f"Mesh of {len(scene['ranks'])} ranks, axes {axes}. "
        f"Rank {rank} sits at {where}; its groups: {groups}."
    )


def check_rank(scene, rank):
    """Raise ``ValueError`` unless the scene has this rank."""
    size = len(scene["ranks"])
    if not 0 <= rank < size:
        raise ValueError(f"rank={rank} is not in this mesh of {size}: use 0 to {size - 1}")
