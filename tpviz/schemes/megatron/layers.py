"""The parallel layers of Megatron-LM: each holds its rank's part of the weight.

Shapes: B batch, S sequence, H hidden, V vocabulary, n = tp. Without sequence parallelism
activations are (B, S, H) on every rank; with it they are (S/n, B, H) between the parallel layers
and (S, B, ...) inside, sequence first so that gathering and scattering are contiguous.
"""

from typing import TYPE_CHECKING, Any

from torch import nn

from tpviz.schemes.operators import Reduce, ReduceScatter, linear

from . import operators

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


class ColumnParallelLinear(nn.Linear):
    """y = x W^T + b, W (out, in) split by rows: x whole (or by sequence), y by its last dim.

    bare : the gradient of x is not summed; that is somebody else's. chunks : parts of the batch in
    which it is, each under the next part's GEMM, without sequence parallelism. fused : another
    scheme's (x, weight, bias) -> y, whose backward reduces as part of its GEMM.
    """

    bare, chunks, fused = False, 1, None

    def __init__(
        self,
        features_in: int,
        features_out: int,
        group: "dist.ProcessGroup",
        sp: bool,
        bias: bool = True,
        **kw: Any,
    ):
        super().__init__(features_in, features_out // group.size(), bias=bias, **kw)
        self.group = group
        self.operator = operators.SequenceColumnLinear if sp else operators.ColumnLinear

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        if self.group.size() == 1 or self.bare:
            return linear(x, self.weight, self.bias)
        if self.fused:
            return self.fused(x, self.weight, self.bias)
        more = (self.chunks,) if self.chunks > 1 else ()
        return self.operator.apply(x, self.weight, self.bias, self.group, *more)


class RowParallelLinear(nn.Linear):
    """y = sum over ranks of x_r W_r^T, plus b once; W (out, in) split by columns, x by last dim.

    With ``chunks`` (B divisible by it) one part's all-reduce overlaps the next GEMM.
    bare : nothing is summed and no bias added; that is somebody else's. unsummed : what depends on
    the all-reduce is not needed, so it is left out. fused : another scheme's (x, weight) -> the
    result, as one operator.
    """

    bare, unsummed, fused = False, False, None

    def __init__(
        self,
        features_in: int,
        features_out: int,
        group: "dist.ProcessGroup",
        sp: bool,
        chunks: int = 1,
        bias: bool = True,
        **kw: Any,
    ):
        super().__init__(features_in // group.size(), features_out, bias, **kw)
        self.group, self.chunks = group, chunks
        self.operator = ReduceScatter if sp else Reduce

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        if self.bare:
            return linear(x, self.weight)
        if self.group.size() == 1:
            return linear(x, self.weight, self.bias)
        if self.unsummed:
            y = linear(x, self.weight)
        elif self.fused:
            y = self.fused(x, self.weight)
        elif self.chunks > 1:
            y = operators.ChunkedRowLinear.apply(x, self.weight, self.group, self.chunks)
        else:
            y = self.operator.apply(linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias
