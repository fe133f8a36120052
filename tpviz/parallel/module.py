"""`parallelize`: a user's own module on a mesh, its pairs of linear layers split."""

from dataclasses import replace
from itertools import chain

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_leaves

from tpviz.mesh import Mesh
from tpviz.runtime.launch import in_torchrun
from tpviz.schemes.gpt.program import gather

from .entrance import Entrance
from .layers import Groups, SplitLinear
from .plan import Plan, layout_of
from .replicas import agree
from .report import Report
from .rules import SHORT_CUTS

CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Largest difference of outputs that rounding explains, beside their largest value (derived: some
thousands of units in the last place, for sums in another order); else 5e-2, for 16 bits."""


class Parallelized(nn.Module):
    """A model of which every rank holds its part; called as the model was.

    module : the model itself, split in place; report : the `Report`. Parameters of split layers
    have their old names and a rank's shapes: make optimizers after `parallelize`.
    """

    def __init__(self, module, report, groups=None):
        super().__init__()
        self.module, self.report, self._groups = module, report, groups

    def forward(self, *args, **kwargs):
        """What the model gives: whole outputs, the same on every rank."""
        return self.module(*args, **kwargs)

    def full_state_dict(self):
        """{original name: whole tensor} on every rank, to load into the model as it was.

        Collective: call it on all ranks of the mesh. What is not split is not copied.
        """
        return self._whole(self.module.state_dict())

    def full_gradients(self):
        """{original name: whole gradient} of the parameters that have one. Collective."""
        return self._whole({name: p.grad for name, p in self.module.named_parameters()
                            if p.grad is not None})

    def _whole(self, tensors):
        parts = self._parts()
        found = {}
        for name, tensor in tensors.items():
            path, _, kind = name.rpartition(".")
            part = parts.get(path)
            if part is None or kind not in ("weight", "bias"):
                found[name] = tensor
                continue
            whole = gather(tensor, part.splits(kind), self._groups)
            found[name] = part.from_order(kind, whole)
        return found

    def _parts(self):
        """{path: `Part`} of every place where a split layer is."""
        return {path: module.part for path, module
                in self.module.named_modules(remove_duplicate=False)
                if isinstance(module, SplitLinear)}


def parallelize(model, strategy, example_inputs=None, rules=None, *, broadcast=False, mesh=None):
    """Split the linear layers of ``model`` over the ranks of a world, as ``strategy`` says.

    Pairs of linear layers with only activations or attention heads between them are found by your
    ``rules``, by a table of known models (Hugging Face's GPT-2, Llama, OPT and BERT, PyTorch's
    transformer layers) and in the model's graph; each becomes a pair of ATP layers. Everything else
    stays whole on every rank, and so do activations between pairs: L2 of `tpviz.ATP`, whose
    ``norm`` is not asked. Heads are split over both axes (A3) where they divide, else over the one
    of *inside*.

    Parameters
    ----------
    model : any ``nn.Module``; inside a rank it is split in place.
    strategy : `tpviz.ATP` or `tpviz.Megatron`, without ``sp``.
    example_inputs : a tensor, a tuple of arguments or a dict of named ones. With them
        ``torch.export`` shows which layers belong together, and on the ranks the outputs before and
        after are compared (in evaluation mode).
    rules : `tpviz.parallel.Pair` objects or dicts, looked at first.
    broadcast : send the first rank's parameters and buffers to all; else ranks that differ raise.
    mesh : a ``DeviceMesh`` that has the strategy's axes, and others around them; by default the
        strategy's own over the whole world.

    Returns a `Parallelized`. Outside of any world (`tpviz.launch`, ``torch.distributed``) nothing
    is split: its ``report`` is the plan, and it computes what the model computes.

    Raises ``ValueError`` for strategies and sizes that do not fit, for rules that match nothing,
    for a model of which nothing can be split, for ranks with different numbers, and where outputs
    change. Dropout: seed all ranks alike, or copies of the stream drift apart.
    """
    layout, inputs = layout_of(strategy), inputs_of(example_inputs)
    mesh = _mesh(strategy, mesh, model)
    groups = Groups.of(layout, mesh) if mesh is not None else None
    if groups:
        agree(model, groups, broadcast)
    plan = Plan(model, layout, rules, inputs)
    report = _report(model, strategy, layout, plan)
    if not groups:
        return Parallelized(model, report)
    before = _outputs(model, inputs) if inputs else None
    _split(model, plan, groups)
    if inputs:
        _compare(before, _outputs(model, inputs))
        report = replace(report, notes=(*report.notes, "outputs for example_inputs are those of "
                                        "the whole model, up to rounding"))
    return Parallelized(model, replace(report, divided=True), groups)


def inputs_of(example):
    """(args, kwargs), or None."""
    if example is None:
        return None
    if isinstance(example, dict):
        return (), dict(example)
    return (tuple(example) if isinstance(example, (tuple, list)) else (example,)), {}


def _mesh(strategy, mesh, model):
    """The mesh to work on, None outside of any world."""
    if mesh is not None:
        missing = [f"{axis}={size}" for axis, size in strategy.axes.items()
                   if axis not in (mesh.mesh_dim_names or ()) or
                   mesh.size(mesh.mesh_dim_names.index(axis)) != size]
        if missing:
            has = dict(zip(mesh.mesh_dim_names or (), mesh.mesh.shape))
            raise ValueError(f"the mesh has {has}, but {strategy.short} needs "
                             f"{' and '.join(missing)}")
        return mesh
    if not (dist.is_available() and dist.is_initialized()):
        if in_torchrun():
            raise ValueError("this is a rank of torchrun, but torch.distributed is not ready: call "
                             "init_process_group first, or use tv.launch")
        return None
    world = dist.get_world_size()
    if world != strategy.world_size:
        raise ValueError(f"{strategy.short} is for {strategy.world_size} ranks, this world has "
                         f"{world}: change one of them, or give mesh= with more axes")
    device = next((p.device.type for p in model.parameters()), "cpu")
    return Mesh(strategy.axes).device_mesh(device)


def _report(model, strategy, layout, plan):
    parts = [part for pair in plan.pairs for part in pair.layers]
    modules = dict(model.named_modules())
    split = sum(p.numel() for part in parts for p in modules[part.path].parameters())
    held = sum(torch.Size(part.local(name)).numel() for part in parts
               for name in ("weight", "bias")[:1 + part.bias])
    whole = sum(p.numel() for p in model.parameters())
    notes = list(plan.notes)
    if any(isinstance(m, nn.Dropout) and m.p for m in modules.values()):
        notes.append("the model has dropout: seed all ranks alike (torch.manual_seed), or their "
                     "copies of the stream drift apart; inside pairs other elements are dropped "
                     "than in one process")
    axes = ", ".join(f"{axis}={size}" for axis, size in strategy.axes.items())
    return Report(type(model).__name__, f"{strategy.short} on {axes}", layout, tuple(plan.pairs),
                  plan.left, tuple(notes), split, held, whole - split)


def _split(model, plan, groups):
    """Put split layers in the places of whole ones, wherever these are registered."""
    modules = dict(model.named_modules())
    new = {}
    for pair in plan.pairs:
        entrance = Entrance(groups.get_group(plan.at.inside), groups.get_group(plan.at.stream),
                            len(pair.firsts))
        for part in pair.layers:
            whole = modules[part.path]
            new[id(whole)] = SplitLinear(whole, part, groups, entrance if part.first else None)
    for module in modules.values():
        for name, child in module._modules.items():
            module._modules[name] = new.get(id(child), child)
    for pair in plan.pairs:
        for path, name, _, own in pair.divided:
            setattr(modules[path], name, own)
        for path in _above(chain.from_iterable([[part.path] for part in pair.layers])):
            for name, value in SHORT_CUTS.items():
                if hasattr(modules[path], name):
                    setattr(modules[path], name, value)


def _above(paths):
    """The paths of all modules around those at ``paths``."""
    found = {""}
    for path in paths:
        while path:
            path = path.rpartition(".")[0]
            found.add(path)
    return found


def _outputs(model, inputs):
    """The output's tensors in evaluation mode; random numbers, if any, are the same each time."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            outputs = tree_leaves(model(*inputs[0], **inputs[1]))
    finally:
        for module, mode in training.items():
            module.training = mode
    return [t for t in outputs if isinstance(t, torch.Tensor) and t.is_floating_point()]


def _compare(before, after):
    for number, (a, b) in enumerate(zip(before, after)):
        if a.shape != b.shape:
            raise ValueError(f"output {number} has shape {tuple(b.shape)} after the split, "
                             f"{tuple(a.shape)} before: {WRONG}")
        close = CLOSE.get(a.dtype, 5e-2)
        a, b = a.double(), b.double()
        error = float((a - b).abs().max() / a.abs().max().clamp(min=1e-30)) if a.numel() else 0.0
        if not error <= close:
            raise ValueError(f"output {number} changed by {error:.1e} when the model was split: "
                             f"{WRONG}")


WRONG = "a rule does not say how this model uses its layers; the model is no longer usable"
