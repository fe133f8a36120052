"""The bug zoo of Merak: the code of its faults. See `zoo`; in words they are in `bugs`.

Faults that do not change the numbers are left out: random states not restored where nothing is
random, and replicas reduced before the two copies of a shared weight.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar
from weakref import proxy

import torch
import torch.distributed as dist

from tpviz.core.labels import current
from tpviz.core.workload import GPT
from tpviz.schemes.merak.strategy import Merak

from .zoo import FIRST, SECOND, WRONG, Evidence, Seeded, bias_everywhere

WORKLOAD = GPT(layers=4, hidden=16, heads=4, seq=4, batch=16, vocab=32, tied=True, dtype="float64")


@dataclass(frozen=True)
class PipelineEvidence(Evidence):
    """An `Evidence` of a pipeline; gradients has the last stage's copy of the shared weight by its
    own name."""

    def __repr__(self):
        wrong = [name for name, error in self.recomputed.items() if error > WRONG]
        return (
            f"{super().__repr__()}\nrecomputed: {len(wrong)} of {len(self.recomputed)} wrong"
            + (": " if wrong else "")
            + ", ".join(wrong[:3])
            + f"\nfirst error in microbatches {', '.join(map(str, self.microbatches)) or '-'}; "
            f"all waited for: {'no' if self.unwaited else 'yes'}"
        )


@dataclass(frozen=True)
class BrokenMerak(Seeded, Merak):
    """A `Merak` with a fault, in a layer, in which rows a replica takes, in the loss, or in the
    all-reduce after backward over the two copies of the shared weight or over replicas."""

    workload = WORKLOAD
    outside, grid = ("rows", "loss", "ends", "replicas"), ("pp", "tp", "dp")
    options: ClassVar = {"block": (0, 1, 2, 3)}
    variants, each_rank, evidence = 2, True, PipelineEvidence
    compared = ("forward", "recompute", "backward", "gradients")

    def modules(self, program: Any) -> dict[str, torch.nn.Module]:
        """Of all stages of the rank."""
        stages = program.pipeline.stages.values()
        return {name: module for stage in stages for name, module in stage.named_modules()}

    def gradients(self, program: Any) -> Mapping[str, torch.Tensor]:
        """The rank's own, with each copy of the shared weight."""
        return {name: parameter.grad for name, parameter in program.named.items()}


seed, variant, fault = BrokenMerak.seed, BrokenMerak.variant, BrokenMerak.fault
_DEEP, _SPLIT, _COPIED = (4, 1, 1), (2, 2, 1), (2, 1, 2)


# -- in a layer ------------------------------------------------------------------------------------
@fault("residual of the other half", "norm1", block=(1, 3), grid=(_SPLIT,), subpipeline=2)
def _other_half(program, layer):
    """In the block before this norm, the second half of a microbatch gets the residual of the first
    one around the MLP."""
    [(stage, blocks)] = [
        (stage, list(stage.blocks.values())) for stage in program.pipeline.stages.values()
    ]
    before = next(i for i, block in enumerate(blocks) if block.norm1 is layer) - 1
    plain, around = stage.run, []
    blocks[before].norm2.register_forward_pre_hook(
        lambda module, args: around.append(args[0].detach())
    )

    def run(values, start, stop, summed=True):
        end = len(blocks) if stop is None else stop
        for number in range(start, end):
            around.clear()
            (x,) = plain(values, number, number + 1, summed or number + 1 < end)
            if number == before:
                first, second = around
                x = x + torch.cat([torch.zeros_like(first), first - second])
            values = (x,)
        return values

    stage.run = run


fault("bias on every rank", *SECOND, grid=(_SPLIT,))(bias_everywhere)


@fault("sum left out of forward", "mlp.down", block=1, grid=(_SPLIT,))
def _sum_left_out(program, layer):
    """Forward omits the all-reduce that recomputation may omit."""
    plain = layer.forward

    layer.forward = lambda x, summed=True: plain(x, summed=summed and current().phase != "forward")


@fault("copies that start apart", "head", grid=(_DEEP, _COPIED))
def _own_copy(program, layer):
    """The last stage's copy of the shared weight starts with different numbers."""
    drawn = torch.Generator().manual_seed(0)
    with torch.no_grad():
        layer.weight.normal_(std=0.02, generator=drawn)


def _runner(program, layer):
    """The `Runner` of the stage that has the layer."""
    return next(
        program.pipeline.executor.runners[number]
        for number, stage in program.pipeline.stages.items()
        if any(module is layer for module in stage.modules())
    )


