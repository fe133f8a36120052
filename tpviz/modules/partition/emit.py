"""Stages as modules: the operations of a stage, written as Python by ``torch.fx``, over parameters
that keep their names.
"""

import copy
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import fx, nn
from torch.utils._pytree import tree_map_only

from tpviz.schemes.operators import addmm, linear

from .calls import check
from .leaves import tensors_of
from .measure import LEAF
from .standins import device_of, held_by

if TYPE_CHECKING:
    from .graph import ModelGraph, Node
    from .stages import StagePart

_Values = tuple[torch.Tensor, ...]


class StageParts(NamedTuple):
    """A stage in parts: ``finish(layers[-1](... layers[0](begin(received, inputs))))``.

    Values between them are tuples: what crosses there first, then what the stage loads or computes
    for itself and later layers need. A layer is the stage's part of one shard. takes : of each
    layer the names of the values it takes. trained : of each layer, for each value, whether a
    gradient comes back through it.
    """

    begin: Callable[[_Values, dict[str, torch.Tensor]], _Values]
    layers: tuple[Callable[[_Values], _Values], ...]
    finish: Callable[[_Values], Any]
    takes: tuple[tuple[str, ...], ...]
    trained: tuple[tuple[bool, ...], ...]


class TracedStage(nn.Module):
    """One stage of a partitioned model. Made by `Partition.module`.

    ``stage(received, inputs)``: received is a tuple of what the stage before it sent; inputs a dict
    with the model's inputs that the stage needs, perhaps among others. Gives a tuple of what the
    next stage receives; the last stage gives what the model gives.

    Its parameters and buffers are the given model's own, under their names there, and there are no
    others. Leaf modules are the model's own too. It stays in the mode that was traced.
    """

    def __init__(
        self,
        graph: "ModelGraph",
        part: "StagePart",
        model: nn.Module,
        device: torch.device | str | None = None,
    ):
        super().__init__()
        self._graph, self._part = graph, part
        tensors, buffers = held_by(model)
        tensors |= buffers
        own = (tensors[name] for name in (*part.parameters, *part.buffers) if name in tensors)
        device = torch.device(device) if device else device_of(own, graph.device)
        for name in (*part.parameters, *part.buffers):
            _matches(graph, name, tensors)
        leaves = {graph.leaves[node.name].path for node in part.nodes if node.name in graph.leaves}
        for path in leaves:
            _place(self, path, model.get_submodule(path))
        for name in (*part.parameters, *part.buffers):
            if not any(name.startswith(f"{path}.") for path in leaves):
                self._hold(name, tensors, model, device)
        program = _on_device(graph.program, graph.device, device)
        for name, region in program.named_children():
            self.__dict__[name] = region  # not a part of the model: kept out of its names
        first = part.pieces[0].takes
        own = first[len(part.receives) :]
        self._begin = function(self, program, graph, part.free, part.inputs, own)
        self._layers = [
            function(self, program, graph, piece.nodes, piece.takes, piece.gives)
            for piece in part.pieces
        ]
        super().train(graph.training)

    def _hold(self, name, tensors, model, device):
        if name in self._graph.constants:
            tensor, persistent = self._graph.constants[name].to(device), False
        else:
            tensor, (path, _, last) = tensors[name], name.rpartition(".")
            persistent = last not in model.get_submodule(path)._non_persistent_buffers_set
        _place(self, name, tensor, persistent)

    # -- running -----------------------------------------------------------------------------------
    def forward(self, received: _Values, inputs: dict[str, torch.Tensor]) -> Any:
        """The stage; see the class."""
        values = self._start(received, inputs)
        for layer in self._layers:
            values = layer(self, values)
        return self._end(values)

    def in_parts(self) -> StageParts:
        """The stage as `StageParts`, for a pipeline that recomputes some layers."""
        trained = {node.name for node in self._graph.nodes if node.trained}
        takes = tuple(piece.takes for piece in self._part.pieces)
        return StageParts(
            self._start,
            tuple(partial(layer, self) for layer in self._layers),
            self._end,
            takes,
            tuple(tuple(name in trained for name in names) for names in takes),
        )

    def _start(self, received, inputs):
        if len(received) != len(self._part.receives):
            names = ", ".join(message.name for message in self._part.receives)
            raise ValueError(
                f"stage {self._part.index} receives ({names}), "
                f"{len(self._part.receives)} in number, not {len(received)}"
            )
        missing = [name for name in self._part.inputs if name not in inputs]
        if missing:
            raise ValueError(
                f"stage {self._part.index} needs the inputs "
                f"{', '.join(self._part.inputs)}; {', '.join(missing)} not given"
            )
        own = tuple(inputs[name] for name in self._part.inputs)
        for name, tensor in zip(self._part.inputs, own):
            check(name, tensor, self._graph.inputs[name])
        return (*received, *self._begin(self, own))

    def _end(self, values):
        if self._part.sends is not None:
            return values
        by_name = dict(zip(self._part.pieces[-1].gives, values))
        return self._graph.call.output.filled([by_name[name] for name in self._graph.results])

    def train(self, mode: bool = True) -> Self:
        """Refuses to change the mode: dropout and the like were traced in one."""
        if mode != self._graph.training:
            raise ValueError(
                f"this stage was traced in {_mode(self._graph.training)} mode: trace "
                f"the model in {_mode(mode)} mode for stages of that"
            )
        return super().train(mode)

    def extra_repr(self) -> str:
        """What it holds."""
        return f"stage {self._part.index}: {', '.join(self._part.paths)}"


