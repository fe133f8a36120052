"""``launch`` in a process that torchrun started: this process is one rank of an existing world.

Every rank calls ``launch`` with the same arguments, as every rank runs the same script. Several
machines, GPUs and schedulers come with torchrun; here nothing is started, and a rank that fails
raises, upon which torchrun ends the others.
"""

import atexit
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

import tpviz.ranks.backend  # noqa: F401  (registers "tpviz" with torch)

from . import bar, offsets
from .devices import choose_device
from .rank_errors import RankError

rank = None
_show = None
_NEVER = timedelta(days=7)


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
    from the exception of this rank's ``fn``.
    """
    global rank, _show
    size = int(os.environ["WORLD_SIZE"])
    if world_size is not None and world_size != size:
        raise ValueError(
            f"world_size={world_size}, but torchrun started {size} ranks; leave world_size out, "
            f"use {size}, or run torchrun with {world_size} processes in all"
        )
    if rank is not None:
        raise RuntimeError(f"launch was called inside rank {rank} of another launch")
    show = bar.viewer(progress)
    _join(timeout, device, backend)
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
    limit = _NEVER if timeout is None else timedelta(seconds=timeout)
    dist.init_process_group(backend or "tpviz", init_method="env://", timeout=limit)
    atexit.register(_leave)


def _leave():
    if dist.is_initialized():
        dist.destroy_process_group()


def report(done: int, total: int, text: str) -> None:
    """Show progress on rank 0."""
    if rank == 0:
        _show(done, total, text)  # pyright: ignore[reportOptionalCall]
