"""The grids that AxoNN's tests go over, and what its model's tests share."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import tpviz as tv

AXES = ("x", "y", "z", "data")
SMALL = tv.GPT(layers=2, hidden=32, heads=8, seq=8, batch=32, vocab=32)


def grids(*counts: int) -> list[tuple[int, ...]]:
    """Every (x, y, z, data) of so many ranks, powers of two up to 8."""
    return [
        (x, y, z, n // (x * y * z))
        for n in counts
        for x, y, z in product((1, 2, 4, 8), repeat=3)
        if n % (x * y * z) == 0
    ]


def axonn(grid: Sequence[int], **knobs: Any) -> tv.AxoNN:
    return tv.AxoNN(**dict(zip(AXES, grid)), **knobs)


def flat(inside: int, size: int) -> float:
    """Every axis has a gigabyte a second."""
    return 1e9
