"""The bug zoo of AxoNN: the code of its faults. See `zoo`; in words they are in `bugs`.

Users or authors of 3D schemes have reported several of these faults; here they are reproduced in
our program.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from tpviz.schemes.axonn.strategy import AxoNN
from tpviz.schemes.collectives import scatter_first

from .zoo import FIRST, SECOND, Evidence, Seeded, own_statistics
from .zoo import WORKLOAD as WORKLOAD


@dataclass(frozen=True)
class GridEvidence(Evidence):
    """An `Evidence` of a grid; misses : gathers of rank 0 that were not prefetched in time."""

    misses: int = 0

    def __repr__(self):
        where = f"first error on ranks {', '.join(map(str, self.ranks)) or 'none'}"
        late = ", ".join(f"{n} x {name}" for name, n in Counter(self.unwaited).items())
        return (
            f"{super().__repr__()}\n{where}; never waited for: {late or 'nothing'}; {self.misses} "
            "gathers not prefetched"
        )


@dataclass(frozen=True)
class BrokenAxoNN(Seeded, AxoNN):
    """An `AxoNN` with a fault, in a layer, in which rows a rank takes, in clipping, or in the order
    of the prefetch."""

    outside, grid = ("rows", "clip", "order"), ("x", "y", "z")
    compared, evidence = ("forward", "backward", "gradients"), GridEvidence

    def facts(self, programs: Any, calls: Any) -> int:
        """The gathers that the broken program did not prefetch."""
        return programs[0].depth.misses

    def more(self, ranks: Any, first: Any, rank: int) -> dict[str, Any]:
        """Those of rank 0."""
        return {"misses": ranks[0].facts}


seed, variant, fault = BrokenAxoNN.seed, BrokenAxoNN.variant, BrokenAxoNN.fault
LINEAR = FIRST + SECOND
_ANY, _Y, _XY = ((1, 2, 2), (2, 1, 2), (1, 1, 4)), ((1, 2, 2), (2, 2, 1)), ((2, 2, 1),)


# -- in a layer ------------------------------------------------------------------------------------
fault("statistics of own features", "norm2", "norm1", grid=_Y)(own_statistics)


@fault("axes not exchanged", *SECOND, grid=_XY)
def _not_exchanged(program, layer):
    """The second layer of a pair all-reduces over the axis of the first one's all-reduce."""
    way = layer.way
    layer.way = way._replace(contract=way.spread, spread=way.contract)


@fault("block of another layer", *LINEAR, grid=_ANY)
def _other_block(program, layer):
    """The gather returns the weight prefetched for the same layer of the other block."""
    name = next(name for name, module in program.module.named_modules() if module is layer)
    _, block, of_block = name.split(".", 2)
    other = program.module.blocks[1 - int(block)].get_submodule(of_block).pieces
    plain = program.depth.whole
    program.depth.whole = lambda weight, phase: plain(
        other if weight is layer.pieces else weight, phase
    )


@fault("bias not summed over z", *LINEAR, grid=_ANY)
def _bias_in_pieces(program, layer):
    """The bias is left out of the all-reduce over z, as if it were sharded like the weight."""
    plain, bias = program.sum_gradients, layer.bias
    program.sum_gradients = lambda axis, parameters: plain(
        axis, [p for p in parameters if axis != "z" or p is not bias]
    )


@fault("bias summed over z twice", *LINEAR, grid=_ANY)
def _bias_twice(program, layer):
    """The bias is all-reduced over z by the layer, and again by the program."""
    plain = program.sum_gradients

    def twice(axis, parameters):
        plain(axis, parameters)
        if axis == "z":
            plain(axis, [layer.bias])

    program.sum_gradients = twice


def _scattered(program, layer, change):
    """``change`` (gradient, plain) modifies the layer's reduce-scattered gradients."""
    plain = program.depth.scatter
    program.depth.scatter = lambda weight, grad: (
        change(grad, plain) if weight is layer.pieces else plain(weight, grad)
    )


@fault("gradient divided by z", *LINEAR, grid=_ANY)
def _divided(program, layer):
    """The gradient is averaged over z, and so was the loss."""
    size = program.depth.size
    _scattered(program, layer, lambda grad, plain: plain(layer.pieces, grad / size))


@fault("scatter not waited for", *LINEAR, grid=_ANY)
def _not_waited(program, layer):
    """The reduce-scatter is never waited for: its buffer is used while it still has zeros.

    (In fact the zeros are in another buffer, so that the result is deterministic.)
    """
    depth, in_flight = program.depth, []

    def change(grad, plain):
        in_flight.append(scatter_first(grad.flatten(), depth.group))
        return torch.zeros_like(layer.pieces.shard)

    _scattered(program, layer, change)


@fault("microbatch overwritten", *LINEAR, grid=_ANY, accumulation=2)
def _overwritten(program, layer):
    """A microbatch's gradient overwrites those of earlier ones."""
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
    program.own_rows = lambda batch: [whole.chunk(parts)[own % parts] for whole in batch]


@fault("same rows along z", "rows", grid=_ANY)
def _same_rows(program, _):
    """All ranks along z take the same rows."""
    z = program.strategy.z
    _rows(program, lambda at: at["data"] * z)


@fault("other rows along x", "rows", grid=((2, 1, 2),))
def _rows_of_x(program, _):
    """The ranks along x take different rows; they need the same."""
    z = program.strategy.z
    _rows(program, lambda at: at["data"] * z + at["z"] + at["x"])


@fault("copies counted in the norm", "clip", grid=_ANY, clip=0.05)
def _copies_counted(program, _):
    """The norm to clip by counts replicated gradients once per rank."""
    from tpviz.schemes.axonn.clip import GRID, norm_of, shrink

    def clip():
        gradients = [p.grad for p in program.named.values()]
        groups = [program.mesh.get_group(axis) for axis in GRID]
        program.norm = norm_of(gradients, [1] * len(gradients), groups)
        shrink(gradients, program.norm, program.strategy.clip)

    program.clip_gradients = clip


@fault("prefetched in the order of modules", "order", grid=_ANY, keep=False)
def _order_of_modules(program, _):
    """Weights are prefetched in the order of the modules, in backward too."""
    depth, plain = program.depth, program.depth.begin
    pieces = [layer.pieces for layer in program.module.modules() if hasattr(layer, "pieces")]

    def begin(what=None):
        plain(what)
        depth.order = [(weight, phase) for phase in ("forward", "backward") for weight in pieces]

    depth.begin = begin
