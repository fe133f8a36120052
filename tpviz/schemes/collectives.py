"""What schemes send: gather and scatter along the first dim, started at once: (result, handle to
wait for); an all-reduce of many tensors at once; a rank's part of a tensor.

PyTorch 2.13 renamed the two collectives; the old names warn. n = ranks of the group.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

_all_gather: Callable[..., Any] = (
    getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
)
_reduce_scatter: Callable[..., Any] = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)


class Group(Protocol):
    """What schemes use of a process group: a ``ProcessGroup``, or `Alone` for one rank."""

    def size(self) -> int: ...
    def rank(self) -> int: ...


class Alone:
    """Stands for the process group of an axis of size 1, without creating one: it has only the size
    and the rank, since there is nothing to send."""

    def size(self) -> int:
        """1"""
        return 1

    def rank(self) -> int:
        """0"""
        return 0


class GroupsByAxis(Protocol):
    """What schemes use of a mesh: a ``DeviceMesh``, or just its process groups."""

    def get_group(self, axis: str, /) -> Group: ...


def gather_first(
    x: torch.Tensor, group: Group, out: torch.Tensor | None = None
) -> tuple[torch.Tensor, dist.Work]:
    """(s, ...) on each rank -> (n s, ...) on all, into ``out`` if given."""
    if out is None:
        out = x.new_empty((x.shape[0] * group.size(), *x.shape[1:]))
    return out, _all_gather(out, x.contiguous(), group=group, async_op=True)


def scatter_first(
    x: torch.Tensor, group: Group, out: torch.Tensor | None = None
) -> tuple[torch.Tensor, dist.Work]:
    """(n s, ...) on each rank -> (s, ...), the rank's shard of the sum, into ``out`` if given."""
    if out is None:
        out = x.new_empty((x.shape[0] // group.size(), *x.shape[1:]))
    return out, _reduce_scatter(out, x.contiguous(), group=group, async_op=True)


def sum_together(
    tensors: Sequence[torch.Tensor],
    group: Group,
    start_sum: Callable[..., dist.Work] | None = None,
) -> list[torch.Tensor]:
    """Views of the all-reduced tensors, in their shapes; one all-reduce for all. start_sum : the
    collective in its place, such as `DataParallel.start_sum`."""
    flat = torch.cat([t.flatten() for t in tensors])
    if start_sum:
        start_sum(flat, group).wait()
    else:
        dist.all_reduce(flat, group=group)
    return [part.view_as(t) for t, part in zip(tensors, flat.split([t.numel() for t in tensors]))]


def own_of(x: torch.Tensor, group: Group, dim: int = 0) -> torch.Tensor:
    """This rank's part of x, a view, if x is cut along ``dim`` into equal parts, one per rank."""
    return part_of(x, group.rank(), group.size(), dim)


def part_of(x: torch.Tensor, number: int, count: int, dim: int = 0) -> torch.Tensor:
    """A view of part ``number`` of ``count`` equal parts of x along ``dim``."""
    size = x.shape[dim] // count
    return x.narrow(dim, number * size, size)


def reordered(x: torch.Tensor, dim: int, order: Sequence[int] = ()) -> torch.Tensor:
    """x with the chunks that ``dim`` is cut into in this ``order``: its parts are then those of
    ranks that have these chunks, one rank after the other. As it is without one."""
    if not order:
        return x
    chunks = x.unflatten(dim, (len(order), -1))
    return chunks.index_select(dim, torch.tensor(order, device=x.device)).flatten(dim, dim + 1)


def restored(x: torch.Tensor, dim: int, order: Sequence[int] = ()) -> torch.Tensor:
    """The inverse of `reordered`."""
    return reordered(x, dim, sorted(range(len(order)), key=order.__getitem__))
