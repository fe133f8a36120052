"""The layers of ATP: each holds its rank's part of the weight, cut along both dims.

Shapes: B batch, S sequence, H hidden; i, s = ranks along the axes *inside* and *stream* of a
`layout.Layout`. The residual stream is (B, S, H/s), with sequence parallelism (S/i, B, H/s).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor, nn

from . import operators

if TYPE_CHECKING:
    from tpviz.schemes.collectives import Group

    from .layout import Layout


class ATPLinear(nn.Module):
    """y = x W^T + b: x cut over ``way.contract``, y over ``way.spread``, by their features."""

    def __init__(
        self,
        features_in: int,
        features_out: int,
        way: operators.LinearSharding,
        bias: bool = True,
        **kw: Any,
    ):
        super().__init__()
        self.way = way
        n, m = way.contract.size(), way.spread.size()
        own = nn.Linear(features_in // n, features_out // m, bias=bias, **kw)
        self.weight, self.bias = own.weight, own.bias
        if bias and way.scatter == -1:
            self.bias = nn.Parameter(own.bias[: features_out // (n * m)].detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.through(x, self.weight)

    def through(
        self,
        x: Tensor,
        weight: Tensor,
        again: Callable[[], Tensor] | None = None,
        products: Any = operators.Products,
    ) -> Tensor:
        """The layer with this weight; ``again`` makes it anew for backward, so it is not kept."""
        way, rest = self.way, (self.way, again, products)
        plain = again is None and products is operators.Products
        if way.contract.size() == way.spread.size() == 1 and plain:
            return F.linear(x, weight, self.bias)
        if way.contract.size() == 1 or self.bias is None:
            return operators.Linear.apply(x, weight, self.bias, *rest)
        return operators.Linear.apply(x, weight, None, *rest) + self.bias


class ATPLayerNorm(nn.LayerNorm):
    """LayerNorm of this rank's features of the residual stream, over all of them."""

    def __init__(self, hidden: int, group: "Group", **kw: Any):
        super().__init__(hidden // group.size(), **kw)
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        return operators.SplitLayerNorm.apply(x, self.weight, self.bias, self.eps, self.group)


class GatheredLayerNorm(nn.LayerNorm):
    """LayerNorm of the whole stream, on every rank; of its result each keeps its own features."""

    def __init__(self, hidden: int, group: "Group", **kw: Any):
        super().__init__(hidden, **kw)
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        return operators.Cut.apply(super().forward(x), self.group)


def layer_norm(hidden: int, layout: "Layout", group: "Group", **kw: Any) -> nn.LayerNorm:
    """The norm for a stream cut over ``group``: L1, L2, or the plain one where it is not cut."""
    if layout.l1:
        return ATPLayerNorm(hidden, group, **kw)
    return GatheredLayerNorm(hidden, group, **kw) if layout.l2 else nn.LayerNorm(hidden, **kw)
