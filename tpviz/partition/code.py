"""Operations of a graph as a Python function on a stage."""

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import fx

from tpviz.schemes.operators import addmm, linear

from .leaves import tensors_of
from .measure import LEAF

if TYPE_CHECKING:
    from .emit import Stage
    from .graph import ModelGraph, Node

DEFERRABLE = {torch.ops.aten.linear.default: linear, torch.ops.aten.addmm.default: addmm}
"""{operator: the same, whose weights' gradients may come later}; Hugging Face's GPT-2 has both."""


def function(
    stage: "Stage",
    program: fx.GraphModule,
    graph: "ModelGraph",
    nodes: "Iterable[Node]",
    takes: Sequence[str],
    gives: Sequence[str],
) -> "Callable[[Stage, tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]]":
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
