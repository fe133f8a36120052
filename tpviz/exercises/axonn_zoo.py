"""The bug zoo of AxoNN: programs that train, and are wrong. Each has one fault.

    broken = zoo.seed("gradient divided by z", block=1, layer="mlp.down")
    tv.verify(broken, zoo.WORKLOAD)          # NOT EQUAL
    axonn_bugs.examine(broken)               # the `Evidence`: where it begins

A fault is put into the program after it was built, on every rank; the program is otherwise that of
`tpviz.schemes.axonn`. Its own formula (ledger, cost) is that of the right program. Several are
faults that users or authors of 3D schemes have reported, put into our program in our own way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from tpviz.schemes.axonn.strategy import AxoNN
from tpviz.schemes.collectives import scatter_first
from tpviz.workload import GPT

from .seeded import Seeded

WORKLOAD = GPT(layers=2, hidden=16, heads=8, seq=8, batch=8, vocab=32, dtype="float64")
NO_LAYER = ("rows", "clip", "order")
"""Places outside of the layers: which rows a rank takes, clipping, and what is sent for ahead."""
FIRST, SECOND = ("attention.qkv", "mlp.up"), ("attention.out", "mlp.down")


@dataclass(frozen=True)
class Broken(Seeded, AxoNN):
    """An `AxoNN` with the fault ``cause`` (a key of `CAUSES`) in ``layer`` of a block."""

    cause: str = ""
    block: int = 0
    layer: str = ""

    sound, no_layer = AxoNN, NO_LAYER


class Fault:
    """How a program goes wrong.

    spoil : function of (program, layer's module). layers : where in a block it can be seeded, or
    one of `NO_LAYER`. grids : (x, y, z) of four ranks on which there is something to see. knobs :
    of the `AxoNN`, likewise.
    """

    def __init__(
        self,
        spoil: Callable[..., None],
        layers: tuple[str, ...],
        grids: tuple[tuple[int, int, int], ...],
        **knobs: Any,
    ):
        self.spoil, self.layers, self.grids, self.knobs = spoil, layers, grids, knobs


def seed(
    cause: str, layer: str | None = None, block: int = 0, grid: tuple[int, int, int] | None = None
) -> Broken:
    """A `Broken`; grid (x, y, z). Raises ``ValueError`` for a cause, layer or grid there is not."""
    from tpviz.checks import one_of

    one_of("cause", cause, tuple(CAUSES))
    fault = CAUSES[cause]
    layer = one_of("layer", layer or fault.layers[0], fault.layers)
    x, y, z = grid or fault.grids[0]
    return Broken(x=x, y=y, z=z, cause=cause, block=block, layer=layer, **fault.knobs)


# -- in a layer ------------------------------------------------------------------------------------
def _own_statistics(program, layer):
    """LayerNorm over the features that this rank has."""
    layer.forward = lambda x: F.layer_norm(
        x, layer.weight.shape, layer.weight, layer.bias, layer.eps
    )


def _not_exchanged(program, layer):
    """The second layer of a pair sums over the axis that the first one summed over."""
    way = layer.way
    layer.way = way._replace(contract=way.spread, spread=way.contract)


def _other_block(program, layer):
    """The gather hands out what was sent for on behalf of the same layer of the other block."""
    name = next(name for name, module in program.module.named_modules() if module is layer)
    _, block, of_block = name.split(".", 2)
    other = program.module.blocks[1 - int(block)].get_submodule(of_block).pieces
    plain = program.depth.whole
    program.depth.whole = lambda weight, phase: plain(
        other if weight is layer.pieces else weight, phase
    )


def _bias_in_pieces(program, layer):
    """The bias is left out of the sum over z, as if it were in pieces like the weight."""
    plain, bias = program.sum_gradients, layer.bias
    program.sum_gradients = lambda axis, parameters: plain(
        axis, [p for p in parameters if axis != "z" or p is not bias]
    )


def _bias_twice(program, layer):
    """The bias is summed over z by the layer, and by the program again."""
    plain = program.sum_gradients

    def twice(axis, parameters):
        plain(axis, parameters)
        if axis == "z":
            plain(axis, [layer.bias])

    program.sum_gradients = twice


def _scattered(program, layer, change):
    """The layer's scattered gradients are what ``change`` (gradient, plain) makes of them."""
    plain = program.depth.scatter
    program.depth.scatter = lambda weight, grad: (
        change(grad, plain) if weight is layer.pieces else plain(weight, grad)
    )


def _divided(program, layer):
    """The gradient is averaged over z, and so was the loss."""
    size = program.depth.size
    _scattered(program, layer, lambda grad, plain: plain(layer.pieces, grad / size))


def _not_waited(program, layer):
    """The scatter is sent and never waited for: used is what was in its buffer before, zeros.

    (In fact the zeros are of another buffer, so that this comes out the same every time.)
    """
    depth, under_way = program.depth, []

    def change(grad, plain):
        under_way.append(scatter_first(grad.flatten(), depth.group))
        return torch.zeros_like(layer.pieces.shard)

    _scattered(program, layer, change)


def _overwritten(program, layer):
    """A microbatch's gradient takes the place of those before."""
    depth, plain = program.depth, program.depth.collect

    def collect():
        for weight, *_ in depth.scattering:
            if weight is layer.pieces:
                weight.shard.grad = None
        plain()

    depth.collect = collect


# -- in no layer -----------------------------------------------------------------------------------
def _rows(program, place):
    """Rows by ``place``, a function of this rank's {axis: coordinate}."""
    s, mesh = program.strategy, program.mesh
    own = place({axis: mesh.get_local_rank(axis) for axis in s.axes})
    parts = s.data * s.z
    program._rows = lambda batch: [whole.chunk(parts)[own % parts] for whole in batch]


def _same_rows(program, _):
    """All ranks along z take the same rows."""
    z = program.strategy.z
    _rows(program, lambda at: at["data"] * z)


def _rows_of_x(program, _):
    """The ranks along x take different rows; they need the same."""
    z = program.strategy.z
    _rows(program, lambda at: at["data"] * z + at["z"] + at["x"])


def _copies_counted(program, _):
    """The norm to clip by counts what several ranks hold once for each of them."""
    from tpviz.schemes.axonn.clip import GRID, norm_of, shrink

    def clip():
        gradients = [p.grad for p in program.named.values()]
        groups = [program.mesh.get_group(axis) for axis in GRID]
        program.norm = norm_of(gradients, [1] * len(gradients), groups)
        shrink(gradients, program.norm, program.strategy.clip)

    program._clip = clip


def _order_of_modules(program, _):
    """Weights are sent for in the order of the modules, in backward too."""
    depth, plain = program.depth, program.depth.begin
    pieces = [layer.pieces for layer in program.module.modules() if hasattr(layer, "pieces")]

    def begin():
        plain()
        depth.order = [(weight, phase) for phase in ("forward", "backward") for weight in pieces]

    depth.begin = begin


_ANY, _Y, _XY = ((1, 2, 2), (2, 1, 2), (1, 1, 4)), ((1, 2, 2), (2, 2, 1)), ((2, 2, 1),)
CAUSES = {
    "statistics of own features": Fault(_own_statistics, ("norm2", "norm1"), _Y),
    "axes not exchanged": Fault(_not_exchanged, SECOND, _XY),
    "block of another layer": Fault(_other_block, FIRST + SECOND, _ANY),
    "bias not summed over z": Fault(_bias_in_pieces, FIRST + SECOND, _ANY),
    "bias summed over z twice": Fault(_bias_twice, FIRST + SECOND, _ANY),
    "gradient divided by z": Fault(_divided, FIRST + SECOND, _ANY),
    "scatter not waited for": Fault(_not_waited, FIRST + SECOND, _ANY),
    "microbatch overwritten": Fault(_overwritten, FIRST + SECOND, _ANY, accumulation=2),
    "same rows along z": Fault(_same_rows, ("rows",), _ANY),
    "other rows along x": Fault(_rows_of_x, ("rows",), ((2, 1, 2),)),
    "copies counted in the norm": Fault(_copies_counted, ("clip",), _ANY, clip=0.05),
    "sent for in the order of modules": Fault(_order_of_modules, ("order",), _ANY, keep=False),
}
Broken.causes = CAUSES
