"""What stands in the place of a linear layer that was split: ATP's `Linear` between a cut of the
whole stream and a gather of it (L2 of the reference, for every pair).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from tpviz.schemes.atp.operators import Gather, Linear, Way


class Alone:
    """The group of an axis of one rank: there is nothing to send."""

    def size(self):
        """1"""
        return 1

    def rank(self):
        """0"""
        return 0


class Groups(NamedTuple):
    """This rank's groups by axis, asked like a ``DeviceMesh``."""

    by_axis: dict

    def get_group(self, axis):
        """The group of an axis."""
        return self.by_axis[axis]

    @classmethod
    def of(cls, layout, mesh):
        """Of a ``DeviceMesh`` that has the layout's axes, perhaps with others around them."""
        sizes = {layout.inside: layout.i, layout.stream: layout.s}
        return cls({axis: mesh.get_group(axis) if size > 1 else Alone()
                    for axis, size in sizes.items()})


def own_part(part, name, full, groups):
    """This rank's part of a full parameter, a copy: the full one can be freed."""
    local = part.to_order(name, full.detach())
    for dim, axis in reversed(part.splits(name)):
        group = groups.get_group(axis)
        local = local.chunk(group.size(), dim)[group.rank()]
    return local.clone(memory_format=torch.contiguous_format)


class SplitLinear(nn.Module):
    """One layer of a pair, this rank's part; parameters keep their names and the order of dims.

    entrance : of a first layer, the pair's `Entrance`.

    x (..., in) whole -> y (..., out/i), for A3 (..., out/(i s)), of a first layer; the other way
    round of a second. i, s: ranks along *inside* and *stream*.
    """

    def __init__(self, whole, part, groups, entrance=None):
        super().__init__()
        at = part.at
        inside, stream = groups.get_group(at.inside), groups.get_group(at.stream)
        heads = -1 if part.a3 else None
        chunks = {"chunks": at.chunks, "dim": "tokens" if at.chunking == "tokens" else 0}
        self.part, self.enter, self.leave = part, entrance, None
        if part.first:
            self.way = Way(stream, Alone() if entrance.sums else inside, scatter=heads, **chunks)
        else:
            self.way = Way(inside, stream, gather=heads, **chunks)
            self.leave = stream if at.s > 1 else None
        for name in ("weight", "bias"):
            full = getattr(whole, name, None)
            own = None if full is None else nn.Parameter(own_part(part, name, full, groups),
                                                         requires_grad=full.requires_grad)
            self.register_parameter(name, own)
        self.train(whole.training)

    def forward(self, x):
        """The layer; see the class."""
        if x.dim() == 1:
            return self(x.unsqueeze(0)).squeeze(0)
        x = self.enter(x) if self.enter else x
        x, weight, bias = _autocast(x, self.weight, self.bias)
        weight = weight.t() if self.part.out_dim else weight
        y = self._linear(x, weight, bias)
        return Gather.apply(y, self.leave) if self.leave else y

    def _linear(self, x, weight, bias):
        way = self.way
        if way.contract.size() == way.spread.size() == 1:
            return F.linear(x, weight, bias)
        if way.contract.size() == 1 or bias is None:
            return Linear.apply(x, weight, bias, way)
        return Linear.apply(x, weight, None, way) + bias

    def extra_repr(self):
        """Features, whole and of this rank."""
        part = self.part
        whole = (part.out, part.ins) if part.out_dim == 0 else (part.ins, part.out)
        return (f"{'first' if part.first else 'second'}, weight {whole} -> "
                f"{tuple(self.weight.shape)}, bias={self.bias is not None}")


def _autocast(*tensors):
    """As autocast would have them for a linear layer: an autograd function is not asked."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return [t if t is None else t.to(dtype) for t in tensors]
