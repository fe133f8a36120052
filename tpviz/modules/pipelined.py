"""`parallelize` with Merak: a module traced, cut into stages and trained in microbatches."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn

from tpviz.core.checks import divides, whole_number
from tpviz.core.show import Tabular
from tpviz.schemes.axonn.clip import norm_of, shrink
from tpviz.schemes.megatron.strategy import Megatron
from tpviz.schemes.pipeline.pipeline import RankPipeline
from tpviz.schemes.pipeline.tied_weights import Tie

from .between import PartlyRead
from .grid import cut_rows, has_rows
from .layers import HeldLinear, RankGroups
from .parallelized import whole_of
from .partition import Partition, partition_of, shard, trace
from .partition.leaves import tensors_of
from .replicas import agree
from .stages import Evaluation, ModuleStage

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.core.schedules.table import Schedule
    from tpviz.schemes.merak.strategy import Merak

    from .parallelized import Parallelized
    from .report import ModuleReport


@dataclass(frozen=True, repr=False)
class PipelineReport(Tabular):
    """How a module becomes a pipeline.

    partition : which operations are on which stage. schedule : the actions of each rank, in order.
    plan : the `ModuleReport` of the layers split over tp, None at tp=1. divided : whether this rank
    holds its stages, or the report is a plan only.
    """

    strategy: "Merak"
    partition: Partition
    schedule: "Schedule"
    num_recomputed: tuple[int, ...]
    plan: "ModuleReport | None" = None
    divided: bool = False
    _look = "tpviz-partition"

    @property
    def model(self) -> str:
        """The model's class."""
        return self.partition.graph.model

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: one a stage."""
        header, *rows = self.partition.to_table()
        return [["rank", *header, "layers run again"]] + [
            [str(self.schedule.rank_of[stage]), *row, str(self.num_recomputed[stage])]
            for stage, row in enumerate(rows)
        ]

    def describe(self) -> str:
        """In words: the stages, then what is split within them."""
        done = "runs" if self.divided else "would run"
        lines = [
            f"{self.strategy.short} {done} {self.partition.describe()}",
            self.partition.report(),
        ]
        return "\n".join([*lines, *([self.plan.describe()] if self.plan else [])])

    def __repr__(self):
        state = "" if self.divided else " (planned only)"
        return f"{self.strategy.short}{state}\n{self.partition.report()}"

    def _repr_html_(self):
        return super()._repr_html_() + (self.plan._repr_html_() if self.plan else "")


class Pipelined(nn.Module):
    """What a rank has of a pipelined model; made by `tpviz.parallelize` with `tpviz.Merak`.

    ``step(*inputs, targets=None)`` is forward and backward of a whole batch; ``parameters()`` are
    this rank's, for an optimizer. report : `PipelineReport`. evaluation : `Evaluation`.
    """

    pipeline: RankPipeline  # None of a plan, which refuses before it needs one; so the next
    evaluation: Evaluation

    def __init__(
        self,
        report: PipelineReport,
        batch: "Batch",
        pipeline: RankPipeline | None = None,
        groups: RankGroups | None = None,
        evaluation: Evaluation | None = None,
    ):
        super().__init__()
        self.report, self.batch, self.pipeline, self.groups = report, batch, pipeline, groups  # pyright: ignore[reportAttributeAccessIssue]
        self.evaluation = evaluation  # pyright: ignore[reportAttributeAccessIssue]
        if pipeline:  # under their own names, which stages that share a parameter may share
            self.__dict__["stages"] = pipeline.stages

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's parameters, by their names in the model."""
        seen = set()
        for name, parameter in (self.pipeline.named if self.pipeline else {}).items():
            if not remove_duplicate or id(parameter) not in seen:
                seen.add(id(parameter))
                yield prefix + name, parameter

    def forward(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Stages cannot be called one by one: raises ``TypeError`` and says what to call."""
        raise TypeError(
            "a pipelined model runs forward and backward together: use loss = model.step(*inputs)"
        )

    def step(self, *args: Any, targets: Any = None, **kwargs: Any) -> torch.Tensor | None:
        """Forward and backward of a batch, all replicas' rows; gradients are complete afterwards.

        ``targets`` go to the loss function. Returns the mean loss of this replica's rows on the
        ranks that have the last stage, None on others.
        Raises ``ValueError`` where inputs are not like the examples, and outside of ranks.
        """
        self._needs_ranks()
        return self.pipeline.step(self._given(self.report.partition.graph, args, kwargs, targets))

    def evaluate(self, *args: Any, targets: Any = None, **kwargs: Any) -> torch.Tensor | None:
        """Forward of a batch in evaluation mode: the loss, as of `step`, and no gradients.

        A model that was in training mode is traced once more for this, with the first batch.
        Raises ``ValueError`` as `step`, and where that model is gone by then.
        """
        self._needs_ranks()
        graph, stages = self.evaluation.program(
            self.report.partition, self.pipeline.stages, (args, kwargs)
        )
        return self.pipeline.evaluate(self._given(graph, args, kwargs, targets), stages)

    def _needs_ranks(self):
        if self.pipeline is None:
            raise ValueError("this is a plan: inside ranks (tpviz.launch, torchrun) it can step")

    def _given(self, graph, args, kwargs, targets):
        """(named inputs, targets) of each of this replica's microbatches."""
        inputs = self.batch.microbatches((args, kwargs))
        targets = self.batch.microbatches(targets) if targets is not None else None
        return [
            (graph.named(*a, **k), targets[m] if targets else None)
            for m, (a, k) in enumerate(inputs)
        ]

    def mean_over_replicas(self, loss: torch.Tensor) -> torch.Tensor:
        """The mean of the losses of all replicas, of one that `step` gave. Collective over dp, on
        the ranks that have the last stage."""
        group, loss = self.pipeline.mesh.get_group("dp"), loss.detach().clone()
        if group.size() > 1:
            dist.all_reduce(loss, group=group)
        return loss / group.size()

    def mean_loss(self, loss: torch.Tensor | None) -> float:
        """The batch's mean loss as a number, on every rank, from what `step` gave. Collective."""
        schedule = self.pipeline.schedule
        if loss is not None:
            loss = self.mean_over_replicas(loss)
        like = torch.empty((), dtype=torch.float64, device=self._device)
        loss = None if loss is None else loss.to(torch.float64)
        return float(self.pipeline.everywhere(loss, like, schedule.rank_of[-1]))

    def clip_grad_norm_(self, most: float) -> torch.Tensor:
        """Scale the gradients so that the norm of the whole model's is at most ``most``; the norm.

        Each number counts once: of parameters that stages share the first stage's, of those that
        are whole on all ranks of tp one rank's. Collective; after `step`.
        """
        mesh, named = self.pipeline.mesh, self.pipeline.named
        divided = {
            f"{path}.{name}"
            for path, layer in self._held().items()
            for name in ("weight", "bias")
            if layer.part.splits(name)
        }
        groups = [mesh.get_group(axis) for axis in ("tp", "pp")]
        copies = {name: 1 if name in divided else groups[0].size() for name in named}
        again = {
            name
            for tie in self.report.partition.tied_weights
            for name, stage in list(zip(tie["names"], tie["stages"]))[1:]
            if stage in self.pipeline.stages and tie["stages"][0] != stage
        }
        gradients = {name: p.grad for name, p in named.items() if p.grad is not None}
        counted = [name for name in gradients if name not in again]
        if not counted:  # a rank may have nothing of its own
            counted, gradients[""], copies[""] = [""], torch.zeros((), device=self._device), 1
        norm = norm_of(
            [gradients[name] for name in counted], [copies[name] for name in counted], groups
        )
        shrink(list({id(g): g for g in gradients.values()}.values()), norm, most)
        return norm

    def _held(self):
        """{path: `HeldLinear`} of this rank's layers that are split over tp."""
        stages = self.pipeline.stages.values()
        return {path: layer for stage in stages for path, layer in stage.held().items()}  # pyright: ignore[reportCallIssue]

    @property
    def _device(self):
        return next(iter(self.pipeline.named.values())).device

    # -- the whole ---------------------------------------------------------------------------------
    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """{original name: whole parameter} on every rank. Collective."""
        return self._whole({name: p.detach() for name, p in self.pipeline.named.items()})

    def full_gradients(self) -> dict[str, torch.Tensor]:
        """{original name: whole gradient}, zeros where there is none. Collective."""
        return self._whole(
            {
                name: torch.zeros_like(p) if p.grad is None else p.grad
                for name, p in self.pipeline.named.items()
            }
        )

    def _whole(self, own):
        if self.groups:
            own = whole_of(own, self._held(), self.groups)
        graph, schedule = self.report.partition.graph, self.pipeline.schedule
        found, device = {}, self._device
        for part in self.report.partition.stages:
            for name in part.parameters:
                shape, dtype = self.batch.shapes[name]
                like = torch.empty(shape, dtype=dtype, device=device)
                owner = schedule.rank_of[part.index]
                found[name] = self.pipeline.everywhere(own.get(name), like, owner)
        return {
            name: found[graph.first_names.get(name, name)] if name not in found else found[name]
            for name in graph.parameters
        }


class Batch:
    """How a batch is split over replicas, then into microbatches: along one dim of all tensors
    whose size there equals the first one's. shapes : {name: (shape, dtype)} of the whole model's
    parameters."""

    def __init__(
        self,
        strategy: "Merak",
        example: Any,
        dim: int,
        shapes: dict[str, tuple[torch.Size, torch.dtype]],
        replica: int = 0,
    ):
        self.strategy, self.dim, self.shapes, self.replica = strategy, dim, shapes, replica
        tensors = [t for t in tensors_of(example) if t.dim() > dim]
        if not tensors:
            raise ValueError(
                f"example_inputs have no tensor with a dim {dim} to cut into "
                "microbatches: say which by batch_dim="
            )
        self.rows = tensors[0].shape[dim]
        divides("batch", self.rows, "dp*microbatches", strategy.dp * strategy.microbatches)

    def microbatches(self, batch: Any) -> list[Any]:
        """This replica's microbatches of a whole batch, in order."""
        m, shares = self.strategy.microbatches, self.strategy.dp * self.strategy.microbatches
        tensors = tensors_of(batch)
        if tensors and not any(has_rows(t, self.rows, self.dim) for t in tensors):
            raise ValueError(
                f"no tensor of this batch has {self.rows} rows along dim {self.dim}, "
                "as the example inputs had"
            )
        first = self.replica * m
        return [cut_rows(batch, self.rows, first + k, shares, self.dim) for k in range(m)]


def pipelined(
    model: nn.Module,
    strategy: "Merak",
    inputs: tuple[tuple[Any, ...], dict[str, Any]] | None,
    mesh: "DeviceMesh | None",
    split: "Callable[[Megatron], Parallelized]",
    *,
    broadcast: bool = False,
    loss: Callable[..., torch.Tensor] | None = None,
    batch_dim: int = 0,
    balance: str | Sequence[float] = "flops",
    leaves: type[nn.Module] | Collection[type[nn.Module]] | Callable[[nn.Module], bool] = (),
) -> Pipelined:
    """A `Pipelined`; see `tpviz.parallelize`. split(strategy) splits the model's layers over tp."""
    if strategy.zero or strategy.sp:
        raise ValueError(
            f"{strategy.short} is not possible for a module of one's own: use zero=0 and sp=False"
        )
    if inputs is None:
        raise ValueError(f"{strategy.short} traces the model: give example_inputs, a whole batch")
    if strategy.layout != "even":
        raise ValueError(
            f"layout={strategy.layout!r} is about the blocks of a tv.GPT: leave it out, and cut a "
            "module by balance='flops', 'parameters', 'uniform' or seconds"
        )
    strategy.schedule_for([1] * strategy.stages)  # errors now, not after the trace
    dim, whole = whole_number("batch_dim", batch_dim, 0), _leaves(leaves)
    shapes = {
        name: (p.shape, p.dtype) for name, p in model.named_parameters(remove_duplicate=False)
    }
    batch = Batch(strategy, inputs, dim, shapes, mesh.get_local_rank("dp") if mesh else 0)
    if mesh is not None:
        agree(model, RankGroups.of(strategy.axes, mesh), broadcast)
    plan = None
    if strategy.tp > 1:
        plan = split(Megatron(tp=strategy.tp)).report  # pyright: ignore[reportCallIssue]

    def cut(model, inputs):
        return _cut(model, batch.microbatches(inputs)[0], strategy.stages, balance, whole)

    partition = cut(model, inputs)
    counts = [len(part.pieces) for part in partition.stages]
    counts[-1] -= 1  # the head's backward follows at once
    schedule, num_recomputed = strategy.schedule_for(counts), strategy.drops_for(counts)
    report = PipelineReport(
        strategy, partition, schedule, tuple(num_recomputed), plan, mesh is not None
    )
    if mesh is None:
        return Pipelined(report, batch)
    place = mesh.get_local_rank("pp")
    stages = {
        s: ModuleStage(partition.stages[s], partition.module(s, model), loss)
        for s in schedule.stages_of(place)
    }
    tied_weights = [Tie(tie["names"], tie["stages"]) for tie in partition.tied_weights]
    pipeline = RankPipeline(strategy, schedule, stages, num_recomputed, tied_weights, mesh)
    split_here = any(stage.held() for stage in stages.values())
    groups = RankGroups.of({"tp": strategy.tp}, mesh) if split_here else None
    return Pipelined(report, batch, pipeline, groups, Evaluation(model, cut, loss))


def _leaves(leaves):
    """A function module -> bool of those that stay one operation: the user's, and split layers."""
    several = leaves if isinstance(leaves, (tuple, list, set, frozenset)) else (leaves,)
    if all(isinstance(kind, type) and issubclass(kind, nn.Module) for kind in several):
        return lambda module: isinstance(module, (HeldLinear, PartlyRead, *several))
    if not callable(leaves) or isinstance(leaves, (type, nn.Module)):
        raise ValueError(
            f"leaves={leaves!r}: give types of modules, as in leaves=(MyExperts,), or "
            "a function module -> bool"
        )
    return lambda module: isinstance(module, (HeldLinear, PartlyRead)) or bool(leaves(module))


def _cut(model, inputs, stages, balance, leaves):
    """The `Partition` of a model traced with one microbatch."""
    graph = trace(model, inputs, leaves=leaves)
    shards = shard(graph)
    if len(shards) < 2 * stages:
        shards = shard(graph, "finest")
    return partition_of(graph, stages, shards, balance)
