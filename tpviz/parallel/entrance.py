"""Where the stream enters a pair: cut over *stream*, once for all first layers that read it.

Backward the gradients of the first layers (q, k and v; gate and up) are added before they are sent:
one sum over *inside* and one gather over *stream*, as if the layers were one.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from tpviz.schemes.atp.operators import Cut


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
        grad = grad.clone(memory_format=torch.contiguous_format)  # others may hold it
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


def state(x: torch.Tensor) -> tuple[torch.Tensor, int, bool]:
    """A tensor, its version, and whether gradients are on: one reader after another must see the
    same."""
    return x, 0 if x.is_inference() else x._version, torch.is_grad_enabled()


class Entrance:
    """Shared by the first layers of a pair; ``readers`` of them come with the same tensor.

    One reader all-reduces its gradient itself, during the GEMM of its weight's. A tensor that was
    changed in place between two readers, or is read with and without gradients, is cut anew.
    """

    seen: Any  # what `state` gave; None, as the cut, while nobody is to read it
    cut: Any

    def __init__(self, inside: dist.ProcessGroup, stream: dist.ProcessGroup, readers: int):
        self.inside, self.stream, self.readers = inside, stream, readers
        self.seen, self.cut, self.left = None, None, 0

    @property
    def sums(self) -> bool:
        """Whether the all-reduce over *inside* is issued here."""
        return self.readers > 1 and self.inside.size() > 1

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x (..., in) -> (..., in/s)."""
        seen = state(x)
        same = self.left and self.seen[0] is x and self.seen[1:] == seen[1:]
        if not same:
            cut = Cut.apply(x, self.stream) if self.stream.size() > 1 else x
            self.cut = SumBack.apply(cut, self.inside) if self.sums else cut
            self.seen, self.left = seen, self.readers
        cut = self.cut
        self.left -= 1
        if not self.left:
            self.seen = self.cut = None  # holds nothing between steps
        return cut
