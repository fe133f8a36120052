"""Activations that wait on the host: what blocks keep for backward, copied there and brought back.

The first ``offload`` blocks of a rank do so, as Megatron-LM's ``--cpu-offloading-num-layers`` has
it. When a block's forward ends, the tensors that autograd keeps of it are copied to the host, under
the next block's forward; at its end they are waited for, and the device's memory is free. A block's
backward begins with the copy back of the block before it, and with a wait for its own: so one block
at most is in flight each way, and the device holds two of them at once (derived). The last block
of all needs its tensors at once, and keeps them.

A copy takes whole storages, once each however many tensors view them, without parameters and
constants. A thread makes it, on CUDA a stream. So its bytes are those that `grid.memory.block_kept`
counts, less what recomputation drops.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from threading import Thread
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from tpviz.core import copies
from tpviz.core.copies import FROM_HOST, TO_HOST

from .model import ResidualBlock


def offload(module: nn.Module, count: int) -> None:
    """Have the first ``count`` blocks of a network keep on the host what backward needs."""
    blocks = [m for m in module.modules() if count and isinstance(m, ResidualBlock)]
    way = Away()
    for number, block in enumerate(blocks[: count + 1]):
        block.away = InTurn(way, number, number < count)


class StorageAway:
    """One storage that autograd keeps: its bytes are on the device, on the host, or in flight."""

    def __init__(self, seen: Tensor):
        size = seen.untyped_storage().nbytes() // seen.itemsize
        self.device: Tensor | None = seen.detach().as_strided((size,), (1,), 0)
        self.host: Tensor | None = None
        self.like = size, seen.dtype, seen.device

    @property
    def bytes(self) -> int:
        """Its size."""
        size, dtype, _ = self.like
        return size * dtype.itemsize

    def to_host(self) -> None:
        """Copy it, where it has numbers."""
        size, dtype, device = self.like
        if not isinstance(self.device, FakeTensor):
            self.host = torch.empty(size, dtype=dtype, pin_memory=device.type == "cuda")
            self.host.copy_(self.device, non_blocking=True)  # pyright: ignore[reportArgumentType]

    def from_host(self) -> None:
        """Copy it back to where there is room for it."""
        if self.host is not None:
            self.device.copy_(self.host, non_blocking=True)  # pyright: ignore[reportOptionalMemberAccess]

    def make_room(self) -> None:
        """Room on the device."""
        size, dtype, device = self.like
        self.device = torch.empty(size, dtype=dtype, device=device)


class Copy:
    """A copy of storages on its way, one at a time each way; `wait` for it."""

    def __init__(self, way: str, storages: Sequence[StorageAway]):
        self.way, self.watcher = way, copies.watcher
        self.storages, self.thread, self.event, self.error = [*storages], None, None, None
        size, device = sum(s.bytes for s in storages), storages[0].like[2]
        if device.type == "cuda":
            self._on_stream(size, device)
            return
        self.row = self.watcher and self.watcher.departed(way, size)
        if isinstance(storages[0].device, FakeTensor):  # seen by one thread alone
            self._make()
            return
        self.thread = Thread(target=self._in_thread, daemon=True)
        self.thread.start()

    def _on_stream(self, size, device):
        stream = _stream(self.way, device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            self.row = self.watcher and self.watcher.departed(self.way, size)
            self._make()
            self.event = stream.record_event()

    def _in_thread(self):
        try:
            self._make()
        except BaseException as error:  # for who waits
            self.error = error

    def _make(self):
        for storage in self.storages:
            storage.to_host() if self.way == TO_HOST else storage.from_host()
        if self.watcher:
            self.watcher.arrived(self.row)

    def wait(self) -> None:
        """Have compute wait until it has ended; what was copied away is freed on the device, what
        came back on the host."""
        start = self.watcher and self.watcher.stamp()
        if self.thread:
            self.thread.join()
        if self.error:
            raise self.error
        if self.event:
            torch.cuda.current_stream().wait_event(self.event)
        if self.watcher:
            self.watcher.awaited(self.row, start)
        for storage in self.storages:
            if self.way == TO_HOST:
                storage.device = None
            else:
                storage.host = None
        self.storages.clear()


_streams: dict[tuple[str, torch.device], Any] = {}


def _stream(way, device):
    """The stream of one direction: a device has an engine for each."""
    if (way, device) not in _streams:
        _streams[way, device] = torch.cuda.Stream(device)
    return _streams[way, device]


class KeptStorages:
    """What autograd keeps of one forward of a block. stay : keys of storages that do not leave."""

    def __init__(self, stay: Iterable[int]):
        self.stay, self.back = {*stay}, None
        self.storages: dict[int, StorageAway] = {}
        self.left: list[StorageAway] = []

    def pack(self, tensor: Tensor) -> Any:
        """What stands for a tensor until backward: the tensor itself, if it stays."""
        key = _storage(tensor)
        if key in self.stay:
            return tensor
        if key not in self.storages:
            self.storages[key] = StorageAway(tensor)
        how = tensor.shape, tensor.stride(), tensor.storage_offset()
        return self.storages[key], tensor.dtype, how

    @staticmethod
    def unpack(packed: Any) -> Tensor:
        """The tensor, when its node's backward needs it."""
        if isinstance(packed, Tensor):
            return packed
        storage, dtype, how = packed
        return storage.device.view(dtype).as_strided(*how)

    def leave(self) -> Copy | None:
        """Begin the copy to the host."""
        self.left = [*self.storages.values()]
        self.storages.clear()
        return Copy(TO_HOST, self.left) if self.left else None

    def come(self) -> None:
        """Begin the copy back."""
        for storage in self.left:
            storage.make_room()
        self.back = Copy(FROM_HOST, self.left) if self.left else None
        self.left.clear()

    def wait(self) -> None:
        """Wait for the copy back; what was kept is now autograd's alone."""
        if self.back:
            self.back.wait()
        self.back = None


