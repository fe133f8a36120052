"""Bandwidths as AxoNN's model has them: a measured table inside a node, shared NICs beyond it.

Axes lie on ranks from the inside out; *inside* is the product of the sizes of the axes inside one.
Its groups of ``size`` ranks fit a node of N devices if inside x size <= N: then a table says what
each gets while all of the kind send. Otherwise inter / min(N, inside), as so many rings share the
node's way out. Rule and numbers as in the authors' Gordon Bell code. Our clusters of the same names
give the same where sizes are powers of two (`Cluster.bandwidth`); elsewhere they are finer: a ring
with one member in some node drives one NIC there.

>>> PERLMUTTER(1, 4) / 1e9, PERLMUTTER(2, 16) / 1e9
(225.0, 40.0)
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tpviz.cluster import Cluster


class Rates(NamedTuple):
    """Called with (inside, size): bytes/s of a rank's port. node: devices; table: {key: bytes/s}"""

    name: str
    node: int
    inter: float
    table: dict[tuple[int, int], float]

    def __call__(self, inside: int, size: int) -> float:
        if inside * size > self.node:
            return self.inter / min(self.node, inside)
        if (inside, size) not in self.table:
            known = " or ".join(str(key) for key in sorted(self.table))
            raise ValueError(
                f"{self.name}: no bandwidth was measured for groups of {size} ranks "
                f"{inside} apart within a node: use (inside, size) = {known}, or "
                f"groups that leave a node of {self.node}"
            )
        return self.table[inside, size]


PERLMUTTER = Rates("Perlmutter", 4, 80e9, {(1, 2): 76e9, (1, 4): 225e9, (2, 2): 76e9})
FRONTIER = Rates(
    "Frontier",
    8,
    40e9,
    {(1, 2): 129e9, (1, 4): 52e9, (1, 8): 135e9, (2, 2): 50e9, (2, 4): 72e9, (4, 2): 36e9},
)
"""80 between nodes halved to 40 by the authors' code, whose comments give 34 as measured."""


def of_cluster(cluster: "Cluster", world_size: int) -> Callable[[int, int], float]:
    """The function (inside, size) -> bytes/s by a `Cluster`'s own rule, for ``world_size``
    ranks."""

    def rate(inside, size):
        axes = {"outside": world_size // (inside * size), "axis": size, "inside": inside}
        return cluster.bandwidth(axes, "axis")

    return rate


def insides(axes: Mapping[str, int]) -> dict[str, int]:
    """{axis: ranks inside one step of it} of axes {name: size}, outer first."""
    sizes = list(axes.values())
    return {axis: prod(sizes[place + 1 :]) for place, axis in enumerate(axes)}
