"""The hierarchical communication matrix: what every axis of every 2D mesh gets from a cluster.

ATP chooses its mesh by such a matrix; we do not have the paper's entries, so this is *our
derivation*: per level a (bandwidth of a pair, bandwidth out of a unit, latency), and for groups of
``size`` ranks ``stride`` apart the bus bandwidth that each rank has while all groups of that kind
are active, by `tpviz.cluster.routes`. Measured rows override the rule and are marked.

>>> from tpviz import clusters
>>> matrix = communication_matrix(clusters.nvlink_pairs())
>>> matrix.of((4, 2))
(17000000000.0, 211000000000.0)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tpviz.cluster import Cluster
from tpviz.core.checks import divisors, whole_number
from tpviz.core.mesh import Mesh
from tpviz.core.show import Drawn, Shown, figure_of
from tpviz.core.tables import show_bytes, show_seconds

if TYPE_CHECKING:
    from tpviz.verbs.calibrate import Calibration


class MatrixEntry(NamedTuple):
    """Bandwidth and latency of groups of ``size`` ranks, ``stride`` apart, while all groups of that
    size and stride communicate at once.

    bandwidth : bytes/s that a rank sends (bus bandwidth). latency : seconds of one hop. source :
    "derived" from the rule for the cluster's links, or "measured"; of the bandwidth.
    """

    stride: int
    size: int
    bandwidth: float
    latency: float
    source: str


class Tier(NamedTuple):
    """A level of a cluster, or a dimension of its torus; joins ``units`` units of the tier below.

    p2p : bytes/s between two ranks of different units while no other rank sends. group : bytes/s
    out of one unit while all of its ranks send; in a torus, out of one rank to both neighbours.
    latency : seconds of one hop.
    """

    name: str
    units: int
    p2p: float
    group: float
    latency: float


@dataclass(frozen=True, eq=False, repr=False)
class CommunicationMatrix(Drawn):
    """The matrix of ``world_size`` ranks, one on each of the cluster's first devices.

    tiers : `Tier` tuple from the inside out. entries : {(stride, size): `MatrixEntry`}, every kind
    of group that a 2D mesh of all ranks can have. badge : where the numbers come from.
    """

    cluster: Cluster
    world_size: int
    tiers: tuple[Tier, ...]
    entries: dict[tuple[int, int], MatrixEntry]
    badge: str

    def of(self, mesh: Mesh | Sequence[int]) -> tuple[float, ...]:
        """(B1, B2): bytes/s of d1 and d2 of a mesh (d1, d2), infinite on an axis of one rank.

        Raises ``ValueError`` unless d1 * d2 is the matrix's number of ranks.
        """
        return tuple(entry.bandwidth if entry else float("inf") for entry in self.on(mesh))

    def latencies(self, mesh: Mesh | Sequence[int]) -> tuple[float, ...]:
        """(seconds, seconds) of one hop along d1 and d2, 0.0 on an axis of one rank."""
        return tuple(entry.latency if entry else 0.0 for entry in self.on(mesh))

    def on(self, mesh: Mesh | Sequence[int]) -> tuple[MatrixEntry | None, MatrixEntry | None]:
        """(`MatrixEntry`, `MatrixEntry`) of d1, ranks d2 apart, and d2, neighbours; None for one
        rank."""
        d1, d2 = self.check_mesh(mesh)
        return self.entries.get((d2, d1)), self.entries.get((1, d2))

    def check_mesh(self, mesh: Mesh | Sequence[int]) -> tuple[int, int]:
        """(d1, d2), if the mesh is two sizes that make up all ranks; else ``ValueError``."""
        sizes = mesh.shape if isinstance(mesh, Mesh) else mesh
        if not isinstance(sizes, (tuple, list)) or len(sizes) != 2:
            raise ValueError(
                f"mesh={mesh!r} must be two sizes (d1, d2), as in ({self.world_size}, 1)"
            )
        d1, d2 = (whole_number(f"d{k + 1} of mesh", size) for k, size in enumerate(sizes))
        if d1 * d2 != self.world_size:
            fits = [d for d in divisors(self.world_size) if d <= d2][-1]
            other = f", or communication_matrix(cluster, {d1 * d2})"
            raise ValueError(
                f"mesh=({d1}, {d2}) has {d1 * d2} ranks, but this matrix is of "
                f"{self.world_size}: use ({self.world_size // fits}, {fits})"
                + other
                * (d1 * d2 <= self.cluster.size)
            )
        return d1, d2

    @property
    def meshes(self) -> list[tuple[int, int]]:
        """Every (d1, d2) of all ranks, the one axis d1 first."""
        return [(self.world_size // d2, d2) for d2 in divisors(self.world_size)]

    def meets(self) -> np.ndarray:
        """Array (ranks, ranks): the tier at which two ranks meet, -1 for a rank and itself.

        On a torus the outermost dimension along which they differ.
        """
        ranks, inner = np.arange(self.world_size), 1
        found = np.full((self.world_size,) * 2, -1)
        for number, tier in enumerate(self.tiers):
            unit = ranks // inner
            found[unit[:, None] != unit[None, :]] = number
            inner *= tier.units
        return found

    def p2p(self) -> np.ndarray:
        """Array (ranks, ranks): bytes/s from one to another, no other pair active; infinite from a
        rank to itself. On a torus the slowest link of the way, dimension by dimension."""
        rates = np.array([tier.p2p for tier in self.tiers] + [np.inf])
        if self.cluster.levels:
            return rates[self.meets()]
        ranks, inner = np.arange(self.world_size), 1
        found = np.full((self.world_size,) * 2, np.inf)
        for tier in self.tiers:
            place = ranks // inner % tier.units
            found[(place[:, None] != place[None, :]) & (found > tier.p2p)] = tier.p2p
            inner *= tier.units
        return found

    # -- words and pictures ------------------------------------------------------------------------
    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: bandwidth, latency and source of each mesh's two axes."""
        table = [["mesh", "d1", "hop", "source", "d2", "hop", "source"]]
        for mesh in self.meshes:
            row = [f"({mesh[0]}, {mesh[1]})"]
            for entry in self.on(mesh):
                row += (
                    ["-"] * 3
                    if entry is None
                    else [rate(entry.bandwidth), show_seconds(entry.latency), entry.source]
                )
            table.append(row)
        return table

    def describe(self, mesh: Mesh | Sequence[int] | None = None) -> str:
        """The tiers, and the entries of a mesh (of all meshes when left out), in words."""
        lines = [
            f"Communication matrix of {self.world_size} ranks on {self.cluster.caption} "
            f"({self.badge})."
        ]
        lines += [f"{self.words(tier)}." for tier in self.tiers]
        for sizes in self.meshes if mesh is None else [self.check_mesh(mesh)]:
            gets = [
                f"d{k + 1} gets {rate(e.bandwidth)}, {show_seconds(e.latency)} a hop, {e.source}"
                for k, e in enumerate(self.on(sizes))
                if e
            ]
            lines.append(
                f"On mesh ({sizes[0]}, {sizes[1]}) " + ("; ".join(gets) or "nothing is sent") + "."
            )
        source = [f"Source: {self.cluster.source}."] if self.cluster.source else []
        return " ".join(lines + source)

    def words(self, tier: Tier) -> str:
        """A tier in words."""
        out = "out of a rank" if self.cluster.torus else "out of one unit"
        of = "ring of " if self.cluster.torus else ""
        return (
            f"{tier.name}: {of}{tier.units}{'' if of else ' units'}, {rate(tier.p2p)} between "
            f"two ranks, {rate(tier.group)} {out}, {show_seconds(tier.latency)} a hop"
        )

    def to_svg(self, mesh: Mesh | Sequence[int] | None = None, theme: str = "auto") -> str:
        """The matrix of pairs as nested blocks, and beside it a mesh (d1, d2) with what its axes
        get, as one SVG."""
        figure = figure_of(self)
        return figure.matrix_svg(figure.matrix_scene(self, mesh), theme)

    def show(self, mesh: Mesh | Sequence[int] | None = None) -> Shown:
        """The picture of `to_svg` with its words, for a notebook."""
        return figure_of(self).Picture(self.to_svg(mesh), self.describe(mesh))

    def __repr__(self):
        measured = sum(entry.source == "measured" for entry in self.entries.values())
        return (
            f"<CommunicationMatrix of {self.world_size} ranks on {self.cluster.caption}: "
            f"{len(self.entries)} entries, {measured} measured>"
        )


