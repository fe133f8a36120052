"""What stands in the place of a linear layer that was split: ATP's `Linear` between a cut of the
whole stream and a gather of it (L2 of the reference, for every pair).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from tpviz.schemes import operators
from tpviz.schemes.axonn.weights import Weight
from tpviz.schemes.collectives import Alone, own_of
from tpviz.schemes.grid.operators import Cut, Gather, Linear, LinearSharding, Products

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from .cuts import LinearPart
    from .grid import Grid


class RankGroups(NamedTuple):
    """This rank's process group for each axis, with the interface of a ``DeviceMesh``."""

    by_axis: "dict[str, dist.ProcessGroup]"

    def get_group(self, axis: str) -> "dist.ProcessGroup":
        """The group of an axis."""
        return self.by_axis[axis]

    @classmethod
    def of(cls, axes: dict[str, int], mesh: "DeviceMesh") -> Self:
        """Of a ``DeviceMesh`` that has the axes {name: ranks}, perhaps with others around them."""
        # an `Alone` is asked what a group of one rank would be asked, and nothing else
        groups: dict[str, Any] = {
            axis: mesh.get_group(axis) if size > 1 else Alone() for axis, size in axes.items()
        }
        return cls(groups)


def own_part(part: "LinearPart", name: str, full: torch.Tensor, groups: RankGroups) -> torch.Tensor:
    """This rank's part of a full parameter, a copy: the full one can be freed."""
    local = part.to_order(name, full.detach())
    for dim, axis in reversed(part.splits(name)):
        group = groups.get_group(axis)
        local = own_of(local, group, dim)
    return local.clone(memory_format=torch.contiguous_format)


class HeldLinear(nn.Module):
    """This rank's part of a linear layer's parameters, under their old names, dims in their order.

    grid : a `tpviz.modules.grid.Grid` if the weight's block is sharded flat over z, else None.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self, whole: nn.Module, part: "LinearPart", groups: RankGroups, grid: "Grid | None" = None
    ):
        super().__init__()
        self.part, self.pieces = part, None
        for name in ("weight", "bias"):
            full = getattr(whole, name, None)
            own = (
                None
                if full is None
                else nn.Parameter(
                    own_part(part, name, full, groups), requires_grad=full.requires_grad
                )
            )
            self.register_parameter(name, own)
        if grid:
            self.pieces = Weight(self, grid.depth)
            self.pieces.layer = part.path
        self.train(whole.training)

    def ready(
        self, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, Callable[[], torch.Tensor] | None, torch.Tensor | None]:
        """(x, the weight's block (out, in), a function that makes the block again in backward or
        None, bias), cast as autocast would, which does not reach autograd functions."""
        kind, dtype = x.device.type, None
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)

        def cast(tensor: Any) -> Any:
            return tensor.to(dtype) if dtype and tensor is not None else tensor

        def turned(weight):
            return cast(weight).t() if self.part.out_dim else cast(weight)

        if self.pieces is None:
            return cast(x), turned(self.weight), None, cast(self.bias)
        again = self.pieces.again
        return (
            cast(x),
            turned(self.pieces.whole()),
            again and (lambda: turned(again())),
            cast(self.bias),
        )

    def extra_repr(self) -> str:
        """Features, whole and of this rank."""
        part = self.part
        whole = (part.out, part.ins) if part.out_dim == 0 else (part.ins, part.out)
        return (
            f"{part.role}, weight {whole} -> {tuple(self.weight.shape)}, "
            f"bias={self.bias is not None}"
        )


class SplitLinear(HeldLinear):
    """One layer of a pair, this rank's part.

    entrance : of a first layer, the pair's `Entrance`.

    x (..., in) whole -> y (..., out/i), for A3 (..., out/(i s)), of a first layer; the other way
    round of a second. i, s: ranks along *inside* and *stream*.
    """

    def __init__(
        self,
        whole: nn.Module,
        part: "LinearPart",
        groups: RankGroups,
        entrance: "Entrance | None" = None,
        grid: "Grid | None" = None,
    ):
        super().__init__(whole, part, groups, grid)
        at = part.at
        inside, stream = groups.get_group(at.inside), groups.get_group(at.stream)
        heads = -1 if part.a3 else None
        how = {
            "chunks": at.chunks,
            "dim": "tokens" if at.chunking == "tokens" else 0,
            "hidden": grid is None or grid.hidden,
        }
        self.enter, self.leave = entrance, None
        if part.first:
            assert entrance is not None
            self.way = LinearSharding(
                stream, Alone() if entrance.sums else inside, scatter=heads, **how
            )
        else:
            self.way = LinearSharding(inside, stream, gather=heads, **how)
            self.leave = stream if at.s > 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer; see the class."""
        if x.dim() == 1:
            return self(x.unsqueeze(0)).squeeze(0)
        y = self._linear(*self.ready(self.enter(x) if self.enter else x))
        return Gather.apply(y, self.leave) if self.leave else y

    def _linear(self, x, weight, again, bias):
        way = self.way
        # the gradient of a weight that was cast, or gathered, passes through that: it cannot wait
        own = (weight if weight._base is None else weight._base) is self.weight
        notes = operators.later() if own and self.weight.requires_grad else None
        products = Products if notes is None else Later(notes, self)
        if way.contract.size() == way.spread.size() == 1 and again is notes is None:
            return F.linear(x, weight, bias)
        if way.contract.size() == 1 or bias is None:
            return Linear.apply(x, weight, bias, way, again, products)
        return Linear.apply(x, weight, None, way, again, products) + bias


