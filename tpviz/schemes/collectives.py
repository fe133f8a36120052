"""Gather and scatter along the first dim, started at once: (result, handle to wait for).

PyTorch 2.13 renamed the two collectives; the old names warn. n = ranks of the group.
"""

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
