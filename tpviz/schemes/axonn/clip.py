"""Gradient clipping on the grid: the norm is that of the whole model's gradient.

Each number must count once. A rank's sum of squares takes every parameter (a tied one once) by
1 / the number of ranks of the grid that hold the same numbers, then one number is reduced over z, y
and x in turn (derived). Replicas over data have equal gradients by then. The authors' code sums the
weights over the whole grid and the rest over the groups that cut it, which is the same norm.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import torch
import torch.distributed as dist

from tpviz.schemes.collectives import Group

GRID = ("z", "y", "x")
"""The axes whose ranks hold parts of one replica, in the order of the all-reduces."""


def copies(axes: Mapping[str, int], splits: Iterable[tuple[int, str]], in_pieces: bool) -> int:
    """How many ranks of a grid hold the same part of a parameter.

    axes : {axis: ranks}. splits : its [(dim, axis)]. in_pieces : whether it is cut over z too.
    """
    cut = {axis for _, axis in splits} | ({"z"} if in_pieces else set())
    return prod(axes[axis] for axis in GRID if axis not in cut)


def norm_of(
    gradients: Sequence[torch.Tensor], shares: Iterable[int], groups: Iterable[Group]
) -> torch.Tensor:
    """The 2-norm of the whole model's gradient, a scalar tensor, the same on every rank.

    gradients : this rank's parts. shares : for each, on how many ranks of the grid it is.
    groups : of the grid's axes. Summed in float32 at least.
    """
    wide = torch.promote_types(gradients[0].dtype, torch.float32)
    squares = [
        torch.linalg.vector_norm(g, dtype=wide).square() / share
        for g, share in zip(gradients, shares)
    ]
    total = torch.stack(squares).sum()
    for group in groups:
        if group.size() > 1:
            dist.all_reduce(total, group=group)
    return total.sqrt()


def shrink(gradients: Iterable[torch.Tensor], norm: torch.Tensor, most: float) -> None:
    """Scale the gradients in place so that their norm is at most ``most``.

    By most / (norm + 1e-6) where that is below 1, as `torch.nn.utils.clip_grad_norm_` does.
    """
    scale = (most / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.dtype))
