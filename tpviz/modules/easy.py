"""AxoNN's easy mode: every linear layer on the grid by itself, between data-parallel layouts.

Every rank has its own rows and whole features before and after each layer, so nothing around it
changes. b: rows of a rank; X, Y: ranks over output and input features. Around the GEMM of a rank's
block (n/X, k/Y):

    (b, k) -> all-to-all over y -> (Y b, k/Y) -> gathered over x -> (X Y b, k/Y) -> GEMM ->
    (X Y b, n/X) -> scattered over y, reduced -> (X b, n/X) -> all-to-all over x -> (b, n)

The authors' code all-reduces over y and then drops the other ranks' rows, after the second
exchange; here that is one reduce-scatter before it (derived). The bias is added to a rank's own
rows, and its gradient is a mean over all ranks like that of any whole parameter.
"""

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.nn.functional as F

from tpviz.schemes.grid.operators import Linear, LinearSharding
from tpviz.schemes.operators import Exchange, ReduceScatter

from .layers import Alone, HeldLinear

if TYPE_CHECKING:
    from .cuts import LinearPart
    from .grid import Grid
    from .layers import RankGroups


class EasyLinear(HeldLinear):
    """x (..., in) -> y (..., out), rows of this rank: the layer that stood here, on the grid.

    equal : whether all ranks of a plane come with equally many rows, which the user promises; else
    the largest number is asked for each time, and fewer rows are filled up with zeros.
    """

    def __init__(
        self,
        whole: torch.nn.Module,
        part: "LinearPart",
        groups: "RankGroups",
        grid: "Grid",
        equal: bool = False,
    ):
        super().__init__(whole, part, groups, grid)
        self.x, self.y = groups.get_group("x"), groups.get_group("y")
        self.alike = equal or self.x.size() == self.y.size() == 1
        self.way = LinearSharding(
            Alone(), self.x, gather=0 if self.x.size() > 1 else None, hidden=grid.hidden
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer; see the class."""
        x, weight, again, bias = self.ready(x)
        rows = x.reshape(x.shape[:-1].numel(), x.shape[-1])
        own, most = len(rows), self._most(rows)
        rows = F.pad(rows, (0, 0, 0, most - own)) if most > own else rows
        y = self._on_grid(rows, most, weight, again)[:own]
        return (y if bias is None else y + bias).view(*x.shape[:-1], self.part.out)

    def _on_grid(self, rows, most, weight, again):
        """(b, in) -> (b, out)."""
        xs, ys = self.x.size(), self.y.size()
        if ys > 1:
            rows = Exchange.apply(rows.unflatten(1, (ys, -1)).movedim(1, 0), self.y).flatten(0, 1)
        out = Linear.apply(rows, weight, None, self.way, again)
        if ys > 1:
            out = out.unflatten(0, (xs, ys, most)).transpose(0, 1).flatten(0, 2)
            out = ReduceScatter.apply(out, self.y)
        if xs > 1:
            out = Exchange.apply(out.unflatten(0, (xs, most)), self.x).movedim(0, 1).flatten(1)
        return out

    def _most(self, rows):
        """The largest number of rows on the plane."""
        if self.alike:
            return len(rows)
        most = torch.tensor(len(rows), device=rows.device)
        for group in (self.y, self.x):
            if group.size() > 1:
                dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
        return int(most)
