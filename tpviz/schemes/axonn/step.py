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

from functools import cache
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from tpviz.schemes.gpt.kernels import adamw
from tpviz.schemes.grid.step import pieces as plane_pieces
from tpviz.step import Collective, Issue, Overlapped, Part, Repeat, Step, Wait

if TYPE_CHECKING:
    from tpviz.workload import GPT

    from .strategy import AxoNN

PREFETCH = "z_ahead"
"""The axis of prefetched gathers: a group, and so a queue, of their own."""


class GatherWeight(NamedTuple):
    """The block of a weight is needed: ``payload`` bytes of all its shards."""

    payload: int


class Scatter(NamedTuple):
    """The block's gradient is reduce-scattered: each rank keeps its shard."""

    payload: int


def step(s: "AxoNN", w: "GPT") -> Step:
    """The parts of one step of a rank. In all microbatches but the last, the last kernels hide a
    gather of the next one."""
    made = _Parts(s, w)
    microbatch, overlaps = made.microbatch(), _Overlaps(s)
    first = overlaps.of(microbatch, last=False)
    last = overlaps.of([*microbatch, *made.end()], last=True)
    return (*overlaps.begin(microbatch), Repeat(first, s.accumulation - 1), *last)


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
        if not self.ahead:
            return ()
        phase, payload = self._gathers(microbatch)[0]
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
    """The `Part` list of a step of `AxoNN` s, in order, with `GatherWeight` and `Scatter` for what
    happens to weights; the update last."""
    return _Parts(s, w).all()


class _Parts:
    def __init__(self, s, w):
        self.s, self.w, self.local = s, w, s.local(w)
        plane = plane_pieces(s.layout, self.local)
        self.plane = {name: tuple(operations) for name, operations in plane.items()}
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
        self.asked, self.back = cache(self._asked), cache(self._back)  # alike in all blocks

    def _messages(self, layer):
        """{layer: bytes of its message}; if those of a block are one, ``layer`` has it."""
        if self.s.gather == "weight":
            return self.of
        rest = {name: self.of[name] for name in ("embed", "head")}
        return rest | {layer: sum(self.of[n] for n in ("qkv", "out", "up", "down"))}

    def all(self):
        return self.microbatch() * self.s.accumulation + self.end()

    def microbatch(self):
        return self.forward() + self.backward()

    def forward(self):
        found = [Part("forward", "embed", (GatherWeight(self.of["embed"]), *self.plane["embed"]))]
        for k in range(self.w.layers):
            found += self.block("forward", k)
        return [*found, Part("forward", "head", self.asked("head", ("head",)))]

    def block(self, phase, k):
        """Forward of a block, or its repetition."""
        return [
            Part(phase, f"blocks.{k}.attention", self.asked("attention", ("qkv", "out"))),
            Part(phase, f"blocks.{k}.mlp", self.asked("mlp", ("up", "down"))),
        ]

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
        return tuple(found)

    def _gemms(self, part):
        """Places of the layers' GEMMs among the operations of a part of forward."""
        kernels = [n for n, o in enumerate(self.plane[part]) if not isinstance(o, Collective)]
        return [kernels[0], kernels[2]] if part == "attention" else kernels

    def backward(self):
        found = [
            Part("backward", "head", self.back("head_back", "head")),
            Part("backward", "norm", self.plane["norm_back"]),
        ]
        for k in reversed(range(self.w.layers)):
            if self.s.recompute == "full":
                found += self.block("recompute", k)
            names = {
                "down": "mlp.down",
                "up": "mlp.up",
                "norm2": "norm2",
                "out": "attention.out",
                "core": "attention",
                "qkv": "attention.qkv",
                "norm1": "norm1",
            }
            for part, layer in names.items():
                if part == "core" and self.s.recompute == "selective":
                    found.append(Part("recompute", f"blocks.{k}.{layer}", self.plane["core"]))
                operations = (
                    self.back(f"{part}_back", part)
                    if part in self.of
                    else self.plane[f"{part}_back"]
                )
                found.append(Part("backward", f"blocks.{k}.{layer}", operations))
        operations = (*self.plane["embed_back"], Scatter(self.of["embed"]))
        return [*found, Part("backward", "embed", operations)]

    def _back(self, part, layer):
        """Backward of a layer: the input's gradient, the weight's, its scatter."""
        operations = list(self.plane[part])
        if "oar" not in self.s.overlap:
            operations = [
                o
                for operation in operations
                for o in (operation if isinstance(operation, Overlapped) else (operation,))
            ]
        again = [GatherWeight(self.last[layer])] if layer in self.last and not self.s.keep else []
        scatter = [Scatter(self.first[layer])] if layer in self.first else []
        return (*again, *operations, *scatter)

    def end(self):
        """The all-reduces over z and data, of squares to clip by, and the optimizer."""
        pieces, whole = num_local_parameters(self.s, self.w)
        item = self.w.itemsize
        norm = [
            Collective(axis, "all_reduce", max(4, item)) for axis in ("z", "y", "x") if self.s.clip
        ]
        return [
            Part(
                "sync",
                "",
                (
                    Collective("z", "all_reduce", whole * item),
                    Collective("data", "all_reduce", (pieces + whole) * item),
                    *norm,
                ),
            ),
            Part("optimizer", "", (adamw((pieces + whole) * item),)),
        ]


def num_local_parameters(s: "AxoNN", w: "GPT") -> tuple[int, int]:
    """(sharded numbers, others) of a rank: all blocks are alike."""
    one, axes, pieces, whole = w.one_layer, s.axes, 0, 0
    blocks, splits = s.blocks(one), s.splits(one)
    for name, shape in one.parameter_shapes().items():
        times = w.layers if name.startswith("blocks.") else 1
        if name in blocks:
            pieces += times * prod(blocks[name])
        else:
            whole += times * (prod(shape) // prod(axes[axis] for _, axis in splits.get(name, ())))
    return pieces // s.z, whole
