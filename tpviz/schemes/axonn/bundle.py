"""Weights that travel in one message, as a block's do in FSDP: fewer, larger gathers and scatters.

To each of its weights a `Bundle` is what `weights.Depth` is, and to Depth it is one weight, so that
order, sending ahead and waiting later are Depth's. Numbers are those of every weight by itself.
Shapes: z ranks, n numbers of a rank's shards, one weight's after the other's.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from tpviz.core.labels import label

if TYPE_CHECKING:
    from .weights import Weight


class Bundle:
    """Gathered when the first of its weights is asked for, scattered when the last has a gradient.

    weights : `weights.Weight`s of one `Depth`, more than one rank, all trained. layer : its name.

    Until then Depth's ``begun`` holds the blocks that nobody has asked for and the gradients that
    have come. A weight asked for a second time before all others were once is gathered again.
    """

    def __init__(self, weights: "Sequence[Weight]", layer: str):
        self.weights, self.layer, self.depth = tuple(weights), layer, weights[0].depth
        places = [0]
        for weight in self.weights:
            weight.source = self
            places.append(places[-1] + weight.shard.numel())
        self.places = dict(zip(self.weights, pairwise(places)))
        self.numel = places[-1]

    # -- as a weight -------------------------------------------------------------------------------
    @property
    def shard(self) -> torch.Tensor:
        """This rank's shards, (n,)."""
        return torch.cat([weight.shard.detach() for weight in self.weights])

    @property
    def version(self) -> int:
        """A number that changes whenever one of the weights does."""
        return sum(weight.version for weight in self.weights)

    def add(self, gradient: torch.Tensor) -> None:
        """Add ``gradient`` (n,), this rank's shard of the sum, to the parameters' ``.grad``."""
        for weight, (start, end) in self.places.items():
            weight.add(gradient[start:end])

    # -- as what its weights come from -------------------------------------------------------------
    def whole(self, weight: "Weight", phase: str) -> torch.Tensor:
        """The block of one of its weights, flat, a copy out of the message."""
        blocks = self.depth.begun
        if weight not in blocks:
            message_zn = self.depth.whole(self, phase).view(self.depth.size, -1)
            blocks.update(
                {each: message_zn[:, slice(*place)] for each, place in self.places.items()}
            )
        return blocks.pop(weight).flatten()

    def scatter(self, weight: "Weight", grad: torch.Tensor) -> None:
        """Takes the gradient of one of its weights; with the last one all are scattered."""
        begun = self.depth.begun
        if self not in begun:
            begun[self] = grad.new_empty(self.depth.size, self.numel), set(self.weights)
        message_zn, missing = begun[self]
        message_zn[:, slice(*self.places[weight])] = grad.reshape(self.depth.size, -1)
        missing.remove(weight)
        if missing:
            return
        del begun[self]
        with label(layer=self.layer):
            summed = self.depth.scatter(self, message_zn)
        if summed is not None:
            self.add(summed)
