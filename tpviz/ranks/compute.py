"""Seeing compute: the kernels that do the arithmetic, in forward and backward, with their FLOPs.

A `TorchDispatchMode` sees all operators but costs about 8 µs each, 25 % of a small step, most of it
spent on views. So by default only the operators that carry the FLOPs, and the optimizer's
(`KERNELS`), are intercepted, by registering a Python kernel for them while recording: at
BackendSelect, the dispatch key that all operators pass last before their device's kernel. Autograd
and DTensor are over by then, and a thread's dispatch state, which compiled code is guarded by,
stays as it is. What is noted of a call is as little as possible, and read later: between two GEMMs
the caches are cold, and Python runs ten times slower than in a loop. See docs/adr/0003.
``detail="all"`` takes the dispatch mode. Fake tensors are noted when captured, at a key above
autograd that nothing else uses (AutocastIPU): many never come down to a device.
"""

import functools
import time
from collections.abc import Callable
from functools import lru_cache
from threading import get_ident
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from tpviz.core import labels

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from .compiled import _StandIn

    Operator = OpOverload | _StandIn

    Shapes = tuple[torch.Size, torch.Size] | list[Any] | None


# -- Python of ours that torch.compile must run and not compile ------------------------------------
# While a compiled function runs, Dynamo looks at every Python frame that starts in its thread, also
# at those that C++ calls: hooks, kernels, process groups.
_frames = torch._C._dynamo.eval_frame  # pyright: ignore[reportAttributeAccessIssue]


def leave_alone(*functions: FunctionType, with_callees: bool = True) -> None:
    """Have Dynamo run these functions, and by default whatever they call, as plain Python."""
    skip = _frames._FrameAction.SKIP
    inner = skip if with_callees else _frames._FrameAction.DEFAULT
    for function in functions:
        _frames.set_code_exec_strategy(function.__code__, _frames._FrameExecStrategy(skip, inner))


KERNELS = """
mm addmm bmm baddbmm mm.out addmm.out bmm.out baddbmm.out convolution convolution_backward
_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
_fused_adamw_ _fused_adam_ _fused_sgd_
""".split()

_DEVICE_KEY, _FAKE_KEY = "BackendSelect", "AutocastIPU"
_task_id = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node

_observe = None  # (clock's now, callable(Note)) while recording and not inside a kernel
_thread = 0  # the one that records; of others', only autograd's are noted
_resumed = None  # when the last wait inside it ended


class Note(NamedTuple):
    """The record of one kernel: it holds no tensors and nothing that can be derived later."""

    operator: "Operator"
    start: Any
    end: Any
    task: int
    """autograd's graph task, -1 outside backward"""
    node: int | None
    """the autograd node's sequence number, None outside backward"""
    label: labels.Label
    shapes: "Shapes"
    """what `flops` and `traffic` need of its arguments"""
    dtype: torch.dtype | None
    """torch's dtype of its numbers, None where it has none"""


# GEMMs, and which of their arguments is the first matrix; the second comes next.
_GEMMS = {
    getattr(torch.ops.aten, name): first
    for name, first in (("mm", 0), ("bmm", 0), ("addmm", 1), ("baddbmm", 1))
}
# Fused optimizers: how often they read or write a parameter's bytes (weight, gradient, moments).
_OPTIMIZERS = {
    getattr(torch.ops.aten, name): times
    for name, times in (("_fused_adamw_", 7), ("_fused_adam_", 7), ("_fused_sgd_", 5))
}
# The counter has no formula for attention on the CPU; its arithmetic and first arguments are the
# GPU's.
_SAME_AS = {
    getattr(torch.ops.aten, f"_scaled_dot_product_flash_attention_for_cpu{way}"): getattr(
        torch.ops.aten, f"_scaled_dot_product_flash_attention{way}"
    )
    for way in ("", "_backward")
}


def _key(name):
    return getattr(torch._C.DispatchKey, name)


