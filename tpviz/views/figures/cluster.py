"""Cluster -> scene: its devices and links, a mesh on them, and the bandwidth of each axis.

Rank r sits on device r. One axis is chosen: the links that its groups cross are marked with the
number of its groups that share them, since all are active at once; the group of rank 0 is lit.

>>> from tpviz import Mesh, clusters
>>> scene = cluster_scene(clusters.nvlink_pairs(), Mesh({"dp": 4, "tp": 2}), "dp")
>>> scene["axes"][0]["held"], scene["ways"][-1]
('PCIe: 2 groups share 34 GB/s', {'level': 1, 'unit': 3, 'load': 2})
"""

from textwrap import wrap
from typing import Any

from tpviz.cluster import Cluster
from tpviz.cluster.routes import crossings, rings, stride_of
from tpviz.cluster.scale import stands_for
from tpviz.core.inks import axis_keys
from tpviz.core.mesh import Mesh

from .svg import (
    Picture,
    amount,
    document,
    head,
    image,
    lines,
    outline,
    pattern_defs,
    rect,
    seconds,
    swatch,
    text,
)
from .tokens import INKS

__all__ = ["Picture", "cluster_scene", "cluster_svg", "describe", "image", "to_table"]

MAX_DEVICES = 64
MAX_ALONG = 16
"""Devices drawn along one dimension of a torus; half as many where not all are drawn."""