@fault("another microbatch recomputed", "norm1", block=(0, 1, 2), grid=(_DEEP,))
def _other_microbatch(program, layer):
    """The last received microbatch is recomputed, not the one in backward."""
    runner = _runner(program, layer)
    plain = runner.recompute

    def recompute(microbatch):
        kept, last = runner.kept[microbatch], runner.kept[max(runner.kept)]
        before, kept.before = kept.before, last.before
        plain(microbatch)
        kept.before = before

    runner.recompute = recompute


@fault(
    "one buffer for all microbatches",
    "norm1",
    block=(1, 2),
    grid=(_DEEP,),
    recompute="none",
    schedule="1f1b",
)
def _one_buffer(program, layer):
    """A stage receives into the same tensor each time."""
    messages, buffers = program.pipeline.executor.messages, []
    plain = messages.take

    def take(message):
        received = plain(message)
        if message.phase == "backward":
            return received
        if not buffers:
            buffers.extend(t.clone() for t in received)
        for buffer, tensor in zip(buffers, received):
            buffer.data.copy_(tensor)  # unseen by autograd, as what a network card writes
        return tuple(buffers)

    messages.take = take


@fault("gradient not summed", *FIRST, grid=(_SPLIT,))
def _not_summed(program, layer):
    """The input's gradient is not all-reduced over tp."""
    layer.forward = partial(layer.forward, alone=True)


class UsedEarly(torch.autograd.Function):
    """x itself, whose gradient is used before its all-reduce has ended."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        """x, as another tensor."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The all-reduce is issued; the rank uses its partial sum. (In fact the all-reduce runs on
        another buffer, so that the result is deterministic.)"""
        in_flight.append(dist.all_reduce(grad.clone(), group=ctx.group, async_op=True))
        return grad, None


in_flight = []
"""Handles that are never waited for, kept so that their all-reduces end."""


@fault("sum not waited for", *FIRST, grid=(_SPLIT,))
def _not_waited(program, layer):
    alone = partial(layer.forward, alone=True)
    layer.forward = lambda x: alone(UsedEarly.apply(x, layer.way.spread))


@fault("microbatch overwritten", *FIRST, *SECOND, grid=(_DEEP, _COPIED))
def _overwritten(program, layer):
    """A microbatch's gradient overwrites those of earlier ones."""

    weight: Any = proxy(layer.weight)  # a tensor whose hook holds the tensor is never collected

    def forget(grad):
        weight.grad = None

    layer.weight.register_hook(forget)


@fault(
    "weights of a microbatch left out",
    "",
    block=(0, 1, 2),
    grid=(_DEEP,),
    schedule="zb_h1",
    recompute="none",
)
def _weights_forgotten(program, block):
    """The deferred weight gradients of the last microbatch are never computed."""
    runner, last = _runner(program, block), program.strategy.microbatches - 1
    plain = runner.weights
    runner.weights = lambda microbatch: (
        runner.later.pop(microbatch) if microbatch == last else plain(microbatch)
    )


# -- in no layer -----------------------------------------------------------------------------------
@fault("same rows for all replicas", "rows", grid=(_COPIED,))
def _same_rows(program, _):
    """All replicas take the first one's rows."""
    plain, dp = program.step, program.strategy.dp
    program.step = lambda batch: plain([rows.chunk(dp)[0].repeat(dp, 1) for rows in batch])


@fault("share of a microbatch left out", "loss", grid=(_DEEP, _SPLIT, _COPIED))
def _whole_share(program, _):
    """A microbatch's loss is weighted as if there were no others."""
    program.pipeline.executor.share *= program.strategy.microbatches


@fault("targets of another microbatch", "loss", grid=(_DEEP, _SPLIT))
def _next_targets(program, _):
    """The last stage's targets are those of the next microbatch."""
    plain = program.pipeline.executor.step

    def step(inputs):
        targets = [rows[1] for rows in inputs]
        return plain([(rows[0], other) for rows, other in zip(inputs, targets[1:] + targets[:1])])

    program.pipeline.executor.step = step


@fault("copies not summed", "ends", grid=(_DEEP, _COPIED))
def _ends_apart(program, _):
    """Each copy of the shared weight has its own stage's gradient."""
    program.pipeline.tied_weights.sum = lambda: None


@fault("copies averaged", "ends", grid=(_DEEP, _COPIED))
def _ends_averaged(program, _):
    """The gradients of the two copies are averaged."""
    ties = program.pipeline.tied_weights
    plain = ties.sum

    def average():
        plain()
        for own, _ in ties.shared:
            for copy in own:
                copy.grad = copy.grad / 2

    ties.sum = average


@fault("replicas not summed", "replicas", grid=(_COPIED,))
def _replicas_apart(program, _):
    """Each replica has its own rows' gradient."""
    program.pipeline._sum_replicas = lambda: None