def _kernel(operator, key):
    redispatch = operator._handle.redispatch_boxed  # what operator.redispatch calls, a frame less
    below = torch._C._dispatch_keyset_full_after(_key(key))
    first = _GEMMS.get(operator.overloadpacket)

    def kernel(keyset, *args, **kwargs):
        global _observe, _resumed
        observe = _observe
        if observe is None or (get_ident() != _thread and _task_id() < 0):
            return redispatch(keyset & below, *args, **kwargs)
        now, note = observe
        _observe = _resumed = None  # what this kernel calls is part of it
        start = now()
        try:
            result = redispatch(keyset & below, *args, **kwargs)
        finally:
            _observe = observe
        end, task = now(), _task_id()
        node = _node() if task >= 0 else None
        sequence = None if node is None else node._sequence_nr()
        if first is not None and type(args[first]) is torch.Tensor:
            a = args[first]
            shapes, dtype = (a.shape, args[first + 1].shape), a.dtype  # the common case, quickest
        else:
            shapes, dtype = _shapes(args, result)
        # a plain tuple, which `Note` names later: one call less
        note((operator, _resumed or start, end, task, sequence, labels._current, shapes, dtype))
        return result

    leave_alone(kernel)
    return kernel


def resumed(stamp: Any) -> None:
    """A wait ended inside a kernel: DTensor moved data first, and computes from here on."""
    global _resumed
    _resumed = stamp


def _shapes(args, result):
    """(shapes, dtype): of tensors (a DTensor's local shard) their shapes, of lists of tensors their
    elements in all, other arguments as they are; the result's last."""
    found, dtype = [], None
    for a in (*args, result):
        if isinstance(a, torch.Tensor):
            dtype = dtype or a.dtype
            a = _local(a).shape
        elif isinstance(a, (list, tuple)) and a and isinstance(a[0], torch.Tensor):
            dtype = dtype or a[0].dtype
            if isinstance(a, tuple):
                a = [_local(t).shape if isinstance(t, torch.Tensor) else t for t in a]
            else:
                a = torch.Size([sum(_local(t).numel() for t in a)])
        found.append(a)
    return found, dtype


def _local(tensor):
    return getattr(tensor, "_local_tensor", tensor)


def _register(key):
    """The kernels of `KERNELS` at a dispatch key, for as long as the library returned is kept."""
    aten = torch.library.Library("aten", "IMPL")
    for name in KERNELS:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if operator is not None:  # operators move between releases
            aten.impl(name, _kernel(operator, key), key, with_keyset=True)
    return aten


_LIBRARY = torch.library.Library("_", "IMPL")
_LIBRARY.fallback(torch.library.fallthrough_kernel, _FAKE_KEY)


class KernelHook:
    """While entered, ``note`` gets the fields of a `Note` after each of `KERNELS` on a device.

    With ``fake``, on fake tensors: as many as the program calls, a DTensor's once.
    """

    def __init__(
        self,
        now: Callable[[], Any],
        note: Callable[[tuple[Any, ...]], Any],
        fake: bool = False,
    ):
        self.pair, self.fake = (now, note), fake

    def __enter__(self):
        global _thread
        _thread = get_ident()
        self.library = _register(_FAKE_KEY if self.fake else _DEVICE_KEY)
        self.resume()
        if self.fake:
            torch._C._dispatch_tls_set_dispatch_key_excluded(_FAKE_KEY, False)
            self.guard = torch._C._IncludeDispatchKeyGuard(_key(_FAKE_KEY))
            self.guard.__enter__()
        return self

    def __exit__(self, *exc):
        if self.fake:
            self.guard.__exit__(None, None, None)
            torch._C._dispatch_tls_set_dispatch_key_excluded(_FAKE_KEY, True)
        self.pause()
        self.library._destroy()

    def pause(self) -> None:
        """Note nothing until `resume`: torch.compile tries operators out."""
        global _observe
        _observe = None

    def resume(self) -> None:
        """Take notes again."""
        global _observe
        _observe = self.pair


class SeesCompiled(TorchDispatchMode):
    """A mode in which what is compiled runs as compiled, and its operators are seen.

    Torch asks Dynamo to skip each call of a mode, which takes 3 µs; `leave_alone` does it for all.
    """

    ignore_compile_internals = classmethod(lambda cls: True)  # pyright: ignore[reportAssignmentType]
    _should_skip_dynamo = classmethod(lambda cls: False)  # pyright: ignore[reportAssignmentType]


