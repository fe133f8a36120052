"""AxoNN's training step as data: the plane's collectives, and those of the weights (derived).

The plane's part is the list of kernels and collectives of `tpviz.schemes.grid.step` for the rows of
one microbatch; here the weights come in between. AR: all-reduce, AG: all-gather, RS:
reduce-scatter. With A = m h elements of a rank's rows, per block and microbatch;
``recompute="full"`` does the forward column once more:

======  ======================  ==========================================
layer   forward                 backward
======  ======================  ==========================================
qkv     z: AG; y: AR of 3A/x    x: AR of A/y; z: RS, without ``keep`` AG
out     z: AG; x: AR of A/y     y: AR of A/x; z: the same
up      z: AG; y: AR of 4A/x    x: AR of A/y; z: the same
down    z: AG; x: AR of A/y     y: AR of 4A/x; z: the same
norms   y: AR of two numbers    y: the same
        a token
======  ======================  ==========================================

AG and RS over z are of the block k n/(x y). With ``gather="block"`` those of all four layers are
one message: qkv gathers in forward, without ``keep`` down in backward; qkv scatters. At the end
what is not cut over z is all-reduced over z, and everything over data; to clip, one number over z,
y and x.
"""

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from tpviz.core.step import Collective, Issue, Overlapped, Part, Step, Wait, accumulated
from tpviz.core.step import microbatch_of as without_end
from tpviz.schemes.gpt.kernels import adamw
from tpviz.schemes.gpt.step import assemble, completes
from tpviz.schemes.grid.step import pieces as plane_pieces

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

    from .strategy import AxoNN

PREFETCH = "z_ahead"
"""The axis of prefetched gathers: a group, and so a queue, of their own."""


class GatherWeight(NamedTuple):
    """Marks where a block of weights (``payload`` bytes in all shards) must be gathered over z."""

    payload: int


class Scatter(NamedTuple):
    """Marks the reduce-scatter of a block's gradient (``payload`` bytes) over z."""

    payload: int


def step(s: "AxoNN", w: "GPT") -> Step:
    """The parts of one step of a rank. A microbatch's first gather is hidden by the one before."""
    microbatch, overlaps = microbatch_of(s, w), _Overlaps(s)
    first = overlaps.of(microbatch, last=False)
    last = overlaps.of([*microbatch, *end(s, w)], last=True)
    return (*overlaps.begin(microbatch), *accumulated(last, s.accumulation, first))


def lowered(s: "AxoNN", parts: Sequence[Part]) -> list[Part]:
    """Parts of one pass of a pipeline's stage: nothing hides its first gather, and it ends when its
    last scatter does."""
    overlaps = _Overlaps(s)
    made = [*overlaps.begin(parts), *overlaps.of(parts, last=True)]
    if overlaps.later and any(isinstance(o, Scatter) for p in parts for o in p.operations):
        made.append(Part(parts[-1].phase, "", (Wait("z"),)))
    return made


def without_weights(parts: Iterable[Part]) -> list[Part]:
    """The parts with only the operations of the x-y plane: no gathers and scatters of weights."""
    kinds = GatherWeight, Scatter
    return [
        p._replace(operations=tuple(o for o in p.operations if not isinstance(o, kinds)))
        for p in parts
    ]


class _Overlaps:
    """Turns `GatherWeight` and `Scatter` into operations.

    With OAG the next gather is issued when the present one is there, before the kernels that use
    it. With ORS reduce-scatters are waited for in the next microbatch's backward, or at the end.
    """

    def __init__(self, s):
        self.ahead, self.later = "oag" in s.overlap, "ors" in s.overlap
        self.known = {}

    def begin(self, microbatch):
        """The first gather of all."""
        gathers = self._gathers(microbatch)
        if not (self.ahead and gathers):
            return ()
        phase, payload = gathers[0]
        return (Part(phase, "", (Issue(Collective(PREFETCH, "all_gather", payload)),)),)

    def _gathers(self, parts):
        """(phase, bytes) of every gather."""
        return [
            (part.phase, o.payload)
            for part in parts
            for o in part.operations
            if isinstance(o, GatherWeight)
        ]

    def of(self, parts, last):
        """Parts with collectives alone; ``last``: no microbatch follows."""
        gathers, made, before = self._gathers(parts), [], ""
        following = iter([*gathers[1:], None if last else gathers[0]])
        for part in parts:
            begins = self.later and part.phase != before and part.phase in ("backward", "sync")
            before = before if part.phase == "recompute" else part.phase
            coming = [next(following) for o in part.operations if isinstance(o, GatherWeight)]
            own = [c and ("" if c[0] == part.phase else c[0], c[1]) for c in coming]
            key = id(part.operations), begins, *own
            if key not in self.known:  # alike in all blocks: the clock knows them by their identity
                self.known[key] = part.operations, tuple(self._lowered(part, begins, own))
            made.append(part._replace(operations=self.known[key][1]))
        return tuple(made)

    def _lowered(self, part, begins, coming):
        if begins:
            yield Wait("z")
        coming = iter(coming)
        for operation in part.operations:
            if isinstance(operation, GatherWeight):
                yield from self._gather(operation.payload, next(coming))
            elif isinstance(operation, Scatter):
                move = Collective("z", "reduce_scatter", operation.payload)
                yield Issue(move) if self.later else move
            else:
                yield operation

    def _gather(self, payload, coming):
        """Wait for a weight; prefetch the one that comes next."""
        if not self.ahead:
            yield Collective("z", "all_gather", payload)
            return
        yield Wait(PREFETCH)
        if coming:
            phase, payload = coming
            yield Issue(Collective(PREFETCH, "all_gather", payload), phase)


