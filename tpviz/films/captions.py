"""What the film of a block is made of: tensors and their cuts, frames, the words for them.

>>> Tensor("X", Dim("T", 128), Dim("H", 64, ("d2",)), "activations").local({"d1": 2, "d2": 2})
(128, 32)
"""

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tpviz.step import Collective, Kernel


class Dim(NamedTuple):
    """One of a tensor's two dims: its letters, size, and the axes it is cut over, outer first."""

    letters: str
    size: int
    axes: tuple[str, ...] = ()


class Tensor(NamedTuple):
    """A matrix and where its parts are; ``partial``: the axis whose ranks hold terms of a sum.

    kind : "activations", "parameters" or "gradients". later : axes over which that sum in turn is
    but a term.
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


class Frame(NamedTuple):
    """One picture of the film: a kernel, a collective, or one over the other.

    part : field of `step.BLOCK`; layer : "qkv", "norm1", ...; product : the tensors a kernel reads,
    and its result; moving : a tensor before and after a collective; kernels, moves : what of the
    program this stands for; chunk, moved_chunk : the rows in them (number, count, parts of the
    sequence); line : the whole sentence of the layer, tensors and words, of which [active) is this
    frame; words : what happens, for somebody who sees it for the first time.
    """

    part: str
    layer: str
    product: tuple[Tensor, ...] = ()
    moving: tuple[Tensor, ...] = ()
    kernels: "tuple[Kernel, ...]" = ()
    moves: "tuple[Collective, ...]" = ()
    chunk: tuple[int, ...] = ()
    moved_chunk: tuple[int, ...] = ()
    line: tuple[Tensor | str, ...] = ()
    active: tuple[int, int] = (0, 0)
    words: str = ""

    @property
    def phase(self) -> str:
        """ "forward" or "backward"."""
        return "backward" if self.part.endswith("_back") else "forward"

    @property
    def move(self) -> "Collective | None":
        """The collective shown, or None."""
        return self.moves[0] if self.moves else None


def verb(move: "Collective") -> str:
    """ "→ all-reduce over d2"."""
    return f"→ {move.collective.replace('_', '-')} over {move.axis}"


def words_of(move: "Collective") -> str:
    """What a collective does, in a sentence or two."""
    return SAID[move.collective].format(move.axis)


SAID = {
    "all_reduce": "The ranks of each {0} group add their terms: then all of them hold the same "
    "sum.",
    "reduce_scatter": "The ranks of each {0} group add their terms, and each keeps its own part of "
    "the sum only: half the traffic of an all-reduce.",
    "all_gather": "The ranks of each {0} group show each other their parts: then all of them hold "
    "the whole.",
}
NORM = (
    "LayerNorm needs the mean and variance of all features of a token. The ranks of {0} each "
    "hold some of them, so they add up two numbers a token."
)
CUT = "Each rank takes its part of the features of what all of them hold: nothing is sent."
FORWARD = (
    "Every rank multiplies the blocks it holds. It sees only a part of what is summed over, "
    "so its result is one term of a sum over {0} (hatched)."
)
ALONE = "Every rank multiplies the blocks it holds; nothing is missing from its result."
MEANWHILE = "Meanwhile the sum of the rows before is under way."
HERE = "Both factors are on the rank already: a weight's gradient needs no communication."
OVER = "That hides the sum of {0}, which is under way meanwhile."
AGAIN = "Meanwhile the rows of the input, of which only a part was kept, are gathered again."
CORE = (
    "Each head needs its own queries, keys and values only, and no head is cut: every rank "
    "computes {0} of the {1}."
)
TWICE = "Every rank of {0} computes the same heads again (A1)."
