"""What schemes send: gather and scatter along the first dim, started at once: (result, handle to
wait for); a sum of many tensors in one message; a rank's part of a tensor.

PyTorch 2.13 renamed the two collectives; the old names warn. n = ranks of the group.
"""

import torch
import torch.distributed as dist

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def gather_first(x, group, out=None):
    """(s, ...) on each rank -> (n s, ...) on all, into ``out`` if given."""
    if out is None:
        out = x.new_empty((x.shape[0] * group.size(), *x.shape[1:]))
    return out, _all_gather(out, x.contiguous(), group=group, async_op=True)


def scatter_first(x, group, out=None):
    """(n s, ...) on each rank -> (s, ...), the rank's part of the sum, into ``out`` if given."""
    if out is None:
        out = x.new_empty((x.shape[0] // group.size(), *x.shape[1:]))
    return out, _reduce_scatter(out, x.contiguous(), group=group, async_op=True)


def sum_together(tensors, group):
    """Views of the sums over the group, in the tensors' shapes; they travel as one message."""
    flat = torch.cat([t.flatten() for t in tensors])
    dist.all_reduce(flat, group=group)
    return [part.view_as(t) for t, part in zip(tensors, flat.split([t.numel() for t in tensors]))]


def own_of(x, group, dim=0):
    """This rank's of equal parts along a dim that lie over a group, a view."""
    return part_of(x, group.rank(), group.size(), dim)


def part_of(x, number, count, dim=0):
    """Part ``number`` of ``count`` equal ones along a dim, a view; no others are made."""
    size = x.shape[dim] // count
    return x.narrow(dim, number * size, size)
