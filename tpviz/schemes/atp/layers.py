"""The layers of ATP: each holds its rank's part of the weight, cut along both dims.

Shapes: B batch, S sequence, H hidden; i, s = ranks along the axes *inside* and *stream* of a
`layout.Layout`. The residual stream is (B, S, H/s), with sequence parallelism (S/i, B, H/s).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor, nn

from tpviz.schemes.gpt.model import Norm

from . import operators

if TYPE_CHECKING:
    from tpviz.schemes.collectives import Group
    from tpviz.workload import GPT

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


class GatheredNorm(Norm):
    """The norm of the whole stream, on every rank; of its result each keeps its own features."""

    def __init__(self, w: "GPT", stream: "Group", **kw: Any):
        super().__init__(w, **kw)
        self.stream = stream

    def forward(self, x: Tensor) -> Tensor:
        return operators.Cut.apply(super().forward(x), self.stream)


def norm(w: "GPT", layout: "Layout", group: "Group", **kw: Any) -> Norm:
    """The norm for a stream cut over ``group``: L1, L2, or the plain one where it is not cut."""
    return (
        GatheredNorm(w, group, **kw) if layout.l2 else Norm(w, group if layout.l1 else None, **kw)
    )
