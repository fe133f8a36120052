"""Collectives on CUDA tensors where gloo moves the bytes: through copies in host memory.

NCCL refuses two ranks on one GPU, and gloo knows few collectives on CUDA tensors, so a shared GPU's
tensors are copied to the host, reduced there, and copied back before the call returns.
"""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .devices import inner_kind


class DoneWork(dist.Work):
    """The handle of a collective that is finished when it is made: staged, blocking, or silent.

    value : what its future gives.
    inner : the work that has moved the bytes, where it is asked whom a message was from.
    """

    def __init__(self, value: Any = None, inner: dist.Work | None = None):
        super().__init__()
        self.value, self.inner = value, inner

    def source_rank(self) -> int:
        """Whom a message from anyone was from."""
        return source_rank(self.inner)

    _source_rank = source_rank  # torch 2.13's name

    def wait(self, timeout: timedelta | None = None) -> bool:
        """True at once."""
        return True

    def is_completed(self) -> bool:
        """True."""
        return True

    is_success = is_completed

    def exception(self) -> Any:
        """None: a failure was raised by the call."""

    def result(self) -> list[torch.Tensor]:
        """No tensors of its own."""
        return []

    def get_future(self) -> torch.futures.Future:
        """A future that is done."""
        future = torch.futures.Future()
        future.set_result(self.value)
        return future


def source_rank(work: Any) -> int:
    """The sender of a message that was received from anyone; the method has two names."""
    return work._source_rank() if hasattr(work, "_source_rank") else work.source_rank()


def needs_staging(args: Sequence[Any]) -> bool:
    """Whether a call on these arguments must go through the host (``TPVIZ_STAGE=1`` forces it)."""
    device = _device(args)
    on_cuda = device is not None and device.type == "cuda"
    return (on_cuda and inner_kind() == "gloo") or os.environ.get("TPVIZ_STAGE") == "1"


def staged(operation: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> DoneWork:
    """Run ``operation`` on host copies of all tensors in ``args`` and copy every result back."""
    pairs = []

    def to_host(value):
        if isinstance(value, torch.Tensor):
            copy = value.detach().to("cpu", copy=True)
            pairs.append((value, copy))
            return copy
        if isinstance(value, (list, tuple)):
            return [to_host(v) for v in value]
        return value

    work = operation(*(to_host(a) for a in args), **kwargs)
    work.wait()
    with torch.no_grad():
        for original, copy in pairs:
            original.detach().copy_(copy)
    return DoneWork(inner=work)


def _device(value):
    """The device of the first tensor in nested arguments, or None."""
    if isinstance(value, torch.Tensor):
        return value.device
    if isinstance(value, (list, tuple)):
        return next((d for d in map(_device, value) if d is not None), None)
    return None
