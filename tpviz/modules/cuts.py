"""Which part of a linear layer's weight and bias a rank holds, and what the layer sends.

i, s: sizes of the axes *inside* and *stream* of a `tpviz.schemes.grid.layout.Layout`. Weights in
formulas are (out, in).
"""

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch

from tpviz.schemes.grid.layout import Layout


class Move(NamedTuple):
    """A collective of one layer: elements of the full tensor for each token, sent in ``times``
    pieces."""

    phase: str
    collective: str
    axis: str
    elements: int
    times: int = 1


@dataclass(frozen=True)
class LinearPart:
    """One linear layer of a pair and how it is cut.

    out, ins : its features; out_dim : the dim of the weight with ``out``; blocks : output features
    of each block of a fused first layer; a3 : heads over both axes; sends : whether what a pair
    sends for its input is counted here, with the first of its first layers; z : shards of the
    weight's block, over the axis z; once : what a call sends besides, however many tokens it has.
    """

    path: str
    first: bool
    out: int
    ins: int
    out_dim: int
    bias: bool
    at: Layout
    a3: bool = False
    blocks: tuple[int, ...] = ()
    sends: bool = True
    z: int = 1
    once: tuple[Move, ...] = ()

    @property
    def role(self) -> str:
        """The layer's place in its pair: "first" or "second"."""
        return "first" if self.first else "second"

    def splits(self, name: str) -> list[tuple[int, str]]:
        """[(dim, axis)], inner cut first, of "weight" or "bias"; axes of one rank are left out."""
        at = self.at
        spread, contracted = (at.inside, at.stream) if self.first else (at.stream, at.inside)
        if name == "weight":
            cuts = [(self.out_dim, spread), (1 - self.out_dim, contracted)]
        else:
            cuts = [(0, at.stream)] * (self.first and self.a3) + [(0, spread)]
        sizes = {at.inside: at.i, at.stream: at.s}
        return [(dim, axis) for dim, axis in cuts if sizes[axis] > 1]

    @property
    def parts(self) -> int:
        """Number of ranks that heads or MLP features are split over."""
        return self.at.i * self.at.s if self.a3 else self.at.i

    def to_order(self, name: str, full: torch.Tensor) -> torch.Tensor:
        """A full parameter with its output features in the order in which they are cut: of a fused
        layer [q | k | v] becomes q, k, v of one part after the other."""
        return self._regrouped(name, full, True)

    def from_order(self, name: str, full: torch.Tensor) -> torch.Tensor:
        """The inverse of `to_order`: the parameter in its original order of features."""
        return self._regrouped(name, full, False)

    def _regrouped(self, name, full, to_parts):
        if not self.blocks or self.parts == 1:
            return full
        dim, parts, count = self.out_dim if name == "weight" else 0, self.parts, len(self.blocks)
        if to_parts:
            pieces = [b.chunk(parts, dim) for b in full.split(self.blocks, dim)]
            return torch.cat([piece[part] for part in range(parts) for piece in pieces], dim)
        sizes = [block // parts for block in self.blocks] * parts
        pieces = full.split(sizes, dim)
        return torch.cat([pieces[p * count + b] for b in range(count) for p in range(parts)], dim)

    def local(self, name: str) -> tuple[int, ...]:
        """Shape of a rank's part."""
        sizes = {self.at.inside: self.at.i, self.at.stream: self.at.s}
        shape = [self.out]
        if name == "weight":
            shape = [self.out, self.ins] if self.out_dim == 0 else [self.ins, self.out]
        for dim, axis in self.splits(name):
            shape[dim] //= sizes[axis]
        return tuple(shape)

    @property
    def block(self) -> int:
        """Elements of the block that is sharded over z."""
        return prod(self.local("weight"))

    @property
    def held(self) -> int:
        """Number of elements of the layer's parameters on a rank."""
        return self.block // self.z + (prod(self.local("bias")) if self.bias else 0)

    def moves(self, enters: bool | None = None, grad: bool = True, readers: int = 1) -> list[Move]:
        """Every `Move` of one call, forward and backward.

        As in `tpviz.schemes.grid.step`, with the stream gathered after each pair and cut before.
        enters : of a first layer, whether its input is cut here, for all ``readers`` of it; by
        default ``sends``. grad : whether the input needs a gradient. One reader sums that in its
        own backward, needed or not.
        """
        if not self.first:
            return self._second()
        enters = self.sends if enters is None else enters
        return self._first(enters and grad, enters and (grad or readers == 1))

    def _first(self, gathers, sums):
        at, wide, a3 = self.at, self.out // self.at.i, self.a3
        found = []
        if at.s > 1:
            found += [
                Move(
                    "forward", "reduce_scatter" if a3 else "all_reduce", at.stream, wide, at.chunks
                )
            ]
            found += [Move("backward", "all_gather", at.stream, wide)] * a3
            found += [Move("backward", "all_gather", at.stream, self.ins)] * gathers
        if at.i > 1 and sums:
            found += [Move("backward", "all_reduce", at.inside, self.ins // at.s)]
        return found

    def _second(self):
        at, wide, a3 = self.at, self.ins // self.at.i, self.a3
        found = []
        if at.i > 1:
            found += [Move("forward", "all_reduce", at.inside, self.out // at.s, at.chunks)]
        if at.s > 1:
            found += [Move("forward", "all_gather", at.stream, wide)] * a3
            found += [
                Move("forward", "all_gather", at.stream, self.out),
                Move("backward", "reduce_scatter" if a3 else "all_reduce", at.stream, wide),
            ]
        return found