class EveryOperator(SeesCompiled):
    """As `KernelHook`, for every aten operator, views included: slower, but complete."""

    def __init__(self, now: Callable[[], Any], note: Callable[[tuple[Any, ...]], Any]):
        super().__init__()
        self.now, self.note, self.paused = now, note, False

    def pause(self) -> None:
        """Note nothing until `resume`, as `KernelHook` does."""
        self.paused = True

    def resume(self) -> None:
        """Take notes again."""
        self.paused = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.paused or func.namespace != "aten":
            return func(*args, **(kwargs or {}))
        start = self.now()
        result = func(*args, **(kwargs or {}))
        end = self.now()
        shapes, dtype = (None, None) if _is_view(func) else _shapes(args, result)
        self.note(fields(func, start, end, shapes, dtype))
        return result


leave_alone(EveryOperator.__torch_dispatch__)


def fields(
    operator: "Operator", start: Any, end: Any, shapes: "Shapes", dtype: torch.dtype | None
) -> tuple[Any, ...]:
    """The fields of a `Note` of what has just run in this thread."""
    node = _node()
    sequence = None if node is None else node._sequence_nr()
    return operator, start, end, _task_id(), sequence, labels._current, shapes, dtype


def _is_view(operator):
    """Whether the operator only gives its argument another shape: it moves nothing."""
    aliases = [r.alias_info for r in operator._schema.returns]
    return any(a is not None and not a.is_write for a in aliases)


def flops(operator: "Operator", shapes: "Shapes") -> int:
    """FLOPs of one call, by torch.utils.flop_counter's formulas (2 per multiply-add); of causal
    attention half, as `tpviz.schemes.gpt.kernels` says."""
    if shapes is None:
        return 0
    packet = operator.overloadpacket
    if type(shapes) is tuple:
        return 2 * shapes[0].numel() * shapes[1][-1]
    if packet not in flop_registry and packet not in _SAME_AS:
        return 0
    return _by_formula(operator, *(tuple(s) if isinstance(s, list) else s for s in shapes))


@lru_cache(4096)  # a step has few different ones, and the counter takes 0.2 ms for each
def _by_formula(operator, *shapes):
    packet, names = operator.overloadpacket, [a.name for a in operator._schema.arguments]
    causal = "is_causal" in names and shapes[names.index("is_causal") : -1][:1] == (True,)
    formula = flop_registry.get(packet) or flop_registry[_SAME_AS[packet]]
    if "scaled_dot_product" in packet.__name__:  # torch 2.9 has no grouped-query count
        heads = max(s[1] for s in shapes if _is_4d(s))
        shapes = [(s[0], heads, *s[2:]) if _is_4d(s) else s for s in shapes]
    return int(formula(*shapes[:-1], out_val=shapes[-1])) // (1 + causal)


def _is_4d(shape):
    """Whether this is the shape of a tensor (batch, heads, sequence, features)."""
    return isinstance(shape, tuple) and len(shape) == 4 and all(isinstance(n, int) for n in shape)


def traffic(operator: "Operator", shapes: "Shapes", dtype: torch.dtype | None) -> int:
    """Bytes that one call reads and writes: its tensor arguments and results, each once.

    A fused optimizer reads and writes every parameter's weight, gradient and moments.
    """
    if shapes is None or dtype is None:
        return 0
    if type(shapes) is tuple:
        a, b = shapes
        bias = b[-1] if operator.overloadpacket is torch.ops.aten.addmm else 0
        elements = a.numel() + b.numel() + a[:-1].numel() * b[-1] + bias
    elif operator.overloadpacket in _OPTIMIZERS:
        elements = shapes[0].numel() * _OPTIMIZERS[operator.overloadpacket]
    else:
        elements = sum(map(_elements, shapes))
    return elements * dtype.itemsize


def _elements(shape):
    if isinstance(shape, torch.Size):
        return shape.numel()
    return sum(map(_elements, shape)) if isinstance(shape, list) else 0


# -- what recording itself takes -------------------------------------------------------------------
@functools.cache
def kernel_cost() -> float:
    """Seconds that recording adds to one kernel, on a one-element product; not while recording."""
    x = torch.ones(1, 1)
    plain = _seconds_each(lambda: x @ x)
    with KernelHook(time.perf_counter, [].append):
        return max(0.0, _seconds_each(lambda: x @ x) - plain)


def _seconds_each(function, times=300):
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(times):
            function()
        best = min(best, (time.perf_counter() - start) / times)
    return best
