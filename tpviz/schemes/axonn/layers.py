"""The layers of AxoNN: those of the plane of x and y, with weights sharded over z."""

from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor

from tpviz.schemes.grid.layers import GridLinear
from tpviz.schemes.grid.operators import LinearSharding, Products
from tpviz.schemes.grid.program import GridEmbedding

from .weights import Depth, Weight

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

    from .program import DepthGroups
    from .tuner import Tuner


class DepthLinear(GridLinear):
    """A `GridLinear` whose weight is all-gathered over z when used. tuner : its products."""

    def __init__(
        self,
        features_in: int,
        features_out: int,
        way: LinearSharding,
        depth: Depth,
        tuner: "Tuner | None" = None,
        **kw: Any,
    ):
        super().__init__(features_in, features_out, way, **kw)
        self.pieces, self.products = Weight(self, depth), tuner or Products

    def forward(self, x: Tensor, alone: bool = False, summed: bool = True) -> Tensor:
        assert not alone, "products alone are of layers that hold their whole block"
        weight, again = self.pieces.whole(), self.pieces.again
        return self.through(x, weight, again, self.products, summed)


class DepthEmbedding(GridEmbedding):
    """A `GridEmbedding` whose table of tokens is gathered over z when used."""

    def __init__(self, w: "GPT", groups: "DepthGroups", **kw: Any):
        super().__init__(w, groups, **kw)
        self.pieces = Weight(self.token, groups.depth)

    def lookup(self, rows: Tensor) -> Tensor:
        return F.embedding(rows, self.pieces.whole())
