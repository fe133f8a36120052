"""Data of a block's animation: tensors and their layouts, frames, captions.

A weight lies as ``W[in_y, out_x]`` on the plane; on a grid with depth its block is flattened output
feature by output feature, so that a shard over z is a run of output features: ``W[in_y, out_xz]``.

>>> Tensor("X", Dim("T", 128), Dim("H", 64, ("d2",)), "activations").local({"d1": 2, "d2": 2})
(128, 32)
"""

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from tpviz.core.step import Collective, Kernel


class Dim(NamedTuple):
    """One of a tensor's two dims: its letters, size, and the axes it is cut over, outer first."""

    letters: str
    size: int
    axes: tuple[str, ...] = ()


class Tensor(NamedTuple):
    """A matrix and where its parts are; ``partial``: the axis over which it is a partial sum.

    kind : "activations", "parameters" or "gradients". later : axes over which that sum is
    partial in turn.
    """

    name: str
    rows: Dim
    cols: Dim
    kind: str
    partial: str = ""
    later: tuple[str, ...] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes it is cut over."""
        return self.rows.axes + self.cols.axes

    @property
    def transposed(self) -> "Tensor":
        """The same with rows and columns exchanged."""
        return self._replace(name=self.name + "ᵀ", rows=self.cols, cols=self.rows)

    def cut(self, axis: str, dim: str) -> "Tensor":
        """Cut over one more axis, the innermost, along ``dim`` "rows" or "cols"."""
        old = getattr(self, dim)
        return self._replace(**{dim: old._replace(axes=(*old.axes, axis))}, partial="")

    def whole(self, axis: str) -> "Tensor":
        """No longer cut over an axis, nor partial over it."""
        rows, cols = (
            dim._replace(axes=tuple(a for a in dim.axes if a != axis))
            for dim in (self.rows, self.cols)
        )
        return self._replace(rows=rows, cols=cols, partial="")

    def local(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """(rows, columns) of one rank's part; sizes: {axis: ranks}."""
        return tuple(dim.size // prod(sizes[a] for a in dim.axes) for dim in (self.rows, self.cols))


LAYERS = ("qkv", "out", "up", "down")
"""A block's weights."""
ALL = "all four"
"""The name of a collective of all of them."""


class GatherInFlight(NamedTuple):
    """A collective over z in flight during a frame; ``layer`` may be `ALL`; ``block`` is that of
    its weight, from the one shown: 0, 1 for the next, -1 for the one before; None for embedding
    and head."""

    collective: str
    layer: str
    block: int | None = 0

    @property
    def name(self) -> str:
        """ "W of out", "W of qkv, next block"."""
        where = {1: ", next block", -1: ", block before"}.get(self.block, "")  # pyright: ignore[reportCallIssue, reportArgumentType]
        return f"{'W' if self.collective == 'all_gather' else 'dW'} of {self.layer}{where}"

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers whose weights are in the collective."""
        return LAYERS if self.layer == ALL else (self.layer,)


class Frame(NamedTuple):
    """One frame of the animation: a kernel, a collective, or both overlapped.

    part : field of `step.BLOCK`, or a phase; layer : "qkv", "norm1", ...; product : the tensors a
    kernel reads, and its result; moving : a tensor before and after a collective; kernels, moves :
    what of the program this stands for; chunk, moved_chunk : the rows in them (number, count, parts
    of the sequence); line : the whole line of the layer, tensors and words, of which [active) is
    this frame; words : the explanation, for newcomers.

    Of weights in shards over z: in_flight : the `GatherInFlight`s during it; weights : {layer:
    "piece" or "block"}, what the rank holds of each weight after it; gradients : {layer: "",
    "block", "leaving" or "piece"}.
    """

    part: str
    layer: str
    product: tuple[Tensor, ...] = ()
    moving: tuple[Tensor, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    moves: tuple[Collective, ...] = ()
    chunk: tuple[int, ...] = ()
    moved_chunk: tuple[int, ...] = ()
    line: tuple[Tensor | str, ...] = ()
    active: tuple[int, int] = (0, 0)
    words: str = ""
    in_flight: tuple[GatherInFlight, ...] = ()
    weights: Mapping[str, str] = {}
    gradients: Mapping[str, str] = {}

    @property
    def phase(self) -> str:
        """ "forward", "backward", "recompute" or "sync"."""
        if self.part in ("recompute", "sync", "backward"):
            return self.part
        return "backward" if self.part.endswith("_back") else "forward"

    @property
    def tensors(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """All tensors in the frame."""
        return self.product, self.moving

    @property
    def move(self) -> Collective | None:
        """The collective shown, or None."""
        return self.moves[0] if self.moves else None


def multiplied(left: Tensor, right: Tensor, result: Tensor, *kernels: Kernel) -> dict[str, Any]:
    """The fields of a `Frame` that shows only a GEMM."""
    return {
        "product": (left, right, result),
        "kernels": kernels,
        "line": (left, "·", right, "→", result),
        "active": (0, 5),
    }


def exchanged(before: Tensor, move: Collective, after: Tensor) -> dict[str, Any]:
    """The fields of a `Frame` that shows only a collective."""
    return {
        "moving": (before, after),
        "moves": (move,),
        "line": (before, verb(move), "→", after),
        "active": (0, 4),
    }


def verb(move: Collective) -> str:
    """ "→ all-reduce over d2"."""
    return f"→ {move.collective.replace('_', '-')} over {move.axis}"


def words_of(move: Collective) -> str:
    """One or two sentences about a collective."""
    return SAID[move.collective].format(move.axis)


SAID = {
    "all_reduce": "The ranks of each {0} group add their partial sums: all get the same result.",
    "reduce_scatter": "The ranks of each {0} group add their partial sums, and each keeps its own "
    "shard: half the traffic of an all-reduce.",
    "all_gather": "The ranks of each {0} group send each other their shards: all get the whole "
    "tensor.",
}
NORM = (
    "LayerNorm needs each token's mean and variance over all features. Ranks of {0} hold some "
    "each, so they all-reduce two numbers per token."
)
RMS_NORM = (
    "RMSNorm needs each token's mean square over all features. Ranks of {0} hold some each, so "
    "they all-reduce one number per token."
)
CUT = "All ranks hold the same tensor, and each takes its part of the features: nothing is sent."
FORWARD = "Each rank multiplies its blocks, a part of the contracted dim: a partial sum over {0}."
ALONE = "Each rank multiplies its own blocks; its result is complete."
MEANWHILE = "Meanwhile the all-reduce of the previous rows is in flight."
HERE = "Both factors are on the rank already: a weight's gradient needs no communication."
OVER = "This hides the all-reduce of {0}, which is in flight meanwhile."
AGAIN = "Meanwhile the input, of which each rank kept only its rows, is all-gathered again."
CORE = (
    "Each head needs only its own queries, keys and values, and no head is split: every rank "
    "computes {0} of the {1}."
)
TWICE = "Every rank of {0} computes the same heads again (A1)."
