"""What `trace` gives: a model as a list of operations, each with its cost and where it comes from.

Sizes are those of one microbatch. A *free* node is one that no parameter, no random number and no
write into a tensor goes into (positions, masks, rotary tables): every stage computes those that it
needs anew from the model's inputs, so they are never sent. The others are the *body*.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch

if TYPE_CHECKING:
    from torch import fx

    from .calls import TracedCall
    from .leaves import LeafCall


class TensorSpec(NamedTuple):
    """A tensor's name, shape and ``torch.dtype``."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> Self:
        """That of a tensor."""
        return cls(name, tuple(tensor.shape), tensor.dtype)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of all elements."""
        return self.numel * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Node:
    """One operation.

    path : of the innermost module around it, as in ``model.get_submodule``; "" is the model.
    op : its name, as "aten.linear"; of a leaf the module's type.
    parameters, buffers : names (as in ``named_parameters``) of what it uses, by keyword too.
    takes : names of the nodes and inputs it reads.
    value : `TensorSpec` of its output, None where that is no tensor.
    flops : of its forward, 2 per multiply-add (``torch.utils.flop_counter``).
    saves : {storage: bytes} that autograd keeps of it for backward, parameters and inputs aside.
    touches, writes : storages that it reads or makes, and those it writes into: numbers, of
        parameters, buffers and inputs names. A view has its base's.
    trained : whether a gradient comes back through it. learned : whether a parameter went into it.
    free : see above. embedding : whether it is a look-up in a parameter.
    """

    name: str
    op: str
    path: str
    parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    value: TensorSpec | None = None
    flops: int = 0
    saves: dict[int, int] = field(default_factory=dict)
    touches: frozenset[int | str] = frozenset()
    writes: frozenset[int | str] = frozenset()
    trained: bool = False
    learned: bool = False
    free: bool = False
    embedding: bool = False


@dataclass(frozen=True, eq=False)
class ModelGraph:
    """A traced model. Made by `trace`.

    nodes : all `Node` objects, in the order they run.
    inputs : {name: `TensorSpec`} of the model's tensor arguments.
    parameters, buffers : {name: `TensorSpec`} of the whole model, every name of a shared one.
    ties : groups of names of one parameter, each of which is used (``("lm_head.weight", ...)``).
    aliases : {used name: other names} of parameters and buffers that are one tensor.
    constants : {name: tensor} that the code reads beside parameters and buffers.
    results : names of the nodes and inputs that are the output's tensors, in order.
    types : {path: type's name} of all modules.
    training, device : how the model was traced; what depends on the mode is fixed.
    call : how arguments are named and outputs assembled, a `tracing.Call`.
    program : the ``torch.fx.GraphModule`` behind it. held : {its placeholder: name of a parameter,
    buffer or constant}. leaves : {node: `leaves.LeafCall`}.
    """

    model: str
    nodes: tuple[Node, ...]
    inputs: dict[str, TensorSpec]
    parameters: dict[str, TensorSpec]
    buffers: dict[str, TensorSpec]
    tied_weights: tuple[tuple[str, ...], ...]
    aliases: dict[str, tuple[str, ...]]
    constants: dict[str, torch.Tensor]
    results: tuple[str, ...]
    types: dict[str, str] = field(repr=False)
    training: bool
    device: torch.device
    call: "TracedCall" = field(repr=False)
    program: "fx.GraphModule" = field(repr=False)
    held: dict[str, str] = field(repr=False)
    leaves: "dict[str, LeafCall]" = field(repr=False)

    @cached_property
    def body(self) -> tuple[Node, ...]:
        """The nodes that belong to one stage each: all but the free ones."""
        return tuple(node for node in self.nodes if not node.free)

    @cached_property
    def first_names(self) -> dict[str, str]:
        """{name of a parameter: the first of its names}: tied ones count once."""
        return {name: group[0] for group in self.tied_weights for name in group}

    def numel(self, names: Iterable[str]) -> int:
        """Elements of the named parameters, tied ones once."""
        once = {self.first_names.get(name, name) for name in names}
        return sum(self.parameters[name].numel for name in once)

    def named(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        """{name: tensor} of a call's arguments, as stages take them.

        Raises ``ValueError`` where they do not fit the traced call.
        """
        return self.call.named(args, kwargs, self.inputs)

    def __deepcopy__(self, memo):
        return self  # nothing of it changes, and a copied stage needs no other

    def __repr__(self):
        numel = self.numel(self.parameters)
        return (
            f"ModelGraph({self.model}: {len(self.body)} operations, {numel:,} parameters, "
            f"inputs {', '.join(self.inputs)})"
        )
