"""``end_to_end``: the gain of a whole iteration from faster sublayers (derived; the paper scales
the times of an unfused BERT implementation likewise, but we do not have its breakdown).

A layer's GEMMs are sharded over TP; in units of tokens x hidden x hidden / TP they are 12 forward
(QKV 3, OP 1, FC-1 and FC-2 4 each) and 24 backward. Those of `SUBLAYERS` are followed by an
all-reduce, the others take the same time a unit. All other work of the iteration, which is not
sharded and unchanged, takes the share ``other`` of Sequential's time.
"""

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from tpviz.checks import number, one_of

from .sublayers import SUBLAYERS

if TYPE_CHECKING:
    from .sublayers import Sublayers

OTHER = 0.425
"""Share of other work: a reading note of the paper says 40 to 45 %."""
UNITS = {"training": (36, tuple(SUBLAYERS)), "prompt": (12, ("OP", "FC-2"))}
"""{what: units of all its sharded GEMMs, its sublayers}."""


class Gain(NamedTuple):
    """How much faster an iteration of a model is: Sequential's time over a configuration's."""

    model: str
    tp: int
    what: str
    config: str
    speedup: float
    communication: float
    """The share of Sequential's iteration that is reduce-scatter and all-gather."""


def end_to_end(
    found: "Sublayers", config: str = "t3_mca", what: str = "training", other: float = OTHER
) -> list[Gain]:
    """A `Gain` for each model and TP degree of `Sublayers`, simulated sublayers scaled up.

    what : "training" or "prompt" (inference, its first pass). other : share of work that is not
    sharded, 0..0.9. Raises ``ValueError`` on another name or share.
    """
    units, names = UNITS[one_of("what", what, tuple(UNITS))]
    other = number("other", other, 0.0, 0.9)
    layers = {}
    for row in found.rows:
        layers.setdefault((row.model, row.tp), []).append(row)
    return [
        _gain(model.name, tp, rows, config, what, units, names, other)
        for (model, tp), rows in layers.items()
    ]


def _gain(model, tp, rows, config, what, units, names, other):
    unit = sum(r.gemm for r in rows) / sum(SUBLAYERS[r.name] for r in rows)
    mine = [r for r in rows if r.name in names]
    plain = sum(r.seconds["sequential"] for r in mine)
    rest = (units - sum(SUBLAYERS[r.name] for r in mine)) * unit
    whole = (plain + rest) / (1 - other)
    saved = plain - sum(r.seconds[config] for r in mine)
    return Gain(
        model, tp, what, config, whole / (whole - saved), sum(r.rs + r.ag for r in mine) / whole
    )


def geomean(gains: Sequence[Gain]) -> float:
    """The geometric mean of the speedups."""
    return prod(g.speedup for g in gains) ** (1 / len(gains))
