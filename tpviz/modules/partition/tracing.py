"""`trace`: from a module to a `ModelGraph`, by ``torch.export`` on tensors without numbers.

Nothing of the model's own is computed or copied: parameters and buffers are put aside and fake ones
(shapes alone) take their places, so a model on the meta device, larger than any memory, is traced
like any other. It is the part of the paper's proxy representation (its authors patch
``torch.nn.Linear`` for it; the way here is ours).
"""

import linecache
import traceback
from contextlib import ExitStack
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_map

from .calls import Flat, TracedCall, inputs_of
from .graph import ModelGraph, TensorSpec
from .leaves import Leaves, NoShape, leaves_of, tensors_of
from .measure import LEAF, Measure
from .standins import (
    OwnBackward,
    device_of,
    held_by,
    no_caches,
    no_own_backward,
    quiet,
    stand_in,
    stand_ins,
)


def trace(model: nn.Module, example_inputs: Any, leaves: Leaves = ()) -> ModelGraph:
    """The operations of one forward of ``model``, and what each costs: a `ModelGraph`.

    Parameters
    ----------
    model : any ``nn.Module``, on any device, meta too. It is left as it is. Its mode, training or
        evaluation, will be that of the stages; caches of Hugging Face's models are off.
    example_inputs : a tensor, a tuple of arguments, a dict of named ones, or (args, kwargs), of one
        microbatch: every later one has these sizes.
    leaves : types of modules that stay one node, or a function module -> bool. Modules with
        autograd functions of their own (tensor-parallel layers) have to: export would lose their
        backward. See `leaves`.

    Raises ``ValueError`` for inputs that do not fit, and for a model that cannot be traced, with
    the module and the line at fault, and what to do.
    """
    args, kwargs = inputs_of(example_inputs)
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    tensors = [*tensors_of((args, kwargs)), *model.parameters(), *model.buffers()]
    device = device_of(tensors, torch.device("cpu"))
    args, kwargs = tree_map(lambda value: stand_in(value, mode, device), (args, kwargs))
    call, shared = TracedCall(model, args, kwargs), _shared(model)
    with ExitStack() as stack:
        stack.enter_context(quiet())
        stack.enter_context(stand_ins(model, mode, device))
        stack.enter_context(no_caches(model))
        calls = stack.enter_context(leaves_of(model, leaves))
        try:
            with torch.enable_grad(), no_own_backward():
                program = torch.export.export(
                    Flat(model, call.see), call.args, call.kwargs, strict=False
                )
            module, kinds = _cleaned(program.graph_module), _kinds(program)
            tensors = _tensors(model, module, kinds, program.constants, call, mode, device)
            with mode:
                nodes = Measure(module, kinds, calls, _owned(model, calls)).run(*tensors).nodes()
        except Exception as error:
            raise ValueError(reason(model, error)) from error
        for leaf in calls:
            leaf.forget()
    return _graph(model, module, nodes, kinds, shared, call, calls, program.constants, device)


def _shared(model):
    """[names] of each parameter and buffer, in order, a shared one's all."""
    found = {}
    for named in held_by(model):
        for name, tensor in named.items():
            found.setdefault(id(tensor), []).append(name)
    return list(found.values())


def _cleaned(module):
    """The graph without checks of what a trace assumed, arguments that are no tensors (their values
    are in it), and what nothing uses."""
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            for node in reversed(part.graph.nodes):
                if node.target is torch.ops.aten.detach_.default:
                    node.target = torch.ops.aten.detach.default
                fixed = node.op == "placeholder" and not isinstance(node.meta["val"], torch.Tensor)
                if not node.users and (fixed or "assert" in str(node.target)):
                    part.graph.erase_node(node)
            part.graph.eliminate_dead_code()
            part.recompile()
    return module


def _kinds(program):
    """{placeholder: (kind, name)}; names as the model has them."""
    signature, found = program.graph_signature, {}
    for kind, names in (
        ("parameter", signature.inputs_to_parameters),
        ("buffer", signature.inputs_to_buffers),
        ("constant", signature.inputs_to_lifted_tensor_constants),
    ):
        found |= {node: (kind, name.removeprefix("inner.")) for node, name in names.items()}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name not in found:
            found[node.name] = "input", node.name
    return found


