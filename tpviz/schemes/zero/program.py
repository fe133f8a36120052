"""A rank's data-parallel step around any inner program.

Gradient hooks copy each finished gradient into its bucket and start the reduction of a full bucket
while backward goes on. At stage 3 block hooks gather a block's parameters one block ahead of their
use.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import proxy

import torch

from tpviz.core.labels import label
from tpviz.schemes.collectives import own_of
from tpviz.schemes.gpt.program import LEARNING_RATE, Program, adamw, gather, reference_program

from .flat_param import FlatBucket, gather_updated

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
        self.group, self.zero = mesh.get_group("dp"), strategy.zero
        self.accumulation = strategy.accumulation
        self.buckets = [
            FlatBucket(b, self.named, self.group, self.zero, strategy.start_sum)
            for b in strategy.buckets(workload)
        ]
        shards = [b.shard for b in self.buckets]
        self.optimizer = adamw(shards, lr) if self.zero else inner.optimizer  # pyright: ignore[reportArgumentType]
        inner.optimizer = self.optimizer  # the inner one must not keep the parameters' memory
        self.launched = self.left = 0
        for bucket in self.buckets:
            if not bucket.late:
                self._hook(bucket)
        if self.zero == 3:
            self._hook_blocks()

    # -- one step ---------------------------------------------------------------------------------
    def step(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        for bucket in self.buckets:
            bucket.reset()
        rows = [own_of(whole, self.group) for whole in batch]
        loss = self.accumulate(rows, 1 / self.group.size())  # the mean over ranks, by adding
        self.synchronise()
        return loss

    def forward(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        if self.zero == 3:
            self._gather_roots()
        return self.inner.forward(batch)

    def before_forward(self, microbatch: int) -> None:
        """Mark all gradients as missing; at ZeRO 2 and 3 also free the full ones."""
        if self.zero >= 2:
            self._wait()
        self.launched, self.left = 0, self.accumulation - 1 - microbatch
        for bucket in self.buckets:
            bucket.expect()

    def before_backward(self) -> None:
        if self.zero == 3:
            self._prefetch(len(self.module.blocks) - 1, "backward")  # pyright: ignore[reportArgumentType]

    def _wait(self):
        with label(phase="sync"):
            for bucket in self.buckets:
                bucket.reduced()

    def synchronise(self) -> None:
        self.inner.synchronise()
        with label(phase="sync"):
            for bucket in self.buckets:
                if bucket.late:
                    for parameter in bucket.slots:
                        bucket.collect(parameter)
                    self._complete(bucket)
        self._wait()

    def optimizer_step(self) -> None:
        self.optimizer.step()
        if self.zero in (1, 2):
            gather_updated(self.buckets)

    # -- gradients, while backward goes on --------------------------------------------------------
    def _hook(self, bucket):
        # weakly: a tensor that owns a hook that owns the tensor is never collected
        self, bucket = proxy(self), proxy(bucket)

        def arrived(parameter):
            with label(phase="sync"):
                if bucket.collect(parameter):
                    self._complete(bucket)

        for parameter in bucket.slots:
            parameter.register_post_accumulate_grad_hook(arrived)

    def _complete(self, bucket):
        """A bucket is full: reduce it, in the plan's order, which is the same on every rank."""
        if self.left and self.zero < 2:
            return  # later microbatches add to it
        if self.zero == 3:
            bucket.free()
        while self.launched < len(self.buckets) and not self.buckets[self.launched].missing:
            if self.zero >= 2 and self.launched:
                self.buckets[self.launched - 1].reduced()  # at most one whole gradient in flight
            self.buckets[self.launched].reduce()
            self.launched += 1

    # -- parameters, at stage 3 -------------------------------------------------------------------
    def _gather_roots(self):
        """What is not in a block is gathered once, and kept until its gradients are done."""
        roots = [b for b in self.buckets if b.block < 0]
        for bucket in roots:
            bucket.gather("forward")
        self._prefetch(0, "forward")
        for bucket in roots:
            bucket.ready("forward")

    def _prefetch(self, block, phase):
        for bucket in self.buckets:
            if bucket.block == block >= 0:
                bucket.gather(phase)

    def _hook_blocks(self):
        self, of_block = proxy(self), {b.block: proxy(b) for b in self.buckets if b.block >= 0}
        for number, block in enumerate(self.module.blocks):
            block.register_forward_pre_hook(
                lambda *_, n=number: self._use(of_block[n], n + 1, "forward")
            )
            block.register_forward_hook(
                lambda m, args, out, n=number: self._used(of_block[n], out, n)
            )

    def _use(self, bucket, ahead, phase):
        bucket.ready(phase)
        self._prefetch(ahead, phase)

    def _used(self, bucket, out, number):
        bucket.free()
        self = proxy(self)  # a graph that is kept, as by `watch`, must not keep the program
        out.register_hook(lambda grad: self._use(bucket, number - 1, "backward"))

    # -- for checking -----------------------------------------------------------------------------
    @property
    def watched(self) -> dict[str, list[Any]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.watched

    def watch(self) -> None:
        self.inner.watch()

    def outputs(self) -> torch.Tensor:
        return gather(self.inner.outputs(), [(0, "dp")], self.mesh)

    def input_gradient(self) -> torch.Tensor:
        return gather(self.inner.input_gradient(), [(0, "dp")], self.mesh)

    def gradients(self) -> dict[str, torch.Tensor]:
        return self._full(FlatBucket.full_gradients)

    def parameters(self) -> dict[str, torch.Tensor]:
        return self._full(FlatBucket.full_parameters)

    def _full(self, of_bucket):
        found = {}
        for bucket in self.buckets:
            found |= of_bucket(bucket)
        return self.full({name: found[name] for name in self.named})


def build(
    strategy: "DataParallel",
    workload: "GPT",
    mesh: "DeviceMesh",
    dtype: torch.dtype | None,
    device: str,
    lr: float = LEARNING_RATE,
) -> Program:
    """This rank's program for a `DataParallel` strategy; its inner program alone where dp = 1."""
    inner, count, of_rank = strategy.inner, strategy.accumulation, strategy.local(workload)
    if strategy.dp == 1:
        if inner:
            return replace(inner, accumulation=count).build(workload, mesh, dtype, device, lr=lr)  # pyright: ignore[reportCallIssue]
        return reference_program(workload, dtype, device, lr, accumulation=count)
    if inner:
        made = inner.build(of_rank, mesh, dtype, device, lr=lr)
    else:
        made = reference_program(of_rank, dtype, device, lr)
    return DataParallelProgram(strategy, workload, made, mesh, lr)
