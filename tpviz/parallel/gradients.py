"""Gradients that are complete when ``loss.backward()`` returns, with nothing for the user to call.

FSDP's means: what the model gives has hooks; the first one that a backward reaches asks autograd to
call back when that backward is over.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch.autograd import Variable
from torch.utils._pytree import tree_leaves

from tpviz.schemes.collectives import sum_together

if TYPE_CHECKING:
    import torch.distributed as dist


def in_backward() -> bool:
    """Whether autograd is running."""
    return torch._C._current_graph_task_id() >= 0


class AfterBackward:
    """Calls ``finish()`` once at the end of every backward through ``module``; ``abandon()`` before
    the next forward where a backward raised and never ended.

    A gradient that reaches a parameter without having come through the module's output asks too: a
    loss may be made of what lies within. A backward within a backward (recomputation) is a part of
    the outer one.
    """

    def __init__(
        self, module: torch.nn.Module, finish: Callable[[], None], abandon: Callable[[], None]
    ):
        self.finish, self.abandon, self.asked = finish, abandon, False
        module.register_forward_pre_hook(self._before)
        module.register_forward_hook(self._watch)
        me = ref(self)  # a parameter whose hook holds the parameter is never collected

        def weak(_):
            if after := me():
                after.ask()

        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(weak)

    def _before(self, module, args):
        if self.asked and not in_backward():
            self.asked = False
            self.abandon()

    def _watch(self, module, args, output):
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(self.ask)

    def ask(self, *_: Any) -> None:
        """To be called back at the end of the backward that is running."""
        if not self.asked:
            self.asked = True
            Variable._execution_engine.queue_callback(self._over)

    def _over(self):
        self.asked = False
        self.finish()


@torch.no_grad()
def average(parameters: Sequence[torch.Tensor], group: "dist.ProcessGroup") -> None:
    """Each gradient becomes its mean over the group, one message per dtype; collective.

    Ranks may have used different parameters: one that a rank did not use counts as 0 there, and one
    that none used stays without a gradient, as in one process. For that a number for each parameter
    travels along.
    """
    if group.size() == 1:
        return
    for dtype in dict.fromkeys(p.dtype for p in parameters):
        alike = [p for p in parameters if p.dtype == dtype]
        used = [p.grad is not None for p in alike]
        gradients: list[Any] = [
            p.grad if has else torch.zeros_like(p) for p, has in zip(alike, used)
        ]
        *sums, by = sum_together([*gradients, alike[0].new_tensor(used)], group)
        if not all(used):  # else the device need not be asked
            used = by.gt(0).tolist()
        for p, gradient, total, has in zip(alike, gradients, sums, used):
            if has:
                p.grad = gradient.copy_(total.div_(group.size()))
