"""Where the microscope draws ranks, cells and arrows: ranks on a ring, or as an in-order tree."""

from math import ceil, cos, pi, sin
from typing import Any

from .svg import VIEW

CELL, HIGH, GAP, PAD, HEAD, PARTING = 56, 54, 3, 6, 22, 17
COLUMNS = 4
MARGIN, TOP = 12, 62  # around the picture, and above it for the headline
ROOM = {"ring": 40, "circle": 84, "tree": 46}  # between two boxes, for the arrows
BEND = 0.1  # how far an arrow bends to its right, in parts of its length


def arrange(kind: str, ranks: int, places: int, parts: int = 1) -> dict[str, Any]:
    """Sizes and places: {"width", "height", "box", "places", "ranks", "edges"} in px.

    kind: "ring" (neighbours talk), "circle" (any two may talk: wider) or "tree". places: cells of a
    buffer, in ``parts`` halves one under the other.
    """
    each = places // parts
    columns = min(each, COLUMNS)
    rows = ceil(each / columns)
    corners = []
    for place in range(places):
        part, index = divmod(place, each)
        y = HEAD + (part * rows + index // columns) * (HIGH + GAP) + part * PARTING
        corners.append([PAD + index % columns * (CELL + GAP), y])
    box = {
        "width": max(2 * PAD + columns * (CELL + GAP) - GAP, 64),
        "height": HEAD + parts * rows * (HIGH + GAP) - GAP + (parts - 1) * PARTING + PAD,
        "cell": [CELL, HIGH],
        "parting": HEAD + rows * (HIGH + GAP) + 9 if parts > 1 else 0,
    }
    sizes = ranks, box["width"], box["height"], ROOM[kind]
    spots = (_tree if kind == "tree" else _ring)(*sizes)
    wide = max(x for x, _ in spots) - min(x for x, _ in spots) + box["width"]
    if kind == "ring" and wide > VIEW - 2 * MARGIN:
        spots = _around(*sizes)
    left, top = min(x for x, _ in spots), min(y for _, y in spots)
    placed = [
        {"rank": rank, "x": round(x - left + MARGIN, 1), "y": round(y - top + TOP, 1)}
        for rank, (x, y) in enumerate(spots)
    ]
    return {
        "width": round(max(p["x"] for p in placed) + box["width"] + MARGIN),
        "height": round(max(p["y"] for p in placed) + box["height"] + MARGIN),
        "box": box,
        "places": corners,
        "ranks": placed,
        "edges": _edges(placed, box) if kind == "tree" else [],
    }


def _ring(ranks, width, height, room):
    """Clockwise on an ellipse, as small as leaves ``room`` between any two boxes."""
    start, scale = (pi if ranks == 2 else -pi / 2), 0.5
    while True:
        spots = [
            (
                1.3 * scale * (width + room) * cos(start + 2 * pi * i / ranks),
                scale * (height + room) * sin(start + 2 * pi * i / ranks),
            )
            for i in range(ranks)
        ]
        if all(
            abs(a[0] - b[0]) >= width + room or abs(a[1] - b[1]) >= height + room
            for i, a in enumerate(spots)
            for b in spots[:i]
        ):
            return spots
        scale += 0.05


def _around(ranks, width, height, room):
    """Clockwise around a rectangle no wider than a view."""
    across = min((VIEW - 2 * MARGIN + room) // (width + room), ceil(ranks / 2))
    down = ceil(ranks / 2) - across  # ranks between the top row and the bottom one
    columns, rows = range(across), range(1, down + 1)
    right, low = across - 1, down + 1
    spots = [(i, 0) for i in columns] + [(right, i) for i in rows]
    spots += [(i, low) for i in columns[::-1]] + [(0, i) for i in rows[::-1]]
    wide = min(width + 2 * room, (VIEW - 2 * MARGIN - width) / max(across - 1, 1))
    return [(x * wide, y * (height + room)) for x, y in spots[:ranks]]


def _tree(ranks, width, height, room):
    """Rank by rank from left to right, as deep as each is in the first tree."""
    return [(rank * (width + 14), _depth(rank, ranks) * (height + room)) for rank in range(ranks)]


def _parent(rank, ranks):
    """The one above in the in-order tree, as in `tpviz.views.collectives.trees`."""
    lowest = rank & -rank
    above = (rank ^ lowest) | (lowest << 1)
    return above if above < ranks else rank ^ lowest


def _depth(rank, ranks):
    return 1 + _depth(_parent(rank, ranks), ranks) if rank else 0


def _edges(placed, box):
    """From the top of each box to the bottom of the one above it: [x0, y0, x1, y1]."""
    half, edges = box["width"] / 2, []
    for here in placed[1:]:
        above = placed[_parent(here["rank"], len(placed))]
        edges.append([here["x"] + half, here["y"], above["x"] + half, above["y"] + box["height"]])
    return edges


def path(drawing: dict[str, Any], sender: int, receiver: int) -> list[float]:
    """The arrow between two boxes as [x0, y0, control x, y, x1, y1]: a curve bent to its right."""
    box = drawing["box"]
    both = drawing["ranks"][sender], drawing["ranks"][receiver]
    ends = [(at["x"] + box["width"] / 2, at["y"] + box["height"] / 2) for at in both]
    (ax, ay), (bx, by) = ends
    control = (ax + bx) / 2 - BEND * (by - ay), (ay + by) / 2 + BEND * (bx - ax)
    curve = lambda s, t: tuple(  # its polar form: curve(t, t) is the point at t
        (1 - s) * (1 - t) * a + ((1 - s) * t + s * (1 - t)) * c + s * t * b
        for a, c, b in zip(ends[0], control, ends[1])
    )
    inside = lambda point, end: (
        abs(point[0] - end[0]) <= box["width"] / 2 + 3
        and abs(point[1] - end[1]) <= box["height"] / 2 + 3
    )
    times = [i / 200 for i in range(201)]
    first = next(t for t in times if not inside(curve(t, t), ends[0]))
    last = next(t for t in reversed(times) if not inside(curve(t, t), ends[1]))
    points = curve(first, first), curve(first, last), curve(last, last)
    return [round(value, 1) for point in points for value in point]
