"""The mesh: named axes of ranks. `Mesh.device_mesh` alone needs torch.

>>> mesh = Mesh({"dp": 2, "tp": 2})
>>> mesh.coords(3), mesh.group(3, "dp"), mesh.groups("tp")
({'dp': 1, 'tp': 1}, [1, 3], [[0, 1], [2, 3]])
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from . import limits
from .checks import whole_number
from .copies import HOST

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class Mesh:
    """Ranks 0..size-1 laid row-major over ``axes`` {name: size}: the last axis is contiguous."""

    axes: dict[str, int]

    def __post_init__(self):
        if not isinstance(self.axes, Mapping) or not self.axes:
            raise ValueError(
                f'a mesh needs at least one axis, as in Mesh({{"tp": 4}}), not {self.axes!r}'
            )
        for name in self.axes:
            if not isinstance(name, str) or not name.isidentifier():
                raise ValueError(f"axis name {name!r} must be a plain word such as 'tp'")
        sizes = {name: whole_number(f"axis {name}", size) for name, size in self.axes.items()}
        limits.check(f"a mesh of {sizes} has ranks:", prod(sizes.values()), "RANKS")
        object.__setattr__(self, "axes", sizes)

    def __hash__(self):
        return hash(tuple(self.axes.items()))

    @classmethod
    def of(cls, mesh: "DeviceMesh") -> Self:
        """The mesh with the axes of a ``DeviceMesh``."""
        return cls({name: mesh.get_group(name).size() for name in mesh.mesh_dim_names})  # pyright: ignore[reportOptionalIterable]

    @property
    def names(self) -> tuple[str, ...]:
        """Axis names, outer first."""
        return tuple(self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Axis sizes, outer first."""
        return tuple(self.axes.values())

    @property
    def size(self) -> int:
        """Number of ranks."""
        return prod(self.shape)

    def coords(self, rank: int) -> dict[str, int]:
        """{axis: index} of a rank."""
        rank = whole_number("rank", rank, low=None)
        if not 0 <= rank < self.size:
            raise ValueError(
                f"rank {rank} is not in this mesh of {self.size}: use 0 to {self.size - 1}"
            )
        found = {}
        for name in reversed(self.names):
            rank, found[name] = divmod(rank, self.axes[name])
        return {name: found[name] for name in self.names}

    def rank(self, **coords: int) -> int:
        """The rank at the given coordinate of every axis."""
        if coords.keys() != self.axes.keys():
            raise ValueError(
                f"give every axis of {', '.join(self.names)}, not {', '.join(coords) or 'none'}"
            )
        rank = 0
        for name, size in self.axes.items():
            place = whole_number(name, coords[name], low=None)
            if not 0 <= place < size:
                raise ValueError(f"{name}={place} is outside axis {name}: use 0 to {size - 1}")
            rank = rank * size + place
        return rank

    def ranks_along(self, axis: str) -> int:
        """Number of ranks of each group of an axis, or of several, as "dp*cp"."""
        return ranks_along(self.axes, axis)

    def index_along(self, coords: Mapping[str, int], axis: str) -> int:
        """The place of these {axis: index} in their group of an axis, or of several."""
        found, names = 0, axis.split("*")
        for name, size in self.axes.items():
            found = found * size + coords[name] if name in names else found
        return found

    def group(self, rank: int, axis: str) -> list[int]:
        """Global ranks that differ from ``rank`` along ``axis`` only, in order, itself included.
        "dp*cp": along these axes."""
        self.check_axis(axis)
        if "*" in axis:
            outer, _, rest = axis.partition("*")
            return sorted(m for one in self.group(rank, rest) for m in self.group(one, outer))
        stride = prod(self.shape[self.names.index(axis) + 1 :])
        first = rank - self.coords(rank)[axis] * stride
        return list(range(first, first + stride * self.axes[axis], stride))

    def check_axis(self, axis: str) -> None:
        """Raise ``ValueError`` unless the mesh has this axis."""
        if not isinstance(axis, str) or any(one not in self.axes for one in axis.split("*")):
            raise ValueError(f"no axis {axis!r} in this mesh: use {' or '.join(self.names)}")

    def groups(self, axis: str) -> list[list[int]]:
        """All groups of an axis, ordered by their first rank."""
        self.check_axis(axis)
        dims = [self.names.index(one) for one in axis.split("*")]
        ranks = np.arange(self.size).reshape(self.shape)
        last = np.moveaxis(ranks, sorted(dims), range(-len(dims), 0))
        return last.reshape(-1, self.ranks_along(axis)).tolist()

    def device_mesh(self, device_type: str = "cpu") -> "DeviceMesh":
        """The torch ``DeviceMesh`` with these axes; to be called on every rank of the world.

        Each axis gets a group of its own named ``mesh_<axis>``, even where it spans the whole world
        (there ``init_device_mesh`` would return the unnamed default group, so the axis would be
        unknown).
        """
        import torch.distributed as dist

        if dist.get_world_size() != self.size:
            raise ValueError(
                f"a mesh of {self.size} ranks {self.axes} does not fit "
                f"a world of {dist.get_world_size()}"
            )
        groups, mesh = _made.get((self, device_type), ([], None))
        if mesh is None or not all(map(_exists, groups)):
            groups, mesh = _made[self, device_type] = self._make(device_type)
        return mesh

    def second_group(
        self, axis: str, name: str, places: tuple[int, ...] | None = None, device_type: str = "cpu"
    ) -> "ProcessGroup | None":
        """Another group of the ranks of this rank's group of an axis, with its own queue, recorded
        as ``name``.

        With ``places``, only the ranks with these indices along the axis; None on the others.
        To be called on every rank of the world, after `device_mesh`.
        """
        key = (self, device_type, axis, name, places)
        made = _made.get(key)
        if made is None or not all(map(_exists, made)):
            several = [
                members if places is None else [members[i] for i in places]
                for members in self.groups(axis)
            ]
            made = _made[key] = _new_groups(several, name)
            for group in made:
                if hasattr(group, "number"):
                    # not as another of the same axis and members
                    group.number = 1  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
        return made[0] if made else None  # pyright: ignore[reportReturnType]

    def _make(self, device_type: str):
        from torch.distributed.device_mesh import DeviceMesh

        groups = [g for axis in self.names for g in _new_groups(self.groups(axis), axis)]
        ranks = _nested(list(range(self.size)), self.shape)
        mesh = DeviceMesh.from_group(
            groups if len(groups) > 1 else groups[0],  # pyright: ignore[reportArgumentType]
            device_type,
            ranks,
            mesh_dim_names=self.names,
        )
        return groups, mesh


