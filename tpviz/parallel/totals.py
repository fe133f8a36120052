"""Collectives of AxoNN on a user's module outside its layers: weights and gradients."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Self

from tpviz.schemes.axonn.step import PREFETCH

if TYPE_CHECKING:
    from torch import nn

    from tpviz.schemes.axonn.strategy import AxoNN

    from .cuts import Part
    from .sent import Call


@dataclass(frozen=True)
class Totals:
    """Numbers of one rank, derived.

    whole, pieces : (elements, parameters) of what is equal along z, and of what is sharded over it;
    every trainable parameter is in one of them. asks : whether layers ask for numbers of rows.
    """

    strategy: "AxoNN"
    easy: bool
    asks: bool
    whole: tuple[int, int]
    pieces: tuple[int, int]

    @classmethod
    def of(
        cls,
        model: "nn.Module",
        strategy: "AxoNN",
        parts: "Iterable[Part]",
        easy: bool = False,
        equal: bool = False,
    ) -> Self:
        """Of a model that is not split yet. parts : `tpviz.parallel.cuts.Part` of all that is."""
        modules, own = dict(model.named_modules()), {}
        for part in parts:
            own[id(modules[part.path].weight)] = part, "weight"
            if part.bias:
                own[id(modules[part.path].bias)] = part, "bias"
        whole, pieces = [], []
        for parameter in model.parameters():
            part, name = own.get(id(parameter), (None, ""))
            if not parameter.requires_grad:
                continue
            if name == "weight":
                pieces.append(part.block // part.z)
            else:
                whole.append(prod(part.local(name)) if part else parameter.numel())
        return cls(
            strategy, easy, easy and not equal, (sum(whole), len(whole)), (sum(pieces), len(pieces))
        )

    @property
    def axes(self) -> tuple[str, ...]:
        """Over which ranks the batch is cut, outer first."""
        return ("data", "z", "y", "x") if self.easy else ("data", "z")

    @property
    def shares(self) -> int:
        """Into how many shares the batch is cut."""
        return prod(self.strategy.axes[axis] for axis in self.axes)

    def entries(
        self, calls: "Iterable[Call]", itemsize: int
    ) -> Iterator[tuple[str, str, str, int, int, int]]:
        """Of `tpviz.Ledger.of`, for `tpviz.parallel.sent.Call`s: weights gathered, gradients
        scattered, then means over shares, with one number more for each parameter
        (`tpviz.parallel.gradients.average`)."""
        s, axes = self.strategy, self.strategy.axes
        ahead = PREFETCH if "oag" in s.overlap else "z"
        for call in calls:
            block = call.part.block * itemsize
            yield ahead, "all_gather", "forward", 1, block, s.z
            yield ahead, "all_gather", "backward", int(call.back and not s.keep), block, s.z
            yield "z", "reduce_scatter", "backward", int(call.back and call.trained), block, s.z
            for axis in ("y", "x") if self.asks else ():
                yield axis, "all_reduce", "forward", 1, 8, axes[axis]
        for axis in self.axes[1:]:
            yield axis, "all_reduce", "sync", 1, sum(self.whole) * itemsize, axes[axis]
        yield "data", "all_reduce", "sync", 1, sum(self.whole + self.pieces) * itemsize, s.data
