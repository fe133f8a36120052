"""A fake process group: this process runs one of its ranks, no bytes move, tensors are fake.

The groups are the recorded backend's own, around an inner group that is always done at once. Under
`FakeTensorMode` the functional collectives (DTensor's) never reach a group, since they have fake
kernels of their own: `Fakes` reports them instead.
"""

import functools
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # its defaults are the world of when it is imported: none
from torch._subclasses.fake_tensor import FakeTensor

from tpviz.cluster.clock import deadline

from . import adapters, backend
from .operations import FUNCTIONAL
from .recipes import QuickFakes

_DEVICE = torch.ops.prim.device.default
_PLAIN = {torch.Tensor, torch.nn.Parameter, FakeTensor}


class NoNumbers(RuntimeError):
    """Raised if a captured program reads tensor values; the message names the operation."""


def _refuse_objects(*_):
    raise NoNumbers("exchanges Python objects")


def _own_alone(make: Callable[..., Any], rank: int):
    """Makes no group that this rank is not in: thousands of them would take most of the time."""

    @functools.wraps(make)
    def make_own(ranks: Sequence[int] | None = None, *args: Any, **kwargs: Any):
        own = ranks is None or rank in ranks
        return make(ranks, *args, **kwargs) if own else dist.GroupMember.NON_GROUP_MEMBER

    return make_own


class Fakes(QuickFakes):
    """Has each functional collective pass through its group's recording, and each wait too."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is _DEVICE and type(args[0]) is FakeTensor:  # most calls are no more than this
            return args[0].fake_device
        if not _PLAIN.issuperset(types):
            return NotImplemented  # a DTensor first: its collectives come here, while this is on
        if torch._C._current_graph_task_id() < 0:  # inside backward, C++ may not let it pass
            deadline.check()
        if func.namespace != "_c10d_functional":
            return super().__torch_dispatch__(func, types, args, kwargs or {})
        name = func._schema.name.split("::")[1]
        if name == "wait_tensor":
            work = getattr(args[0], "_tpviz_work", None)
            if work is not None:
                args[0]._tpviz_work = None
                work.wait()
            return args[0]
        result = super().__torch_dispatch__(func, types, args, kwargs or {})
        kind = FUNCTIONAL.get(name.removesuffix("_").removesuffix("_out"))
        if kind is not None:
            group = dist.distributed_c10d._resolve_process_group(  # pyright: ignore[reportPrivateImportUsage]
                next(a for a in reversed(args) if isinstance(a, str))  # pyright: ignore[reportArgumentType]
            )
            sizes = args[2] if kind[0] == "all_to_all" else ()
            work = group.follow_silently(kind, args[0], args[1], sizes)  # pyright: ignore[reportAttributeAccessIssue]
            for tensor in result if isinstance(result, (list, tuple)) else [result]:
                tensor._tpviz_work = work  # pyright: ignore[reportAttributeAccessIssue]
        return result


@contextmanager
def fake_world(rank: int, world_size: int) -> Iterator[None]:
    """Inside, torch.distributed's world has ``world_size`` ranks and this process is ``rank``.

    Meshes are made here; what follows belongs inside `fake_tensors`. Raises ``RuntimeError`` where
    a world exists already.
    """
    if dist.is_initialized():
        raise RuntimeError(
            "this process is already a rank of a world: capture and simulate in a process of their "
            "own, not inside ranks"
        )
    backend.silent, hook = True, sys.excepthook
    c10d, pickling = dist.distributed_c10d, ("_object_to_tensor", "_tensor_to_object")
    originals = {name: getattr(c10d, name) for name in (*pickling, "_new_group_with_tag")}
    own = _own_alone(originals["_new_group_with_tag"], rank)
    vars(c10d).update(dict.fromkeys(pickling, _refuse_objects), _new_group_with_tag=own)
    plain, dist.new_group = dist.new_group, _own_alone(dist.new_group, rank)  # torch logs each call
    gc.freeze()  # the collector finds tensors for memory tracking: exclude older ones
    try:
        dist.init_process_group(
            "tpviz",
            store=dist.HashStore(),  # pyright: ignore[reportPrivateImportUsage]
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=60),
        )
        yield
    finally:
        gc.unfreeze()
        vars(c10d).update(originals)
        dist.new_group = plain
        sys.excepthook = hook  # torch's own would name a rank for ever
        if dist.is_initialized():
            dist.destroy_process_group()
        backend.silent = False  # last: another thread must not take this for a world
        adapters.forget_meshes()


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Inside, tensors have shapes and no numbers, and functional collectives are seen."""
    mode = Fakes()
    # What torch remembers by its meta tensor, module.to(dtype) could not replace.
    mode.fake_tensor_converter.set_tensor_memo = lambda meta, fake: None  # pyright: ignore[reportAttributeAccessIssue]
    with mode:
        yield