def communication_matrix(
    cluster: "Cluster | Calibration", world_size: int | None = None
) -> CommunicationMatrix:
    """The `CommunicationMatrix` of a cluster, or of what `calibrate` measured.

    world_size : ranks, all devices unless said. Rows of the cluster's table override the rule for
    its links and are marked "measured". Raises ``ValueError`` where there are fewer devices.
    """
    badge = getattr(cluster, "badge", None)  # of a Calibration: a verb, so a layer above
    cluster = getattr(cluster, "cluster", cluster)
    if not isinstance(cluster, Cluster):
        raise ValueError(
            "first comes a cluster such as tv.clusters.nvlink_pairs(), or a "
            f"tv.calibrate(), not {cluster!r}"
        )
    world_size = whole_number("world_size", cluster.size if world_size is None else world_size)
    cluster.check_world(world_size)
    entries = {}
    for d2 in divisors(world_size):
        mesh = Mesh({"d1": world_size // d2, "d2": d2})
        for axis, stride in (("d1", d2), ("d2", 1)):
            key = stride, mesh.axes[axis]
            if key[1] > 1 and key not in entries:
                link = cluster.axis_link(mesh, axis)
                source = "measured" if key in cluster.table else "derived"
                entries[key] = MatrixEntry(*key, link.bandwidth, link.latency, source)
    sources = sorted({entry.source for entry in entries.values()})
    return CommunicationMatrix(
        cluster,
        world_size,
        _tiers(cluster),
        dict(sorted(entries.items())),
        badge or " and ".join(sources) or "derived",
    )


def rate(bandwidth: float) -> str:
    """12.5 GB/s."""
    return f"{show_bytes(bandwidth)}/s" if bandwidth < float("inf") else "no limit"


def _tiers(cluster: Cluster):
    if cluster.levels:
        return tuple(
            Tier(part.name, part.units, part.p2p, part.group, part.latency)
            for part in cluster.levels
        )
    return tuple(
        Tier(
            part.name,
            part.size,
            part.bandwidth * part.links,
            min(2, part.size - 1) * part.bandwidth * part.links,
            part.latency,
        )
        for part in cluster.torus
    )