class Later(Products):
    """The products of a layer in a pipeline that defers weight gradients, see
    `tpviz.schemes.operators.deferred_wgrad`."""

    def __init__(self, notes: list[operators.WgradStash], layer: SplitLinear):
        self.notes, self.layer = notes, layer

    def weight(self, x: torch.Tensor, grad: torch.Tensor, bias: bool) -> tuple[None, None]:
        """Notes the deferred gradients; returns (None, None)."""
        layer = self.layer
        return operators.defer_wgrad(
            self.notes,
            x,
            grad,
            layer.weight,
            layer.bias if bias else None,
            bool(layer.part.out_dim),
        )


# -- where the stream enters a pair ----------------------------------------------------------------
# It is cut over *stream*, once for all first layers that read it. Backward the gradients of these
# (q, k and v; gate and up) are added before they are sent: one sum over *inside* and one gather
# over *stream*, as if the layers were one.
class SumBack(torch.autograd.Function):
    """The same tensor; its gradient is summed over the group (f of Shoeybi et al. 2019)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        """x, as another tensor."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The sum of all ranks' gradients."""
        grad = grad.clone(memory_format=torch.contiguous_format)  # other code may hold this tensor
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Readers:
    """``count`` layers that come one after another with the same tensor. One that was changed in
    place between two of them, or is read with and without gradients, is another."""

    seen: Any  # the tensor, its version, and whether gradients are on; None while nobody is to come

    def __init__(self, count: int):
        self.count, self.left, self.seen = count, 0, None

    def fresh(self, x: torch.Tensor) -> bool:
        """Count a reader of ``x``; whether it is the first of that tensor."""
        now = 0 if x.is_inference() else x._version, torch.is_grad_enabled()
        fresh = not self.left or self.seen[0] is not x or self.seen[1:] != now
        if fresh:
            self.seen, self.left = (x, *now), self.count
        self.left -= 1
        if not self.left:
            self.seen = None  # holds nothing between steps
        return fresh


class Entrance:
    """Shared by the first layers of a pair; ``readers`` of them come with the same tensor.

    One reader all-reduces its gradient itself, during the GEMM of its weight's. A tensor that is
    another by `Readers` is cut anew.
    """

    cut: Any  # None while nobody is to read it

    def __init__(self, inside: dist.ProcessGroup, stream: dist.ProcessGroup, readers: int):
        self.inside, self.stream, self.readers = inside, stream, Readers(readers)
        self.cut = None

    @property
    def sums(self) -> bool:
        """Whether the all-reduce over *inside* is issued here."""
        return self.readers.count > 1 and self.inside.size() > 1

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x (..., in) -> (..., in/s)."""
        if self.readers.fresh(x):
            cut = Cut.apply(x, self.stream) if self.stream.size() > 1 else x
            self.cut = SumBack.apply(cut, self.inside) if self.sums else cut
        cut = self.cut
        if not self.readers.left:
            self.cut = None
        return cut
