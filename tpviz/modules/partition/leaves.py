"""Modules that stay one node: export sees an operator of ours in their place.

Needed where tracing through would lose something: an autograd function's backward (tensor-parallel
layers have one), or code that export cannot follow. Stages call the real module. Its output is as
``module.shape(*args, **kwargs)`` says if there is such a method (a ``torch.Size``, or tensors),
else as its forward on fake tensors, where collectives move nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map_only, tree_unflatten

Leaves = (
    type
    | tuple[type, ...]
    | list[type]
    | set[type]
    | frozenset[type]
    | Callable[[torch.nn.Module], bool]
)

_calls: "list[LeafCall]" = []  # of the trace being made
_depth = 0  # whether a leaf's forward runs


def inside() -> bool:
    """Whether a leaf's forward runs."""
    return _depth > 0


class NoShape(Exception):
    """Raised if the shape of a leaf's output cannot be found out."""

    def __init__(self, call: "LeafCall"):
        self.kind = type(call.module).__name__
        super().__init__(f"{call.path} ({self.kind})")


class TensorPlace:
    """Where a tensor stands among a call's arguments."""

    def __init__(self, number: int):
        self.number = number


class TreeFrame(NamedTuple):
    """A tree of values without its tensors: ``fixed`` has (value,) of each other leaf."""

    fixed: list[tuple[Any] | None]
    spec: TreeSpec

    @classmethod
    def of(cls, tree: Any) -> Self:
        """The frame of this tree."""
        leaves, spec = tree_flatten(tree)
        return cls([None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves], spec)

    def filled(self, tensors: Iterable[torch.Tensor]) -> Any:
        """The tree with these tensors in their places."""
        ahead = iter(tensors)
        leaves = [next(ahead) if fixed is None else fixed[0] for fixed in self.fixed]
        return tree_unflatten(leaves, self.spec)


class LeafCall:
    """One call of a leaf module. path : where it is in the model."""

    module: torch.nn.Module  # it and the next two: until `forget`
    forward: Callable[..., Any]
    shape: Callable[..., Any] | None
    output: TreeFrame  # once `like` was called

    def __init__(
        self,
        path: str,
        module: torch.nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ):
        self.path, self.module, self.forward = path, module, forward
        self.shape = getattr(module, "shape", None)
        self.tensors = []

        def place(tensor):
            self.tensors.append(tensor)
            return TensorPlace(len(self.tensors) - 1)

        self.frame = tree_map_only(torch.Tensor, place, (args, kwargs))

    def arguments(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) with these values in the places of tensors."""
        return tree_map_only(TensorPlace, lambda place: values[place.number], self.frame)

    def like(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Tensors like its output's. Raises `NoShape` where its forward cannot run on fakes."""
        global _depth
        args, kwargs = self.arguments(tensors)
        _depth += 1
        try:
            given = (self.shape or self.forward)(*args, **kwargs)
        except Exception as error:
            raise NoShape(self) from error
        finally:
            _depth -= 1
        if isinstance(given, torch.Size):
            given = tensors[0].new_empty(given)
        self.output = TreeFrame.of(given)
        return tensors_of(given)

    def forget(self) -> None:
        """Keep no hold on the model: stages ask theirs for the module at ``path``."""
        self.module = self.forward = self.shape = None  # pyright: ignore[reportAttributeAccessIssue]


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """The tensors in a value, in order."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@torch.library.custom_op("tpviz::leaf", mutates_args=())
def leaf(tensors: list[torch.Tensor], call: int) -> list[torch.Tensor]:
    """Call number ``call`` of a leaf, as export sees it."""
    raise RuntimeError("tpviz::leaf has no numbers: it is for tracing alone")


@leaf.register_fake
def _(tensors, call):
    return _calls[call].like(tensors)


@contextmanager
def leaves_of(model: torch.nn.Module, leaves: Leaves) -> Iterator[list[LeafCall]]:
    """While inside, calls of leaf modules are single operators. Gives the list of `LeafCall`s.

    leaves : types, or a function module -> bool.
    """
    chosen = leaves
    if isinstance(leaves, (type, tuple, list, set, frozenset)):
        types = leaves if isinstance(leaves, type) else tuple(leaves)
        chosen = lambda module: isinstance(module, types)
    found = {}
    for path, module in model.named_modules():
        if path and chosen(module) and not any(path.startswith(f"{p}.") for p in found):  # pyright: ignore[reportCallIssue]
            found[path] = module
    _calls[:] = []
    before = {path: module.__dict__.get("forward") for path, module in found.items()}
    for path, module in found.items():
        module.forward = _stub(path, module, module.forward)
    try:
        yield _calls
    finally:
        for path, module in found.items():
            del module.forward
            if before[path] is not None:
                module.forward = before[path]


def _stub(path, module, forward):
    def call(*args, **kwargs):
        made = LeafCall(path, module, forward, args, kwargs)
        _calls.append(made)
        tensors, made.tensors = made.tensors, None  # pyright: ignore[reportAttributeAccessIssue]
        given = torch.ops.tpviz.leaf(tensors, len(_calls) - 1)
        return made.output.filled(given)

    return call
