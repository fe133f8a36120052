"""A 2D convolution on the grid: channels are what features are to a linear layer.

Shapes: B images of a rank (the batch is cut over z and data), C and K input and output channels of
the whole layer, n and m ranks along the axes that these are cut over. Input (B, C/n, H, W), output
(B, K/m, H', W'), weight block (K/m, C/n, kh, kw) in flat shards over z. The paper trains U-Nets so;
forward, backward and layouts as for its linear layers (derived from those).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tpviz.core.checks import divides
from tpviz.schemes.collectives import own_of
from tpviz.schemes.grid.operators import LinearSharding, both_gradients, summing

from .weights import Depth, Weight

_backward = torch.ops.aten.convolution_backward


class Conv(torch.autograd.Function):
    """y = conv(x, W) + b: summed over ``way.contract``; the input's gradient over ``way.spread``,
    under the weight's gradient if ``way.hidden``. Bias only where there is no sum; ``again`` as in
    `tpviz.schemes.grid.operators.Linear`. steps: (stride, padding, dilation), each of two numbers.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        way: LinearSharding,
        steps: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
        again: Callable[[], torch.Tensor] | None,
    ) -> torch.Tensor:
        ctx.way, ctx.steps, ctx.again = way, steps, again
        ctx.save_for_backward(x, None if again else weight)
        y = torch.conv2d(x, weight, bias, *steps)
        return summing(y, None, way.contract)() if way.contract.size() > 1 else y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        way, (x, weight) = ctx.way, ctx.saved_tensors
        weight, grad = ctx.again() if ctx.again else weight, grad.contiguous()

        def gradient(*wanted):
            return _backward(grad, x, weight, None, *ctx.steps, False, [0, 0], 1, wanted)

        of_input = (lambda: gradient(True, False, False)[0]) if ctx.needs_input_grad[0] else None
        grad_x, grad_weight = both_gradients(way, of_input, lambda: gradient(False, True, False)[1])
        grad_bias = grad.sum((0, 2, 3)) if ctx.needs_input_grad[2] else None
        return grad_x, grad_weight, grad_bias, None, None, None


class GridConv2d(nn.Module):
    """``nn.Conv2d`` on the grid, zero padding, one group; options as there.

    way : `tpviz.schemes.grid.operators.LinearSharding`; a normal layer contracts over y and spreads
    over x, the next one the other way round, so that its input is the output of the one before.
    depth : the rank's `tpviz.schemes.axonn.weights.Depth`. The gradient of the bias, which is whole
    along z, is to be summed over z, as those of all parameters over data. Raises ``ValueError``
    where channels or the block do not split evenly.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        way: LinearSharding,
        depth: Depth,
        bias: bool = True,
        **options: Any,
    ):
        super().__init__()
        n, m = way.contract.size(), way.spread.size()
        divides("in_channels", in_channels, "contract", n)
        divides("out_channels", out_channels, "spread", m)
        if options.get("groups", 1) != 1 or isinstance(options.get("padding"), str):
            raise ValueError(
                "groups and padding by name are not possible on the grid: use "
                "groups=1 and padding in pixels"
            )
        own = nn.Conv2d(in_channels // n, out_channels // m, kernel_size, bias=bias, **options)
        divides("the block's numbers", own.weight.numel(), "z", depth.size)
        self.way, self.steps = way, (own.stride, own.padding, own.dilation)
        self.weight, self.bias = own.weight, own.bias
        self.pieces = Weight(self, depth)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, again = self.pieces.whole(), self.pieces.again
        if self.way.contract.size() == 1 or self.bias is None:
            return Conv.apply(x, weight, self.bias, self.way, self.steps, again)
        y = Conv.apply(x, weight, None, self.way, self.steps, again)
        return y + self.bias[:, None, None]

    @torch.no_grad()
    def load(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Take this rank's parts of a whole layer's parameters, (K, C, kh, kw) and (K,)."""
        way, z = self.way, self.pieces.depth
        own = own_of(own_of(weight, way.spread), way.contract, 1)
        self.weight.copy_(own_of(own.flatten(), z.group))
        if self.bias is not None:
            self.bias.copy_(own_of(bias, way.spread))  # pyright: ignore[reportArgumentType]
