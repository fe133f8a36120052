"""One training step of AxoNN in the order of its program: what it sends, and how long it takes.

The plane's part is ATP's list of kernels and collectives (`tpviz.schemes.atp.step`) for the rows of
one microbatch; here the weights come in between. With A = m h elements of a rank's rows, per block
and microbatch, derived; of `recompute` the forward column once more:

======  =========================  ==================================================
layer   forward                    backward
======  =========================  ==================================================
qkv     z: gather; y: sum 3A/x     x: sum A/y; z: scatter, without ``keep`` gather
out     z: gather; x: sum A/y      y: sum A/x; z: the same
up      z: gather; y: sum 4A/x     x: sum A/y; z: the same
down    z: gather; x: sum A/y      y: sum 4A/x; z: the same
norms   y: two numbers a token     y: as many
======  =========================  ==================================================

A gather and a scatter are of the block k n/(x y). With ``gather="block"`` those of all four layers
are one: qkv gathers in forward, without ``keep`` down in backward; qkv scatters. At the end what is
not in pieces is summed over z, and everything over data; to clip, one number over z, y and x.
"""

from dataclasses import replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from tpviz.cost import Segment, transfer
from tpviz.schemes.atp.step import Collective, Operation, Overlapped, step_of
from tpviz.schemes.gpt.cost import seconds_of
from tpviz.schemes.gpt.kernels import adamw
from tpviz.trace import Ledger

from .clock import PREFETCH, Clock, GatherWeight, Scatter

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.mesh import Mesh
    from tpviz.workload import GPT

    from .strategy import AxoNN


class Part(NamedTuple):
    """A stretch of the step: its operations, each a kernel, `Collective`, `Overlapped`,
    `GatherWeight` or `Scatter`."""

    phase: str
    layer: str
    operations: tuple[Operation | GatherWeight | Scatter, ...]


def parts(s: "AxoNN", w: "GPT") -> list[Part]:
    """The `Part` list of a step of `AxoNN` s, in order, the update last."""
    return _Parts(s, w).all()


class _Parts:
    def __init__(self, s, w):
        self.s, self.w, self.local = s, w, s.local(w)
        self.plane = step_of(s.layout, self.local)
        blocks = s.blocks(replace(w, layers=1))  # all are alike
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

    def asked(self, part, layers):
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
            Part("backward", "norm", tuple(self.plane["norm_back"])),
        ]
        for k in reversed(range(self.w.layers)):
            if self.s.recompute:
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
                operations = (
                    self.back(f"{part}_back", part)
                    if part in self.of
                    else tuple(self.plane[f"{part}_back"])
                )
                found.append(Part("backward", f"blocks.{k}.{layer}", operations))
        operations = (*self.plane["embed_back"], Scatter(self.of["embed"]))
        return [*found, Part("backward", "embed", operations)]

    def back(self, part, layer):
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
        """The sums over z and data, of squares over the grid to clip by, and the optimizer."""
        pieces, whole = held(self.s, self.w)
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


def held(s: "AxoNN", w: "GPT") -> tuple[int, int]:
    """(numbers in pieces, others) that a rank has: one block says for all."""
    one, axes, pieces, whole = replace(w, layers=1), s.axes, 0, 0
    blocks, splits = s.blocks(one), s.splits(one)
    for name, shape in one.parameter_shapes().items():
        times = w.layers if name.startswith("blocks.") else 1
        if name in blocks:
            pieces += times * prod(blocks[name])
        else:
            whole += times * (prod(shape) // prod(axes[axis] for _, axis in splits.get(name, ())))
    return pieces // s.z, whole


def ledger(s: "AxoNN", w: "GPT") -> Ledger:
    """The `Ledger` of one step of one rank."""
    rows, axes = [], s.axes
    ahead = PREFETCH if "oag" in s.overlap else "z"
    for part in parts(s, w):
        for o in part.operations:
            move = o.move if isinstance(o, Overlapped) else o
            if isinstance(o, GatherWeight):
                move = Collective(ahead, "all_gather", o.payload)
            elif isinstance(o, Scatter):
                move = Collective("z", "reduce_scatter", o.payload)
            if isinstance(move, Collective):
                size = axes["z" if move.axis == PREFETCH else move.axis]
                rows.append(
                    (move.axis, move.collective, part.phase, int(size > 1), move.payload, size)
                )
    return Ledger.of(rows)


def cost(s: "AxoNN", w: "GPT", cluster: "Cluster", mesh: "Mesh") -> list[Segment]:
    """The segments of one step of one rank."""

    @cache
    def moved(axis, collective, payload):
        real = "z" if axis == PREFETCH else axis
        return transfer(cluster, mesh, real, collective, payload)._replace(axis=axis)

    made, clock = _Parts(s, w), Clock(s, cache(seconds_of(w, cluster)), moved)
    return clock.run(made.microbatch(), s.accumulation, made.end())
