"""The exercise of notebook 11 on the norm of a gradient that is sharded on a grid."""

from itertools import product
from math import prod

import numpy as np

from tpviz.core.mesh import Mesh

from .axonn_layers import WORLDS
from .checks import (
    Case,
    RankProgram,
    fewest_bytes,
    parts,
    right_numbers,
    right_shape,
    silent,
    whole_numbers,
)
from .variants import Variants


# --- axonn_norm ---
def _make_norm(rng, axes):
    """piece: other numbers on every rank; bias: over x; scale: over y, both the same along z."""
    rows, width = (int(size) for size in rng.integers(2, 5, 2))
    sizes = *[rows * width] * prod(axes.values()), axes["x"] * rows, axes["y"] * width
    *pieces, bias, scale = whole = [whole_numbers(rng, n, dtype=np.float64) for n in sizes]
    copies = parts(axes, (bias, "x"), (scale, "y"))
    total = sum(float((array**2).sum()) for array in whole)
    inputs = [(own, *both) for own, both in zip(pieces, copies)]
    return Case(inputs, [np.array(total**0.5)] * len(inputs))


def _squares(attempt, bias=1.0, scale=1.0):
    """The sum of squares over all ranks with these weights."""
    return sum(
        (own**2).sum() + bias * (b**2).sum() + scale * (s**2).sum()
        for own, b, s in attempt.case.inputs
    )


def _norm_variants(attempt):
    """Sums of other squares, or over other ranks."""
    mesh, inputs = Mesh(attempt.axes), attempt.case.inputs
    z, y, x = (attempt.axes[axis] for axis in ("z", "y", "x"))
    squares = [[(array**2).sum() for array in own] for own in inputs]
    due = 1, z * y, z * x

    def norm(over=("z", "y", "x"), share=due, of=squares):
        """Over the ranks along these axes, each kind divided by its share; 0: left out."""
        found = []
        for rank in range(mesh.size):
            at = mesh.coords(rank)
            alike = [
                r
                for r in range(mesh.size)
                if all(mesh.coords(r)[a] == at[a] for a in at if a not in over)
            ]
            total = sum(
                part / by for r in alike for part, by in zip(of[r], share, strict=True) if by
            )
            found.append(np.array(float(total) ** 0.5))
        return found

    for number, name in enumerate(("piece", "bias", "scale")):
        share = [0 if k == number else by for k, by in enumerate(due)]
        yield f"`{name}` is left out of the norm", norm(share=share)
    for out in ("x", "y", "z"):
        rest = [axis for axis in ("z", "y", "x") if axis != out]
        yield f"the squares are not added over axis {out}", norm(rest)
        yield (
            f"the squares are added over axis {out} alone: all three axes have others",
            norm([out]),
        )
    yield "each rank has the norm of its own shards: their squares are not added", norm([])
    yield "the root is missing: that is the sum of squares", [own**2 for own in norm()]
    for bias, scale in product(sorted({1, x, y, z, x * y, z * y, z * x, x * y * z}), repeat=2):
        yield (
            f"the squares of bias are divided by {bias}, those of scale by {scale}. {z * y} ranks "
            f"have the same bias (its copies are along y and z), {z * x} the same scale",
            norm(share=(1, bias, scale)),
        )
    for shares, of_one in product((due, (1, 1, 1), tuple(x**0.5 for x in due)), (True, False)):
        norms = [
            sum(part**0.5 / by for part, by in zip(own, shares))
            if of_one
            else sum(part / by for part, by in zip(own, shares)) ** 0.5
            for own in squares
        ]
        yield "norms do not add up; their squares do", [np.array(sum(norms))] * mesh.size
    yield (
        "`piece` has no copies: do not divide its squares",
        norm(share=(x * y * z, z * y, z * x)),
    )
    yield (
        "a sum of absolute values is another norm: add squares, then take the root",
        norm(of=[[abs(array).sum() for array in own] for own in inputs]),
    )


NORM = RankProgram(
    title="The norm of a gradient sharded on a grid",
    prompt="To clip gradients every rank needs the 2-norm of the **whole** gradient, each number "
    "counted once. A rank has `piece` (of a weight: other numbers on every rank), `bias` (sharded "
    "over x: the same on all ranks along y and z) and `scale` (a LayerNorm's, over y: the same "
    "along x and z). Return the norm, a tensor with one number and no dim, on every rank. Send no "
    "more than one number over each axis.",
    starter="""def axonn_norm(piece, bias, scale, mesh):
    # piece, bias, scale: gradients, flat
    return torch.cat([piece, bias, scale]).norm()""",
    concept="Sums of squares add up over ranks. What if several ranks add the same squares?",
    principle="Count the ranks that have the same shard of a tensor, and divide its sum of "
    "squares by that. Then one number is left to add over the axes.",
    shape="One number: a sum of three sums of squares, each with its divisor; an all-reduce of "
    "it along each axis; a root.",
    success="`tv.AxoNN(clip=1.0)` does this; ranks along data have equal gradients by then.",
    make=_make_norm,
    sends=lambda axes, case: [(axis, "all_reduce", 1, 8) for axis in ("z", "y", "x")],
    judges=(
        right_shape,
        silent("the trace shows no collective: that is the norm of one rank's shards."),
        Variants(_norm_variants),
        right_numbers,
        fewest_bytes,
    ),
    worlds=WORLDS,
)
