"""Where PyTorch asks what a group *is* and not what it can do: what it learns of recorded groups.

Importing this replaces three functions of torch, for recorded groups alone: `get_backend`, DDP's
registration of its built-in communication hooks, and its start. And torch's flight recorder leaves
them alone, as it does gloo.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from operator import attrgetter

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    fp16_compress_hook,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import _disable_current_modes

from tpviz.core.mesh import forget
from tpviz.core.trace.members import members_text

from . import board, places
from .devices import inner_kind

BUILT_IN_HOOKS = {"ALLREDUCE": allreduce_hook, "FP16_COMPRESS": fp16_compress_hook}


def _naming_the_mover(get_backend):
    @functools.wraps(get_backend)
    def named(group=None):
        """What moves the group's bytes: ``"gloo"`` or ``"nccl"``, on recorded groups too.

        Programs ask in order to know what they may call (`monitored_barrier` is gloo's) and where
        tensors must be (NCCL's on the GPU), and recording changes neither. So a program takes the
        branch that it takes on the plain backend. Whether a group is recorded is another question:
        `tpviz.ranks.backend.is_recorded`.
        """
        name = get_backend(group)
        return getattr(group or dist.group.WORLD, "moved_by", name)

    return named


def _in_python(register):
    @functools.wraps(register)
    def register_in_python(ddp, kind):
        """A built-in hook reads its collective's future in C++, where the value of an emulated
        collective's, which is done later than gloo's, cannot be read: use its Python form, which
        computes the same."""
        if not hasattr(ddp.process_group, "moved_by"):
            return register(ddp, kind)
        ddp.register_comm_hook(ddp.process_group, BUILT_IN_HOOKS[kind.name])

    return register_in_python


def _telling_its_group(start):
    @functools.wraps(start)
    def start_with_group(ddp, *args, **kwargs):
        if hasattr(ddp.process_group, "moved_by"):
            ddp.process_group.is_of_ddp = True
        return start(ddp, *args, **kwargs)

    return start_with_group


# From torch 2.15 on; it would ask C++ for a name that a group made in Python does not have there.
getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set()).add("tpviz")
dist.get_backend = dist.distributed_c10d.get_backend = _naming_the_mover(dist.get_backend)
DistributedDataParallel._register_builtin_comm_hook = _in_python(  # pyright: ignore[reportAttributeAccessIssue]
    DistributedDataParallel._register_builtin_comm_hook
)
DistributedDataParallel._ddp_init_helper = _telling_its_group(  # pyright: ignore[reportAttributeAccessIssue]
    DistributedDataParallel._ddp_init_helper
)


# -- groups that a program asks gloo for by name ---------------------------------------------------
# In a recorded world, ``new_group(backend="gloo")`` and what is built on it would make plain
# groups, whose collectives would be missing from the ledger. The one function that makes groups is
# hooked: such a group becomes one of ours, around the same gloo, under the name that was asked for.
# Other groups, as of NCCL by name, stay what they are, and `unrecorded` names them.
NAME = "tpviz"


def _recording_gloo(make):
    @functools.wraps(make)
    def make_recorded(group_size, group_rank, global_ranks, backend, *args, **kwargs):
        asked = backend
        if global_ranks and _recorded_world() and inner_kind() == "gloo" and _only_gloo(asked):
            backend = NAME
        by_gloo = inner_kind() == "gloo" if backend == NAME else _only_gloo(backend)
        with patient_threads() if by_gloo else nullcontext():
            made = make(group_size, group_rank, global_ranks, backend, *args, **kwargs)
        known = dist.distributed_c10d._world.pg_map.get(made[0])
        if known and backend is not asked:  # as asked, for get_backend
            dist.distributed_c10d._world.pg_map[made[0]] = (dist.Backend(asked), *known[1:])
        return made

    return make_recorded


@contextmanager
def patient_threads() -> Iterator[None]:
    """Threads that start in here wait for a core, and take none from a thread that runs (Linux's
    SCHED_BATCH).

    Gloo has a thread that reads a group's sockets, and asks again and again while another thread
    holds the lock of a connection. Woken by a message, a normal thread takes the core of the one
    that runs, often just the one with the lock, which then waits for a whole time slice
    (docs/adr/0033-threads-of-gloo.md).
    """
    changed = False
    with suppress(AttributeError, OSError):  # not Linux; forbidden
        if os.sched_getscheduler(0) == os.SCHED_OTHER:  # else it is somebody's own choice
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            changed = True
    try:
        yield
    finally:
        if changed:
            with suppress(OSError):
                os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _showing(make):
    """Members of a new group wait for each other: the board and `places` say that."""

    @functools.wraps(make)
    def make_and_show(ranks=None, timeout=None, *args, **kwargs):
        if not dist.is_initialized():
            return make(ranks, timeout, *args, **kwargs)  # says so
        members = tuple(range(dist.get_world_size()) if ranks is None else sorted(ranks))
        if members not in _makers:
            _makers[members] = places.GroupPlace("new_group", members)
        text = f"new_group (ranks {members_text(members)})"
        board.write("waiting in " + text)
        if dist.get_rank() in members:
            place = _makers[members].issue("new_group")
            places.wait(None if timeout else place)
        try:
            return make(ranks, timeout, *args, **kwargs)
        finally:
            places.go()
            board.write("left " + text)

    return make_and_show


_makers: dict[tuple[int, ...], places.GroupPlace] = {}  # members -> how often they made a group
dist.distributed_c10d._new_group_with_tag = _showing(dist.distributed_c10d._new_group_with_tag)


def _recorded_world():
    known = dist.distributed_c10d._world.pg_map.get(dist.group.WORLD)  # pyright: ignore[reportArgumentType]
    return known is not None and known[0] == NAME


def _only_gloo(backend):
    config = dist.distributed_c10d.BackendConfig(dist.Backend(backend))  # pyright: ignore[reportArgumentType]
    kinds = config.get_device_backend_map()
    return set(kinds.values()) == {dist.Backend.GLOO}


def unrecorded(is_recorded: Callable[[dist.ProcessGroup], bool]) -> list[list[str]]:
    """[backend, members] of each group of this rank that does not pass ``is_recorded``."""
    world = dist.distributed_c10d._world
    return [
        [str(backend), members_text(world.pg_group_ranks.get(group, ()))]
        for group, (backend, *_) in world.pg_map.items()
        if group is not dist.GroupMember.NON_GROUP_MEMBER and not is_recorded(group)
    ]


dist.distributed_c10d._new_process_group_helper = _recording_gloo(
    dist.distributed_c10d._new_process_group_helper
)


# -- what recorded groups and device meshes have to know of each other -----------------------------
# A group's mesh axis is in its description, but for the world's, which a one-axis mesh uses as it
# is; a mesh is made of numbers, also where all other tensors are fake; and meshes outlive their
# groups in DTensor's caches. So ``DeviceMesh.__init__`` is hooked. What clears each cache of
# DTensor that holds meshes, by private names of torch 2.9 to 2.15, of which each release has some.
# Clearing the propagator's own lru_cache works in all of them.
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


alike = {}  # (axis, members) -> how many such groups this world has made, the same on each member


def forget_axes() -> None:
    """Forget the names of all mesh axes, as a rank starts on another program."""
    alike.clear()
    world = dist.group.WORLD
    if isinstance(members := getattr(world, "members", None), tuple):
        world._axis = ""  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
        alike["world", members] = 1


def forget_meshes() -> None:
    """Drop cached meshes whose groups were destroyed, here and in DTensor, which would use the dead
    groups."""
    forget()
    if "torch.distributed.tensor" not in sys.modules:
        return
    for module, name in _CLEARING:
        with suppress(KeyError, AttributeError):
            attrgetter(name)(sys.modules[module])()


DeviceMesh.__init__ = _naming_axes(DeviceMesh.__init__)  # pyright: ignore[reportAttributeAccessIssue]
