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
native_dropout native_dropout_backward add.Tensor mul.Tensor sub.Tensor div.Tensor
exp clone cat sum.dim_IntList mean.dim pow.Tensor_Scalar rsqrt
_fused_adamw_ _fused_adam_ _fused_sgd_
_foreach_add_.List _foreach_mul_.Scalar _foreach_lerp_.Scalar _foreach_addcmul_.Scalar
_foreach_addcdiv_.ScalarList _foreach_sqrt _foreach_norm.Scalar
""".split()

_KEY = torch._C.DispatchKey.AutocastIPU
_KEY_NAME = "AutocastIPU"
_BELOW = torch._C._dispatch_keyset_full_after(_KEY)
_BINARY = {torch.ops.aten.add, torch.ops.aten.sub, torch.ops.aten.mul, torch.ops.aten.div}

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


def shapes_of(args, result):
    """What `flops` and `touched_bytes` need of a call, without keeping its tensors alive.

    Of a DTensor the local shard counts: that is what this rank computes on.
    """
    item = 0
    shapes = []
    for a in (*args, result):
        if isinstance(a, torch.Tensor):
            item = item or a.element_size()
            a = getattr(a, "_local_tensor", a).shape
        elif isinstance(a, (list, tuple)) and a and isinstance(a[0], torch.Tensor):
            item = item or a[0].element_size()
            a = [t.shape for t in a if t is not None]
        shapes.append(a)
    return item, shapes


# The counter has no formula for attention on the CPU; its arithmetic and first arguments are the
# GPU's.
_FLASH = "_scaled_dot_product_flash_attention"
_SAME_AS = {
    f"{_FLASH}_for_cpu": getattr(torch.ops.aten, _FLASH),
    f"{_FLASH}_for_cpu_backward": getattr(torch.ops.aten, f"{_FLASH}_backward"),
}


def flops(operator, shapes):
    """FLOPs of one call, by torch.utils.flop_counter's formulas (2 per multiply-add)."""
    packet = operator.overloadpacket
    formula = flop_registry.get(packet) or flop_registry.get(_SAME_AS.get(packet.__name__))
    if formula is None:
        return 0
    out = shapes[-1][0] if isinstance(shapes[-1], list) else shapes[-1]
    return int(formula(*shapes[:-1], out_val=out))


def touched_bytes(item, shapes):
    """Bytes of all operand and result tensors of one call, each counted once per appearance."""
    flat = [s for a in shapes for s in (a if isinstance(a, list) else [a])]
    return item * sum(s.numel() for s in flat if isinstance(s, torch.Size))
