"""The cluster scene as one static SVG: nested boxes for levels, a grid with its links for a torus.

Every level has a bar that its units hang on; where groups of the chosen axis leave a unit, its
stalk is drawn in the axis' ink with how many of them share it ("2x").
"""

from textwrap import wrap
from typing import Any

from .palette import svg_style
from .svg import amount, document, pattern_defs, rect, seconds, text

CELL, STEP, STALK, PAD, HEAD = 44, 52, 20, 8, 16
TOP, LEFT, WIDEST = 44, 14, 1040
LETTER, LINE = 6.2, 100
"""Width of a letter of 11 px, about; the most letters in a line of text below the picture."""


def cluster_svg(scene: dict[str, Any], theme: str = "auto") -> str:
    """Draw a cluster scene; theme "light", "dark", "auto" or "page"."""
    ink = next((axis for axis in scene["axes"] if axis["name"] == scene["axis"]), None)
    picture = _Torus(scene, ink) if "torus" in scene else _Levels(scene, ink)
    width, height = picture.draw(LEFT, TOP)
    lines, bottom = _lines(scene, TOP + height + 26)
    longest = max(len(line) for line in _texts(scene) + [_title(scene) + 16 * " "])
    width = max(width + 2 * LEFT, 420, 36 + LETTER * longest)
    label = f"Cluster {scene['title']}" + (f", axis {scene['axis']}" if scene["axis"] else "")
    body = pattern_defs() + _header(scene) + "".join(picture.out) + lines
    return document(width, bottom + 12, body, label, svg_style(theme), theme)


def _title(scene):
    if not scene["mesh"]:
        return f"{scene['title']}, {scene['size']} devices"
    mesh = " x ".join(f"{name} {ranks}" for name, ranks in scene["mesh"].items())
    return f"{scene['title']}, mesh {mesh}; in a box: rank and ({', '.join(scene['mesh'])})"


def _header(scene):
    size = 6.3 * len(scene["badge"]) + 16
    return (
        rect(10, 8, size, 19, "", "rx='9.5' fill='none' class='s-fg' stroke-width='1.2'")
        + text(10 + size / 2, 21.5, scene["badge"], size=11, anchor="middle", weight=600)
        + text(size + 20, 22, _title(scene), "muted")
    )


def _texts(scene):
    """All lines under the picture."""
    parts = [part["words"] for part in scene.get("levels") or scene["torus"]]
    below = [line for words in parts + scene["captions"] for line in wrap(words, LINE)]
    return [_axis_words(axis) for axis in scene["axes"]] + below


def _axis_words(axis):
    if axis["bandwidth"] is None:
        return f"{axis['name']} {axis['size']}: {axis['held']}"
    return (
        f"{axis['name']} {axis['size']}: {amount(axis['bandwidth'], 'B/s')}, "
        f"{seconds(axis['latency'])} a hop ({axis['held']})"
    )


def _lines(scene, y):
    """(what the axes get, the links and the captions as lines of text, y of the last)."""
    out = []
    for axis in scene["axes"]:
        out.append(_swatch(axis, 10, y - 9.5, 14, 11))
        chosen = axis["name"] == scene["axis"]
        out.append(text(30, y, _axis_words(axis), "fg", 11, weight=700 if chosen else ""))
        y += 17
    for line in _texts(scene)[len(scene["axes"]) :]:
        out.append(text(10, y, line, "muted", 11))
        y += 16
    return "".join(out), y - 16


def _swatch(axis, x, y, width, height, extra=""):
    out = rect(x, y, width, height, axis["key"], extra)
    if axis["pattern"] != "solid":
        out += rect(x, y, width, height, "", f"{extra} fill='url(#tpv-{axis['pattern']})'")
    return out


