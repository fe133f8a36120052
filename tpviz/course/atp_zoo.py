"""The bug zoo of ATP: the code of its faults. See `zoo`; in words they are in `bugs`."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from tpviz.schemes.atp.strategy import ATP
from tpviz.schemes.grid.operators import Linear

from .zoo import WORKLOAD, Seeded, bias_everywhere, copies_not_summed, own_statistics


@dataclass(frozen=True)
class BrokenATP(Seeded, ATP):
    """An `ATP` with a fault, in a layer, in the all-reduce of copies' gradients or in the loss."""

    outside = ("sync", "loss")
    options: ClassVar = {
        "block": (0, 1),
        "mesh": ((2, 2),),
        "order": ("column", "column", "row", "row"),  # does not go with the block in variants
    }


seed, variant, fault = BrokenATP.seed, BrokenATP.variant, BrokenATP.fault


fault("bias before the sum", "mlp.down", "mlp.up", "attention.out")(bias_everywhere)


@fault("q, k, v as blocks", "attention.qkv")
def _blocks_of_q_k_v(program, layer):
    """This rank's rows are read as [q | k | v]; they are [q k v] of one head after another."""
    plain, size = layer.forward, WORKLOAD.hidden // WORKLOAD.heads
    layer.forward = lambda x: plain(x).unflatten(-1, (3, -1, size)).transpose(-3, -2).flatten(-3)


class _Nobody:
    """A group of this rank alone."""

    @staticmethod
    def size():
        return 1


@fault("output not summed", "mlp.down", "mlp.up", "attention.out")
def _no_sum_forward(program, layer):
    """Forward keeps this rank's partial sum of the output."""
    way = layer.way
    layer.forward = lambda x: Linear.apply(
        x, layer.weight, layer.bias, way._replace(contract=_Nobody)
    )


@fault("gradient summed over the wrong axis", "mlp.up", "mlp.down", "attention.qkv")
def _other_axis(program, layer):
    """Backward all-reduces the input's gradient over the axis of forward's all-reduce."""
    layer.way = layer.way._replace(spread=layer.way.contract)


@fault("gradient not summed", "attention.qkv", "mlp.up", "mlp.down")
def _no_sum(program, layer):
    """Backward keeps this rank's partial sum of the input's gradient."""
    layer.way = layer.way._replace(spread=_Nobody)


fault("statistics of own features", "norm2", "norm1")(own_statistics)


@fault(
    "chunks in the wrong order", "attention.out", "mlp.down", "mlp.up", "attention.qkv", chunks=2
)
def _other_order(program, layer):
    """The chunks are joined last first."""
    plain, chunks = layer.forward, layer.way.chunks
    layer.forward = lambda x: torch.cat(plain(x).chunk(chunks)[::-1])


fault("copies not summed", "sync", sp=True)(copies_not_summed)


@fault("loss scaled twice", "loss")
def _loss_scaled_twice(program, layer):
    """The loss is right, but its gradient counts once for each rank of an axis."""
    plain, times = program.forward, program.mesh.get_group("d1").size()

    def forward(batch):
        loss = plain(batch)
        return loss + (times - 1) * (loss - loss.detach())

    program.forward = forward
