"""Communication matrix -> scene: which two ranks meet at which tier, and the groups of a mesh.

Ranks of one unit stand together, so the matrix of pairs is blocks within blocks along its diagonal,
one colour for each tier, with what a pair gets there. On a mesh (d1, d2) every hop of a group's
ring is marked: d1 an open disc, d2 a full one.

>>> from tpviz import clusters, communication_matrix
>>> scene = matrix_scene(communication_matrix(clusters.nvlink_pairs()), (4, 2))
>>> scene["axes"][0]["words"]
'd1: 2 groups of 4 ranks, 2 apart: 17 GB/s, 10 us a hop, derived'
"""

from typing import Any

from tpviz.matrix import CommunicationMatrix
from tpviz.mesh import Mesh

from .palette import INKS, axis_keys

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
    return {
        "name": tier.name,
        "words": matrix.words(tier),
        "key": key,
        "drawn": drawn,
        "pattern": INKS[key].pattern,
        "pair": tier.p2p,
    }


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
    """What one axis of the mesh gets, in numbers and words."""
    name, entry = mesh.names[number], matrix.on(mesh)[number]
    key, size = axis_keys(mesh.names)[name], mesh.shape[number]
    row = {"name": name, "size": size, "key": key, "pattern": INKS[key].pattern}
    if entry is None:
        return row | {
            "bandwidth": None,
            "latency": 0.0,
            "source": "",
            "words": f"{name}: one rank, nothing is sent",
        }
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
    found = []
    for axis in mesh.names:
        for group in mesh.groups(axis) if mesh.axes[axis] > 1 else ():
            if group[0] < shown:
                found += [
                    {"axis": axis, "from": a, "to": b}
                    for a, b in zip(group, group[1:] + group[:1])
                    if max(a, b) < shown
                ]
    return found


def _captions(matrix, shown):
    lines = [
        "block: what one pair of ranks gets; line: bus bandwidth of a rank while all groups "
        "of the axis are active"
    ]
    if shown < matrix.world_size:
        lines.append(f"the first {shown} of {matrix.world_size:,} ranks are drawn")
    return lines + ([f"source: {matrix.cluster.source}"] if matrix.cluster.source else [])
