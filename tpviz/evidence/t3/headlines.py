"""T3's headlines: sublayers, memory traffic and iterations, on the simulated GPUs of `sublayers`.

Nothing here is set to reach a headline; which knobs of `Machine` were fitted, and to what, is in
`sublayers.FITTED`. Tiles are of one part (wavefronts=1), for speed.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Any

from tpviz.core.checks import one_of
from tpviz.evidence.finding import Finding
from tpviz.evidence.t3_hardware import Machine

from .end_to_end import OTHER, end_to_end
from .end_to_end import geomean as mean_of
from .sublayers import FITTED, MODELS, Sublayers, sublayers

SIZES = {"small": "Mega-GPT-2 and T-NLG, TP 8 and 16", "large": "GPT-3, PALM and MT-NLG, TP 32"}
MEANS = ("mean", "max")
READS = ("mean", "what", "other")
"""Arguments that choose what is read of one simulation."""


@lru_cache(maxsize=32)
def simulated(size: str, knobs: tuple[tuple[str, Any], ...] = ()) -> Sublayers:
    """The `Sublayers` of the models of `SIZES`, on a `Machine` with other knobs: T3-MCA alone."""
    names = [m.name for m in MODELS.values() if m.small == (size == "small")]
    return sublayers(replace(Machine(), **dict(knobs)), names, 1, fused=("t3_mca",))


def speedup(size: str = "small", mean: str = "mean", **knobs: Any) -> Finding:
    """By how many percent T3-MCA makes a sublayer faster than GEMM, reduce-scatter and all-gather
    in sequence; mean : "mean" (geometric) or "max". knobs : of `Machine`."""
    found, faster = simulated(size, tuple(knobs.items())), lambda row: row.speedup("t3_mca")
    over = found.max if one_of("mean", mean, MEANS) == "max" else found.geomean
    return _finding(size, 100 * (over(faster) - 1), fitted=size == "small")


def traffic(size: str = "small", mean: str = "mean", **knobs: Any) -> Finding:
    """The percent of a sublayer's memory traffic that T3-MCA saves."""
    found = simulated(size, tuple(knobs.items()))
    if one_of("mean", mean, MEANS) == "max":
        saved = found.max(lambda row: row.moved())
    else:
        saved = 1 - found.geomean(lambda row: 1 - row.moved())
    return _finding(size, 100 * saved, fitted=size == "small")


def iteration(
    what: str = "training",
    size: str = "small",
    mean: str = "max",
    other: float = OTHER,
    **knobs: Any,
) -> Finding:
    """By how many percent T3-MCA makes an iteration faster: "training", or "prompt". other : the
    share of work that is not sharded."""
    gains = end_to_end(simulated(size, tuple(knobs.items())), "t3_mca", what, other)
    best = max(gain.speedup for gain in gains)
    faster = best if one_of("mean", mean, MEANS) == "max" else mean_of(gains)
    return _finding(size, 100 * (faster - 1))


def _finding(size: str, figure: float, fitted: bool = False):
    one_of("size", size, tuple(SIZES))
    return Finding(figure, "simulated", f"{SIZES[size]}. {FITTED}", fitted=fitted)
