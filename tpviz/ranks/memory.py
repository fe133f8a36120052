"""Memory over time: bytes of live tensors of this rank, in four kinds.

Follows storages, not tensors (views share one): a storage is counted when an operator first returns
it and uncounted when it dies. Kinds: *parameters* (storages of `nn.Parameter`s), *gradients*
(storages that are some parameter's ``.grad``), *optimizer* (optimizer states, and what an
optimizer's step makes), *activations* (everything else, inputs and communication buffers included).
A kind may change: an activation becomes a gradient.
"""

import gc
import time
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .clock import OrderClock
from .compute import SeesCompiled, leave_alone
from .operations import flat

if TYPE_CHECKING:
    from .phases import Phases

_DEVICE = torch.ops.prim.device.default
KINDS = ("parameters", "gradients", "optimizer", "activations")


class MemoryHook(SeesCompiled):
    """Counts allocations while entered; `series` gives the samples.

    With a clock, as for a capture, its stamps are the times, and only fake tensors count.
    """

    def __init__(self, phases: "Phases", clock: OrderClock | None = None):
        super().__init__()
        self.phases, self.fake = phases, clock is not None
        self.now = clock.now if clock else time.perf_counter
        self.live = {}  # storage id -> [bytes, kind, weak reference]
        self.totals: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.samples, self.hooks, self.muted = [], [], False

    def __enter__(self):
        tensors, states = _alive(self.fake)
        for t in states:
            self._see(t, "optimizer")
        for t in sorted(tensors, key=lambda t: not isinstance(t, torch.nn.Parameter)):
            self._see(t, "parameters" if isinstance(t, torch.nn.Parameter) else "activations")
            if t.is_leaf and t.requires_grad:
                self._gradient_of(t)
                self.hooks.append(t.register_post_accumulate_grad_hook(self._gradient_of))
        self.samples.clear()  # all of this was there before, in no order
        self._sample()
        self._watch_resizing()
        return super().__enter__()

    def __exit__(self, *exc):
        torch.UntypedStorage.resize_ = self.plain_resize
        for hook in self.hooks:
            hook.remove()
        return super().__exit__(*exc)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is _DEVICE and type(args[0]) is FakeTensor:
            return args[0].fake_device
        result = func(*args, **(kwargs or {}))
        self.see(result)
        return result

    def see(self, value: Any) -> None:
        """Count the tensors of ``value`` that are new."""
        if self.muted:
            return
        kind = "optimizer" if self.phases.in_optimizer else "activations"
        for t in flat(value):
            self._see(t, kind)

    def _see(self, tensor, kind):
        tensor = getattr(tensor, "_local_tensor", tensor)  # a DTensor's bytes are its local shard's
        storage = tensor.untyped_storage()
        known = self.live.get(id(storage))
        if known is not None and known[2]() is storage:
            if kind == "gradients" and known[1] == "activations":
                self.totals[known[1]] -= known[0]
                self.totals[kind] += known[0]
                known[1] = kind
                self._sample()
            return
        self._follow(storage, kind)
        self.totals[kind] += storage.nbytes()
        self._sample()

    def unseen(
        self, shape: torch.Size, dtype: torch.dtype, device: torch.device, counted: bool
    ) -> torch.Tensor:
        """A new tensor that is in the totals already. counted : until it dies; else for good."""
        self.muted = True
        made = torch.empty(shape, dtype=dtype, device=device)
        self.muted = False
        if counted:
            self._follow(made.untyped_storage(), "activations")
        return made

    def _follow(self, storage, kind):
        """Uncount it when it dies."""
        key = id(storage)
        self.live[key] = [storage.nbytes(), kind, weakref.ref(storage, lambda _: self._gone(key))]

    def _watch_resizing(self):
        """Fully sharded parameters (FSDP, ZeRO 3) are freed and brought back by resizing."""
        plain = self.plain_resize = torch.UntypedStorage.resize_

        def resize_(storage, size):
            plain(storage, size)
            known = self.live.get(id(storage))
            if known is not None and known[2]() is storage:
                self.totals[known[1]] += storage.nbytes() - known[0]
                known[0] = storage.nbytes()
                self._sample()
            return storage

        leave_alone(resize_)
        torch.UntypedStorage.resize_ = resize_  # pyright: ignore[reportAttributeAccessIssue]

    def _gone(self, key):
        entry = self.live.pop(key, None)
        if entry:
            self.totals[entry[1]] -= entry[0]
            self._sample()

    def _gradient_of(self, leaf):
        if leaf.grad is not None:
            self._see(leaf.grad, "gradients")

    def _sample(self):
        self.samples.append((self.now(), *self.totals.values()))

    def series(self) -> dict[str, list[float]]:
        """{"time": seconds, kind: bytes at that time, ...}: the last sample of each moment."""
        columns = list(zip(*self.samples)) or [()] * 5
        return dict(zip(("time", *KINDS), map(list, columns)))


leave_alone(MemoryHook.__torch_dispatch__, MemoryHook._gradient_of)


def _alive(fake):
    """(all tensors, tensors of optimizer states), found through the garbage collector.

    ``type`` rather than isinstance, which would wake lazy proxies.
    """
    gc.collect()  # garbage kept alive by cycles is not the program's memory
    objects = gc.get_objects()
    tensors = [o for o in objects if issubclass(type(o), torch.Tensor) and _has_bytes(o)]
    # This process may hold others: for a capture, of whatever else it does; else the compiler's.
    tensors = [t for t in tensors if isinstance(getattr(t, "_local_tensor", t), FakeTensor) == fake]
    states = [
        t
        for o in objects
        if issubclass(type(o), torch.optim.Optimizer)
        for state in o.state.values()
        for t in state.values()
        if isinstance(t, torch.Tensor)
    ]
    return tensors, states


def _has_bytes(tensor):
    """Before torch 2.10 only C++ may own a tensor found so, and another thread may free it."""
    tensor._fix_weakref()  # Python owns it from here on
    try:
        return tensor.device.type != "meta"
    except RuntimeError:  # freed before that: an object without a tensor
        return False
