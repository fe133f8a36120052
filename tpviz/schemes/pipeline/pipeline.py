"""One rank's pipeline: its stages, the schedule that moves microbatches through them, and the
all-reduces that come after.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from tpviz.core.labels import label
from tpviz.core.mesh import Mesh, group_along
from tpviz.schemes.gpt.experts import weigh
from tpviz.schemes.gradients import add_up, share

from .executor import Executor
from .messages import Messages
from .p2p_plan import P2PPlan
from .stage import Forward, Runner, Stage
from .tied_weights import Tie, TiedWeights

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.core.schedules import Schedule
    from tpviz.schemes.replicas import Replicas
    from tpviz.schemes.zero.flat_param import FlatBucket

    from .staged import Staged


class RankPipeline:
    """What a rank does in a step, except for the optimizer's update.

    strategy : a `Staged`. schedule : whose stages these are. stages : {number: `Stage`} of this
    rank. num_recomputed : layers of each stage of the pipeline that are recomputed. tied_weights :
    `Tie`s of all stages. mesh : a ``DeviceMesh`` over all ranks with the strategy's axes, perhaps
    with others around them. summed : {axis: parameters of this rank whose gradients it adds up at
    the end}. buckets : of ZeRO; none without. Where they reduce every microbatch's
    gradients, what is added up at the end are shares. classes : as of `Staged.classes`, of all
    stages; None: all have the strategy's ``replicas``.
    """

    def __init__(
        self,
        strategy: "Staged",
        schedule: "Schedule",
        stages: Mapping[int, Stage],
        num_recomputed: Sequence[int],
        tied_weights: Sequence[Tie],
        mesh: "DeviceMesh",
        summed: Mapping[str, Sequence[str]] = MappingProxyType({}),
        buckets: "Sequence[FlatBucket]" = (),
        classes: "Mapping[Replicas, Sequence[str]] | None" = None,
    ):
        self.strategy, self.schedule, self.stages, self.mesh = strategy, schedule, stages, mesh
        self.place = mesh.get_local_rank("pp")
        self.module = nn.ModuleList(stages.values())
        self.named = {name: p for stage in stages.values() for name, p in stage.own().items()}
        whole = Mesh.of(mesh)
        kind = mesh.device_type
        # a stage may have no parameters
        self.device = next((p.device for p in self.named.values()), torch.device(kind))
        self.down = mesh.get_group("pp")
        self.up = whole.second_group("pp", "pp", device_type=kind)
        split = schedule.splits(self.place)
        runners = {
            s: Runner(stage, num_recomputed[s], split, strategy.skip_last_allreduce)
            for s, stage in stages.items()
        }
        self.buckets, named = list(buckets), self.named
        inside = {p for bucket in buckets for p in bucket.slots}
        self.alone = [p for p in self.parameters() if p not in inside]
        self.replicas = [
            (group_along(mesh, of.axis), self.parameters(n for n in names if n in named))
            for of, names in sorted((classes or {strategy.replicas: tuple(named)}).items())
            if of.ranks > 1
        ]
        axis, copies = strategy.around.across
        self.across = mesh.get_group(axis) if copies > 1 else None
        self.added_up = [bucket for bucket in self.buckets if bucket.zero == 1]
        shared = [bucket for bucket in self.buckets if bucket.zero > 1]
        sharded: dict[str, Any] = {n: b.shard for b in shared for n in b.names}
        owned = self.named | sharded
        self.summed = {
            axis: list({id(owned[name]): owned[name] for name in names}.values())
            for axis, names in summed.items()
        }
        self.share = share(1, strategy.dp * strategy.inside.token_ranks, strategy.microbatches)
        for stage in stages.values():
            weigh(stage, self.share)
        self.executor = self._executor(schedule, stages, runners)
        self.tied_weights = TiedWeights(
            tied_weights,
            {number: stage.own() | sharded for number, stage in stages.items()},
            schedule.rank_of,
            lambda places: whole.second_group("pp", "ends", places, kind),
        )

    def _executor(self, schedule, stages, runners):
        def empty(message):
            """Tensors to receive a message into: what a stage receives, or the gradients of what it
            sends."""
            stage, back = stages[message.stage], message.phase == "backward"
            specs = [spec for spec in stage.sends if spec.trained] if back else stage.receives
            return [torch.empty(s.shape, dtype=s.dtype, device=self.device) for s in specs]

        messages = Messages(P2PPlan(schedule, self.place), self.down, self.up, empty)  # pyright: ignore[reportArgumentType]
        return Executor(schedule, self.place, runners, messages, self.share)

    def step(self, microbatches: Sequence[Any]) -> torch.Tensor | None:
        """Forward and backward of all microbatches and the gradient all-reduces; the mean loss
        where the last stage is on this rank, else None."""
        for bucket in self.buckets:
            bucket.reset()
        for bucket in self.added_up:
            bucket.add_up()
        losses = self.executor.step(microbatches)
        with label(phase="sync"):
            self.tied_weights.sum()
            self._sum_once()
            self._sum_replicas()
        return _mean(losses)

    def evaluate(
        self, microbatches: Sequence[Any], stages: Mapping[int, Stage] | None = None
    ) -> torch.Tensor | None:
        """The mean loss of all microbatches, forward alone, where the last stage is, else None.
        stages : others with the same parameters, as of a program in evaluation mode."""
        stages = stages or self.stages
        runners = {number: Forward(stage) for number, stage in stages.items()}
        return _mean(self._executor(self.schedule.forwards(), stages, runners).step(microbatches))

    def _sum_once(self):
        """What the factor inside adds up."""
        for axis, parameters in self.summed.items():
            add_up(parameters, self.mesh.get_group(axis), in_place=True)

    def _sum_replicas(self):
        """Each bucket, or of each class all in one message; shares across groups in one. A gradient
        that no replica has stays none."""
        for bucket in self.added_up:
            bucket.reduce()
        for bucket in self.added_up:
            bucket.reduced()
        if self.across:
            shares: Any = [bucket.shard for bucket in self.buckets]
            add_up(shares, self.across, in_place=True)
        for group, parameters in self.replicas if not self.buckets else ():
            if parameters:
                add_up(parameters, group, self.strategy.around.start_sum)

    def parameters(self, names: Iterable[str] | None = None) -> list[nn.Parameter]:
        """The parameters of this rank's stages, or those of these names, each once."""
        of = self.named if names is None else names
        return list({id(self.named[name]): self.named[name] for name in of}.values())

    def everywhere(
        self, tensor: torch.Tensor | None, like: torch.Tensor, owner: int
    ) -> torch.Tensor:
        """Broadcast ``tensor`` from the rank at index ``owner`` of the pipeline to all its ranks.
        like : a tensor of the same shape, dtype and device, which is overwritten on the others."""
        group = self.mesh.get_group("pp")
        if group.size() == 1:
            return tensor  # pyright: ignore[reportReturnType]
        tensor = tensor.detach().contiguous() if self.place == owner else like  # pyright: ignore[reportOptionalMemberAccess]
        dist.broadcast(tensor, group=group, group_src=owner)
        return tensor


def _mean(losses):
    return torch.stack([losses[m] for m in sorted(losses)]).mean() if losses else None
