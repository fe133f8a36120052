"""Collectives on CUDA tensors where gloo moves the bytes: through copies in host memory.

NCCL refuses two ranks on one GPU, and gloo knows few collectives on CUDA tensors, so a shared GPU's
tensors are copied to the host, reduced there, and copied back before the call returns.
"""

import os

import torch

from .devices import inner_kind


class DoneWork:
    """The handle of a collective that is finished when it is made: staged, or blocking."""

    def wait(self, timeout=None):
        """True at once."""
        return True

    def is_completed(self):
        """True."""
        return True

    is_success = is_completed

    def exception(self):
        """None: a failure was raised by the call."""

    def result(self):
        """No tensors of its own."""
        return []

    def get_future(self):
        """A future that is done."""
        future = torch.futures.Future()
        future.set_result(None)
        return future


def needs_staging(args):
    """Whether a call on these arguments must go through the host (``TPVIZ_STAGE=1`` forces it)."""
    device = _device(args)
    on_cuda = device is not None and device.type == "cuda"
    return (on_cuda and inner_kind() == "gloo") or os.environ.get("TPVIZ_STAGE") == "1"


def staged(operation, args, kwargs):
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

    operation(*(to_host(a) for a in args), **kwargs).wait()
    with torch.no_grad():
        for original, copy in pairs:
            original.detach().copy_(copy)
    return DoneWork()


def _device(value):
    """The device of the first tensor in nested arguments, or None."""
    if isinstance(value, torch.Tensor):
        return value.device
    if isinstance(value, (list, tuple)):
        return next((d for d in map(_device, value) if d is not None), None)
    return None