class Away:
    """A network's copies: what is ``leaving``; ``last`` : what was kept of the last forward."""

    leaving: Copy | None = None
    last: KeptStorages | None = None

    def arrive(self) -> None:
        """Wait for what is leaving."""
        if self.leaving:
            self.leaving.wait()
        self.leaving = None


class InTurn:
    """The part of a block, by its number, in it. leaves : whether its tensors go; they stay of the
    block behind those that do."""

    def __init__(self, away: Away, number: int, leaves: bool):
        self.away, self.number, self.leaves = away, number, leaves

    def forward(self, block: nn.Module, run: Callable[..., Tensor], x: Tensor, **how: Any) -> Any:
        """``run`` on x, and what this block's forward and backward copy."""
        if not torch.is_grad_enabled():
            return run(x, **how)
        away, kept = self.away, None
        before = away.last if self.number else None
        if self.leaves:
            kept = KeptStorages(map(_storage, _held(block)))
            with torch.autograd.graph.saved_tensors_hooks(kept.pack, kept.unpack):
                y = run(x, **how)
        else:
            y = run(x, **how)
        away.arrive()
        away.last, away.leaving = kept, kept and kept.leave()
        return Entering.apply(y, kept, before)


class Entering(torch.autograd.Function):
    """Where a gradient enters a block."""

    @staticmethod
    def forward(
        ctx: Any, y: Tensor, own: KeptStorages | None, before: KeptStorages | None
    ) -> Tensor:
        ctx.own, ctx.before = own, before
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.own:
            ctx.own.wait()
        if ctx.before:
            ctx.before.come()
        ctx.own = ctx.before = None
        return grad, None, None


def _held(block: nn.Module) -> Iterable[Tensor]:
    """Parameters and constants, which are there anyway."""
    yield from block.parameters()
    for module in block.modules():
        owners = [module, heads := getattr(module, "heads", None), getattr(heads, "inside", None)]
        values = chain.from_iterable(vars(owner).values() for owner in owners if owner is not None)
        yield from (value for value in values if isinstance(value, Tensor))


def _storage(tensor):
    return tensor.untyped_storage()._cdata