class _Picture:
    """What both kinds share: the cells, and lines that are lit or not."""

    def __init__(self, scene, ink):
        self.scene, self.ink, self.out = scene, ink, []
        self.places = {device["device"]: device for device in scene["devices"]}

    def times(self, x, y, load):
        """How many groups share a link, where it is not one alone."""
        if load > 1:
            edge = "stroke-width='3' paint-order='stroke'"
            self.out.append(text(x, y, f"{load}x", "fg s-bg", 10, extra=edge))

    def line(self, points, load):
        """A link; lit and as wide as its load where the chosen axis passes."""
        path = "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
        ink = self.ink["key"] if load else "muted"
        wide = min(1.5 + 1.5 * load, 6) if load else 1
        self.out.append(f"<path d='M{path}' fill='none' class='s-{ink}' stroke-width='{wide}'/>")

    def cell(self, number, x, y):
        """One device: rank and coordinates; the group of rank 0 is filled."""
        device = self.places[number]
        round_ = "rx='6'"
        if device["rank"] is None:
            dash = f"{round_} fill='none' class='s-muted' stroke-dasharray='3 3'"
            self.out.append(rect(x, y, CELL, CELL, "bg", round_) + rect(x, y, CELL, CELL, "", dash))
            if not self.scene["mesh"]:
                self.out.append(text(x + CELL / 2, y + 27, number, "muted", 12, "middle"))
            return
        inks = ("fg", "muted")
        if device["lit"] and self.ink:
            face = _swatch(self.ink, x, y, CELL, CELL, round_)
            inks = (f"halo-{self.ink['key']}",) * 2
        else:
            face = rect(x, y, CELL, CELL, "bg", round_)
            face += rect(x, y, CELL, CELL, "", f"{round_} fill='none' class='s-fg'")
        where = ",".join(str(place) for place in device["coords"].values())
        size = 10 if len(where) < 8 else 8
        self.out.append(
            face
            + text(x + CELL / 2, y + 21, number, inks[0], 14, "middle", 700)
            + text(x + CELL / 2, y + 36, where, inks[1], size, "middle")
        )

    def more(self, x, y, count, what, anchor="start"):
        """Say how many are not drawn."""
        if count > 0:
            words = f"and {count:,} more {what}"
            self.out.append(text(x, y, words, "muted", 11, anchor, extra="font-style='italic'"))


