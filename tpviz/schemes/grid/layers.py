"""The layers of a rank, one of each kind for every layout: they hold its part of the weights.

Shapes: B batch, S sequence, H hidden; i, s = ranks along the axes *inside* and *stream* of a
`layout.Layout`. The residual stream is (B, S, H/s), with sequence parallelism (S/i, B, H/s):
sequence first, so that gathering and scattering are contiguous.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from tpviz.schemes.gpt.model import Norm
from tpviz.schemes.operators import Reduce, linear

from . import operators

if TYPE_CHECKING:
    from tpviz.core.workload import GPT
    from tpviz.schemes.collectives import Group

    from .layout import Layout


class GridLinear(nn.Module):
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

    def forward(self, x: Tensor, alone: bool = False, summed: bool = True) -> Tensor:
        """The layer. alone : this rank's products only: nothing is sent, now or in backward, and no
        bias added to a partial sum; the rest is the caller's. summed : as of `operators.Linear`."""
        if alone:
            return linear(x, self.weight, self.bias if self.way.contract.size() == 1 else None)
        return self.through(x, self.weight, summed=summed)

    def through(
        self,
        x: Tensor,
        weight: Tensor,
        again: Callable[[], Tensor] | None = None,
        products: Any = operators.Products,
        summed: bool = True,
    ) -> Tensor:
        """The layer with this weight; ``again`` makes it anew for backward, so it is not kept."""
        way, contracts = self.way, self.way.contract.size() > 1
        own = None if contracts else self.bias
        plain = again is None and products is operators.Products and way.spread.size() == 1
        if plain and not (contracts and (way.chunks > 1 or way.scatter is not None)):
            # Backward sends nothing, and torch's own is quicker than one in Python.
            y = linear(x, weight, own)
            y = Reduce.apply(y, way.contract) if contracts and summed else y
        else:
            y = operators.Linear.apply(x, weight, own, way, again, products, summed)
        return y + self.bias if contracts and self.bias is not None else y


class GatheredNorm(Norm):
    """A norm of all features, computed on every rank, which then keeps its own features."""

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
