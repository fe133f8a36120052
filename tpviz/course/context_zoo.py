"""The bug zoo of context parallelism: the code of its faults. See `zoo`; `bugs` describes them.

A fault is in the attention of one block, in all rings, or in the positions of the embedding. Its
evidence has the tokens that are wrong, by their place in the whole sequence.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar
from unittest.mock import patch

import torch

from tpviz.core.workload import GPT
from tpviz.schemes.context import layers
from tpviz.schemes.context.layers import block, block_backward
from tpviz.schemes.context.strategy import Context
from tpviz.schemes.ring import RingMessages

from .zoo import WRONG, Evidence, Seeded

WORKLOAD = GPT(layers=2, hidden=16, heads=4, seq=16, batch=2, vocab=32, dtype="float64")
CP = 4


@dataclass(frozen=True)
class TokenEvidence(Evidence):
    """An `Evidence` with ``tokens``: {rank: [(place in the sequence, whether it is wrong)]} of all
    ranks, where the first error is; {} where no number is wrong."""

    tokens: dict[int, list[tuple[int, bool]]] = field(default_factory=dict)

    def __repr__(self):
        rows = [
            f"rank {rank}: " + " ".join(f"{place}{'x' if wrong else ''}" for place, wrong in row)
            for rank, row in self.tokens.items()
        ]
        return "\n".join([super().__repr__(), *rows, *["x: wrong tokens"] * bool(rows)])


@dataclass(frozen=True)
class BrokenContext(Seeded, Context):
    """A `Context` with a fault."""

    workload = WORKLOAD
    outside, variants, evidence = ("embed", "ring"), 4, TokenEvidence
    layers = "embed", "norm1", "qkv", "attention", "norm2", "up", "down", "norm", "head"
    options: ClassVar = {"block": (0, 1), "cp": (CP,), "kind": ("ring",)}

    def more(self, ranks: Any, first: Any, rank: int) -> dict[str, Any]:
        """Which tokens are wrong."""
        tokens, size = {}, WORKLOAD.seq // CP
        for number, seen in enumerate(ranks) if first else ():
            wrong = [False] * size
            if (key := (*first, -1)) in seen.arrays:
                got, want = seen.arrays[key]
                wrong = (abs(got - want) > WRONG).any((0, 2)).tolist()
            tokens[number] = [*zip(range(number * size, (number + 1) * size), wrong)]
        return {"tokens": tokens}


@dataclass(frozen=True, eq=False)  # two are never equal: a cell may have changed the program
class OwnRing(BrokenContext):
    """Your own contiguous ring, a `tpviz.Custom`, which `examine` compares with `Context`."""

    program: Any = None

    def build(self, *args: Any, **options: Any) -> Any:
        """Yours."""
        return self.program.build(*args, **options)

    def gradients(self, program: Any) -> dict[str, Any]:
        """Of whole parameters, which every rank has."""
        return {name: p.grad for name, p in program.module.named_parameters()}


seed, variant, fault = BrokenContext.seed, BrokenContext.variant, BrokenContext.fault


@fault("positions not shifted", "embed")
def _unshifted(program, layer):
    """Every rank takes the positions 0 to T - 1."""
    layer.where = torch.arange(len(layer.where))


# -- in the attention of a block -------------------------------------------------------------------
def _spoiled(layer, **parts):
    """Attention, forward and backward, with other ``parts`` {name in its module: what}."""
    source, sound = layer.heads.source, layers.BlockAttention

    class OtherBlocks(sound):
        @staticmethod
        def forward(ctx, *args):
            with patch.multiple(layers, **parts):
                return sound.forward(ctx, *args)

        @staticmethod
        def backward(ctx, *grads):
            with patch.multiple(layers, **parts):
                return sound.backward(ctx, *grads)

    layer.heads.mixed = lambda q, k, v: OtherBlocks.apply(q, k, v, source)


def _masked(always):
    """Every block has a mask, or none has."""
    other = lambda function: lambda *args: function(*args[:-1], always)
    parts = {"block": other(block), "block_backward": other(block_backward)}
    return lambda program, layer: _spoiled(layer, **parts)


fault("own mask on every block", "attention")(_masked(True))
fault("own block not masked", "attention")(_masked(False))


@fault("log-sum-exp not rescaled", "attention")
def _unscaled(program, layer):
    """What there is of the output is not rescaled when another block is added."""

    def merge(out, sums, more, of_more, first):
        if first:
            out.zero_()
            sums.fill_(-torch.inf)
        both = torch.logaddexp(sums, of_more)
        out.add_(more * (of_more - both).exp_().unsqueeze(-1))
        sums.copy_(both)

    _spoiled(layer, _merge=merge)


class Stranded(layers.RingSums):
    """Gradients of keys and values that stop one hop before they are home."""

    left = CP

    def add(self, rank: int, gradient: torch.Tensor) -> None:
        """The last is kept."""
        if self.begun:
            gradient += self.messages.take()
        self.begun, self.left = True, self.left - 1
        if self.left:
            self.messages.pass_on(gradient)
        self.kept = gradient

    def own(self) -> torch.Tensor:
        """That of the rank above."""
        self.messages.finish()
        return self.kept


@fault("gradients not sent home", "attention")
def _stranded(program, layer):
    """The last message of gradients is left out."""
    source = layer.heads.source
    source.summing = lambda: Stranded(source.ring)


# -- in all rings ----------------------------------------------------------------------------------
class OneMore(layers.RingKeys):
    """A ring whose keys and values make a last hop, back to their rank."""

    def all(self, own: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """As the ring's, and a message that nobody uses."""
        messages = RingMessages(self.ring, 1)
        for rank in self.cut.passing(self.rank):
            messages.pass_on(own)
            yield rank, own
            own = messages.take()
        messages.finish()


@fault("last hop sent in vain", "ring")
def _one_more(program, layer):
    """In every block."""
    for each in program.module.blocks:
        source = each.attention.heads.source
        each.attention.heads.source = OneMore(source.cut, source.ring)