def _mode(training):
    return "training" if training else "evaluation"


def _matches(graph, name, tensors):
    """The model given is the one that was traced, or one like it."""
    if name in graph.constants:
        return
    spec = graph.parameters.get(name) or graph.buffers[name]
    if name not in tensors:
        raise ValueError(f"this model has no {name}, which {graph.model} had when it was traced")
    check(name, tensors[name], spec)


def _place(root, name, value, persistent=True):
    """Put a tensor or a module at a dotted name, in plain modules."""
    *path, last = name.split(".")
    for step in path:
        if step not in root._modules:
            root.add_module(step, nn.Module())
        root = root._modules[step]
    if isinstance(value, nn.Module):
        root.add_module(last, value)
    elif isinstance(value, nn.Parameter):
        root.register_parameter(last, value)
    else:
        root.register_buffer(last, value, persistent)


def _on_device(program, traced, device):
    """The graph module with one device for another, in its parts too."""
    if device == traced:
        return program
    program = copy.deepcopy(program)
    for part in program.modules():
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                node.args, node.kwargs = tree_map_only(
                    torch.device, lambda d: device if d == traced else d, (node.args, node.kwargs)
                )
                if "autocast" in str(node.target):
                    node.args = (device.type, *node.args[1:])
            part.recompile()
    return program


# -- operations of a graph as a Python function on a stage -----------------------------------------
DEFERRABLE = {torch.ops.aten.linear.default: linear, torch.ops.aten.addmm.default: addmm}
"""{operator: the same, whose weights' gradients may come later}; Hugging Face's GPT-2 has both."""


def function(
    stage: "TracedStage",
    program: fx.GraphModule,
    graph: "ModelGraph",
    nodes: "Iterable[Node]",
    takes: Sequence[str],
    gives: Sequence[str],
) -> "Callable[[TracedStage, tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]]":
    """``function(stage, values)`` -> values: runs ``nodes``, operations of ``graph``.

    program : the graph module they are taken from. takes, gives : names of the values.
    """
    made = fx.Graph()
    values = made.placeholder("values")
    known = {
        name: made.call_function(operator.getitem, (values, k)) for k, name in enumerate(takes)
    }
    source = {node.name: node for node in program.graph.nodes}

    def value(node):
        if node.name not in known:  # a parameter, a buffer, or a part that runs in another mode
            known[node.name] = made.get_attr(graph.held.get(node.name, node.target))  # pyright: ignore[reportArgumentType]
        return known[node.name]

    for name in (node.name for node in nodes if node.op != "get_attr"):
        node = source[name]
        if node.target is LEAF:
            call = graph.leaves[name]
            args, kwargs = call.arguments([value(n) for n in node.args[0]])
            known[name] = made.call_function(
                tensors_of, (made.call_module(call.path, tuple(args), kwargs),)
            )
        else:
            known[name] = made.node_copy(node, value)
            if not node.kwargs:
                known[name].target = DEFERRABLE.get(node.target, node.target)
    made.output(tuple(known[name] for name in gives))
    # fx writes the code with our names; only its function is kept
    return type(fx.GraphModule(stage, made)).forward
