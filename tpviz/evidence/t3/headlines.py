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

from .end_to_end import OTHER, measured
from .sublayers import FITTED, MODELS, Sublayers, sublayers

SIZES = {"small": "Mega-GPT-2 and T-NLG, TP 8 and 16", "large": "GPT-3, PALM and MT-NLG, TP 32"}
MEANS = {"mean": "geomean", "max": "max"}
"""{mean: its name in a measure}."""
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
    return _finding(f"speedup t3_mca {_of(mean)}", size, knobs, fitted=size == "small")


def traffic(size: str = "small", mean: str = "mean", **knobs: Any) -> Finding:
    """The percent of a sublayer's memory traffic that T3-MCA saves."""
    return _finding(f"saved {_of(mean)}", size, knobs, fitted=size == "small")


def iteration(
    what: str = "training",
    size: str = "small",
    mean: str = "max",
    other: float = OTHER,
    **knobs: Any,
) -> Finding:
    """By how many percent T3-MCA makes an iteration faster: "training", or "prompt". other : the
    share of work that is not sharded."""
    return _finding(f"iteration t3_mca {what} {_of(mean)}", size, knobs, other=other)


def _of(mean: str):
    return MEANS[one_of("mean", mean, tuple(MEANS))]


def _finding(
    measure: str, size: str, knobs: dict[str, Any], fitted: bool = False, **whole: float
) -> Finding:
    """One of the measures that the paper's numbers are compared by; whole : of `end_to_end`."""
    one_of("size", size, tuple(SIZES))
    figure = measured(measure)(simulated(size, tuple(knobs.items())), whole)
    return Finding(figure, "simulated", f"{SIZES[size]}. {FITTED}", fitted=fitted)
