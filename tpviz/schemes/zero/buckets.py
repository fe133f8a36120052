"""How parameters lie in flat buffers: the plan that the program follows and the formula counts.

A bucket is a run of whole parameters, one flat buffer, padded so that the ranks can share it
evenly. Buckets are listed in the order in which backward completes their gradients.
"""

from collections.abc import Iterable, Mapping
from itertools import product
from math import prod
from typing import Any, NamedTuple

from tpviz.schemes.replicas import Classes, Replicas

MEGABYTE = 1_000_000
ACROSS = "across*"


def unit_of(name: str) -> str:
    """The unit of a parameter or layer: "embed", "blocks.3" or "head"."""
    part, _, rest = name.partition(".")
    return f"blocks.{rest.split('.', 1)[0]}" if part == "blocks" else part.replace("norm", "head")


def gathered(units: Iterable[str], phase: str) -> list[str]:
    """The units whose parameters stage 3 gathers in a pass; backward of an embedding needs none."""
    return [unit for unit in units if (phase, unit) != ("backward", "embed")]


class Bucket(NamedTuple):
    """One flat buffer: ``parts`` are (parameter name, offset, numel); ``numel`` includes padding.

    replicas : who adds up its gradients. block : number of the transformer block whose parameters
    these are, -1 for others.
    late : the gradients are complete only after the inner strategy's own synchronisation. groups :
    of two levels, in which its collectives are done; 1: in one.
    """

    parts: tuple[tuple[str, int, int], ...]
    numel: int
    replicas: Replicas
    block: int = -1
    late: bool = False
    groups: int = 1

    @property
    def axis(self) -> str:
        """The axis of its collectives."""
        return self.replicas.axis

    @property
    def near(self) -> Replicas:
        """Of its replicas those of one group, where they are in two levels, "across" and others."""
        axis = self.axis.removeprefix(ACROSS)
        return Replicas(axis, self.replicas.ranks // self.groups)

    @property
    def share(self) -> int:
        """Elements of a rank's share."""
        return self.numel // self.replicas.ranks

    @property
    def unit(self) -> str:
        """The unit of its parameters, where they are of one; "" of a late bucket."""
        return "" if self.late else unit_of(self.parts[0][0])


def buckets_of(
    shapes: dict[str, tuple[int, ...]], classes: Classes, *how: Any, **options: Any
) -> list[Bucket]:
    """`fill_buckets` of each class with several ranks, in the order in which these are complete."""
    place = {name: number for number, name in enumerate(reversed(shapes))}
    found = (
        bucket
        for replicas, names in classes.items()
        if replicas.ranks > 1
        for bucket in fill_buckets({n: shapes[n] for n in names}, replicas, *how, **options)
    )
    return sorted(found, key=lambda b: (b.late, max(place[name] for name, _, _ in b.parts)))


def fill_buckets(
    shapes: dict[str, tuple[int, ...]],
    replicas: Replicas,
    zero: int,
    limit: int,
    itemsize: int,
    partial: Iterable[str] = (),
    parts: int = 0,
) -> list[Bucket]:
    """Buckets for parameters {name: shape of a rank's part}, in the order their gradients complete.

    ZeRO 0 to 2 walk the parameters backwards and close a bucket when the next one would exceed
    ``limit`` bytes (a larger parameter has a bucket of its own). ZeRO 3 makes one bucket per
    transformer block and one, the root, of everything else. ``partial`` parameters share a last,
    late bucket. Under ZeRO a buffer's size is a multiple of the number of ranks, with ``parts`` in
    any case, so many parts of each rank's.
    """
    sizes, partial = {name: prod(shape) for name, shape in reversed(shapes.items())}, set(partial)
    late = [name for name in sizes if name in partial]
    rest = [name for name in sizes if name not in partial]
    groups = _by_block(rest) if zero == 3 else _by_size(rest, sizes, limit // itemsize)
    padding = replicas.ranks * (parts or 1) if zero or parts else 1
    groups += [(-1, late)]
    return [
        _bucket(names, sizes, padding, replicas, block, names is late)
        for block, names in groups
        if names
    ]


def _by_size(names, sizes, limit):
    groups, filled = [], limit
    for name in names:
        if not groups or filled + sizes[name] > limit:
            groups.append((-1, []))
            filled = 0
        groups[-1][1].append(name)
        filled += sizes[name]
    return groups


def _by_block(names):
    blocks = {}
    for name in names:
        block = int(name.split(".")[1]) if name.startswith("blocks.") else -1
        blocks.setdefault(block, []).append(name)
    return sorted(blocks.items(), reverse=True)


def _bucket(names, sizes, padding, replicas, block, late):
    parts, offset = [], 0
    for name in names:
        parts.append((name, offset, sizes[name]))
        offset += sizes[name]
    numel = -(-offset // padding) * padding
    return Bucket(tuple(parts), numel, replicas, block, late)


def kept_ranges(buckets: Iterable[Bucket], sizes: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """{parameter: {"axis": "dp", "ranges": which of its elements each rank keeps}} at ZeRO 3.
    sizes : {axis: ranks} of the mesh, outer first."""
    found = {}
    for b in buckets:
        order = _places(b, sizes)
        for name, offset, numel in b.parts:
            ranges = _ranges(offset, numel, b.share, b.replicas.ranks)
            found[name] = {"axis": b.axis, "ranges": [ranges[k] for k in order]}
    return found


def _places(bucket, sizes):
    """Which share each rank of a bucket's replicas has, in their order: of two levels neighbouring
    shares are of ranks with the same place in all groups."""
    axes = [axis for axis in sizes if axis in bucket.axis.split("*")]
    inner = [axis for axis in axes if axis != "across" or bucket.groups == 1]
    found = []
    for place in product(*(range(sizes[axis]) for axis in axes)):
        at, number = dict(zip(axes, place)), 0
        for axis in (*inner, *(axis for axis in axes if axis not in inner)):
            number = number * sizes[axis] + at[axis]
        found.append(number)
    return found


def _ranges(offset, numel, share, ranks):
    """For each rank the part of elements [0, numel) that lies in its share of the flat buffer."""
    cut = [min(max(i * share - offset, 0), numel) for i in range(ranks + 1)]
    return [[cut[i], cut[i + 1]] for i in range(ranks)]
