"""One forward of a model, watched: which modules compute in less than float64, and which layers'
parameters are read by something else than the layer."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from .partition.leaves import tensors_of


class ForwardWatch(TorchFunctionMode):
    """Every function of torch that a forward calls. inside : paths of the modules that are in their
    forward, the innermost last."""

    def __init__(self):
        super().__init__()
        self.inside: list[str] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        given, result = (args, kwargs or {}), None
        try:
            result = function(*args, **(kwargs or {}))
        finally:
            self.see(function, given, result)
        return result

    def see(self, function: Callable[..., Any], given: Any, result: Any) -> None:
        """Called for each function. given : (args, kwargs). result : None if it raised."""
        raise NotImplementedError

    @contextmanager
    def of(self, model: torch.nn.Module) -> Iterator[None]:
        """While inside, the forward of ``model`` is watched."""
        hooks = []

        def leave(*_):
            self.inside.pop()  # what a hook returns would be the module's output

        for path, module in model.named_modules():
            hooks.append(
                module.register_forward_pre_hook(lambda *_, path=path: self.inside.append(path))
            )
            hooks.append(module.register_forward_hook(leave, always_call=True))
        with hooked(hooks), self:
            yield


@contextmanager
def hooked(hooks: Iterable[RemovableHandle]) -> Iterator[None]:
    """Inside, these hooks are there; afterwards they are gone."""
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def in_evaluation(model: torch.nn.Module) -> Iterator[None]:
    """Inside, all of a model is in evaluation mode; outside every part in its own."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


# -- which modules of a float64 model compute in less ----------------------------------------------
# Some models do so on purpose (norms of Gemma, losses of Hugging Face's language models). Two
# correct programs then differ by that rounding, though all parameters are float64. What depends on
# no parameter (tables of positions) is the same in both, and does not count.
LOSS = "the loss"


class _Reduced(ForwardWatch):
    """Notes results below float64, by the path of the module that is in its forward."""

    def __init__(self):
        super().__init__()
        self.found: dict[str, torch.dtype] = {}

    def see(self, function, given, result):
        reduced = [t for t in tensors_of(result) if _reduced(t.dtype)]
        # in the forward of an autograd function results need no gradient, but its inputs may
        if reduced and any(t.requires_grad for t in (*reduced, *tensors_of(given))):
            path = self.inside[-1] if self.inside else LOSS
            seen = (self.found.get(path), *(t.dtype for t in reduced))
            self.found[path] = max(filter(None, seen), key=lambda dtype: torch.finfo(dtype).eps)


@contextmanager
def watched(model: torch.nn.Module) -> Iterator[dict[str, torch.dtype]]:
    """While inside, the forward of ``model`` is watched. Gives {path of a module: the lowest dtype
    below float64 that it computes in}; what is around the model is `LOSS`."""
    watch = _Reduced()
    with watch.of(model):
        yield watch.found


def _reduced(dtype):
    return (dtype.is_floating_point or dtype.is_complex) and torch.finfo(dtype).eps > torch.finfo(
        torch.float64
    ).eps


def lowest(found: dict[str, torch.dtype]) -> torch.dtype:
    """The dtype with the coarsest rounding of those that `watched` gave; float64 for none."""
    return max(found.values(), key=lambda dtype: torch.finfo(dtype).eps, default=torch.float64)


# -- which layers cannot be replaced, as something else reads their parameters ---------------------
class _Reads(ForwardWatch):
    """Notes the use of a layer's parameters outside of its forward. layers : {path: layer}."""

    def __init__(self, model: torch.nn.Module, layers: Iterable[tuple[str, torch.nn.Module]]):
        super().__init__()
        self.modules, self.found = dict(model.named_modules()), dict[str, str]()
        self.owner = {
            id(parameter): (path, name)
            for path, layer in layers
            for name, parameter in layer.named_parameters(recurse=False)
        }

    def see(self, function, given, result):
        if result is not None and not tensors_of(result):
            return  # a dtype, a shape or a device is no part of the numbers
        for tensor in tensors_of(given):
            path, name = self.owner.get(id(tensor), (None, ""))
            if path is not None and path not in self.inside and not _only_asks(function, given):
                reader = type(self.modules[self.inside[-1]]).__name__ if self.inside else "a hook"
                self.found.setdefault(path, f"its {name} is read elsewhere, by {reader}")


def _only_asks(function, given):
    """Whether a tensor is asked for its dtype and device alone."""
    name = getattr(function, "__name__", "")
    asked = name in ("to", "type_as") and not isinstance(given[0][0], torch.nn.Parameter)
    return asked or name.startswith("new_")


def read_elsewhere(
    model: torch.nn.Module,
    paths: Iterable[str],
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
) -> dict[str, str]:
    """{path: the module that reads the parameters of the layer there without calling it}, for the
    ``paths`` where this happens in one forward of ``inputs`` in evaluation mode, until it raises.
    """
    watch = _Reads(model, [(path, model.get_submodule(path)) for path in paths])
    with (
        suppress(Exception),
        in_evaluation(model),
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
        watch.of(model),
    ):
        model(*inputs[0], **inputs[1])
    return watch.found


class ReadElsewhere(_Reads):
    """Raises ``ValueError`` when something else than a split layer reads its parameters."""

    def see(self, function: Callable[..., Any], given: Any, result: Any) -> None:
        """Called for each function; raises if it reads parameters that were split."""
        super().see(function, given, result)
        for path, why in self.found.items():
            raise ValueError(
                f"{path}: {why}, but it was split, and this rank has only a part: give parallelize "
                "example_inputs, with which this is seen and the layer stays whole"
            )
