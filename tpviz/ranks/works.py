"""Handles of collectives done otherwise than by the inner group: staged, added up here, not at all.

NCCL refuses two ranks on one GPU, and gloo knows few collectives on CUDA tensors, so a shared GPU's
tensors are copied to the host and moved there; whoever waits copies the results back.
"""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .devices import inner_kind
from .operations import IN_PLACE, OPERATIONS, flat


class AroundWork(dist.Work):
    """A `Work` handle that wraps another one."""

    def __init__(self, inner: dist.Work):
        super().__init__()
        self.inner = inner

    def is_completed(self) -> bool:
        return self.inner.is_completed()

    def is_success(self) -> bool:
        return self.inner.is_success()

    def exception(self) -> Any:
        return self.inner.exception()

    def result(self) -> list[torch.Tensor]:
        return self.inner.result()

    def source_rank(self) -> int:
        """The sender of a message received from any rank."""
        return source_rank(self.inner)

    _source_rank = source_rank  # torch 2.13's name


class DoneWork(dist.Work):
    """The handle of a collective that is finished when it is made: blocking, or silent.

    value : what its future gives.
    """

    def __init__(self, value: Any = None):
        super().__init__()
        self.value = value

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Returns True at once."""
        return True

    def is_completed(self) -> bool:
        """Always True."""
        return True

    is_success = is_completed

    def exception(self) -> Any:
        """None: a failure was raised by the call."""

    def result(self) -> list[torch.Tensor]:
        """An empty list."""
        return []

    def get_future(self) -> torch.futures.Future:
        """A completed future."""
        return done_future(self.value)


def done_future(value: Any) -> torch.futures.Future:
    """A completed future with the value ``value``."""
    future = torch.futures.Future()
    future.set_result(value)
    return future


def source_rank(work: Any) -> int:
    """The sender of a message that was received from anyone; the method has two names."""
    return work._source_rank() if hasattr(work, "_source_rank") else work.source_rank()


def needs_staging(args: Sequence[Any]) -> bool:
    """Whether these tensors must go through host memory (``TPVIZ_STAGE=1`` forces it)."""
    tensors = flat(args)
    if not tensors:
        return False
    on_cuda = tensors[0].is_cuda and inner_kind() == "gloo"
    return on_cuda or os.environ.get("TPVIZ_STAGE") == "1"


def by_nccl(args: Sequence[Any]) -> bool:
    """Whether NCCL moves the bytes of a call on these arguments; a barrier has no tensors."""
    tensors = flat(args)
    return (not tensors or tensors[0].is_cuda) and inner_kind() == "nccl"


def staged(
    method: str, operation: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> "StagedWork":
    """Start ``operation`` on host copies of all tensors in ``args``; its `StagedWork`.

    Results are in the first argument (a message that is sent has none). Nothing else is written
    to: autograd, and whoever compares versions, would take it for changed.
    """
    copies = []

    def to_host(value, is_read=True):
        if isinstance(value, torch.Tensor):
            # Pinned memory is copied faster, and torch keeps it for the next time.
            copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
            copies.append((value, copy.copy_(value.detach()) if is_read else copy))
            return copy
        if isinstance(value, (list, tuple)):
            return [to_host(v, is_read) for v in value]
        return value

    first = to_host(args[0], OPERATIONS[method][0] in IN_PLACE)
    results = [] if method == "send" else copies[:]
    return StagedWork(operation(first, *map(to_host, args[1:]), **kwargs), results)


class StagedWork(AroundWork):
    """The handle of a collective on host copies; `wait` copies the results back. results : pairs of
    a tensor and its host copy."""

    def __init__(self, inner: dist.Work, results: list[tuple[torch.Tensor, torch.Tensor]]):
        super().__init__(inner)
        self.results, self.tensors = results, [tensor for tensor, _ in results]

    def wait(self, timeout: timedelta | None = None) -> bool:
        done = self.inner.wait() if timeout is None else self.inner.wait(timeout)
        with torch.no_grad():
            for tensor, copy in self.results:
                tensor.detach().copy_(copy, non_blocking=True)  # in order on the GPU's stream
        self.results = []
        return done

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self.tensors

    def get_future(self) -> torch.futures.Future:
        return done_future(self.result())


# -- groups that move nothing ----------------------------------------------------------------------
class SilentGroup:
    """An inner group for `backend.TracedGroup` whose every operation is done at once."""

    _device_types = (torch.device("cpu"),)

    def __init__(self, rank: int, size: int):
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def __getattr__(self, name):
        if name.startswith("_set") or name in ("abort", "shutdown", "_start_coalescing"):
            return lambda *args, **kwargs: None
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: DoneWork(args[0] if args else ())


# -- a reduce-scatter quick enough for emulated runs, and which says when it is done ---------------
# gloo's own is a whole all-reduce, of a list one reduce after another, and it says that it is done
# only once it has been waited for. Here every rank sends each other its part (all_to_all) and
# whoever waits adds up what came.
METHODS = {"reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single"}
_OPERATORS = (dist.ReduceOp.SUM, dist.ReduceOp.AVG)


def can_scatter(method: str, args: Sequence[Any]) -> bool:
    """Whether `scatter` can do this call: a sum or mean of CPU tensors, in equal parts."""
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


class ScatterWork(AroundWork):
    """The handle of `scatter`: done when all parts have arrived; `wait` sums them."""

    def __init__(
        self,
        work: dist.Work,
        flat: torch.Tensor,
        gathered: torch.Tensor,
        output: torch.Tensor,
        mean: bool,
    ):
        super().__init__(work)
        self.flat, self.gathered, self.output, self.mean = flat, gathered, output, mean

    def wait(self, timeout: timedelta | None = None) -> bool:
        self.inner.wait()
        if self.gathered is not None:
            parts = self.gathered.view(-1, self.output.numel())
            with torch.no_grad():
                total = parts.mean(0) if self.mean else parts.sum(0)
                self.output.copy_(total.view_as(self.output))
            self.flat = self.gathered = None
        return True

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return [self.output]

    def get_future(self) -> torch.futures.Future:
        return done_future(self.result())
