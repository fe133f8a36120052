"""The layers of AxoNN: those of ATP on x and y, with weights sharded over z."""

from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor

from tpviz.schemes.atp.layers import ATPLinear
from tpviz.schemes.atp.operators import LinearSharding, Products
from tpviz.schemes.atp.program import ATPEmbedding

from .weights import Depth, Weight

if TYPE_CHECKING:
    from tpviz.workload import GPT

    from .program import GridGroups
    from .tuner import Tuner


class GridLinear(ATPLinear):
    """An `ATPLinear` whose weight is gathered over z when used; its products by a ``tuner``."""

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

    def forward(self, x: Tensor) -> Tensor:
        return self.through(x, self.pieces.whole(), self.pieces.again, self.products)


class GridEmbedding(ATPEmbedding):
    """An `ATPEmbedding` whose table of tokens is gathered over z when used."""

    def __init__(self, w: "GPT", groups: "GridGroups", **kw: Any):
        super().__init__(w, groups, **kw)
        self.pieces = Weight(self.token, groups.depth)

    def lookup(self, rows: Tensor) -> Tensor:
        return F.embedding(rows, self.pieces.whole())
