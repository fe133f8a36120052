"""Seeing compute: every kernel that does arithmetic, in forward and backward, with its FLOPs.

A `TorchDispatchMode` sees all operators but costs about 8 us each, 25 % of a small step, most of it
spent on views. So by default only the operators that do work (`KERNELS`) are intercepted, by
registering a Python kernel for them at a dispatch key above autograd that no device uses
(AutocastIPU) and including that key while recording: 2 % of the same step. See docs/adr/0003.
``detail="all"`` takes the dispatch mode.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

KERNELS = """
mm addmm bmm baddbmm convolution convolution_backward native_layer_norm native_layer_norm_backward
_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
gelu gelu_backward relu threshold_backward silu silu_backward tanh tanh_backward
sigmoid sigmoid_backward _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data
nll_loss_forward nll_loss_backward embedding embedding_dense_backward
native_dropout native_dropout_backward add.Tensor mul.Tensor
_fused_adamw_ _fused_adam_ _fused_sgd_
_foreach_add_.List _foreach_mul_.Scalar _foreach_lerp_.Scalar _foreach_addcmul_.Scalar
_foreach_addcdiv_.ScalarList _foreach_sqrt _foreach_norm.Scalar
""".split()

_KEY = torch._C.DispatchKey.AutocastIPU
_KEY_NAME = "AutocastIPU"
_BELOW = torch._C._dispatch_keyset_full_after(_KEY)
_BINARY = {torch.ops.aten.add, torch.ops.aten.mul}

_observe = None  # (clock's now, callable(operator, start, end, args, result)) while recording
_busy = False  # inside an intercepted kernel: what it calls is part of it
_resumed = None  # when the last wait inside it ended


def _kernel(operator):
    redispatch = operator.redispatch
    if operator.overloadpacket in _BINARY:
        redispatch = _accepting_numbers(operator)

    def kernel(keyset, *args, **kwargs):
        global _busy, _resumed
        keyset = keyset & _BELOW
        if _observe is None or _busy:
            return redispatch(keyset, *args, **kwargs)
        now, note = _observe
        _busy, _resumed = True, None
        start = now()
        try:
            result = redispatch(keyset, *args, **kwargs)
        finally:
            _busy = False
        note(operator, _resumed or start, now(), args, result)
        return result

    return kernel


def resumed(stamp):
    """A wait ended inside a kernel: DTensor moved data first, and computes from here on."""
    global _resumed
    _resumed = stamp


def _accepting_numbers(operator):
    """``x + 1`` arrives with a bare number, which redispatching refuses: call past this key."""
    redispatch, this_key = operator.redispatch, torch._C.DispatchKeySet(_KEY)

    def call(keyset, *args, **kwargs):
        if all(isinstance(a, torch.Tensor) for a in args[:2]):
            return redispatch(keyset, *args, **kwargs)
        with torch._C._ExcludeDispatchKeyGuard(this_key):
            return operator(*args, **kwargs)

    return call


def _register():
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(torch.library.fallthrough_kernel, _KEY_NAME)
    aten = torch.library.Library("aten", "IMPL")
    for name in KERNELS:
        packet, _, overload = name.partition(".")
        packet = getattr(torch.ops.aten, packet, None)
        operator = getattr(packet, overload or "default", None)
        if operator is not None:  # operators move between releases
            aten.impl(name, _kernel(operator), _KEY_NAME, with_keyset=True)
    return everything, aten


_LIBRARIES = _register()  # registrations live as long as these objects


class KernelHook:
    """While entered, ``note(operator, start, end, args, result)`` follows each of `KERNELS`."""

    def __init__(self, now, note):
        self.pair = (now, note)

    def __enter__(self):
        global _observe
        _observe = self.pair
        torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY_NAME, False)
        self.guard = torch._C._IncludeDispatchKeyGuard(_KEY)
        self.guard.__enter__()
        return self

    def __exit__(self, *exc):
        global _observe
        self.guard.__exit__(None, None, None)
        torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY_NAME, True)
        _observe = None


class EveryOperator(TorchDispatchMode):
    """The same for every aten operator, views included: slower, complete."""

    def __init__(self, now, note):
        super().__init__()
        self.now, self.note = now, note

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace != "aten":
            return func(*args, **(kwargs or {}))
        start = self.now()
        result = func(*args, **(kwargs or {}))
        self.note(func, start, self.now(), args, result)
        return result


def cost_of(operator, args, result):
    """(FLOPs, bytes of all operands and results) of one call; of a DTensor, of its local shard.

    This runs for every kernel, so it is written for speed: types are compared, since isinstance and
    missing attributes of tensors are slow, and only numbers are kept, since each container would
    bring the next garbage collection nearer.
    """
    touched = 0
    for a in (*args, result):
        kind = type(a)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            touched += a.nbytes
        elif kind is list or kind is tuple:
            touched += sum(t.nbytes for t in a if isinstance(t, torch.Tensor))
        elif isinstance(a, torch.Tensor):
            touched += _local(a).nbytes
    return _flops(operator.overloadpacket, args, result), touched


def _flops(packet, args, result):
    """A GEMM's 2 m k n at once; other formulas are torch.utils.flop_counter's."""
    position = _GEMMS.get(packet)
    if position is not None:
        left, right = _local(args[position]), _local(args[position + 1])
        return 2 * left.numel() * right.shape[-1]
    formula = flop_registry.get(packet) or flop_registry.get(_SAME_AS.get(packet))
    if formula is None:
        return 0
    out = result[0] if isinstance(result, (list, tuple)) else result
    return int(formula(*map(_local, args), out_val=_local(out)))


def _local(value):
    return getattr(value, "_local_tensor", value) if type(value) is not torch.Tensor else value


_aten = torch.ops.aten
# The first matrix is this argument, the second the next one.
_GEMMS = {_aten.mm: 0, _aten.bmm: 0, _aten.addmm: 1, _aten.baddbmm: 1}
# The counter has no formula for attention on the CPU; its arithmetic and first arguments are the
# GPU's.
_SAME_AS = {
    getattr(_aten, f"_scaled_dot_product_flash_attention_for_cpu{pass_}"): getattr(
        _aten, f"_scaled_dot_product_flash_attention{pass_}"
    )
    for pass_ in ("", "_backward")
}
