"""Cluster -> scene: its devices and links, a mesh laid on them, and what each axis gets.

Rank r sits on device r. One axis is chosen: the links that its groups cross are marked with how
many of its groups share them, since all are active at once; the group of rank 0 is lit.

>>> from tpviz import Mesh, clusters
>>> scene = cluster_scene(clusters.nvlink_pairs(), Mesh({"dp": 4, "tp": 2}), "dp")
>>> scene["axes"][0]["held"], scene["ways"][-1]
('PCIe: 2 groups share 34 GB/s', {'level': 1, 'unit': 3, 'load': 2})
"""

from typing import Any

from tpviz.cluster import Cluster
from tpviz.cluster.routes import crossings, rings, stride_of
from tpviz.cluster.scale import stands_for
from tpviz.mesh import Mesh

from .palette import INKS, axis_keys
from .svg import amount, seconds

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
    ``axes`` (bandwidth in bytes/s, latency in s, ``held``: what holds it there), ``captions``.
    Raises ValueError where the mesh does not fit or has no such axis.
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
    """How many groups of the axis pass each way out of a unit, or each link of a torus."""
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
    """In words, what keeps an axis at its bandwidth."""
    if stride_of(members) in cluster.table:
        return "measured: it is in the cluster's table"
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
    level, links = min(driven, key=lambda found: found[0].p2p * found[1])
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
    wired = ", all wired to each other" if part["direct"] else ""
    return (
        f"{part['name']}: {part['units']} units{wired}, {_rate(part['p2p'], scale)} between "
        f"two, {_rate(part['group'], scale)} out of one{nics}, {delay}"
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
    if cluster.caption != cluster.name:
        lines.append(f"{cluster.caption}: (for ...) is what a number stands for")
    return lines + ([f"source: {cluster.source}"] if cluster.source else [])


def to_table(scene: dict[str, Any]) -> list[list[str]]:
    """Rows of strings, header first: what every axis of the mesh gets; without one, the links."""
    if not scene["axes"]:
        return [["links"], *([part["words"]] for part in scene.get("levels") or scene["torus"])]
    table = [["axis", "ranks", "bandwidth", "latency", "held back by"]]
    for axis in scene["axes"]:
        rate = "-" if axis["bandwidth"] is None else amount(axis["bandwidth"], "B/s")
        delay = "-" if axis["bandwidth"] is None else seconds(axis["latency"])
        table.append([axis["name"], str(axis["size"]), rate, delay, axis["held"]])
    return table


def describe(scene: dict[str, Any]) -> str:
    """The cluster, the mesh on it and what its axes get, in words."""
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
