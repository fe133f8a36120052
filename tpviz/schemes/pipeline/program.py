"""A rank's program of a pipeline: its stages of a GPT, cut by the factor inside, in microbatches.

Where the embedding and the head share their weight, first and last stage have a copy each, and
their gradients are added up before those of all replicas are.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tpviz.core.mesh import group_along
from tpviz.schemes.gpt.program import LEARNING_RATE, Program, adamw, gather_together
from tpviz.schemes.grid.program import GridBlock, Groups
from tpviz.schemes.zero.exchange import BucketExchange
from tpviz.schemes.zero.flat_param import FlatBucket

from . import subpipeline
from .pipeline import RankPipeline
from .sharding import flat_buckets, units_of, visits, with_copies
from .split import HEAD, TOKENS
from .stage import Stage, StageSpec
from .tied_weights import Tie

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.core.workload import GPT

    from .staged import Staged


class GPTStage(Stage):
    """Some blocks of a GPT, with the reference's names; the first stage embeds, the last one has
    the loss.

    w : the workload of one microbatch. groups : how a block is split. exchange : of the flat
    buffers of its units under ZeRO 2 and 3, else None.
    """

    exchange: BucketExchange | None = None

    def __init__(
        self,
        w: "GPT",
        number: int,
        blocks: range,
        last: bool,
        groups: Groups,
        level: int = 0,
        **kw: Any,
    ):
        super().__init__()
        self.number, self.groups, self.dtype, self.level = number, groups, kw["dtype"], level
        at = groups.layout
        seq, features = at.stream_sizes(w)
        rows = (seq, w.batch) if at.sp else (w.batch, seq)
        stream = StageSpec((*rows, features), kw["dtype"])
        self.receives = [stream] if number else []
        self.sends = [stream] if not last else []
        if number == 0:
            self.embed = groups.embedding(w, **kw)
        self.blocks = nn.ModuleDict({str(i): GridBlock(w.like(i), groups, **kw) for i in blocks})
        if last:
            self.norm, self.head = groups.norm(w, **kw), groups.head(w, **kw)

    def shard(
        self, groups: "Mapping[str, dist.ProcessGroup]", s: "Staged", w: "GPT"
    ) -> list[FlatBucket]:
        """Put parameters with replicas into flat buffers, for ZeRO. groups : by axis."""
        first, last = hasattr(self, "embed"), hasattr(self, "head")
        named = self.own()
        buckets = [
            FlatBucket(bucket, named, groups[bucket.axis], s.zero)
            for bucket in flat_buckets(s, w, {name: tuple(p.shape) for name, p in named.items()})
        ]
        if s.zero > 1:
            self.units = units_of(list(map(int, self.blocks)), first, last)
            sets = [[b for b in buckets if b.unit == unit] for unit in reversed(self.units)]
            self.exchange = BucketExchange(sets, s.zero)
            for unit in self.units:
                module = self.get_submodule(unit)
                self.exchange.hook_forward(unit, self.norm if unit == "head" else module, module)
        return buckets

    @contextmanager
    def during(self, action: str, drop: int) -> Iterator[None]:
        self.groups.begin((self.number, action))
        if self.exchange:
            self.exchange.begin(action, visits(self.units, action, drop))
            self.exchange.expect()
        yield
        self.groups.collect()
        if self.exchange:
            self.exchange.wait()

    def begin(self, received: Sequence[torch.Tensor], inputs: Any) -> Sequence[torch.Tensor]:
        return received if self.number else (self.embed(inputs[0]),)

    def run(
        self, values: Sequence[torch.Tensor], start: int, stop: int | None, summed: bool = True
    ) -> Sequence[torch.Tensor]:
        (x,), blocks = values, list(self.blocks.values())[start:stop]
        if self.level == 3 and blocks:
            return (subpipeline.run(blocks, x, self.paths_of, summed),)  # pyright: ignore[reportArgumentType]
        for block in blocks:
            whole = summed or block is not blocks[-1]
            if self.level == 2:
                x = subpipeline.run([block], x, self.paths_of, whole)  # pyright: ignore[reportArgumentType]
            else:
                x = block(x) if whole else block(x, summed=False)
        return (x,)

    def finish(self, values: Sequence[torch.Tensor], inputs: Any) -> Sequence[torch.Tensor]:
        if not hasattr(self, "head"):
            return values
        return (self.groups.loss(self.head(self.norm(*values)), inputs[1]),)


class StagedProgram(Program):
    """One rank's step: the pipeline on its replica's rows, and the update."""

    def __init__(self, workload: "GPT", pipeline: RankPipeline, lr: float = LEARNING_RATE):
        strategy = pipeline.strategy
        self.strategy, self.workload, self.mesh = strategy, workload, pipeline.mesh
        self.pipeline, self.module, self.named = pipeline, pipeline.module, pipeline.named
        self.splits, self.layout = strategy.splits(workload), strategy.inside.layout
        self.sequence = strategy.inside.sequence
        data = (axis for axis in strategy.around.data_axes if axis in strategy.axes)
        shares = (*data, *strategy.inside.shares)
        self.rows = [(int(self.layout.sp), axis) for axis in reversed(shares)]
        self.buckets = pipeline.buckets
        trained = [*(bucket.shard for bucket in self.buckets), *pipeline.alone]
        # a group, since a rank may have no parameters
        self.optimizer, self.watched = adamw([{"params": trained}], lr), {}

    def step(self, batch: Sequence[torch.Tensor]) -> torch.Tensor | None:
        for parameter in self.pipeline.alone:
            parameter.grad = None
        self.watched.clear()
        rows = [own.chunk(self.strategy.microbatches) for own in self.own_rows(batch)]
        return self.pipeline.step(list(zip(*rows)))

    # -- for checking -----------------------------------------------------------------------------
    @property
    def parts(self) -> Iterable[nn.Module]:
        return self.pipeline.stages.values()

    def everywhere(self, name: str, tensor: torch.Tensor | None) -> torch.Tensor:
        inside = self.strategy.inside
        w, at, sizes = inside.part(self.workload), inside.layout, self.strategy.axes
        first = name == "input"
        shape = list(at.stream_sizes(w) if first else (w.seq, w.vocab // at.i))
        shape.insert(int(at.sp), w.batch // prod(sizes[axis] for _, axis in self.rows))
        return self._everywhere(tensor, shape, 0 if first else self.pipeline.schedule.rank_of[-1])

    def full(self, locals_by_name: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        parts, axes, schedule = {}, self.strategy.axes, self.pipeline.schedule
        groups: Groups = next(iter(self.pipeline.stages.values())).groups  # pyright: ignore[reportAssignmentType]
        locals_by_name = groups.blocks(locals_by_name, self.workload, self.mesh)
        for name, shape in self.workload.parameter_shapes().items():
            shape = list(shape)
            for dim, axis in self.splits.get(name, ()):
                shape[dim] //= axes[axis]
            owner = schedule.rank_of[self.strategy.stage_of(name, self.workload)]
            parts[name] = self._everywhere(locals_by_name.get(name), shape, owner)
        return gather_together(parts, self.splits, self.mesh)

    def _everywhere(self, tensor, shape, owner):
        dtype = next(iter(self.pipeline.stages.values())).dtype
        like = torch.empty(shape, dtype=dtype, device=self.pipeline.device)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return self.pipeline.everywhere(tensor, like, owner)


def build(
    strategy: "Staged",
    workload: "GPT",
    mesh: "DeviceMesh",
    dtype: torch.dtype | None,
    device: str | torch.device,
    **options: Any,
) -> StagedProgram:
    """This rank's `StagedProgram`, on a ``DeviceMesh`` with the axes of the strategy."""
    s, schedule, w = strategy, strategy.schedule_of(workload), workload
    level = s.subpipeline * (s.inside.world_size > 1)
    kw = {"dtype": dtype or getattr(torch, w.dtype), "device": device}
    local, place, last = s.local(w), mesh.get_local_rank("pp"), schedule.stages - 1
    blocks = s.blocks(w)
    groups = s.inside.groups(mesh, 2 if level == 1 and local.batch > 1 else 1)
    stages = {
        n: GPTStage(local, n, blocks[n], n == last, groups, level, **kw)
        for n in schedule.stages_of(place)
    }
    for stage in stages.values():
        groups.load(stage, w, mesh, {HEAD: TOKENS} if w.tied else {})
    named = {name for stage in stages.values() for name in stage.own()}
    buckets, classes = [], with_copies(s.classes(w), w)
    if s.zero_stage:
        several = sorted(of for of in classes if of.ranks > 1)
        replicas = {of.axis: group_along(mesh, of.axis) for of in several}
        for stage in stages.values():
            buckets += stage.shard(replicas, s, w)
    pipeline = RankPipeline(
        s,
        schedule,
        stages,
        s.num_recomputed(w),
        [Tie((TOKENS, HEAD), (0, last))] if w.tied else [],
        mesh,
        {
            axis: [name for name in names if name in named]
            for axis, names in with_copies(s.inside.summed(w), w).items()
        },
        buckets,
        classes,
    )
    return StagedProgram(w, pipeline, **options)
