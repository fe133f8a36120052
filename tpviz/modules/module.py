"""`parallelize`: a user's own module on a mesh, its linear layers split."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, overload

import torch
import torch.distributed as dist
from torch import nn

from tpviz.core.mesh import Mesh
from tpviz.ranks.launch import in_torchrun
from tpviz.schemes.atp.strategy import ATP
from tpviz.schemes.axonn.strategy import AxoNN
from tpviz.schemes.context.strategy import Context
from tpviz.schemes.experts.strategy import Experts
from tpviz.schemes.megatron.strategy import Megatron
from tpviz.schemes.merak.strategy import Merak, as_merak
from tpviz.schemes.zero.strategy import DataParallel

from .between import read_partly
from .easy import EasyLinear
from .experts import ExpertPlan, ExpertShares, cut, stacks_of
from .factors import factors_of, layout_of, refuse_sparse
from .grid import Grid
from .layers import Entrance, RankGroups, SplitLinear
from .parallelized import Parallelized
from .partition.leaves import tensors_of
from .pipelined import pipelined
from .plan import PairPlan, Singles, WholePlan
from .replicas import agree, from_first, without_numbers
from .report import ModuleReport
from .rules import SHORT_CUTS
from .sent import Totals
from .sequences import SequencePlan, Sequences
from .structure import set_number
from .suggest import CLOSE
from .watch import in_evaluation

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.schemes.strategy import Strategy

    from .pipelined import Pipelined
    from .rules import Pair


@overload
def parallelize(
    model: nn.Module,
    strategy: Merak,
    example_inputs: Any,
    rules: "Pair | dict[str, Any] | Sequence[Pair | dict[str, Any]] | None" = None,
    *,
    broadcast: bool = False,
    mesh: "DeviceMesh | None" = None,
    loss: "Callable[..., torch.Tensor] | None" = None,
    batch_dim: int = 0,
    balance: str | Sequence[float] = "flops",
    leaves: type[nn.Module] | Collection[type[nn.Module]] | Callable[[nn.Module], bool] = (),
) -> "Pipelined": ...
@overload
def parallelize(
    model: nn.Module,
    strategy: "ATP | Megatron | AxoNN | Context | Experts | DataParallel",
    example_inputs: Any = None,
    rules: "Pair | dict[str, Any] | Sequence[Pair | dict[str, Any]] | None" = None,
    *,
    broadcast: bool = False,
    mesh: "DeviceMesh | None" = None,
    easy: bool = False,
    equal_rows: bool = False,
) -> Parallelized: ...
def parallelize(
    model: nn.Module,
    strategy: "Strategy",
    example_inputs: Any = None,
    rules: "Pair | dict[str, Any] | Sequence[Pair | dict[str, Any]] | None" = None,
    *,
    broadcast: bool = False,
    mesh: "DeviceMesh | None" = None,
    easy: bool = False,
    equal_rows: bool = False,
    **pipeline: Any,
) -> "Parallelized | Pipelined":
    """Split the linear layers of ``model`` over the ranks of a world, as ``strategy`` says.

    Pairs of linear layers with only activations or attention heads between them are found by your
    ``rules``, by a table of known models (Hugging Face's GPT-2, Llama, OPT and BERT, PyTorch's
    transformer layers) and in the model's graph; each becomes a pair of ATP layers. Everything else
    stays whole on every rank, and so do activations between pairs: L2 of `tpviz.ATP`, whose
    ``norm`` is not asked. Heads are split over both axes (A3) where they divide, else over the one
    of *inside*.

    With `tpviz.AxoNN` the plane of x and y is such a mesh (heads over x alone), blocks of weights
    are sharded flat over z, and every index of (data, z) must be given its own rows of the batch
    (`Parallelized.rows`). A rank's loss is the mean over its rows; right after ``loss.backward()``
    every gradient is the mean over all shares, as DDP's are (of unequal shares the mean of their
    means). Forward and backward are collective: all ranks run as many of them.
    ``DistributedDataParallel`` is not to go around it, nor any hook on weights' gradients.

    With `tpviz.Context`, alone or as `tpviz.Megatron` (or ATP) ``* Context(cp=2) *
    DataParallel(dp=2)``, sequences are cut: a rank gives the whole module its tokens of each
    sequence, `Parallelized.rows`, and ``F.scaled_dot_product_attention``, which must be causal and
    without a mask, is that of the kind. Positions are an input: ``position_ids`` are added to
    inputs by name where the module takes them, and labels of Hugging Face's models are shifted
    before they are cut. A rank's loss is the mean over its tokens; gradients after backward are the
    mean over dp and cp, and `Parallelized.joined` restores the order of outputs. Compared is only
    what ``example_inputs`` show: give the longest sequences, and all inputs, of the training.
    ``DistributedDataParallel`` is not to go around it.

    With `tpviz.Experts`, alone or as ``Megatron(tp=2) * Experts(ep=2) * DataParallel(dp=2)``,
    modules that hold experts as parameters (experts, ...) keep a rank's, and rows go to the ranks
    that have their experts (`tpviz.modules.experts`); the model's router chooses as it did. Every
    index of (dp, ep) is given its own rows, `Parallelized.rows`; its loss is the mean over them.
    Gradients after backward are the mean over dp and ep, of experts' over dp. Over tp experts stay
    whole, and each rank sends its part of the tokens.

    Split layers have first derivatives only: a second one (``create_graph=True``) raises.

    Parameters
    ----------
    model : any ``nn.Module``; inside a rank it is split in place.
    strategy : `tpviz.Merak`, or `tpviz.ATP`, `tpviz.Megatron` or `tpviz.AxoNN`, without ``sp``, and
        without those knobs of AxoNN that need our own step (``gather``, ``recompute``,
        ``accumulation``, ``tune``, ``clip``); or a product with `tpviz.Context` or `tpviz.Experts`.
    example_inputs : a tensor, a tuple of arguments or a dict of named ones. With them
        ``torch.export`` shows which layers belong together, and on the ranks the outputs before and
        after are compared (in evaluation mode). Context and Experts need them.
    rules : `tpviz.modules.Pair` objects or dicts, looked at first.
    broadcast : send the first rank's parameters and buffers to all; else ranks that differ raise.
    mesh : a ``DeviceMesh`` that has the strategy's axes, and others around them; by default the
        strategy's own over the whole world.
    pipeline : of Merak, which cuts the model into stages and returns a `Pipelined`: ``loss``,
        function (output) or (output, targets) -> a mean over rows, where the model does not give
        its own; ``batch_dim``, along which ``example_inputs``, a whole batch, are cut into
        microbatches; ``balance``, as `tpviz.modules.partition.partition_of` takes it
        ("flops" by default); ``leaves``, types of modules that stay one operation on one stage, or
        a function module -> bool: for those that a trace cannot follow (routing to experts, an
        autograd function of one's own).
    easy : AxoNN's easy mode: no pairs are needed, every linear layer goes on the grid by itself,
        and every rank of x * y * z * data is to be given its own rows, as under DDP. For that two
        more exchanges a layer are paid: all-to-all of the input over y and of the output over x
        (and back), besides the input's rows gathered over x. `ModuleReport.ledger` has them all.
    equal_rows : promise, in easy mode, that all ranks of a plane come to each layer with equally
        many rows. Without it each call of a layer asks for the largest number, which makes the host
        wait, and fewer rows are filled up with zeros.

    Returns a `Parallelized`. Outside of any world (`tpviz.launch`, ``torch.distributed``) nothing
    is split: its ``report`` is the plan, and it computes what the model computes.

    Raises ``ValueError`` for strategies and sizes that do not fit, for rules that match nothing,
    for a model of which nothing can be split, for ranks with different numbers, and where outputs
    change. Dropout: seed ranks with the same rows alike, or copies of the stream drift apart.
    """
    if easy and not isinstance(strategy, AxoNN):
        raise ValueError(
            f"easy=True is a mode of AxoNN: use AxoNN(x=..., y=..., z=..., data=...), not "
            f"{strategy!r}"
        )
    if equal_rows and not easy:
        raise ValueError("equal_rows=True is a promise about easy mode: use it with easy=True")
    if isinstance(strategy := as_merak(strategy), Merak):
        return _pipelined(model, strategy, example_inputs, rules, broadcast, mesh, pipeline)
    if pipeline:
        raise ValueError(
            f"{', '.join(pipeline)} are about pipelines: use tpviz.Merak(...), not {strategy.short}"
        )
    inner, around, dp = factors_of(strategy)
    layout, inputs = layout_of(inner), inputs_of(example_inputs)
    shared = None
    if around:
        planned = SequencePlan if isinstance(around, Context) else ExpertPlan.of
        shared = planned(around, dp, model, inputs)  # pyright: ignore[reportArgumentType]
    if rules and easy:
        raise ValueError(
            "rules say which layers are pairs; easy=True splits each by itself: use one of the two"
        )
    if isinstance(strategy, AxoNN):
        refuse_sparse(model)
    mesh = _mesh(strategy, mesh, model)
    groups, grid, numbers = None, None, not without_numbers(model)
    if mesh is not None:
        groups = RankGroups.of(_axes(strategy, layout), mesh)
        if numbers:
            agree(model, groups, broadcast)
        grid = Grid(strategy, mesh, groups, easy) if isinstance(strategy, AxoNN) else None
    z = getattr(strategy, "z", 1)
    once = partial(from_first, groups=groups) if groups and numbers else lambda make: make()
    looked = (inputs, z, once)
    if easy:
        plan = Singles(model, layout, *looked)
    elif isinstance(inner, (Context, Experts)):
        plan = WholePlan()
    else:
        plan = PairPlan(model, layout, rules, *looked, advise=groups is None)
    if shared:
        shared = shared.settle(model, plan.pairs, groups)
    report = _report(model, strategy, layout, plan, easy, equal_rows, shared)
    if not groups or not mesh:
        return Parallelized(model, report)
    before = outputs_of(model, inputs) if inputs and numbers else None
    if easy:
        made = lambda part, whole: EasyLinear(whole, part, groups, grid, equal_rows)  # pyright: ignore[reportArgumentType]
        _replace(model, {part.path: made(part, whole) for part, whole in _parts(model, plan)})
    else:
        _split(model, plan, groups, grid)
    if (
        inputs and before is not None and not shared
    ):  # before the hooks of the first forward are there
        compare(before, outputs_of(model, inputs))
    if isinstance(shared, SequencePlan):
        grid = Sequences(mesh, shared)
    elif shared:
        cut(model, shared.stacks, groups, layout.inside * (layout.i > 1))
        grid = ExpertShares(shared, mesh, groups)
    split = Parallelized(model, replace(report, divided=True), groups, grid, seen=bool(inputs))
    if before is not None and shared:
        own: Any = inputs_of(split.rows(example_inputs))
        compare(before, split.joined(outputs_of(model, own)), shared.wrong)
    if before is not None:
        same = "outputs for example_inputs are those of the whole model, up to rounding"
        split.report = replace(split.report, notes=(*report.notes, same))
    return split


def _pipelined(model, strategy, example_inputs, rules, broadcast, mesh, options):
    mesh = _mesh(strategy, mesh, model)

    def split(inside: "Megatron") -> Parallelized:
        return parallelize(model, inside, example_inputs, rules, mesh=mesh)

    return pipelined(
        model, strategy, inputs_of(example_inputs), mesh, split, broadcast=broadcast, **options
    )


def inputs_of(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """(args, kwargs), or None."""
    if example is None:
        return None
    if isinstance(example, dict):
        return (), dict(example)
    return (tuple(example) if isinstance(example, (tuple, list)) else (example,)), {}


def _mesh(strategy, mesh, model):
    """The mesh to work on, None outside of any world."""
    if mesh is not None:
        missing = [
            f"{axis}={size}"
            for axis, size in strategy.axes.items()
            if axis not in (mesh.mesh_dim_names or ())
            or mesh.size(mesh.mesh_dim_names.index(axis)) != size
        ]
        if missing:
            has = dict(zip(mesh.mesh_dim_names or (), mesh.mesh.shape))
            raise ValueError(
                f"the mesh has {has}, but {strategy.short} needs {' and '.join(missing)}"
            )
        return mesh
    if not (dist.is_available() and dist.is_initialized()):
        if in_torchrun():
            raise ValueError(
                "this is a rank of torchrun, but torch.distributed is not ready: call "
                "init_process_group first, or use tv.launch"
            )
        return None
    world = dist.get_world_size()
    if world != strategy.world_size:
        raise ValueError(
            f"{strategy.short} is for {strategy.world_size} ranks, this world has "
            f"{world}: change one of them, or give mesh= with more axes"
        )
    device = next((p.device.type for p in model.parameters()), "cpu")
    return Mesh(strategy.axes).device_mesh(device)


def _axes(strategy, layout):
    """{axis: ranks} of all groups; a layout may have an axis of one rank that no mesh has."""
    return {layout.inside: layout.i, layout.stream: layout.s} | strategy.axes


def _parts(model, plan):
    """(part, whole layer) of everything that is split."""
    modules = dict(model.named_modules())
    return [(part, modules[part.path]) for pair in plan.pairs for part in pair.layers]


def _report(model, strategy, layout, plan, easy, equal, totals):
    parts = _parts(model, plan)
    split = sum(p.numel() for _, layer in parts for p in layer.parameters())
    held = sum(part.held for part, _ in parts)
    if isinstance(totals, ExpertPlan):
        split, held = split + totals.numbers * totals.experts.ep, held + totals.numbers
    stacks = () if isinstance(totals, ExpertPlan) else stacks_of(model)
    why = "experts are whole on every rank: tv.Experts(ep=...) spreads them"
    whole_too = {s.path: (type(model.get_submodule(s.path)).__name__, (), why) for s in stacks}
    whole = sum(p.numel() for p in model.parameters())
    if isinstance(strategy, AxoNN):
        totals = Totals.of(model, strategy, [part for part, _ in parts], easy, equal)
    axes = ", ".join(f"{axis}={size}" for axis, size in strategy.axes.items())
    return ModuleReport(
        type(model).__name__,
        f"{strategy.short} on {axes}",
        layout,
        tuple(plan.pairs),
        plan.left | whole_too,
        (*plan.notes, *_notes(model, totals)),
        split,
        held,
        whole - split,
        totals=totals,
    )


def _notes(model, totals):
    modules = list(model.modules())
    if totals:
        yield from totals.notes
    if totals and any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in modules):
        yield "BatchNorm sees a rank's rows only: nn.SyncBatchNorm has the statistics of all"
    if any(isinstance(m, nn.Dropout) and m.p for m in modules) and not (totals and totals.easy):
        alike = "the ranks of each plane" if totals else "all ranks"
        yield (
            f"the model has dropout: seed {alike} alike (torch.manual_seed), or their "
            "copies of the stream drift apart; inside pairs other elements are dropped "
            "than in one process"
        )


def _split(model, plan, groups, grid):
    """Put split layers in the places of whole ones, wherever these are registered."""
    modules, new = dict(model.named_modules()), {}
    for pair in plan.pairs:
        entrance = Entrance(
            groups.get_group(plan.at.inside), groups.get_group(plan.at.stream), len(pair.firsts)
        )
        if plan.at.i > 1:
            read_partly(model, pair.between, groups.get_group(plan.at.inside))
        for part in pair.layers:
            new[part.path] = SplitLinear(
                modules[part.path], part, groups, entrance if part.first else None, grid
            )
    _replace(model, new)
    for path, name, _, own in chain.from_iterable(pair.divided for pair in plan.pairs):
        set_number(modules[path], name, own)


def _replace(model, new):
    """Layers by path, in all places of those that were there; inference paths around them that read
    weights without calling the layer are closed."""
    modules = dict(model.named_modules())
    of = {id(modules[path]): layer for path, layer in new.items()}
    for module in modules.values():
        for name, child in module._modules.items():
            module._modules[name] = of.get(id(child), child)
    for path in _above(new):
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


# -- is the output of a split model that of the whole? ---------------------------------------------
def outputs_of(
    model: torch.nn.Module, inputs: tuple[tuple[Any, ...], dict[str, Any]]
) -> list[torch.Tensor]:
    """The output's tensors in evaluation mode; random numbers, if any, are the same each time."""
    with in_evaluation(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        outputs = tensors_of(model(*inputs[0], **inputs[1]))
    return [t for t in outputs if t.is_floating_point()]


def compare(before: Iterable[torch.Tensor], after: Iterable[torch.Tensor], wrong: str = "") -> None:
    """Raise ``ValueError`` where an output changed by more than rounding explains. wrong : the
    likely cause, if it is no rule."""
    wrong = f"{wrong or WRONG_RULE}; the model is no longer usable"
    before, after = list(before), list(after)
    if len(before) != len(after):
        raise ValueError(f"{len(after)} outputs after the split, {len(before)} before: {wrong}")
    for number, (a, b) in enumerate(zip(before, after)):
        if a.shape != b.shape:
            raise ValueError(
                f"output {number} has shape {tuple(b.shape)} after the split, "
                f"{tuple(a.shape)} before: {wrong}"
            )
        close = CLOSE.get(a.dtype, 5e-2)
        a, b = a.double(), b.double()
        error = float((a - b).abs().max() / a.abs().max().clamp(min=1e-30)) if a.numel() else 0.0
        if not error <= close:
            raise ValueError(
                f"output {number} changed by {error:.1e} when the model was split: {wrong}"
            )


WRONG_RULE = "a rule does not say how this model uses its layers"
