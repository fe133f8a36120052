"""Groups that a program asks gloo for by name are recorded as well.

In a recorded world, ``new_group(backend="gloo")`` and what is built on it would make plain groups,
whose collectives would be missing from the ledger. Importing this hooks the one function that makes
groups: such a group becomes one of ours, around the same gloo, under the name that was asked for.
Other groups, as of NCCL by name, stay what they are, and `unrecorded` names them.
"""

import functools
from collections.abc import Callable

import torch.distributed as dist
from torch.distributed import distributed_c10d

from tpviz.trace.members import members_text

from .devices import inner_kind

NAME = "tpviz"


def _recording_gloo(make):
    @functools.wraps(make)
    def make_recorded(group_size, group_rank, global_ranks, backend, *args, **kwargs):
        asked = backend
        if global_ranks and _recorded_world() and inner_kind() == "gloo" and _only_gloo(asked):
            backend = NAME
        made = make(group_size, group_rank, global_ranks, backend, *args, **kwargs)
        known = distributed_c10d._world.pg_map.get(made[0])
        if known and backend is not asked:  # as asked, for get_backend
            distributed_c10d._world.pg_map[made[0]] = (dist.Backend(asked), *known[1:])
        return made

    return make_recorded


def _recorded_world():
    known = distributed_c10d._world.pg_map.get(dist.group.WORLD)  # pyright: ignore[reportArgumentType]
    return known is not None and known[0] == NAME


def _only_gloo(backend):
    config = dist.distributed_c10d.BackendConfig(dist.Backend(backend))  # pyright: ignore[reportArgumentType]
    kinds = config.get_device_backend_map()
    return set(kinds.values()) == {dist.Backend.GLOO}


def unrecorded(is_recorded: Callable[[dist.ProcessGroup], bool]) -> list[list[str]]:
    """[backend, members] of each group of this rank that does not pass ``is_recorded``."""
    world = distributed_c10d._world
    return [
        [str(backend), members_text(world.pg_group_ranks.get(group, ()))]
        for group, (backend, *_) in world.pg_map.items()
        if group is not dist.GroupMember.NON_GROUP_MEMBER and not is_recorded(group)
    ]


distributed_c10d._new_process_group_helper = _recording_gloo(
    distributed_c10d._new_process_group_helper
)
