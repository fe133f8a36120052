"""The bug zoo of Merak: pipelines that train, and are wrong. Each has one fault.

    broken = zoo.seed("another microbatch recomputed", block=1)
    tv.verify(broken, zoo.WORKLOAD)          # NOT EQUAL
    merak_bugs.examine(broken)               # the `Evidence`: where it begins

A fault is put into the program after it was built, on the ranks that have the layer, or on all; the
program is otherwise that of `tpviz.schemes.merak`. Its own formula (ledger, cost) is that of the
right program. Not here is what gives the same numbers: random states not restored where nothing is
random, and replicas summed before the two copies of a shared weight, for sums may change places.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tpviz.labels import current
from tpviz.schemes.megatron.operators import ColumnLinear
from tpviz.schemes.merak.strategy import Merak
from tpviz.schemes.operators import linear_gradients
from tpviz.workload import GPT

from .seeded import Seeded

if TYPE_CHECKING:
    from ..schemes.gpt.program import Program

WORKLOAD = GPT(layers=4, hidden=16, heads=4, seq=4, batch=16, vocab=32, tied=True, dtype="float64")
NO_LAYER = ("rows", "loss", "ends", "replicas")
"""Places outside of the layers: which rows a replica takes, the loss, and the sums after backward
over the two copies of the shared weight and over replicas."""


@dataclass(frozen=True)
class Broken(Seeded, Merak):
    """A `Merak` with the fault ``cause`` (a key of `CAUSES`) in ``layer`` of a block, or in all of
    the block where that is ""."""

    cause: str = ""
    block: int = 0
    layer: str = ""

    sound, no_layer = Merak, NO_LAYER

    @property
    def place(self) -> str:
        """The name of the layer or the block that is wrong, or one of ``no_layer``."""
        return self.layer if self.layer == "head" else super().place.rstrip(".")

    def find(self, program: "Program") -> torch.nn.Module | None:
        """The module that is wrong, None on a rank that does not have it."""
        for stage in program.pipeline.stages.values():  # pyright: ignore[reportAttributeAccessIssue]
            if (found := dict(stage.named_modules()).get(self.place)) is not None:
                return found


class Fault:
    """How a program goes wrong.

    spoil : function of (program, layer's module). layers : where in a block it can be seeded, or
    one of `NO_LAYER`. blocks : in which. grids : (pp, tp, dp) of four ranks on which there is
    something to see. knobs : of the `Merak`, likewise.
    """

    def __init__(
        self,
        spoil: Callable[..., None],
        layers: tuple[str, ...],
        grids: tuple[tuple[int, int, int], ...],
        blocks: tuple[int, ...] = (0, 1, 2, 3),
        **knobs: Any,
    ):
        self.spoil, self.layers, self.grids = spoil, layers, grids
        self.blocks, self.knobs = blocks, knobs


def seed(
    cause: str,
    layer: str | None = None,
    block: int | None = None,
    grid: tuple[int, int, int] | None = None,
) -> Broken:
    """A `Broken`; grid (pp, tp, dp), None: the first that is possible. Raises ``ValueError`` for a
    cause, layer, block or grid in which the fault is not."""
    from tpviz.checks import one_of

    one_of("cause", cause, tuple(CAUSES))
    fault = CAUSES[cause]
    layer = fault.layers[0] if layer is None else one_of("layer", layer, fault.layers)
    block = fault.blocks[0] if block is None else one_of("block", block, fault.blocks)
    grid = fault.grids[0] if grid is None else grid
    if grid not in fault.grids:
        raise ValueError(f"grid={grid!r} is not possible: use one of {fault.grids}")
    return Broken(
        **dict(zip(("pp", "tp", "dp"), grid)), cause=cause, block=block, layer=layer, **fault.knobs
    )


def variant(cause: str, number: int) -> Broken:
    """The fault in a layer, block and grid that change with ``number`` and from one to the next."""
    fault, number = CAUSES[cause], number + list(CAUSES).index(cause)
    return seed(
        cause,
        *(choices[number % len(choices)] for choices in (fault.layers, fault.blocks, fault.grids)),  # pyright: ignore[reportArgumentType]
    )


# -- in a layer ------------------------------------------------------------------------------------
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

    def run(values, start, stop):
        for number in range(start, len(blocks) if stop is None else stop):
            around.clear()
            (x,) = plain(values, number, number + 1)
            if number == before:
                first, second = around
                x = x + torch.cat([torch.zeros_like(first), first - second])
            values = (x,)
        return values

    stage.run = run


def _bias_everywhere(program, layer):
    """Every rank along tp adds the bias to its part of the sum."""
    plain, more = layer.forward, layer.group.size() - 1
    layer.forward = lambda x: plain(x) + more * layer.bias.detach()


def _sum_left_out(program, layer):
    """What recomputation may leave out, forward leaves out."""
    plain = layer.forward

    def forward(x):
        skip_last_allreduce = layer.unsummed
        layer.unsummed = skip_last_allreduce or current().phase == "forward"
        y = plain(x)
        layer.unsummed = skip_last_allreduce
        return y

    layer.forward = forward


def _own_copy(program, layer):
    """The last stage's copy of the shared weight starts with numbers of its own."""
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


def _other_microbatch(program, layer):
    """Recomputed is the microbatch that came in last, not the one that goes backward."""
    runner = _runner(program, layer)
    plain = runner.recompute

    def recompute(microbatch):
        kept, last = runner.kept[microbatch], runner.kept[max(runner.kept)]
        before, kept.before = kept.before, last.before
        plain(microbatch)
        kept.before = before

    runner.recompute = recompute


def _one_buffer(program, layer):
    """What a stage receives is received into the same tensor each time."""
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


def _not_summed(program, layer):
    """The input's gradient is not summed over tp."""
    layer.bare = True


class Unwaited(ColumnLinear):
    """A column-parallel layer that takes its input's gradient before the sum is there."""

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The sum is sent for; used is what the rank has. (In fact it is of another buffer, so that
        this comes out the same every time.)"""
        x, weight = ctx.saved_tensors
        own = grad @ weight
        under_way.append(dist.all_reduce(own.clone(), group=ctx.group, async_op=True))
        return own, *linear_gradients(x, grad.contiguous(), True), None


under_way = []
"""Handles that nobody waits for, kept so that their sums come to an end."""


def _not_waited(program, layer):
    layer.operator = Unwaited


def _overwritten(program, layer):
    """A microbatch's gradient takes the place of those before."""

    def forget(grad):
        layer.weight.grad = None

    layer.weight.register_hook(forget)


def _weights_forgotten(program, block):
    """The gradients of weights, which come later here, never come for the last microbatch."""
    runner, last = _runner(program, block), program.strategy.microbatches - 1
    plain = runner.weights
    runner.weights = lambda microbatch: (
        runner.later.pop(microbatch) if microbatch == last else plain(microbatch)
    )


# -- in no layer -----------------------------------------------------------------------------------
def _same_rows(program, _):
    """All replicas take the first one's rows."""
    plain, dp = program.step, program.strategy.dp
    program.step = lambda batch: plain([rows.chunk(dp)[0].repeat(dp, 1) for rows in batch])


def _whole_share(program, _):
    """A microbatch's loss counts as if there were no others."""
    program.pipeline.executor.share *= program.strategy.microbatches


def _next_targets(program, _):
    """The last stage's targets are those of the next microbatch."""
    plain = program.pipeline.executor.step

    def step(inputs):
        targets = [rows[1] for rows in inputs]
        return plain([(rows[0], other) for rows, other in zip(inputs, targets[1:] + targets[:1])])

    program.pipeline.executor.step = step


def _ends_apart(program, _):
    """Each copy of the shared weight has its own stage's gradient."""
    program.pipeline.tied_weights.sum = lambda: None


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


def _replicas_apart(program, _):
    """Each replica has its own rows' gradient."""
    program.pipeline._sum_replicas = lambda: None


_DEEP, _SPLIT, _COPIED = (4, 1, 1), (2, 2, 1), (2, 1, 2)
_FIRST, _SECOND = ("attention.qkv", "mlp.up"), ("attention.out", "mlp.down")
CAUSES = {
    "residual of the other half": Fault(_other_half, ("norm1",), (_SPLIT,), (1, 3), subpipeline=2),
    "bias on every rank": Fault(_bias_everywhere, _SECOND, (_SPLIT,)),
    "sum left out of forward": Fault(_sum_left_out, ("mlp.down",), (_SPLIT,), (1,)),
    "copies that start apart": Fault(_own_copy, ("head",), (_DEEP, _COPIED)),
    "another microbatch recomputed": Fault(_other_microbatch, ("norm1",), (_DEEP,), (0, 1, 2)),
    "one buffer for all microbatches": Fault(
        _one_buffer, ("norm1",), (_DEEP,), (1, 2), recompute="none", schedule="1f1b"
    ),
    "gradient not summed": Fault(_not_summed, _FIRST, (_SPLIT,)),
    "sum not waited for": Fault(_not_waited, _FIRST, (_SPLIT,)),
    "microbatch overwritten": Fault(_overwritten, _FIRST + _SECOND, (_DEEP, _COPIED)),
    "weights of a microbatch left out": Fault(
        _weights_forgotten, ("",), (_DEEP,), (0, 1, 2), schedule="zb_h1", recompute="none"
    ),
    "same rows for all replicas": Fault(_same_rows, ("rows",), (_COPIED,)),
    "share of a microbatch left out": Fault(_whole_share, ("loss",), (_DEEP, _SPLIT, _COPIED)),
    "targets of another microbatch": Fault(_next_targets, ("loss",), (_DEEP, _SPLIT)),
    "copies not summed": Fault(_ends_apart, ("ends",), (_DEEP, _COPIED)),
    "copies averaged": Fault(_ends_averaged, ("ends",), (_DEEP, _COPIED)),
    "replicas not summed": Fault(_replicas_apart, ("replicas",), (_COPIED,)),
}
Broken.causes = CAUSES
