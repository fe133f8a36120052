"""The scene of a communication matrix as one static SVG: nested blocks, and the mesh beside them.

Without a mesh, what the axes of every mesh get stands there instead.
"""

from textwrap import wrap
from typing import Any

from .matrix import MAX_ALONG
from .palette import svg_style
from .svg import amount, document, pattern_defs, rect, text

LEFT, TOP, SIDE, GAP = 44, 76, 288, 44
CELL, STEP = 34, 46
LETTER, LINE = 6.1, 105
"""Width of a letter of 11 px, about; the most letters in a line of text below the picture."""


def matrix_svg(scene: dict[str, Any], theme: str = "auto") -> str:
    """Draw the scene; theme "light", "dark", "auto" or "page"."""
    right = LEFT + SIDE + GAP
    beside, width, height = (_mesh if scene["mesh"] else _rows)(scene, right, TOP)
    lines, bottom, longest = _lines(scene, TOP + max(SIDE, height) + 28)
    badge = 6.8 * len(scene["badge"]) + 18
    body = [
        pattern_defs(),
        rect(10, 8, badge, 19, "", "rx='9.5' fill='none' class='s-fg' stroke-width='1.2'"),
        text(10 + badge / 2, 21.5, scene["badge"], size=11, anchor="middle", weight=600),
        text(badge + 20, 22, scene["title"], "muted"),
        text(LEFT, 46, f"{_unit(scene)[1]} between two ranks", size=12, weight=700),
        _matrix(scene),
        beside,
        lines,
    ]
    width = max(right + width + 14, 40 + LETTER * longest, badge + 30 + 6 * len(scene["title"]))
    label = f"Communication matrix of {scene['title']}"
    if scene["mesh"]:
        label += ", mesh " + " x ".join(f"{n} {size}" for n, size in scene["mesh"].items())
    return document(width, bottom + 12, "".join(body), label, svg_style(theme), theme)


# -- the matrix ------------------------------------------------------------------------------------
def _matrix(scene):
    cell = SIDE / scene["shown"]
    out = [_ranks(scene, cell)]
    for block in scene["blocks"]:
        tier = scene["tiers"][block["tier"]]
        place = block["first"] * cell
        side = block["ranks"] * cell
        out.append(
            swatch(tier, LEFT + place, TOP + place, side, side)
            + rect(LEFT + place, TOP + place, side, side, "", "fill='none' class='s-bg'")
        )
    out.append(_diagonal(scene["shown"], cell))
    out += [
        _number(scene, number, cell) for number in scene["numbers"] if number["ranks"] * cell >= 30
    ]
    out += [
        _hop(
            LEFT + (hop["to"] + 0.5) * cell,
            TOP + (hop["from"] + 0.82) * cell,
            hop["axis"],
            max(1.6, min(4.5, 0.13 * cell)),
        )
        for hop in scene["hops"]
    ]
    return "".join(out)


def _diagonal(shown, cell):
    """A rank and itself: empty."""
    path = "".join(
        f"M{LEFT + i * cell:.2f},{TOP + i * cell:.2f}h{cell:.2f}v{cell:.2f}h-{cell:.2f}z"
        for i in range(shown)
    )
    return f"<path d='{path}' class='f-bg s-rule' stroke-width='0.6'/>"


def _ranks(scene, cell):
    """Rank numbers along both sides, as many as there is room for."""
    step = next(s for s in (1, 2, 4, 8, 16, 32) if s * cell >= 17)
    out = [text(10, TOP - 17, "from ↓ to →", "muted", 10)]
    for rank in range(0, scene["shown"], step):
        place = (rank + 0.5) * cell
        out.append(
            text(LEFT + place, TOP - 5, rank, "muted", 10, "middle")
            + text(LEFT - 5, TOP + place + 3.5, rank, "muted", 10, "end")
        )
    return "".join(out)


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
    out = [text(x, 46, f"mesh d1 {d1} x d2 {d2}", size=12, weight=700)]
    middle, length = CELL / 2 - 5, STEP - CELL
    for ink, sideways in zip(scene["axes"], (False, True)):
        out.append(
            text(x + 38, y - 8, "d2 →", ink["key"], 12, weight=700)
            if sideways
            else text(x, y + 22, "d1 ↓", ink["key"], 12, "start", 700)
        )
        if ink["size"] == 1:
            continue
        for k in range(rows if sideways else columns):
            far = (columns if sideways else rows) * STEP - length
            box = (
                (x + 38, y + k * STEP + middle, far, 10)
                if sideways
                else (x + 38 + k * STEP + middle, y, 10, far)
            )
            out.append(swatch(ink, *box))
    for row in range(rows):
        for column in range(columns):
            place = x + 38 + column * STEP, y + row * STEP, CELL, CELL
            out.append(
                rect(*place, "bg", "rx='6'")
                + rect(*place, "", "rx='6' fill='none' class='s-fg'")
                + text(
                    place[0] + CELL / 2, place[1] + 22, row * d2 + column, "fg", 12, "middle", 700
                )
            )
    height = rows * STEP
    if rows < d1 or columns < d2:
        out.append(
            text(
                x + 38,
                y + height + 4,
                f"{rows} x {columns} of {d1} x {d2} drawn",
                "muted",
                11,
                extra="font-style='italic'",
            )
        )
        height += 14
    return "".join(out), 38 + columns * STEP, height


def _rows(scene, x, y):
    """(the table of all meshes, width, height)."""
    out, columns = [text(x, 46, "bus bandwidth of each mesh", size=12, weight=700)], (0, 70, 160)
    for number, row in enumerate(scene["rows"]):
        cells = row[0], *(f"{row[k]}{'*' * (row[k + 2] == 'measured')}" for k in (1, 4))
        for dx, cell in zip(columns, cells):
            out.append(text(x + dx, y + 18 * number, cell, "fg" if number else "muted", 11))
    bottom = 18 * len(scene["rows"])
    if any("measured" in row for row in scene["rows"]):
        out.append(text(x, y + bottom, "* measured, the others derived", "muted", 11))
    return "".join(out), 260, bottom


def swatch(ink: dict[str, Any], x: float, y: float, width: float, height: float) -> str:
    """A rect in an ink of the palette with its pattern."""
    out = rect(x, y, width, height, ink["key"])
    if ink["pattern"] != "solid":
        out += rect(x, y, width, height, "", f"fill='url(#tpv-{ink['pattern']})'")
    return out


# -- below it --------------------------------------------------------------------------------------
def _lines(scene, y):
    """(axes, tiers and captions as lines of text, y of the last, the longest in letters)."""
    out, longest = [], 0
    for axis in scene["axes"]:
        out.append(
            swatch(axis, 10, y - 9.5, 14, 11)
            + _hop(33, y - 4, axis["name"], 4)
            + text(44, y, axis["words"], weight=600)
        )
        longest, y = max(longest, 1.1 * len(axis["words"])), y + 17
    for tier in scene["tiers"]:
        words = tier["words"] + ("" if tier["drawn"] else " (not drawn)")
        out.append(swatch(tier, 10, y - 9.5, 14, 11) + text(30, y, words))
        longest, y = max(longest, len(words)), y + 17
    for line in (line for words in scene["captions"] for line in wrap(words, LINE)):
        out.append(text(10, y, line, "muted"))
        longest, y = max(longest, len(line)), y + 16
    return "".join(out), y - 16, longest
