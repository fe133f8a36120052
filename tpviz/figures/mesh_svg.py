"""The mesh scene as one static SVG: one rank's groups lit, and one parameter's blocks."""

from .mesh import check_rank
from .palette import svg_style
from .svg import document, head, pattern_defs, rect, text

LEFT, TOP, GAP, SLICE_GAP = 60, 78, 12, 40
MANY = 32  # ranks that are drawn smaller, without their coordinates
MATRIX = 200


def mesh_svg(scene, rank=0, parameter=None, theme="auto"):
    """Draw a mesh scene.

    rank: the one chosen; parameter: a name (default: the first that is cut). theme "light", "dark"
    or "auto". Raises ValueError on a rank or parameter that is not there.
    """
    check_rank(scene, rank)
    width, height = scene["width"], scene["height"]
    body = [scene["common"], head(scene), *(_rank(scene, r, rank) for r in scene["ranks"])]
    if scene["parameters"] or parameter is not None:
        chosen = find_parameter(scene, parameter)
        body.append(_matrix(chosen, rank, scene["axes"], width + 30, TOP - 16))
        width, height = width + 60 + MATRIX, max(height, TOP + MATRIX + 40)
    width = max(width, 420)
    legend, bottom = _legend(scene, rank, height + 4, width)
    body.append(legend)
    label = f"Mesh {scene['title']}, rank {rank}"
    return document(width, bottom + 22, "".join(body), label, svg_style(theme), theme)


def find_parameter(scene, name=None):
    """The parameter of that name; without one, the first matrix that is cut, else the first."""
    names = [p["name"] for p in scene["parameters"]]
    if name is not None and name not in names:
        raise ValueError(
            f"parameter {name!r} is not in this view; it has {', '.join(names) or 'none'}"
        )
    cut = [p for p in scene["parameters"] if len(p["blocks"]) > 1 and len(p["shape"]) > 1]
    return next(
        (p for p in scene["parameters"] if p["name"] == name), (cut or scene["parameters"])[0]
    )