class _Levels(_Picture):
    """Boxes within boxes; ``draw`` returns (width, height)."""

    def draw(self, x, y):
        self.levels = self.scene["levels"]
        self.loads = {(way["level"], way["unit"]): way["load"] for way in self.scene["ways"]}
        self.inner = [1]
        for level in self.levels:
            self.inner.append(self.inner[-1] * level["units"])
        self.shapes = [self._shape(number) for number in range(len(self.levels))]
        self._box(len(self.levels) - 1, 0, x, y)
        return self.shapes[-1][2:]

    def _shape(self, number):
        """(columns, rows, width, height) of a box of this level."""
        level = self.levels[number]
        wide, high = (CELL, CELL) if number == 0 else self.size(number - 1)
        shown, gap = level["shown"], STEP - CELL if number == 0 else 14
        columns = min(shown, 8 if number == 0 else max(1, WIDEST // (wide + gap)))
        rows = -(-shown // columns)
        columns = -(-shown // rows)
        more = 16 if level["units"] > shown else 0
        width = columns * (wide + gap) - gap + 2 * PAD
        height = HEAD + rows * (high + STALK + 8) + PAD + more
        return columns, rows, max(width, 8 + 7 * len(level["name"])), height

    def size(self, number):
        return self.shapes[number][2:] if hasattr(self, "shapes") else self._shape(number)[2:]

    def _box(self, number, unit, x, y):
        """A unit of level ``number``: its name, the units below it, and the bars they hang on."""
        level, (columns, rows, width, height) = self.levels[number], self.shapes[number]
        self.out.append(
            rect(x, y, width, height, "bg", "rx='5'")
            + rect(x, y, width, height, "", "rx='5' fill='none' class='s-rule'")
            + text(x + PAD, y + 12, level["name"], "muted", 10)
        )
        wide, high = (CELL, CELL) if number == 0 else self.shapes[number - 1][2:]
        gap = STEP - CELL if number == 0 else 14
        crossed = any(key[0] == number and key[1] // level["units"] == unit for key in self.loads)
        for row in range(rows):
            top = y + HEAD + row * (high + STALK + 8)
            bar = top + high + STALK
            last = min(columns, level["shown"] - row * columns) - 1
            ends = [x + PAD + wide / 2, x + PAD + last * (wide + gap) + wide / 2]
            if rows > 1:  # bars of several rows meet at the left
                ends[0] = x + PAD / 2
            self.line([(ends[0], bar), (ends[1], bar)], int(crossed))
            for column in range(last + 1):
                below = unit * level["units"] + row * columns + column
                left = x + PAD + column * (wide + gap)
                self._stalk(number, below, left + wide / 2, top + high, bar)
                if number == 0:
                    self.cell(below, left, top)
                else:
                    self._box(number - 1, below, left, top)
        if rows > 1:
            first = y + HEAD + high + STALK
            self.line([(x + PAD / 2, first), (x + PAD / 2, bar)], int(crossed))
        self.more(x + PAD, y + height - 8, level["units"] - level["shown"], "units")

    def _stalk(self, number, unit, x, top, bar):
        load = self.loads.get((number, unit), 0)
        self.line([(x, top), (x, bar)], load)
        self.times(x + 5, top + 13, load)


class _Torus(_Picture):
    """The first dimension across, the second down, others as slices side by side, whose links are
    short slanted strokes at each device."""

    def draw(self, x, y):
        self.torus = self.scene["torus"]
        self.loads = {(k["dimension"], k["device"]): k["load"] for k in self.scene["links"]}
        shown = [part["shown"] for part in self.torus] + [1, 1]
        self.step = STEP + 18
        wide, high = shown[0] * self.step + 24, shown[1] * self.step + 24
        across = max(1, WIDEST // wide)
        slices = len(self.scene["devices"]) // (shown[0] * shown[1])
        high += 14 if slices > 1 else 0
        outer = ", ".join(part["name"] for part in self.torus[2:])
        spots, self.labels = {}, []
        for place, device in enumerate(self.scene["devices"]):
            piece, rest = divmod(place, shown[0] * shown[1])
            corner = x + piece % across * wide + 12, y + piece // across * high + 12
            spots[device["device"]] = (
                corner[0] + rest % shown[0] * self.step,
                corner[1] + rest // shown[0] * self.step,
            )
            if slices > 1 and rest == 0:
                where = self._slice(device["device"])
                self.out.append(
                    text(
                        corner[0],
                        corner[1] + shown[1] * self.step - 4,
                        f"{outer} {where}",
                        "muted",
                        10,
                    )
                )
        self._links(spots)
        for device, (left, top) in spots.items():
            self.cell(device, left, top)
        for label in self.labels:
            self.times(*label)
        width, height = min(slices, across) * wide, -(-slices // across) * high
        for number, part in enumerate(self.torus):
            self.more(
                x,
                y + height + 6 + 14 * number,
                part["size"] - part["shown"],
                f"along {part['name']}",
            )
        cut = sum(part["size"] > part["shown"] for part in self.torus)
        return width, height + 14 * cut

    def _slice(self, device):
        """The place of a device along the third and further dimensions, as "0, 2"."""
        for part in self.torus[:2]:
            device //= part["size"]
        places = []
        for part in self.torus[2:]:
            device, place = divmod(device, part["size"])
            places.append(str(place))
        return ", ".join(places)

    def _links(self, spots):
        inner = 1
        for number, part in enumerate(self.torus):
            size = part["size"]
            for device, spot in spots.items():
                here = device // inner % size
                there = device + ((here + 1) % size - here) * inner
                if there in spots and not (size == 2 and here == 1):
                    load = self.loads.get((number, device), 0)
                    if size == 2:  # one link joins the two, whichever way
                        load = max(load, self.loads.get((number, there), 0))
                    self._link(number, spot, spots[there], load, wrap=here == size - 1)
            inner *= size

    def _link(self, number, start, end, load, wrap):
        """From a device to the next: straight, or back around the row or column where it wraps."""
        half, out = CELL / 2, CELL + 8
        (x, y), (u, v) = start, end
        if number == 0:
            points = [(x + CELL, y + half), (u, v + half)]
            if wrap:
                points = [
                    (x + CELL, y + half),
                    (x + out, y + half),
                    (x + out, y + out),
                    (u - 8, y + out),
                    (u - 8, v + half),
                    (u, v + half),
                ]
        elif number == 1:
            points = [(x + half, y + CELL), (u + half, v)]
            if wrap:
                points = [
                    (x + half, y + CELL),
                    (x + half, y + out),
                    (x + out + 5, y + out),
                    (x + out + 5, v - 8),
                    (u + half, v - 8),
                    (u + half, v),
                ]
        else:
            points = [(x + CELL - 1, y + 6 * number - 8), (x + CELL + 9, y + 6 * number - 17)]
        self.line(points, load)
        near = points[len(points) // 2 - 1]
        self.labels.append((near[0] + 6, near[1] + (11 if number == 1 else -3), load))
