"""A model made ready for export, and put back after: stand-ins for its tensors, no caches, and no
autograd function that export would take for what its forward does.
"""

import io
import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from . import leaves

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode


def held_by(model: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """({name: parameter}, {name: buffer}) of a model, every name of a shared one."""
    return (
        dict(model.named_parameters(remove_duplicate=False)),
        dict(model.named_buffers(remove_duplicate=False)),
    )


def device_of(tensors: Iterable[torch.Tensor], default: torch.device) -> torch.device:
    """The device of the first tensor that is anywhere, meta ones aside."""
    return next((t.device for t in tensors if t.device.type != "meta"), default)


def stand_in(value: Any, mode: "FakeTensorMode", device: torch.device) -> Any:
    """A fake tensor like this one (a parameter for a parameter); anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    with mode:
        fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    if isinstance(value, nn.Parameter):
        return nn.Parameter(fake, value.requires_grad)
    return fake


@contextmanager
def stand_ins(model: nn.Module, mode: "FakeTensorMode", device: torch.device) -> Iterator[None]:
    """While inside, every parameter and buffer is a fake of its own: tied ones are apart.

    Gives {id of a fake: its name}.
    """
    before: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (of, dict(of)) for module in model.modules() for of in (module._parameters, module._buffers)
    ]
    try:
        for of, tensors in before:
            of.update({name: stand_in(t, mode, device) for name, t in tensors.items()})
        yield
    finally:
        for of, tensors in before:
            of.update(tensors)


@contextmanager
def no_caches(model: nn.Module) -> Iterator[None]:
    """While inside, Hugging Face models keep no keys and values for generation."""
    configs: dict[int, Any] = {
        id(c): c
        for module in model.modules()
        if getattr(c := getattr(module, "config", None), "use_cache", None) is True
    }
    try:
        for config in configs.values():
            config.use_cache = False
        yield
    finally:
        for config in configs.values():
            config.use_cache = True


class OwnBackward(Exception):
    """Raised where export would trace through a custom autograd function."""


@contextmanager
def no_own_backward() -> Iterator[None]:
    """While inside, `OwnBackward` is raised by autograd functions, those of leaves aside."""
    apply = torch.autograd.Function.__dict__["apply"]

    def refuse(cls, *args, **kwargs):
        if leaves.inside():
            return apply.__get__(None, cls)(*args, **kwargs)
        raise OwnBackward(cls.__name__)

    torch.autograd.Function.apply = classmethod(refuse)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        torch.autograd.Function.apply = apply


@contextmanager
def quiet() -> Iterator[None]:
    """While inside, nothing is logged, warned or written to stderr; errors are still raised."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
