"""The bug zoo of ATP: programs that train, and are wrong. Each has one fault, seeded in one layer.

    broken = zoo.seed("bias before the sum", block=1, layer="mlp.down")
    tv.verify(broken, zoo.WORKLOAD)          # NOT EQUAL
    atp_bugs.examine(broken)                 # the `Evidence`: where it begins

A fault is put into the program after it was built, on every rank; the program is otherwise that of
`tpviz.schemes.atp`. Its own formula (ledger, cost) is that of the right program.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from tpviz.schemes.atp.operators import Linear
from tpviz.schemes.atp.strategy import ATP
from tpviz.workload import GPT

from .seeded import Seeded

WORKLOAD = GPT(layers=2, hidden=16, heads=8, seq=8, batch=8, vocab=32, dtype="float64")
NO_LAYER = ("sync", "loss")
"""Places outside of the layers: the sum of copies' gradients after backward, and the loss."""


@dataclass(frozen=True)
class Broken(Seeded, ATP):
    """An `ATP` with the fault ``cause`` (a key of `CAUSES`) in ``layer`` of a block."""

    cause: str = ""
    block: int = 0
    layer: str = ""

    sound, no_layer = ATP, NO_LAYER


class Fault:
    """How a program goes wrong.

    spoil : function of (program, layer's module). layers : where in a block it can be seeded, or
    one of `NO_LAYER`. knobs : of the `ATP`, without which there would be nothing to see.
    """

    def __init__(self, spoil: Callable[..., None], layers: tuple[str, ...], **knobs: Any):
        self.spoil, self.layers, self.knobs = spoil, layers, knobs


def seed(
    cause: str,
    layer: str | None = None,
    block: int = 0,
    mesh: tuple[int, int] = (2, 2),
    order: str = "column",
) -> Broken:
    """A `Broken`. Raises ``ValueError`` for a cause or a layer that there is not."""
    from tpviz.checks import one_of

    one_of("cause", cause, tuple(CAUSES))
    fault = CAUSES[cause]
    layer = one_of("layer", layer or fault.layers[0], fault.layers)
    return Broken(mesh=mesh, order=order, cause=cause, block=block, layer=layer, **fault.knobs)


def _whole(layer, x, bias):
    """The layer's sum on its own, and then its bias."""
    return Linear.apply(x, layer.weight, None, layer.way) + bias


def _bias_before_the_sum(program, layer):
    """Every rank adds its bias to its part, so it counts once for each rank of the sum. The
    gradient of a bias passes the sum as it is."""
    more = layer.way.contract.size() - 1
    layer.forward = lambda x: _whole(layer, x, layer.bias + more * layer.bias.detach())


def _blocks_of_q_k_v(program, layer):
    """This rank's rows are read as [q | k | v]; they are [q k v] of one head after another."""
    plain, size = layer.forward, WORKLOAD.hidden // WORKLOAD.heads
    layer.forward = lambda x: plain(x).unflatten(-1, (3, -1, size)).transpose(-3, -2).flatten(-3)


def _other_axis(program, layer):
    """Backward sums the input's gradient over the axis of forward's sum."""
    layer.way = layer.way._replace(spread=layer.way.contract)


class _Nobody:
    """A group of this rank alone."""

    @staticmethod
    def size():
        return 1


def _no_sum(program, layer):
    """Backward keeps this rank's part of the input's gradient."""
    layer.way = layer.way._replace(spread=_Nobody)


def _no_sum_forward(program, layer):
    """Forward keeps this rank's part of the output."""
    way = layer.way
    layer.forward = lambda x: Linear.apply(
        x, layer.weight, layer.bias, way._replace(contract=_Nobody)
    )


def _own_statistics(program, layer):
    """LayerNorm over the features that this rank has."""
    layer.forward = lambda x: F.layer_norm(
        x, layer.weight.shape, layer.weight, layer.bias, layer.eps
    )


def _other_order(program, layer):
    """The chunks are joined last first."""
    plain, chunks = layer.forward, layer.way.chunks
    layer.forward = lambda x: torch.cat(plain(x).chunk(chunks)[::-1])


def _copies_not_summed(program, layer):
    """Under sequence parallelism every copy keeps the gradient of its own tokens."""
    program.partial = ()


def _loss_scaled_twice(program, layer):
    """The loss is right, but its gradient counts once for each rank of an axis."""
    plain, times = program.forward, program.mesh.get_group("d1").size()

    def forward(batch):
        loss = plain(batch)
        return loss + (times - 1) * (loss - loss.detach())

    program.forward = forward


CAUSES = {
    "bias before the sum": Fault(_bias_before_the_sum, ("mlp.down", "mlp.up", "attention.out")),
    "q, k, v as blocks": Fault(_blocks_of_q_k_v, ("attention.qkv",)),
    "output not summed": Fault(_no_sum_forward, ("mlp.down", "mlp.up", "attention.out")),
    "gradient summed over the wrong axis": Fault(
        _other_axis, ("mlp.up", "mlp.down", "attention.qkv")
    ),
    "gradient not summed": Fault(_no_sum, ("attention.qkv", "mlp.up", "mlp.down")),
    "statistics of own features": Fault(_own_statistics, ("norm2", "norm1")),
    "chunks in the wrong order": Fault(
        _other_order, ("attention.out", "mlp.down", "mlp.up", "attention.qkv"), chunks=2
    ),
    "copies not summed": Fault(_copies_not_summed, ("sync",), sp=True),
    "loss scaled twice": Fault(_loss_scaled_twice, ("loss",)),
}
Broken.causes = CAUSES
