"""Weights sharded over the depth axis z, gathered where they are used.

A rank's block of a weight is flattened and split into z equal shards, its parameter. Forward
all-gathers the block; backward reduce-scatters the ranks' gradients. Three knobs of AxoNN are here
(its paper's OAG and ORS, and whether the gathered block is kept for backward), none of which
changes a number.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from tpviz.core.labels import current, label
from tpviz.schemes.collectives import Group, gather_first, own_of, scatter_first

if TYPE_CHECKING:
    import torch.distributed as dist

    from .bundle import Bundle


class Depth:
    """The gathers and scatters of one rank, in the order in which its program asks for them.

    prefetch : a separate group for gathers: the next one is prefetched before the current block is
    used, by the order of the step before. ``misses`` counts gathers that the order did not foresee.
    share : factor on the gradients after the sum over ranks. ``begun`` is what `bundle.Bundle`s
    hold between two of their weights.
    """

    def __init__(
        self,
        group: Group,
        prefetch: "dist.ProcessGroup | None" = None,
        later: bool = False,
        keep: bool = True,
        share: float = 1,
    ):
        self.group, self.prefetch, self.later, self.keep = group, prefetch, later, keep
        self.share = share
        self.order, self.asked, self.ahead, self.scattering = [], [], None, []
        self.misses, self.begun = 0, {}
        self.what, self.orders = None, {}

    @property
    def size(self) -> int:
        return self.group.size()

    def begin(self, what: Any = None) -> None:
        """Begin a step, or another pass ``what`` that repeats: prefetching follows the order of
        gathers of the last pass with the same ``what``.

        Collectives left in flight by a failed step are discarded.
        """
        self.orders[self.what], self.what = self.asked, what
        self.order, self.asked, self.ahead = self.orders.get(what, []), [], None
        self.scattering, self.begun = [], {}

    def forget(self) -> None:
        """Discard prefetched weights; they are gathered again when needed."""
        if self.ahead:
            self.ahead[-1].wait()
            self.ahead = None

    def whole(self, weight: "Weight | Bundle", phase: str) -> torch.Tensor:
        """The block of a `Weight`, flat: gathered now, unless it was prefetched."""
        if self.size == 1:
            return weight.shard.detach()
        sent, self.ahead = self.ahead, None
        ask, place = (weight, phase), len(self.asked)
        self.asked.append(ask)
        if sent and sent[0] == ask and sent[1] == weight.version:  # not updated since
            out, work = sent[2:]
        else:
            self.misses += bool(self.order) and place > 0
            out, work = self._send(ask)
        work.wait()
        if self.prefetch is not None and place + 1 < len(self.order):
            following = self.order[place + 1]
            self.ahead = (following, following[0].version, *self._send(following))
        return out

    def _send(self, ask):
        weight, phase = ask
        with label(phase=phase, layer=weight.layer):  # of its use, whenever it is gathered
            return gather_first(weight.shard.detach(), self.prefetch or self.group)

    def scatter(self, weight: "Weight | Bundle", grad: torch.Tensor) -> torch.Tensor | None:
        """This rank's shard of the reduced gradient, or None if `collect` will return it."""
        if self.size == 1:
            return self._shared(grad.flatten())
        out, work = scatter_first(grad.flatten(), self.group)
        if self.later:
            self.scattering.append((weight, out, work))
            return None
        work.wait()
        return self._shared(out)

    def _shared(self, out):
        return out if self.share == 1 else out * self.share

    def collect(self) -> None:
        """Wait for the gradients in flight, and give them to their parameters."""
        for weight, out, work in self.scattering:
            work.wait()
            weight.add(self._shared(out))
        self.scattering = []


class Weight:
    """One use of a parameter ``shard`` (flat) as a weight of ``shape``, a rank's block.

    source : the provider of its block, which takes its gradient: ``depth``, or a `bundle.Bundle`.
    """

    def __init__(self, module: Any, depth: Depth):
        self.module, self.depth, self.shape = module, depth, module.weight.shape
        self.source: Depth | Bundle = depth
        self.layer = ""
        piece = own_of(module.weight.detach().flatten(), depth.group)
        module.weight = torch.nn.Parameter(piece.clone(), requires_grad=module.weight.requires_grad)

    @property
    def shard(self) -> torch.nn.Parameter:
        return self.module.weight

    @property
    def version(self) -> int:
        """A number that changes whenever the parameter is changed in place."""
        return self.shard._version

    def add(self, gradient: torch.Tensor) -> None:
        """Add to the parameter's gradient, which may take ``gradient`` for its own."""
        shard = self.shard
        shard.grad = gradient if shard.grad is None else shard.grad.add_(gradient)

    def whole(self) -> torch.Tensor:
        """The block, as part of the autograd graph. In evaluation it is gathered at once and not
        recorded in the order of gathers, which is that of training, unless the pass has its own
        order."""
        ordered = torch.is_grad_enabled() or self.depth.what is not None
        if ordered or self.depth.size == 1:
            return GatheredBlock.apply(self.shard, self)
        out, work = gather_first(self.shard.detach(), self.depth.group)
        work.wait()
        return out.view(self.shape)

    @property
    def again(self) -> Callable[[], torch.Tensor] | None:
        """The function that gathers the block again in backward; None if the block is kept."""
        if self.depth.keep or self.depth.size == 1:
            return None
        return lambda: self.source.whole(self, "backward").view(self.shape)


class GatheredBlock(torch.autograd.Function):
    """The gathered block of a `Weight`; its gradient is scattered."""

    @staticmethod
    def forward(ctx: Any, shard: torch.Tensor, weight: Weight) -> torch.Tensor:
        ctx.weight = weight
        again = torch._C._current_graph_task_id() >= 0  # in a backward that computes forward anew
        phase = current().phase or ("recompute" if again else "forward")
        return weight.source.whole(weight, phase).view(weight.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return ctx.weight.source.scatter(ctx.weight, grad), None