def parts(s: "AxoNN", w: "GPT") -> list[Part]:
    """The `Part` list of a step of `AxoNN` s, in order, with `GatherWeight` and `Scatter`."""
    return microbatch_of(s, w) * s.accumulation + end(s, w)


def microbatch_of(s: "AxoNN", w: "GPT") -> list[Part]:
    """The parts of one microbatch, without the end of the step."""
    local = s.local(w)
    made = assemble(local, lambda w: pieces(s, w), completes(), s.recompute)
    return list(without_end(made))


def pieces(s: "AxoNN", local: "GPT") -> dict[str, list[Any]]:
    """{part of the network: operations, with `GatherWeight` and `Scatter`} of a microbatch."""
    return _GatheredPieces(s, local).all()


class _GatheredPieces:
    """The plane's operations with those of the weights between."""

    def __init__(self, s, local):
        self.s, w = s, local
        self.plane = plane_pieces(s.layout, w)
        blocks = s.blocks(w.one_layer)  # all are alike
        sizes = {name: prod(shape) * w.itemsize for name, shape in blocks.items()}
        one = {name.removeprefix("blocks.0."): size for name, size in sizes.items()}
        self.of = {
            "embed": one["embed.token.weight"],
            "head": one["embed.token.weight" if w.tied else "head.weight"],
            "qkv": one["attention.qkv.weight"],
            "out": one["attention.out.weight"],
            "up": one["mlp.up.weight"],
            "down": one["mlp.down.weight"],
        }
        self.first, self.last = self._messages("qkv"), self._messages("down")

    def _messages(self, layer):
        """{layer: bytes of its message}; if those of a block are one, ``layer`` has it."""
        if self.s.gather == "weight":
            return self.of
        rest = {name: self.of[name] for name in ("embed", "head")}
        return rest | {layer: sum(self.of[n] for n in ("qkv", "out", "up", "down"))}

    def all(self):
        forward = {
            "embed": [GatherWeight(self.of["embed"]), *self.plane["embed"]],
            "attention": self._asked("attention", ("qkv", "out")),
            "mlp": self._asked("mlp", ("up", "down")),
            "mlp_unsummed": self._asked("mlp_unsummed", ("up", "down")),
            "head": self._asked("head", ("head",)),
        }
        backward = {
            f"{layer}_back": self._back(layer) for layer in ("head", "down", "up", "out", "qkv")
        }
        embed = [*self.plane["embed_back"], Scatter(self.of["embed"])]
        return self.plane | forward | backward | {"embed_back": embed}

    def _asked(self, part, layers):
        """A part's operations, each GEMM behind the gather of its weight, if it has its own.

        A layer's GEMM is the kernel before a sum, or (attention's core apart) any other.
        """
        found, layers = [], list(layers)
        gemms = self._gemms(part)
        for number, operation in enumerate(self.plane[part]):
            layer = layers.pop(0) if number in gemms else None
            if layer in self.first:
                found.append(GatherWeight(self.first[layer]))  # pyright: ignore[reportArgumentType]
            found.append(operation)
        return found

    def _gemms(self, part):
        """Places of the layers' GEMMs among the operations of a part of forward."""
        kernels = [n for n, o in enumerate(self.plane[part]) if not isinstance(o, Collective)]
        return [kernels[0], kernels[-1]] if part == "attention" else kernels

    def _back(self, layer):
        """Backward of a layer: the input's gradient, the weight's, its scatter."""
        operations = self.plane[f"{layer}_back"]
        if "oar" not in self.s.overlap:
            operations = [
                o
                for operation in operations
                for o in (operation if isinstance(operation, Overlapped) else (operation,))
            ]
        again = [GatherWeight(self.last[layer])] if layer in self.last and not self.s.keep else []
        scatter = [Scatter(self.first[layer])] if layer in self.first else []
        return [*again, *operations, *scatter]


def end(s: "AxoNN", w: "GPT") -> list[Part]:
    """The all-reduces over z and data, of squares to clip by, and the optimizer."""
    shards, whole = num_local_parameters(s, w)
    item = w.itemsize
    norm = [Collective(axis, "all_reduce", max(4, item)) for axis in ("z", "y", "x") if s.clip]
    sums = [
        Collective("z", "all_reduce", whole * item),
        Collective("data", "all_reduce", (shards + whole) * item),
    ]
    return [
        Part("sync", "", (*sums, *norm)),
        Part("optimizer", "", (adamw((shards + whole) * item),)),
    ]


def num_local_parameters(s: "AxoNN", w: "GPT") -> tuple[int, int]:
    """(sharded numbers, others) of a rank: all blocks are alike."""
    one = w.one_layer
    numels = {
        name: prod(shape) * (w.layers if name.startswith("blocks.") else 1)
        for name, shape in s.flat_shapes(one).items()
    }
    pieces = sum(numels[name] for name in s.blocks(one))
    return pieces, sum(numels.values()) - pieces
