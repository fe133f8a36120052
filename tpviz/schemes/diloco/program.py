"""A rank's rounds: the inner program's steps, and the outer one over the axis *worker*."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tpviz.core.labels import label
from tpviz.schemes.gpt.program import LEARNING_RATE, Program, gather, program_inside
from tpviz.schemes.gradients import own_rows
from tpviz.schemes.zero.flat_param import gather_updated

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.core.workload import GPT

    from .strategy import DiLoCo


class DiLoCoProgram(Program):
    """An inner program's steps on this worker's rows, and the outer step.

    outer : what the inner optimizer updates on this rank, flat, as it was when the round began; its
    ``grad`` is the outer gradient, which `gradients` gives.
    """

    rows = ((0, "worker"),)

    def __init__(self, strategy: "DiLoCo", workload: "GPT", inner: Program, mesh: "DeviceMesh"):
        self.workload, self.mesh, self.inner, self.strategy = workload, mesh, inner, strategy
        self.module, self.named, self.splits = inner.module, inner.named, inner.splits
        self.buckets, self.optimizer = inner.buckets, inner.optimizer
        self.group = mesh.get_group("worker") if strategy.workers > 1 else None
        self.owned = [p for group in inner.optimizer.param_groups for p in group["params"]]
        self.outer = torch.nn.Parameter(torch.cat([p.detach().flatten() for p in self.owned]))
        self.outer.grad = torch.zeros_like(self.outer)
        momentum = strategy.outer_momentum
        self.outer_optimizer = torch.optim.SGD(
            [self.outer], strategy.outer_lr, momentum, nesterov=momentum > 0, fused=True
        )
        self.watching, self.kept = False, list[dict[str, list[Any]]]()

    def step(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        """The inner steps of a round, all updates but the last one's. Returns the mean loss."""
        rows, losses = own_rows(batch, self.rows, self.mesh), []
        self.kept.clear()
        for number, part in enumerate(zip(*(t.chunk(self.strategy.sync_every) for t in rows))):
            if number:
                self.inner.optimizer_step()
            losses.append(self.inner.step(part))
            if self.watching:
                self.kept.append({name: list(of) for name, of in self.inner.watched.items()})
        return torch.stack(losses).mean()

    def optimizer_step(self) -> None:
        """The last inner update, then the outer step."""
        self.optimizer.step()
        with label(phase="sync"):
            self._average()
        self.outer_optimizer.step()
        for p, new in zip(self.owned, self._parts(self.outer)):
            p.data.copy_(new)
        gather_updated([bucket for bucket in self.buckets if bucket.zero in (1, 2)])

    @torch.no_grad()
    def _average(self):
        """The outer gradient: the mean over workers of what their steps took away."""
        away: Any = self.outer.grad
        for part, p, old in zip(self._parts(away), self.owned, self._parts(self.outer)):
            torch.sub(old, p, out=part)
        away.div_(self.strategy.workers)
        if self.group:
            dist.all_reduce(away, group=self.group)

    def _parts(self, flat) -> list[torch.Tensor]:
        parts = flat.detach().split([p.numel() for p in self.owned])
        return [part.view(p.shape) for part, p in zip(parts, self.owned)]

    # -- for checking ------------------------------------------------------------------------------
    def watch(self) -> None:
        self.watching = True
        self.inner.watch()

    def outputs(self) -> torch.Tensor:
        return self._of_round(self.inner.outputs)

    def input_gradient(self) -> torch.Tensor:
        return self._of_round(self.inner.input_gradient)

    def _of_round(self, of: Callable[[], torch.Tensor]):
        found = []
        for watched in self.kept:
            self.inner.watched.clear()
            self.inner.watched.update(watched)
            found.append(of())
        return gather(torch.cat(found), self.rows, self.mesh)

    def gradients(self) -> dict[str, torch.Tensor]:
        """{name: outer gradient of the last round}, full tensors."""
        of = {id(p): part for p, part in zip(self.owned, self._parts(self.outer.grad))}
        found = {name: of[id(p)] for name, p in self.named.items() if id(p) in of}
        for bucket in self.buckets:
            if bucket.shard is not None:
                found |= bucket.parts_of(of[id(bucket.shard)])
        return self.inner.full(found)

    def parameters(self) -> dict[str, torch.Tensor]:
        return self.inner.parameters()


def build(
    strategy: "DiLoCo",
    workload: "GPT",
    mesh: "DeviceMesh",
    dtype: torch.dtype | None,
    device: "torch.device | str",
    lr: float = LEARNING_RATE,
) -> Program:
    """This rank's program for a `DiLoCo` strategy."""
    made = program_inside(strategy, strategy.local(workload), mesh, dtype, device, lr)
    return DiLoCoProgram(strategy, workload, made, mesh)
