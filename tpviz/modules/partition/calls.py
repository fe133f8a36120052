"""A model's call: its arguments by name, its output from tensors. Both are trees of values."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves

from .leaves import TreeFrame, tensors_of

if TYPE_CHECKING:
    from .graph import TensorSpec


def inputs_of(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of a tensor, a tuple of arguments, a dict of named ones, or (args, kwargs)."""
    if isinstance(example, dict):
        return (), dict(example)
    if isinstance(example, (tuple, list)):
        if (
            len(example) == 2
            and isinstance(example[0], (tuple, list))
            and isinstance(example[1], dict)
        ):
            return tuple(example[0]), dict(example[1])
        return tuple(example), {}
    return (example,), {}


class TracedCall:
    """How a model was called when it was traced.

    Arguments have their names in ``forward``; one that is a list or a dict has its tensors as
    "name_0" and so on. names : of the tensors, in order, once `name` has told them.
    """

    output: TreeFrame  # once the model was called

    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.model, self.signature = type(model).__name__, inspect.signature(model.forward)
        self.args, self.kwargs = self._bound(args, kwargs)
        self.leaves = tree_leaves((self.args, self.kwargs))
        self.fixed, self.spec = TreeFrame.of((self.args, self.kwargs))
        if all(self.fixed):
            raise ValueError(
                f"example_inputs have no tensor; {self.model}.forward takes {self.signature}"
            )

    def _bound(self, args, kwargs):
        """Every argument by its name, where ``forward`` lets it have one."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ValueError(
                f"inputs do not fit {self.model}.forward{self.signature}: {error}"
            ) from None
        kinds = {name: p.kind for name, p in self.signature.parameters.items()}
        if any(
            kinds[name] in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)
            for name in bound.arguments
        ):
            return args, kwargs
        named = {}
        for name, value in bound.arguments.items():
            named |= value if kinds[name] is inspect.Parameter.VAR_KEYWORD else {name: value}
        return (), named

    def named(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: "dict[str, TensorSpec]"
    ) -> dict[str, torch.Tensor]:
        """{name: tensor} of a later call, where arguments that are no tensors may be left out.
        inputs : {name: `TensorSpec`} of the traced one."""
        args, kwargs = self._bound(args, kwargs)
        fixed = {
            name: value
            for name, value in self.kwargs.items()
            if not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(value))
        }
        kwargs = fixed | kwargs
        if kwargs.keys() == self.kwargs.keys():
            kwargs = {name: kwargs[name] for name in self.kwargs}
        leaves, spec = tree_flatten((args, kwargs))
        if spec != self.spec:
            raise ValueError(
                f"{self.model} was traced with the arguments "
                f"{_words(self.args, self.kwargs)}, not {_words(args, kwargs)}: trace "
                "it with example inputs like these"
            )
        for leaf, fixed in zip(leaves, self.fixed):
            if fixed and (isinstance(leaf, torch.Tensor) or leaf != fixed[0]):
                raise ValueError(
                    f"{self.model} was traced with {fixed[0]!r} where now "
                    f"{leaf!r} is given: trace it with that value"
                )
        tensors = [leaf for leaf, fixed in zip(leaves, self.fixed) if not fixed]
        found = dict(zip(inputs, tensors))
        for name, tensor in found.items():
            check(name, tensor, inputs[name])
        return found

    def see(self, output: Any) -> None:
        """Keep the frame of the model's output, which its tensors fill later."""
        self.output = TreeFrame.of(output)


class Flat(nn.Module):
    """The model ``inner`` with only its output's tensors: export refuses caches and the like.
    seen : is given the whole output."""

    def __init__(self, inner: nn.Module, seen: Callable[[Any], Any] = lambda output: None):
        super().__init__()
        self.inner, self.seen = inner, seen
        self.training = inner.training

    def forward(self, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        """The tensors of the model's output, in order."""
        given = self.inner(*args, **kwargs)
        self.seen(given)
        return tensors_of(given)


def check(name: str, tensor: Any, spec: "TensorSpec") -> None:
    """Raise ``ValueError`` unless a tensor is as it was when the model was traced."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{name} has to be a tensor, not {type(tensor).__name__}")
    if tuple(tensor.shape) != spec.shape or tensor.dtype != spec.dtype:
        raise ValueError(
            f"{name} is {tensor.dtype} {tuple(tensor.shape)}, but the model was "
            f"traced with {spec.dtype} {spec.shape}: microbatches have that size, or "
            "trace it with this one"
        )


def _words(args, kwargs):
    return ", ".join([f"#{k}" for k in range(len(args))] + list(kwargs)) or "none"
