"""T3's headlines: sublayers, memory traffic and iterations, on the simulated GPUs of `sublayers`.

Nothing here is set to reach a headline; which knobs of `Machine` were fitted, and to what, is in
`sublayers.FITTED`. Tiles are of one part (wavefronts=1), for speed.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tpviz.core.checks import one_of
from tpviz.evidence.finding import Finding, vary
from tpviz.evidence.t3_hardware import Machine

from .end_to_end import OTHER, end_to_end
from .end_to_end import geomean as mean_of
from .sublayers import FITTED, MODELS, Sublayers, sublayers

SIZES = {"small": "Mega-GPT-2 and T-NLG, TP 8 and 16", "large": "GPT-3, PALM and MT-NLG, TP 32"}
MEANS = ("mean", "max")
MEMORY = {"last-level cache": {"8 MiB": {"llc": 8 << 20}, "32 MiB": {"llc": 32 << 20}}}
SPEED = {"GEMM rate": {"92 TFLOP/s": {"flops": 92e12}, "184 TFLOP/s": {"flops": 184e12}}}
LINK = {"link, each way": {"75 GB/s": {"link": 75e9}, "300 GB/s": {"link": 300e9}}}
REST = {"work that is not sharded": {"20 %": {"other": 0.2}, "60 %": {"other": 0.6}}}


@lru_cache(maxsize=32)
def simulated(size: str, knobs: tuple[tuple[str, Any], ...] = ()) -> Sublayers:
    """The `Sublayers` of the models of `SIZES`, on a `Machine` with other knobs."""
    names = [m.name for m in MODELS.values() if m.small == (size == "small")]
    return sublayers(replace(Machine(), **dict(knobs)), names, wavefronts=1)


def speedup(size: str = "small", mean: str = "mean", sensitivity: bool = True) -> Finding:
    """By how many percent T3-MCA makes a sublayer faster than GEMM, reduce-scatter and all-gather
    in sequence; mean : "mean" (geometric) or "max"."""
    return _finding(
        size,
        lambda found: 100 * (_over(found, mean, lambda row: row.speedup("t3_mca")) - 1),
        {**LINK, **SPEED, **MEMORY} if sensitivity else {},
        fitted=size == "small",
    )


def traffic(size: str = "small", mean: str = "mean", sensitivity: bool = True) -> Finding:
    """The percent of a sublayer's memory traffic that T3-MCA saves."""

    def saved(found):
        if one_of("mean", mean, MEANS) == "max":
            return 100 * found.max(lambda row: row.moved())
        return 100 * (1 - found.geomean(lambda row: 1 - row.moved()))

    ends = {**LINK, **SPEED, **MEMORY} if sensitivity else {}
    return _finding(size, saved, ends, fitted=size == "small")


def iteration(
    what: str = "training", size: str = "small", mean: str = "max", sensitivity: bool = True
) -> Finding:
    """By how many percent T3-MCA makes an iteration faster: "training", or "prompt"."""

    def faster(found, other=OTHER):
        gains = end_to_end(found, "t3_mca", what, other)
        best = max(gain.speedup for gain in gains)
        return 100 * ((best if one_of("mean", mean, MEANS) == "max" else mean_of(gains)) - 1)

    return _finding(size, faster, {**REST, **LINK, **SPEED} if sensitivity else {})


def _over(found: Sublayers, mean: str, value: Callable[..., float]):
    return (found.max if one_of("mean", mean, MEANS) == "max" else found.geomean)(value)


def _finding(
    size: str,
    value: Callable[..., float],
    ends: Mapping[str, Mapping[str, Mapping[str, Any]]],
    fitted: bool = False,
):
    """The `Finding` of a value of `Sublayers`."""

    def ours(other=None, **knobs):
        found = simulated(size, tuple(knobs.items()))
        return value(found) if other is None else value(found, other)

    one_of("size", size, tuple(SIZES))
    return Finding(ours(), "simulated", f"{SIZES[size]}. {FITTED}", vary(ours, ends), fitted)
