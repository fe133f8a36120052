"""Bytes of one rank under data parallelism, by ZeRO stage; `flat` has the table of what is whole.

Peaks, with buckets b_k and a share 1/dp of each:

stage  parameters                            gradients
0      all                                   all
1      all                                   all, and the shares
2      all                                   the shares, and two buckets: one in flight, one filling
3      the shares, the root, two blocks      the shares, the root, two blocks
"""

from itertools import pairwise
from math import prod

from tpviz.cost import Memory
from tpviz.schemes.gpt.memory import activations, states
from tpviz.schemes.ownership import local_shapes


def memory(strategy, workload):
    """The `Memory` of one rank."""
    local, inner, item = strategy.local(workload), strategy.inner, workload.itemsize
    if inner:
        found = inner.memory(local)
    else:
        shapes = local_shapes(None, local).values()
        found = Memory(zip(("parameters", "gradients", "optimizer"),
                           states(sum(map(prod, shapes)), len(shapes), item)))
        found["activations"] = activations(local)
    if strategy.dp == 1:
        return found
    found["activations"] += 16 * workload.seq * (workload.batch - local.batch)  # all their tokens
    if strategy.zero:
        buckets = strategy.buckets(workload)
        whole = sum(b.numel for b in buckets) * item
        share = whole // strategy.dp
        found["parameters"], found["gradients"] = _held(strategy.zero, buckets, whole, share, item)
        found["optimizer"] = 2 * share + 4 * len(buckets)
    return found


def _held(zero, buckets, whole, share, item):
    """(parameters, gradients) at stages 1 to 3."""
    sizes = [b.numel * item for b in buckets]
    if zero == 1:
        return whole, whole + share
    if zero == 2:
        return whole, share + _two(sizes)
    roots = [size for size, b in zip(sizes, buckets) if b.block < 0]
    blocks = _two([size for size, b in zip(sizes, buckets) if b.block >= 0])
    return share + sum(roots) + blocks, share + max(roots[0] + blocks, sum(roots))


def _two(sizes):
    """The largest sum of two that follow each other."""
    return max(map(sum, pairwise(sizes)), default=sum(sizes))