def cluster_scene(
    cluster: Cluster, mesh: Mesh | None = None, axis: str | None = None
) -> dict[str, Any]:
    """The scene of a cluster, ready for JSON.

    axis : the one whose links are marked; the last of two or more ranks when left out. Returns a
    dict: ``levels`` or ``torus`` (with ``shown``: how many of their units are drawn), ``devices``
    (rank, coords, lit), ``ways`` (level, unit, load) or ``links`` (dimension, device, load),
    ``axes`` (bandwidth in bytes/s, latency in s, ``held``: what limits it), ``captions``. Raises
    ValueError where the mesh does not fit or has no such axis.
    """
    if not isinstance(cluster, Cluster):
        raise ValueError(f"a picture of a cluster needs a tv.Cluster, not {cluster!r}")
    axis = _chosen(cluster, mesh, axis)
    parts = [dict(vars(part)) for part in cluster.levels or cluster.torus]
    along = MAX_ALONG // 2 if cluster.size > MAX_DEVICES else MAX_ALONG
    shown, most = 1, along if cluster.torus else MAX_DEVICES
    for part in parts:
        size = part["units"] if cluster.levels else part["size"]
        part["shown"] = min(size, most, max(1, MAX_DEVICES // shown))
        part["words"] = _words(cluster, part)
        shown *= part["shown"]
    loads = _loads(cluster, mesh, axis)
    lit = set(mesh.group(0, axis)) if mesh and axis else set()
    ranks = mesh.size if mesh else 0
    return {
        "title": cluster.name,
        "badge": "described",
        "levels" if cluster.levels else "torus": parts,
        "size": cluster.size,
        "shown": shown,
        "devices": [
            {
                "device": d,
                "rank": d if d < ranks else None,
                "lit": d in lit,
                "coords": mesh.coords(d) if mesh and d < ranks else {},
            }
            for d in _drawn(parts)
        ],
        "mesh": dict(mesh.axes) if mesh else {},
        "axis": axis,
        "axes": [_axis(cluster, mesh, name) for name in mesh.names] if mesh else [],
        **loads,
        "captions": _captions(cluster),
    }


def _chosen(cluster, mesh, axis):
    if mesh is None:
        if axis is not None:
            raise ValueError(f"axis={axis!r} needs a mesh: cluster_scene(cluster, mesh, {axis!r})")
        return None
    if not isinstance(mesh, Mesh):
        raise ValueError(f'the mesh must be a Mesh such as Mesh({{"tp": 4}}), not {mesh!r}')
    cluster.check_mesh(mesh)
    if axis is None:
        return next((name for name in reversed(mesh.names) if mesh.axes[name] > 1), mesh.names[-1])
    mesh.group(0, axis)  # raises for an axis that is not there
    return axis


def _drawn(parts):
    """The devices drawn: of each level or dimension the first units."""
    devices, inner = [0], 1
    for part in parts:
        devices = [unit * inner + d for unit in range(part["shown"]) for d in devices]
        inner *= part.get("units") or part["size"]
    return devices


def _loads(cluster, mesh, axis):
    """How many groups of the axis use each link out of a unit, or each link of a torus."""
    what = "ways" if cluster.levels else "links"
    if axis is None or mesh.axes[axis] == 1:
        return {what: []}
    ports = {}
    for group in mesh.groups(axis):
        for (part, place, way), _, load in cluster.link(group, mesh.size).ports:
            if cluster.torus:  # a link is known by its lower end, whichever way it is used
                place = place if way == 1 else _before(cluster.torus, part, place)
            ports[part, place] = max(ports.get((part, place), 0), load)
    names = ("level", "unit") if cluster.levels else ("dimension", "device")
    return {what: [dict(zip(names, key)) | {"load": ports[key]} for key in sorted(ports)]}


def _before(torus, number, place):
    inner = 1
    for dimension in torus[:number]:
        inner *= dimension.size
    here, size = place // inner % torus[number].size, torus[number].size
    return place + ((here - 1) % size - here) * inner


def _axis(cluster, mesh, name):
    key = axis_keys(mesh.names)[name]
    row = {"name": name, "size": mesh.axes[name], "key": key, "pattern": INKS[key].pattern}
    if mesh.axes[name] == 1:
        return row | {"bandwidth": None, "latency": 0.0, "held": "one rank: nothing is sent"}
    link = cluster.axis_link(mesh, name)
    held = _held(cluster, link, mesh.group(0, name))
    return row | {"bandwidth": link.bandwidth, "latency": link.latency, "held": held}


def _held(cluster, link, members):
    """In words, what limits the bandwidth of an axis."""
    if stride_of(members) in cluster.table:
        return "measured: in the cluster's table"
    parts = cluster.levels or cluster.torus
    tight = min(link.ports, key=lambda port: port.capacity / port.load)
    if tight.capacity / tight.load <= link.limit * (1 + 1e-9):
        where, rate = parts[tight.key[0]].name, amount(tight.capacity, "B/s")
        if tight.load == 1:
            return f"{where}: {rate}, shared with no other group"
        return f"{where}: {tight.load} {'groups' if cluster.levels else 'hops'} share {rate}"
    driven = [
        (parts[i], rings(cluster, parts[i], units)) for i, _, units in crossings(cluster, members)
    ]
    level, links = min(driven, key=lambda pair: pair[0].p2p * pair[1])
    return f"{level.name}: {links} link{'s' * (links > 1)} of {amount(level.p2p, 'B/s')}"


def _words(cluster, part):
    """A level or dimension in words, with what a scale model stands for."""
    scale = stands_for(cluster)["link"]
    delay = f"{seconds(part['latency'])} a hop"
    if scale != 1:
        delay += f" (for {seconds(part['latency'] / cluster.slow_motion)})"
    if cluster.torus:
        links = f"{part['links']} links of " if part["links"] > 1 else ""
        return (
            f"{part['name']}: ring of {part['size']}, "
            f"{links}{_rate(part['bandwidth'], scale)} each way, {delay}"
        )
    nics = f" through {part['nics']} NIC{'s' * (part['nics'] > 1)}" if part["nics"] else ""
    wired = ", all connected to each other" if part["direct"] else ""
    return (
        f"{part['name']}: {part['units']} units{wired}, {_rate(part['p2p'], scale)} between "
        f"two ranks, {_rate(part['group'], scale)} out of one unit{nics}, {delay}"
    )


def _rate(value, scale):
    stands = f" (for {amount(value * scale, 'B/s')})" if scale != 1 else ""
    return amount(value, "B/s") + stands


def _captions(cluster):
    """Lines under the picture: the device, the scale, where the numbers come from."""
    scales, device = stands_for(cluster), cluster.device
    scale = scales["compute"]
    rates = ", ".join(
        f"{dtype} {amount(rate, 'FLOP/s')}"
        + (f" (for {amount(rate * scale, 'FLOP/s')})" if scale != 1 else "")
        for dtype, rate in device.flops.items()
    )
    memory = amount(device.memory)
    if scales["memory"] != 1:
        memory += f" (for {amount(device.memory * scales['memory'])})"
    lines = [f"{device.name}: {rates}; memory {memory}"]
    if device.losses:
        lines.append(f"not ideal: {device.losses}")
    if cluster.caption != cluster.name:
        lines.append(f"{cluster.caption}: (for ...) is the value that a number stands for")
    return lines + ([f"source: {cluster.source}"] if cluster.source else [])


def to_table(scene: dict[str, Any]) -> list[list[str]]:
    """Rows of strings, header first: the bandwidth of every axis; without a mesh, the links."""
    if not scene["axes"]:
        return [["links"], *([part["words"]] for part in scene.get("levels") or scene["torus"])]
    table = [["axis", "ranks", "bandwidth", "latency", "limited by"]]
    for axis in scene["axes"]:
        rate = "-" if axis["bandwidth"] is None else amount(axis["bandwidth"], "B/s")
        delay = "-" if axis["bandwidth"] is None else seconds(axis["latency"])
        table.append([axis["name"], str(axis["size"]), rate, delay, axis["held"]])
    return table


def describe(scene: dict[str, Any]) -> str:
    """The cluster, the mesh on it and the bandwidth of its axes, in words."""
    parts = scene.get("levels") or scene["torus"]
    lines = [f"{scene['title']}: {scene['size']} devices.", *(p["words"] + "." for p in parts)]
    if scene["axes"]:
        mesh = ", ".join(f"{name} of {size}" for name, size in scene["mesh"].items())
        lines.append(f"On it a mesh with axes {mesh}.")
        lines += [
            f"{axis} ({ranks}) gets {rate}, {delay} a hop; {held}."
            for axis, ranks, rate, delay, held in to_table(scene)[1:]
            if rate != "-"
        ]
    return " ".join([*lines, *(caption + "." for caption in scene["captions"])])


# -- the picture -----------------------------------------------------------------------------------
CELL, STEP, STALK, PAD, HEAD = 44, 52, 20, 8, 16
TOP, LEFT, WIDEST = 44, 14, 1040
LETTER, LINE = 7.3, 88
"""Width of a small letter, about; the most letters in a line of text below the picture."""


def cluster_svg(scene: dict[str, Any], theme: str = "auto") -> str:
    """Draw a cluster scene; theme "light", "dark", "auto" or "page".

    Every level has a bar that its units hang on; where groups of the chosen axis leave a unit, its
    stalk is drawn in the axis' ink with how many of them share it ("2x").
    """
    ink = next((axis for axis in scene["axes"] if axis["name"] == scene["axis"]), None)
    picture = _Torus(scene, ink) if "torus" in scene else _Levels(scene, ink)
    width, height = picture.draw(LEFT, TOP)
    below, bottom, longest = _below(scene, TOP + height + 26)
    title = _title(scene)
    width = max(width + 2 * LEFT, 420, 36 + LETTER * max(longest, len(title) + 16))
    label = f"Cluster {scene['title']}" + (f", axis {scene['axis']}" if scene["axis"] else "")
    body = pattern_defs() + head(scene, title) + "".join(picture.out) + below
    return document(width, bottom + 12, body, label, theme)


def _title(scene):
    if not scene["mesh"]:
        return f"{scene['title']}, {scene['size']} devices"
    mesh = " x ".join(f"{name} {ranks}" for name, ranks in scene["mesh"].items())
    return f"{scene['title']}, mesh {mesh}; in a box: rank and ({', '.join(scene['mesh'])})"


def _below(scene, y):
    """(the axes' bandwidths, the links and the captions as lines of text, y of the last, the
    longest in letters)."""
    out, longest = "", 0
    for axis in scene["axes"]:
        words = f"{axis['name']} {axis['size']}: {axis['held']}"
        if axis["bandwidth"] is not None:
            rate, hop = amount(axis["bandwidth"], "B/s"), seconds(axis["latency"])
            words = f"{axis['name']} {axis['size']}: {rate}, {hop} a hop ({axis['held']})"
        out += swatch(10, y - 9.5, 14, 11, axis["key"], axis["pattern"])
        out += text(30, y, words, weight=700 if axis["name"] == scene["axis"] else "")
        longest, y = max(longest, len(words)), y + 17
    parts = [part["words"] for part in scene.get("levels") or scene["torus"]]
    loads = [way["load"] for way in scene.get("ways") or scene.get("links") or ()]
    if (most := max(loads, default=0)) > 1:
        what = "groups" if "levels" in scene else "hops"
        parts.insert(0, f"{most}x: {most} {what} of {scene['axis']} share the link")
    rows = [line for words in parts + scene["captions"] for line in wrap(words, LINE)]
    out += lines(10, y, rows, 16, "muted")
    return out, y + 16 * (len(rows) - 1), max(longest, *map(len, rows))


class _Picture:
    """Shared by both kinds: the cells, and lines that are lit or not."""

    def __init__(self, scene, ink):
        self.scene, self.ink, self.out = scene, ink, []
        self.places = {device["device"]: device for device in scene["devices"]}

    def times(self, x, y, load):
        """The number of groups that share a link, if more than one."""
        if load > 1:
            edge = "stroke-width='3' paint-order='stroke'"
            self.out.append(text(x, y, f"{load}x", "fg s-bg", extra=edge))

    def line(self, points, load):
        """A link; lit and as wide as its load where the chosen axis passes."""
        path = "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
        ink = self.ink["key"] if load else "muted"
        wide = min(1.5 + 1.5 * load, 6) if load else 1
        self.out.append(f"<path d='M{path}' fill='none' class='s-{ink}' stroke-width='{wide}'/>")

    def cell(self, number, x, y):
        """One device: rank and coordinates; the group of rank 0 is filled."""
        device = self.places[number]
        place, inks = (x, y, CELL, CELL), ("fg", "muted")
        face = rect(*place, "bg", "rx='6'")
        if device["rank"] is None:
            self.out.append(face + outline(*place, "muted", rx=6, extra="stroke-dasharray='3 3'"))
            if not self.scene["mesh"]:
                self.out.append(text(x + CELL / 2, y + 27, number, "muted", anchor="middle"))
            return
        if device["lit"] and self.ink:
            face = swatch(*place, self.ink["key"], self.ink["pattern"], "rx='6'")
            inks = (f"halo-{self.ink['key']}",) * 2
        else:
            face += outline(*place, rx=6)
        where = ",".join(str(place) for place in device["coords"].values())
        self.out.append(
            face
            + text(x + CELL / 2, y + 21, number, inks[0], 16, "middle", 700)
            + text(x + CELL / 2, y + 36, where, inks[1], anchor="middle") * (len(where) < 8)
        )

    def more(self, x, y, count, what, anchor="start"):
        """State how many are not drawn."""
        if count > 0:
            words = f"and {count:,} more {what}"
            self.out.append(text(x, y, words, "muted", anchor=anchor, extra="font-style='italic'"))


class _Levels(_Picture):
    """Boxes within boxes; ``draw`` returns (width, height)."""

    def draw(self, x, y):
        self.levels = self.scene["levels"]
        self.loads = {(way["level"], way["unit"]): way["load"] for way in self.scene["ways"]}
        self.inner = [1]
        for level in self.levels:
            self.inner.append(self.inner[-1] * level["units"])
        self.shapes = []
        for number in range(len(self.levels)):
            self.shapes.append(self._shape(number))
        self._box(len(self.levels) - 1, 0, x, y)
        return self.shapes[-1][2:]

    def _shape(self, number):
        """(columns, rows, width, height) of a box of this level."""
        level = self.levels[number]
        wide, high = (CELL, CELL) if number == 0 else self.shapes[number - 1][2:]
        shown, gap = level["shown"], STEP - CELL if number == 0 else 14
        columns = min(shown, 8 if number == 0 else max(1, WIDEST // (wide + gap)))
        rows = -(-shown // columns)
        columns = -(-shown // rows)
        more = 16 if level["units"] > shown else 0
        width = columns * (wide + gap) - gap + 2 * PAD
        height = HEAD + rows * (high + STALK + 8) + PAD + more
        return columns, rows, max(width, 8 + 7 * len(level["name"])), height

    def _box(self, number, unit, x, y):
        """A unit of level ``number``: its name, the units below it, and the bars they hang on."""
        level, (columns, rows, width, height) = self.levels[number], self.shapes[number]
        place = x, y, width, height
        self.out.append(rect(*place, "bg", "rx='5'") + outline(*place, "rule", rx=5))
        self.out.append(text(x + PAD, y + 12, level["name"], "muted"))
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
                words = f"{outer} {self._slice(device['device'])}"
                low = corner[1] + shown[1] * self.step - 4
                self.out.append(text(corner[0], low, words, "muted"))
        self._links(spots)
        for device, (left, top) in spots.items():
            self.cell(device, left, top)
        for label in self.labels:
            self.times(*label)
        width, height = min(slices, across) * wide, -(-slices // across) * high
        for number, part in enumerate(self.torus):
            low, left_out = y + height + 6 + 14 * number, part["size"] - part["shown"]
            self.more(x, low, left_out, f"along {part['name']}")
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
                around = [(x + out, y + half), (x + out, y + out), (u - 8, y + out)]
                points[1:1] = [*around, (u - 8, v + half)]
        elif number == 1:
            points = [(x + half, y + CELL), (u + half, v)]
            if wrap:
                around = [(x + half, y + out), (x + out + 5, y + out), (x + out + 5, v - 8)]
                points[1:1] = [*around, (u + half, v - 8)]
        else:
            points = [(x + CELL - 1, y + 6 * number - 8), (x + CELL + 9, y + 6 * number - 17)]
        self.line(points, load)
        near = points[len(points) // 2 - 1]
        self.labels.append((near[0] + 6, near[1] + (11 if number == 1 else -3), load))
