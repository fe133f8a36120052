"""A rank's T3 program: the network of one axis, with linear layers that fuse their collectives."""

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tpviz.schemes.grid.layers import GridLinear
from tpviz.schemes.grid.program import Groups, build
from tpviz.schemes.ring import neighbours

from .operators import Column, RowOnRing, SplitColumn, SplitRow
from .ring import Ring

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from .strategy import T3


__all__ = ["build", "groups"]


class FusedLinear(GridLinear):
    """A linear layer whose collective is part of its GEMM, on a ``ring``: backward's collective of
    a pair's first layer, forward's of its second."""

    def __init__(self, *args: Any, ring: Ring, **kw: Any):
        super().__init__(*args, **kw)
        self.ring, self.first = ring, self.way.contract.size() == 1
        split = self.way.gather == 0 or self.way.scatter == 0
        self.operator = (RowOnRing, SplitRow, Column, SplitColumn)[2 * self.first + split]

    def forward(self, x: torch.Tensor, alone: bool = False, summed: bool = True) -> torch.Tensor:
        """As `GridLinear`; the sum cannot be left out, since the GEMM makes it."""
        if alone or self.ring.size == 1:
            return super().forward(x, alone)
        if self.first:
            return self.operator.apply(x, self.weight, self.bias, self.ring)
        y = self.operator.apply(x, self.weight, self.ring)
        return y if self.bias is None else y + self.bias


class RingGroups(Groups):
    """Groups whose linear layers share one ring."""

    def __init__(self, strategy: "T3", mesh: "DeviceMesh"):
        super().__init__(strategy.layout, mesh)
        self.linear = partial(FusedLinear, ring=ring_of(strategy, mesh))


def groups(strategy: "T3", mesh: "DeviceMesh", halves: int = 1) -> RingGroups:
    """The `RingGroups` of this rank."""
    return RingGroups(strategy, mesh)


def ring_of(strategy: "T3", mesh: "DeviceMesh") -> Ring:
    """This rank's `Ring`."""
    if strategy.mode == "sequential":
        return Ring(mesh.get_group("tp"), None)
    group, back = neighbours(mesh, "tp")
    return Ring(group, strategy.tiles, back)
