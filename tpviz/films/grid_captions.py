"""What the film of a block on the grid is made of: ATP's tensors, and what weights do besides.

A weight lies as ``W[in_y, out_x]`` on the plane; its block is flattened output feature by output
feature, so that a piece over z is a run of output features: ``W[in_y, out_xz]``.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from tpviz.films.captions import HERE, OVER, SAID, Dim, Tensor

if TYPE_CHECKING:
    from tpviz.step import Collective, Kernel

LAYERS = ("qkv", "out", "up", "down")
"""A block's weights."""
ALL = "all four"
"""What a message of all of them is of."""


class Flight(NamedTuple):
    """A collective over z that is under way during a frame; ``layer`` may be `ALL`; ``block`` is
    that of its weight, from the one shown: 0, 1 for the next, -1 for the one before; None for
    embedding and head."""

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
        """Whose weights are in the message."""
        return LAYERS if self.layer == ALL else (self.layer,)


class GridFrame(NamedTuple):
    """One picture of the film: one operation of the program.

    phase : "forward", "recompute", "backward" or "sync"; layer, product, moving, kernels, moves,
    line, active, words : as in `tpviz.films.captions.Frame`; under_way : the `Flight`s that go
    on during it; weights : {layer: "piece" or "block"}, what the rank holds of each weight after
    it; gradients : {layer: "", "block", "leaving" or "piece"}.
    """

    phase: str
    layer: str
    product: tuple[Tensor, ...] = ()
    moving: tuple[Tensor, ...] = ()
    kernels: "tuple[Kernel, ...]" = ()
    moves: "tuple[Collective, ...]" = ()
    line: tuple[Tensor | str, ...] = ()
    active: tuple[int, int] = (0, 0)
    words: str = ""
    under_way: tuple[Flight, ...] = ()
    weights: dict[str, str] = {}
    gradients: dict[str, str] = {}
    chunk: tuple[int, ...] = ()
    moved_chunk: tuple[int, ...] = ()

    @property
    def part(self) -> str:
        """What `tpviz.figures.blocks` calls the stretch that a frame is in."""
        return self.phase

    @property
    def tensors(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """All that is in the picture."""
        return self.product, self.moving

    @property
    def move(self) -> "Collective | None":
        """The collective shown, or None."""
        return self.moves[0] if self.moves else None


def pieces(tensor: Tensor) -> Tensor:
    """A weight, or its gradient, of which every rank along z holds a piece."""
    return tensor.cut("z", "cols")


def all_four(tensor: Tensor, ratio: int) -> Tensor:
    """qkv's weight, or its gradient -> those of all four layers, side by side as one matrix.

    ratio : of the MLP. Each is cut over both axes of the plane, this one over qkv's.
    """
    count = 4 + 2 * ratio
    return tensor._replace(
        cols=tensor.cols._replace(letters=f"{count}H", size=count * tensor.rows.size)
    )


def flat(name: str, numbers: int, axes: Mapping[str, int]) -> Tensor:
    """A buffer of ``numbers`` on every rank: what several parameters' gradients are summed in.

    axes : {axis: ranks} of those along which ranks have buffers of their own.
    """
    cols = Dim("n", numbers * prod(axes.values()), tuple(a for a, n in axes.items() if n > 1))
    return Tensor(name, Dim("1", 1), cols, "gradients")


def words_of_gradient(axes: Sequence[str], dx: str, hidden: bool) -> str:
    """Of the GEMM of a weight's gradient; dx : what is summed meanwhile if ``hidden``."""
    words = HERE
    if axes:
        words = (
            "Both factors are on the rank already, but of its own rows alone: the result is "
            f"one term of a sum over {' and '.join(axes)}."
        )
    return f"{words} {OVER.format(dx)}" if hidden else words


GATHER = (
    "The ranks of each z group send each other their pieces of W: then all of them hold the "
    "block of their x and y, for this GEMM."
)
GATHER_ALL = (
    "The ranks of each z group send each other their pieces of all four weights of the "
    "block, in one message (here one matrix): then all of them hold the blocks of their "
    "x and y, for this GEMM and the three to come."
)
KEPT = "{} stays until backward."
DROPPED = "{} is let go after {}."
AGAIN = "What had been let go is gathered once more."
LAST = (
    "It was sent for ahead (OAG), in the order of the step before: only what is left of it is "
    "waited for."
)
PREFETCH = LAST + " Now {} is sent for."
WAITED = "The kernels wait for it."
SCATTER = (
    "The ranks of each z group add their terms of dW, and each keeps the sum of its own piece."
)
SCATTER_ALL = (
    "The ranks of each z group add their terms of all four dW, in one message (here one "
    "matrix), and each keeps the sums of its own pieces."
)
LATER = "It is waited for at the end (ORS): the next kernels start at once."
NOW = "The kernels wait for it."
ENDS = {
    "z": "What is not in pieces (biases, LayerNorm) is the same along z, but each rank's gradient "
    "is of its own rows: one sum, in a buffer with those of all other blocks; shown is the "
    "share of this one.",
    "data": "Each replica has gradients of its own rows: one sum of all that a rank holds, in a "
    "buffer with those of all other blocks; shown is the share of this one.",
}
COLLECTED = "Before that all scatters under way are waited for."
SUM = SAID["all_reduce"]
