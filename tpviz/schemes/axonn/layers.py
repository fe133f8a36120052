"""The layers of AxoNN: those of ATP on the plane of x and y, their weights in pieces over z."""

import torch.nn.functional as F

from tpviz.schemes.atp.layers import ATPLinear
from tpviz.schemes.atp.program import ATPEmbedding

from .tuner import linear
from .weights import Weight


class GridLinear(ATPLinear):
    """An `ATPLinear` whose weight is gathered over z when used; its products by a ``tuner``."""

    def __init__(self, features_in, features_out, way, depth, tuner=None, **kw):
        super().__init__(features_in, features_out, way, **kw)
        self.pieces, self.tuner = Weight(self, depth), tuner

    def forward(self, x):
        if self.tuner:
            weight, again = self.pieces.whole(), self.pieces.again
            return linear(x, weight, self.bias, self.way, again, self.tuner)
        return self.through(x, self.pieces.whole(), self.pieces.again)


class GridEmbedding(ATPEmbedding):
    """An `ATPEmbedding` whose table of tokens is gathered over z when used."""

    def __init__(self, w, groups, **kw):
        super().__init__(w, groups, **kw)
        self.pieces = Weight(self.token, groups.depth)

    def lookup(self, rows):
        return F.embedding(rows, self.pieces.whole())
