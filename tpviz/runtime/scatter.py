"""A reduce-scatter quick enough for emulated runs, and which says when it is done.

gloo's own is a whole all-reduce, of a list one reduce after another, and it says that it is done
only once it has been waited for. Here every rank sends each other its part (all_to_all) and whoever
waits adds up what came.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

METHODS = {"reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single"}
_OPERATORS = (dist.ReduceOp.SUM, dist.ReduceOp.AVG)


def can_scatter(method: str, args: Sequence[Any]) -> bool:
    """Whether `scatter` handles this call: sums or means of CPU tensors in equal parts."""
    if method not in METHODS or len(args) < 3:
        return False
    if not any(args[2].reduceOp == operator for operator in _OPERATORS):  # `in` asks the other way
        return False
    output, parts = _output_and_parts(args)
    return output.device.type == "cpu" and all(p.numel() == output.numel() for p in parts)


def scatter(inner: dist.ProcessGroup, args: Sequence[Any]) -> "ScatterWork":
    """Start the reduce-scatter on the group ``inner``; its handle."""
    output, parts = _output_and_parts(args)
    flat = torch.cat([part.detach().reshape(-1) for part in parts])
    gathered = torch.empty_like(flat)
    options = dist.AllToAllOptions()
    options.asyncOp = True
    work = inner.alltoall_base(gathered, flat, [], [], options)
    return ScatterWork(work, flat, gathered, output, args[2].reduceOp == dist.ReduceOp.AVG)


def _output_and_parts(args):
    """(output tensor, one tensor for every rank) of either form of the call."""
    output, whole = args[0], args[1]
    if isinstance(output, list):
        return output[0], whole[0]
    return output, whole.reshape(-1).split(output.numel())


class ScatterWork(dist.Work):
    """Done when all parts have come; whoever waits adds them up."""

    def __init__(
        self,
        work: dist.Work,
        flat: torch.Tensor,
        gathered: torch.Tensor,
        output: torch.Tensor,
        mean: bool,
    ):
        super().__init__()
        self.work, self.flat, self.gathered = work, flat, gathered
        self.output, self.mean = output, mean

    def wait(self, timeout: timedelta | None = None) -> bool:
        self.work.wait()
        if self.gathered is not None:
            parts = self.gathered.view(-1, self.output.numel())
            with torch.no_grad():
                total = parts.mean(0) if self.mean else parts.sum(0)
                self.output.copy_(total.view_as(self.output))
            self.flat = self.gathered = None
        return True

    def is_completed(self) -> bool:
        return self.work.is_completed()

    def is_success(self) -> bool:
        return self.work.is_success()

    def exception(self) -> Any:
        return self.work.exception()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return [self.output]

    def get_future(self) -> torch.futures.Future:
        self.wait()
        future = torch.futures.Future()
        future.set_result([self.output])
        return future
