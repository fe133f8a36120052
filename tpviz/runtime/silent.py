"""Groups that move nothing: every operation is done at once."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


class Done(dist.Work):
    """The handle of a collective that moves nothing."""

    def __init__(self, tensors: Any = ()):
        super().__init__()
        self.tensors = tensors

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> torch.futures.Future:
        future = torch.futures.Future()
        future.set_result(self.tensors)
        return future


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
        return lambda *args, **kwargs: Done(args[0] if args else ())
