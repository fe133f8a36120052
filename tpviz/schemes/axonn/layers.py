"""The layers of AxoNN: those of ATP on the plane of x and y, their weights in pieces over z."""

import torch.nn.functional as F

from tpviz.schemes.atp.layers import ATPLinear
from tpviz.schemes.atp.operators import Products
from tpviz.schemes.atp.program import ATPEmbedding

from .weights import Weight


class GridLinear(ATPLinear):
    """An `ATPLinear` whose weight is gathered over z when used; its products by a ``tuner``."""

    def __init__(self, features_in, features_out, way, depth, tuner=None, **kw):
        super().__init__(features_in, features_out, way, **kw)
        self.pieces, self.products = Weight(self, depth), tuner or Products

    def forward(self, x):
        return self.through(x, self.pieces.whole(), self.pieces.again, self.products)


class GridEmbedding(ATPEmbedding):
    """An `ATPEmbedding` whose table of tokens is gathered over z when used."""

    def __init__(self, w, groups, **kw):
        super().__init__(w, groups, **kw)
        self.pieces = Weight(self.token, groups.depth)

    def lookup(self, rows):
        return F.embedding(rows, self.pieces.whole())