def arranged(scene):
    """{"cell", "places", "width", "height", "top", "common"}: px of a rank's square, the corner of
    each, the size of the grid with its margins, px of head that a page shows itself, and the SVG
    that is there whatever is chosen. Slices stand side by side, four in a row."""
    cell = 30 if len(scene["ranks"]) > MANY else 46
    step, last = cell + GAP, len(scene["slices"]) - 1
    wide, high = (scene[many] * step + SLICE_GAP for many in ("columns", "rows"))
    corner = lambda i: (LEFT + i % 4 * wide, TOP + i // 4 * high)  # of a slice
    places = []
    for here in scene["ranks"]:
        x, y = corner(here["slice"])
        places.append([x + here["column"] * step, y + here["row"] * step])
    captions = "".join(
        text(x, y - 10, caption, "muted", 11)
        for (x, y), caption in zip(map(corner, range(last + 1)), scene["slices"])
    )
    return {
        "cell": cell,
        "places": places,
        "top": TOP - 42,
        "width": max(x for x, _ in places) + step,
        "height": max(y for _, y in places) + step,
        "common": pattern_defs() + captions + _axis_names(scene, cell),
    }


def _axis_names(scene, cell):
    """Arrows along the last axis (across) and the one before it (down)."""
    across = scene["axes"][-1]
    out = text(LEFT, TOP - 26, f"{across['name']} →", across["key"], 12, weight=700)
    if len(scene["axes"]) > 1:
        down = scene["axes"][-2]
        out += text(LEFT - 12, TOP + cell / 2 + 4, f"{down['name']} ↓", down["key"], 12, "end", 700)
    return out


def lit_axis(scene, rank, chosen):
    """The axis whose group joins the two ranks, or None; the chosen rank itself has every axis."""
    if rank == chosen:
        return None
    return next(
        (a for a in scene["axes"] if rank in scene["ranks"][chosen]["groups"][a["name"]]), None
    )


def _rank(scene, here, chosen):
    (x, y), cell = scene["places"][here["rank"]], scene["cell"]
    axis = lit_axis(scene, here["rank"], chosen)
    if here["rank"] == chosen:
        face = rect(x, y, cell, cell, "fg", "rx='7'")
        ink, under = "bg", "bg"
    elif axis:
        face = rect(x, y, cell, cell, axis["key"], "rx='7'")
        if axis["pattern"] != "solid":
            face += rect(x, y, cell, cell, "", f"rx='7' fill='url(#tpv-{axis['pattern']})'")
        ink = under = f"halo-{axis['key']}"
    else:
        face = rect(x, y, cell, cell, "", "rx='7' fill='none' class='s-muted'")
        ink, under = "fg", "muted"
    x += cell / 2
    if len(scene["ranks"]) > MANY:
        return face + text(x, y + cell / 2 + 4, here["rank"], ink, 12, "middle", 700)
    where = ",".join(str(i) for i in here["coords"].values())
    return (
        face
        + text(x, y + 21, here["rank"], ink, 14, "middle", 700)
        + text(x, y + 36, axis["name"] if axis else where, under, 10, "middle")
    )


def matrix_size(shape):
    """(width, height) px of a matrix drawn to scale within MATRIX, never thinner than 36."""
    across, down = (shape[0], 1) if len(shape) == 1 else (shape[1], shape[0])
    scale = MATRIX / max(across, down)
    return max(across * scale, 36), max(down * scale, 36)


def _matrix(parameter, rank, axes, x, y):
    width, height = matrix_size(parameter["shape"])
    shape = " x ".join(map(str, parameter["shape"]))
    out = [
        text(x, y - 16, parameter["name"], size=12, weight=700),
        text(x, y, f"{parameter['notation']}   {shape}", "muted", 11, extra="xml:space='preserve'"),
    ]
    top = y + 10
    own = parameter["blocks"][parameter["block_of"][rank]]
    key = next((a["key"] for a in axes if a["name"] in parameter["axes"][-1:]), "muted")
    for block in [*(b for b in parameter["blocks"] if b is not own), own]:
        bx, by, bw, bh = block["box"]
        if bw * bh == 0:
            continue
        box = [x + bx * width, top + by * height, bw * width, bh * height]
        out.append(_block(box, block["ranks"], key if block is own else ""))
    return "".join(out)


def _block(box, ranks, key):
    """One block with its owners; the chosen rank's (it has a key) is filled, never a hairline."""
    least = 3 if key else 0
    box[2:] = [max(side, least) for side in box[2:]]
    out = [
        rect(*box, key, "" if key else "fill='none'"),
        rect(*box, "", "fill='none' class='s-fg' stroke-width='1'"),
    ]
    names = ",".join(map(str, ranks))
    if box[3] >= 12 and box[2] >= 6.5 * len(names):
        middle = box[0] + box[2] / 2, box[1] + box[3] / 2 + 4
        ink = "muted" if not key else "bg" if key == "muted" else f"on-{key}"
        out.append(text(*middle, names, ink, 10, "middle"))
    return "".join(out)


def _legend(scene, rank, y, width):
    """(the chosen rank's groups, y of the last line): one line where they fit, else one each."""
    out, x = [text(10, y + 9.5, f"rank {rank} and its groups:", size=11)], 150.0
    for axis in scene["axes"]:
        members = ", ".join(map(str, scene["ranks"][rank]["groups"][axis["name"]]))
        label = f"{axis['name']}: {members}"
        if x + 24 + 6 * len(label) > width:
            x, y = 10.0, y + 18
        out.append(rect(x, y, 14, 11, axis["key"]))
        if axis["pattern"] != "solid":
            out.append(rect(x, y, 14, 11, "", f"fill='url(#tpv-{axis['pattern']})'"))
        out.append(text(x + 19, y + 9.5, label, size=11))
        x += 34 + 6 * len(label)
    return "".join(out), y