def _tensors(model, module, kinds, constants, call, mode, device):
    """What each placeholder is, in the run that measures."""
    named, buffers = held_by(model)
    named |= buffers
    inputs, found = iter(tensors_of(call.leaves)), []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            kind, name = kinds[node.name]
            if kind == "constant":
                found.append(stand_in(constants[f"inner.{name}"], mode, device))
            else:
                found.append(next(inputs) if kind == "input" else named[name])
    return found


def _owned(model, calls):
    """{path of a leaf: (names of its parameters, of its buffers)}."""
    modules = dict(model.named_modules())
    return {
        path: tuple(
            tuple(f"{path}.{name}" for name, _ in named())
            for named in (modules[path].named_parameters, modules[path].named_buffers)
        )
        for path in {call.path for call in calls}
    }


def _graph(model, module, nodes, kinds, shared, call, calls, constants, device):
    used = {name for node in nodes for name in (*node.parameters, *node.buffers)}
    groups = [
        ([n for n in names if n in used], [n for n in names if n not in used]) for names in shared
    ]
    inputs = {}
    for node in module.graph.nodes:
        if node.op == "placeholder" and kinds[node.name][0] == "input":
            inputs[node.name] = TensorSpec.of(node.name, node.meta["val"])
    [results] = [node.args[0] for node in module.graph.nodes if node.op == "output"]
    parameters, buffers = (
        {name: TensorSpec.of(name, t) for name, t in named.items()} for named in held_by(model)
    )
    return ModelGraph(
        type(model).__name__,
        nodes,
        inputs,
        parameters,
        buffers,
        tuple(tuple(names) for names, _ in groups if len(names) > 1),
        {names[0]: tuple(others) for names, others in groups if names and others},
        {name: constants[f"inner.{name}"] for kind, name in kinds.values() if kind == "constant"},
        tuple(node.name for node in results),
        {path: type(m).__name__ for path, m in model.named_modules()},
        model.training,
        device,
        call,
        module,
        {node: name for node, (kind, name) in kinds.items() if kind != "input"},
        {node.name: calls[node.args[1]] for node in module.graph.nodes if node.target is LEAF},
    )


# -- why a model could not be traced: the module, the line, and what to do -------------------------
def reason(model: nn.Module, error: BaseException) -> str:
    """The text of the error that `tracing.trace` raises."""
    said, kind = _said(error), type(error).__name__
    where = f"{type(model).__name__} cannot be traced: {_where(model, error)}"
    causes = [error]
    while causes[-1].__cause__ or causes[-1].__context__:
        causes.append(causes[-1].__cause__ or causes[-1].__context__)  # pyright: ignore[reportArgumentType]
    leaf = next((cause for cause in causes if isinstance(cause, NoShape)), None)
    if leaf:
        return (
            f"{where} calls the leaf {leaf}, whose forward does not run on tensors without "
            f"numbers ({_said(leaf.__cause__)}): give it a method shape, called with the "
            "arguments of forward, that returns the output's shape as a torch.Size, as in "
            f"{leaf.kind}.shape = lambda self, x, *others: x.shape"
        )
    if isinstance(error, OwnBackward):
        return (
            f"{where} calls the autograd function {said}, whose backward export would lose: "
            "give that module's type in leaves=, or, if this is activation checkpointing, turn "
            "it off (stages recompute by themselves)"
        )
    if "data-dependent" in said.lower() or "DataDependent" in kind or "Unbacked" in kind:
        return (
            f"{where} depends on a tensor's values, which a trace has not ({said}): use "
            "torch.where there, or give that module's type in leaves="
        )
    return (
        f"{where} raises {kind}: {said}. If the model does run on these example_inputs, change "
        "that line or give the module's type in leaves=; else correct the inputs"
    )


def _said(error):
    return str(error).strip().split("\n")[0][:200].rstrip(".")


def _where(model, error):
    """The innermost place in the code of one of the model's modules, as "h.0 (Block), file:3,
    `code`,"."""
    paths = {id(module): path for path, module in model.named_modules()}
    found = "its forward"
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        owner = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        calling = code.co_name in ("_call_impl", "_wrapped_call_impl", "__call__")
        if isinstance(owner, nn.Module) and id(owner) in paths and not calling:
            path, kind = paths[id(owner)], type(owner).__name__
            text = linecache.getline(code.co_filename, line).strip()
            found = (
                f"{f'{path} ({kind})' if path else kind}, "
                f"{code.co_filename.rpartition('/')[2]}:{line}, `{text}`,"
            )
    return found
