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
from .told import told
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
        yield NORM.say("is left out of the norm", name=name), norm(share=share)
    for out in ("x", "y", "z"):
        rest = [axis for axis in ("z", "y", "x") if axis != out]
        yield NORM.say("squares are not added over", out=out), norm(rest)
        yield NORM.say("squares are added over axis", out=out), norm([out])
    yield NORM.say("each rank has the norm"), norm([])
    yield NORM.say("root is missing"), [own**2 for own in norm()]
    for bias, scale in product(sorted({1, x, y, z, x * y, z * y, z * x, x * y * z}), repeat=2):
        yield (
            NORM.say("squares of bias are divided", bias=bias, scale=scale, many=z * y, few=z * x),
            norm(share=(1, bias, scale)),
        )
    for shares, of_one in product((due, (1, 1, 1), tuple(x**0.5 for x in due)), (True, False)):
        norms = [
            sum(part**0.5 / by for part, by in zip(own, shares))
            if of_one
            else sum(part / by for part, by in zip(own, shares)) ** 0.5
            for own in squares
        ]
        yield NORM.say("norms do not add up"), [np.array(sum(norms))] * mesh.size
    yield NORM.say("piece has no copies"), norm(share=(x * y * z, z * y, z * x))
    yield (
        NORM.say("sum of absolute values"),
        norm(of=[[abs(array).sum() for array in own] for own in inputs]),
    )


NORM = RankProgram(
    **told("axonn_norm"),
    make=_make_norm,
    sends=lambda axes, case: [(axis, "all_reduce", 1, 8) for axis in ("z", "y", "x")],
    judges=(right_shape, silent, Variants(_norm_variants), right_numbers, fewest_bytes),
    worlds=WORLDS,
)
