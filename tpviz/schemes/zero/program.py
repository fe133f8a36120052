"""A rank's data-parallel step around any inner program.

`exchange` starts the reduction of a full bucket while backward goes on, and at stage 3 gathers a
block's parameters one block ahead of their use.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from tpviz.core.labels import label
from tpviz.core.mesh import group_along
from tpviz.schemes.gpt.program import LEARNING_RATE, Program, adamw, gather, program_inside

from .exchange import BucketExchange
from .flat_param import FlatBucket
from .sums import BITS

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.core.workload import GPT

    from .strategy import DataParallel


class DataParallelProgram(Program):
    """An inner program on this rank's part of the batch, with the whole batch's gradients."""

    def __init__(
        self,
        strategy: "DataParallel",
        workload: "GPT",
        inner: Program,
        mesh: "DeviceMesh",
        lr: float,
    ):
        self.workload, self.mesh, self.inner = workload, mesh, inner
        self.module, self.named, self.splits = inner.module, inner.named, inner.splits
        self.zero, self.accumulation = strategy.zero, strategy.accumulation
        buckets, named = strategy.buckets(workload), self.named
        axes = dict.fromkeys(b.near.axis for b in buckets)
        groups = {axis: group_along(mesh, axis) for axis in axes}
        outer = mesh.get_group("across") if strategy.within else None
        self.rows = [(0, axis) for axis in reversed(strategy.data_axes)]
        axis, copies = strategy.across
        across = mesh.get_group(axis) if copies > 1 else None
        near = mesh.get_group("reshard") if strategy.kept > 1 else None
        bits = BITS[strategy.gradients]
        self.buckets = [
            FlatBucket(
                b,
                named,
                groups[b.near.axis],
                self.zero,
                strategy.start_sum,
                across,
                near,
                bits,
                outer,
            )
            for b in buckets
        ]
        shared = {p for bucket in self.buckets for p in bucket.slots}
        self.alone = [p for p in self.named.values() if p not in shared]
        kept = [*(b.shard for b in self.buckets), *self.alone]
        self.optimizer = adamw(kept, lr) if self.zero else inner.optimizer  # pyright: ignore[reportArgumentType]
        inner.optimizer = self.optimizer  # the inner one must not keep the parameters' memory
        sets, reshard = [[bucket] for bucket in self.buckets], strategy.reshard_after_forward
        self.exchange = BucketExchange(sets, self.zero, reshard)
        for unit in self.units if self.zero == 3 else ():
            block = self.module.get_submodule(unit)
            self.exchange.hook_forward(unit, block, block)

    @property
    def units(self) -> list[str]:
        """The blocks, whose parameters stage 3 gathers one ahead."""
        return [f"blocks.{number}" for number in range(self.workload.layers)]

    # -- one step ---------------------------------------------------------------------------------
    def own_rows(self, batch: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self.inner.own_rows(super().own_rows(batch))

    def begin(self) -> None:
        for bucket in self.buckets:
            bucket.reset()
        for parameter in self.alone:
            parameter.grad = None

    def before_forward(self, microbatch: int) -> None:
        """Mark all gradients as missing; at ZeRO 2 and 3 also free the full ones."""
        if self.zero >= 2:
            self.exchange.finish()
        last = microbatch == self.accumulation - 1
        self.exchange.expect(held=self.zero < 2 and not last, last=last)

    def forward(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        if self.zero == 3:  # what is in no block is gathered once, and kept for its gradients
            roots = [b for b in self.buckets if b.unit not in self.units]
            for bucket in roots:
                bucket.gather("forward")
            self.exchange.begin("forward", self.units)
            for bucket in roots:
                bucket.ready("forward")
            for bucket in roots:
                bucket.complete("forward")
        return self.inner.forward(batch)

    def before_backward(self) -> None:
        self.exchange.begin("backward", self.units[::-1])

    def synchronise(self) -> None:
        self.inner.synchronise()
        with label(phase="sync"):
            for bucket in self.buckets:
                for parameter in bucket.slots if bucket.late else ():
                    bucket.collect(parameter)
            self.exchange.launch()
        self.exchange.finish()

    # -- for checking -----------------------------------------------------------------------------
    @property
    def watched(self) -> dict[str, list[Any]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.watched

    def watch(self) -> None:
        self.inner.watch()

    def outputs(self) -> torch.Tensor:
        return gather(self.inner.outputs(), self.rows, self.mesh)

    def input_gradient(self) -> torch.Tensor:
        return gather(self.inner.input_gradient(), self.rows, self.mesh)


def build(
    strategy: "DataParallel",
    workload: "GPT",
    mesh: "DeviceMesh",
    dtype: torch.dtype | None,
    device: str,
    lr: float = LEARNING_RATE,
) -> Program:
    """This rank's program for a `DataParallel` strategy; its inner program alone where dp = 1."""
    how = mesh, dtype, device, lr
    if strategy.replicas.ranks == 1:
        return program_inside(strategy, workload, *how, strategy.accumulation)
    made = program_inside(strategy, strategy.local(workload), *how)
    return DataParallelProgram(strategy, workload, made, mesh, lr)
