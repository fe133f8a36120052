"""What recorded groups and PyTorch's device meshes have to know of each other.

A group's mesh axis is in its description, but for the world's, which a one-axis mesh uses as it is;
a mesh is made of numbers, also where all other tensors are fake; and meshes outlive their groups in
DTensor's caches. Importing this hooks ``DeviceMesh.__init__``.
"""

import functools
import sys
from contextlib import suppress
from operator import attrgetter

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import _disable_current_modes

from tpviz.mesh import forget

# What clears each cache of DTensor that holds meshes, by private names of torch 2.9 to 2.15, of
# which each release has some. Clearing the propagator's own lru_cache works in all of them.
_CLEARING = (
    (
        "torch.distributed.tensor._api",
        "DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear",
    ),
    ("torch._C", "_clear_DTensor_sharding_propagator_cache"),
    ("torch.distributed.tensor._redistribute", "_gen_transform_infos.cache_clear"),
    ("torch.distributed.tensor._redistribute", "clear_redistribute_planner_cache"),
)


def _naming_axes(make):
    """A one-axis mesh over all ranks shares the world's group, unnamed: remember the axis."""

    @functools.wraps(make)
    def make_and_name(mesh, /, *args, **kwargs):  # torch names an argument of its own "mesh"
        with _disable_current_modes():
            make(mesh, *map(_known, args), **{k: _known(v, k) for k, v in kwargs.items()})
        if not kwargs.get("_init_backend", True):
            return  # from_group: the mesh has no groups yet, and those it will get have names
        names = mesh.mesh_dim_names
        if names and len(names) == 1 and mesh.get_coordinate() is not None:
            group = mesh.get_group()
            if hasattr(group, "_axis"):
                group._axis = names[0]

    return make_and_name


def _known(value, name=""):
    """An argument of a mesh, its ranks as numbers: `init_device_mesh` counts them from 0 on."""
    if not isinstance(value, FakeTensor):
        return value
    if name == "_rank_map":
        return torch.arange(value.numel(), dtype=value.dtype)
    raise ValueError(
        "this mesh is made of a tensor, and tensors of a captured program have no numbers: make it "
        "of a list of ranks, or by init_device_mesh"
    )


def forget_axes() -> None:
    """The world is nameless again: for a rank that starts on another program."""
    if hasattr(dist.group.WORLD, "_axis"):
        dist.group.WORLD._axis = ""  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]


def forget_meshes() -> None:
    """Meshes are remembered beyond the life of their groups, here and by DTensor, which would use
    the dead ones."""
    forget()
    if "torch.distributed.tensor" not in sys.modules:
        return
    for module, name in _CLEARING:
        with suppress(KeyError, AttributeError):
            attrgetter(name)(sys.modules[module])()


DeviceMesh.__init__ = _naming_axes(DeviceMesh.__init__)  # pyright: ignore[reportAttributeAccessIssue]
