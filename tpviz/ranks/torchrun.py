"""``launch`` in a process that is one rank of an existing world: torchrun started it, or it has
called ``init_process_group``, as kernels have whose cells run on every rank (of ipyparallel,
nbdistributed and others).

Every rank calls ``launch`` with the same arguments, as every rank runs the same script or cell.
Several machines, GPUs and schedulers come with torchrun; here nothing is started, and a rank that
fails raises, upon which torchrun ends the others; in cells theirs fail after ``timeout``.
"""

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from . import backend as backend_of_ours
from . import bar, offsets
from .devices import choose_device
from .rank_errors import RankError, RankTimeoutError

rank = None
_show = None
_NEVER = timedelta(days=7)
_calls = 0  # launches to which every rank of the world came
_ours: dict[Any, Any] = {}  # {"of": the world's group, timeout: one of ours with its ranks}


def run(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    world_size: int | None,
    timeout: float | None,
    device: str | None,
    backend: str | None,
    progress: Callable[[int, int, str], Any] | bool | None,
) -> list[Any]:
    """Run ``fn`` on this rank and return the results of all ranks, in order, on every rank.

    Raises ``ValueError`` if ``world_size`` is given and is not that of the world, ``RankError``
    from the exception of this rank's ``fn``, and ``RankTimeoutError`` where other ranks do not call
    it too; with torchrun they may come late.
    """
    global rank, _show
    by_torchrun, joined = "TORCHELASTIC_RUN_ID" in os.environ, dist.is_initialized()
    size = dist.get_world_size() if joined else int(os.environ["WORLD_SIZE"])
    if world_size is not None and world_size != size:
        whose = f"torchrun started {size} ranks"
        other = f"run torchrun with {world_size} processes in all"
        if joined and not by_torchrun:
            whose = f"this process is rank {dist.get_rank()} of a world of {size} ranks"
            other = "call torch.distributed.destroy_process_group() on all to use ranks of our own"
        raise ValueError(
            f"world_size={world_size}, but {whose}; leave world_size out, use {size}, or {other}"
        )
    if rank is not None:
        raise RuntimeError(f"launch was called inside rank {rank} of another launch")
    if joined and not by_torchrun:
        _all_here(size, timeout)
    show = bar.viewer(progress)
    _join(timeout, device, backend)
    with _recorded(timeout, device, backend):
        rank, _show = dist.get_rank(), show
        try:
            offsets.meet()
            offsets.begin()
            result = fn(*args, **kwargs)
            offsets.end()
        except Exception as error:
            raise RankError(f"rank {rank} raised {type(error).__name__}: {error}", rank) from error
        finally:
            rank = None
            show.close()
        results = [None] * size
        dist.all_gather_object(results, result)
    return results


def _all_here(size: int, timeout: float | None):
    """Wait until every rank of a joined world has come to this launch: a cell may have been run on
    some alone, and these would wait for the others for as long as their group allows."""
    global _calls
    me, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    keys = [f"tpviz/{_calls}/{one}" for one in range(size)]
    store.set(keys[me], "")
    try:
        store.wait(keys, _limit(timeout))
    except RuntimeError:  # of the store, after the timeout
        absent = [one for one, key in enumerate(keys) if not store.check([key])]
        store.delete_key(keys[me])
        raise RankTimeoutError(
            f"rank {me} of {size} has waited {timeout:g} s for ranks {absent}: run the cell on "
            "every rank, or call torch.distributed.destroy_process_group() on all to use ranks of "
            "our own",
            {one: "did not call" for one in absent},
        ) from None
    _calls += 1


def _limit(timeout: float | None):
    return _NEVER if timeout is None else timedelta(seconds=timeout)


@contextmanager
def _recorded(timeout: float | None, device: str | None, backend: str | None) -> Iterator[None]:
    """Inside, the default group is one of ours, whatever the backend of the world that was joined;
    unless another backend was asked for."""
    if backend_of_ours.is_recorded() or backend not in (None, "tpviz"):
        yield
        return
    theirs, c10d = dist.group.WORLD, dist.distributed_c10d
    if _ours.get("of") is not theirs:
        _ours.clear()
    if _limit(timeout) not in _ours:
        local = int(os.environ.get("LOCAL_RANK", dist.get_rank()))
        here = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
        device, inner = choose_device(device, local, here)
        os.environ.update(TPVIZ_INNER=inner, TPVIZ_DEVICE=device)
        group = {"backend": "tpviz", "timeout": _limit(timeout), "group_desc": "default_pg"}
        made = dist.new_group(**group)
        _ours.update({"of": theirs, _limit(timeout): made})
    c10d._update_default_pg(_ours[_limit(timeout)])
    try:
        yield
    finally:
        c10d._update_default_pg(theirs)


def _join(timeout, device, backend):
    """Initialise the default group unless the script, or an earlier launch, did."""
    if dist.is_initialized():
        return
    missing = {"LOCAL_RANK", "LOCAL_WORLD_SIZE"} - os.environ.keys()
    if missing:
        raise ValueError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} and RANK={os.environ['RANK']} say that this is "
            f"one of several ranks, but {' and '.join(sorted(missing))} are not set: start it with "
            "torchrun, or unset WORLD_SIZE to use ranks of this machine alone"
        )
    local, size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    device, inner = choose_device(device, local, size)
    os.environ.update(TPVIZ_INNER=inner, TPVIZ_DEVICE=device)
    dist.init_process_group(backend or "tpviz", init_method="env://", timeout=_limit(timeout))
    atexit.register(_leave)


def _leave():
    if dist.is_initialized():
        dist.destroy_process_group()


def report(done: int, total: int, text: str) -> None:
    """Show progress on rank 0."""
    if rank == 0:
        _show(done, total, text)  # pyright: ignore[reportOptionalCall]
