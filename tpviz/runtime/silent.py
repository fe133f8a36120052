"""Groups that move nothing: every operation is done at once."""

import torch

from .staging import DoneWork


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