def ranks_along(axes: Mapping[str, int], axis: str) -> int:
    """Number of ranks of each group of an axis of {axis: ranks}, or of several, as "dp*cp"; a copy
    to or from the host is a rank's alone."""
    return 1 if axis in HOST else prod(axes[one] for one in axis.split("*"))


def group_along(mesh: "DeviceMesh", axis: str) -> "ProcessGroup":
    """This rank's group of an axis of a ``DeviceMesh``, or of several, as "dp*cp". To be called on
    every rank of the world."""
    if "*" not in axis:
        return mesh.get_group(axis)
    return Mesh.of(mesh).second_group(axis, axis, device_type=mesh.device_type)  # pyright: ignore[reportReturnType]


# Groups own threads and sockets: one set per mesh for as long as its groups exist, not one a run.
_made = {}


def forget() -> None:
    """Drop the cached process groups of all meshes, after the groups were destroyed."""
    _made.clear()


def _new_groups(several: list[list[int]], name: str):
    """A group of each list of members, recorded as ``name``; those that this rank is in."""
    import torch.distributed as dist

    # Every rank makes every group: those made by their members alone take their name from the
    # members, so one made anew after its end would meet its own old keys in the store.
    me = dist.get_rank()
    made = [(members, dist.new_group(members, group_desc=f"mesh_{name}")) for members in several]
    return [group for members, group in made if me in members]


def _exists(group: Any):
    """Whether a group is still there: ranks of the pool leave those of earlier jobs."""
    import torch.distributed as dist

    return group in dist.distributed_c10d._world.pg_map  # pyright: ignore[reportPrivateUsage]


def _nested(flat: list[Any], shape: tuple[int, ...]):
    """A flat list as nested lists of ``shape``, row-major."""
    for size in reversed(shape[1:]):
        flat = [flat[i : i + size] for i in range(0, len(flat), size)]
    return flat
