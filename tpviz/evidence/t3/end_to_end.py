"""``end_to_end``: the gain of a whole iteration from faster sublayers (derived; the paper scales
the measured times of an unfused BERT implementation likewise, but we do not have its breakdown).

Two machines meet: simulated speedups of the sublayers are applied to their shares of an iteration
on a real GPU (`MEASURED`), whose times are those of
`tpviz.evidence.t3_hardware.closed_form.sublayer_times`.

A layer's GEMMs are sharded over TP; in units of tokens x hidden x hidden / TP they are 12 forward
(QKV 3, OP 1, FC-1 and FC-2 4 each) and 24 backward. Those of `SUBLAYERS` are followed by an
all-reduce, the others take the same time a unit. All other work of the iteration, which is not
sharded and unchanged, takes the share ``other`` of Sequential's time.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from tpviz.core.checks import number, one_of
from tpviz.evidence.facts import facts
from tpviz.evidence.t3_hardware import Gemm, Machine
from tpviz.evidence.t3_hardware.closed_form import sublayer_times

from .sublayers import SUBLAYERS, Sublayers

FACTS = facts(__file__)
OTHER: float = FACTS.other_work
MEASURED = Machine(**FACTS.measured)
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
    found: Sublayers,
    config: str = "t3_mca",
    what: str = "training",
    other: float = OTHER,
    measured: Machine | None = MEASURED,
) -> list[Gain]:
    """A `Gain` for each model and TP degree of `Sublayers`.

    what : "training" or "prompt" (inference, its first pass). other : share of work that is not
    sharded, 0..0.9. measured : whose GEMMs and collectives make up the iteration; None: those
    simulated. Raises ``ValueError`` on another name or share.
    """
    units, names = UNITS[one_of("what", what, tuple(UNITS))]
    other = number("other", other, 0.0, 0.9)
    layers = {}
    for row in found.rows:
        layers.setdefault((row.model, row.tp), []).append(row)
    return [
        _gain(model.name, tp, rows, config, what, units, names, other, measured)
        for (model, tp), rows in layers.items()
    ]


def _gain(model, tp, rows, config, what, units, names, other, measured):
    times = {r.name: _times(r, measured) for r in rows}
    unit = sum(gemm for gemm, _ in times.values()) / sum(SUBLAYERS[name] for name in times)
    mine = [(sum(times[r.name]), r.speedup(config)) for r in rows if r.name in names]
    rest = (units - sum(SUBLAYERS[name] for name in names)) * unit
    whole = (sum(plain for plain, _ in mine) + rest) / (1 - other)
    saved = sum(plain * (1 - 1 / speedup) for plain, speedup in mine)
    communication = sum(times[name][1] for name in names)
    return Gain(model, tp, what, config, whole / (whole - saved), communication / whole)


def _times(row, machine):
    """(Seconds of the GEMM, of reduce-scatter and all-gather)."""
    if machine is None:
        return row.gemm, row.rs + row.ag
    model, inner = row.model, SUBLAYERS[row.name] * row.model.hidden // row.tp
    alone = sublayer_times(Gemm(model.tokens, model.hidden, inner), row.tp, machine)
    return alone.gemm, alone.rs + alone.ag


def geomean(gains: Sequence[Gain]) -> float:
    """The geometric mean of the speedups."""
    return prod(g.speedup for g in gains) ** (1 / len(gains))


# -- the measures of comparison: functions of (`Sublayers`, knobs of `end_to_end`), in percent --
def _more(ratio):
    """By how many percent a ratio of two of our numbers is above 1."""
    return lambda found, whole: 100 * (ratio(found) - 1)


def _speedup(config, mean):
    return _more(lambda found: getattr(found, mean)(config))


def _ratio(what, tp=None):
    """The geometric mean of one of `RATIOS`, over the sublayers of one TP degree or all."""
    rows = lambda found: tuple(r for r in found.rows if tp in (None, str(r.tp)))
    return _more(lambda found: Sublayers(rows(found), found.machine).geomean(RATIOS[what]))


def _most(what):
    return _more(lambda found: found.max(RATIOS[what]))


def _iteration(config, what, mean):
    def ours(found, whole):
        gains = end_to_end(found, config, what, **whole)
        return 100 * ((geomean(gains) if mean == "geomean" else max(g.speedup for g in gains)) - 1)

    return ours


def _share(what):
    """Communication's share of Sequential's iteration, the largest."""
    return lambda found, whole: (
        100 * max(g.communication for g in end_to_end(found, "t3", what, **whole))
    )


def _saved(mean):
    """Of memory traffic."""
    if mean == "max":
        return lambda found, whole: 100 * found.max(lambda row: row.moved())
    return lambda found, whole: 100 * (1 - found.geomean(lambda row: 1 - row.moved()))


def _writes(row):
    before, after = row.dram["sequential"], row.dram["t3_mca"]
    return (before["gemm_write"] + before["rs_write"]) / (
        after["update_local"] + after["update_incoming"]
    )


RATIOS = {
    "near_memory": lambda row: row.rs / row.rs_nmc,
    "ideal_near_memory": lambda row: row.speedup("ideal_nmc") / row.speedup("ideal"),
    "mca_over_t3": lambda row: row.seconds["t3"] / row.seconds["t3_mca"],
    "rs_reads": lambda row: row.dram["sequential"]["rs_read"] / row.dram["t3_mca"]["dma_read"],
    "writes": _writes,
    "gemm_reads": lambda row: row.read(),
}
OURS = {
    "speedup": _speedup,
    "ratio": _ratio,
    "most": _most,
    "saved": _saved,
    "iteration": _iteration,
    "share": _share,
}


def measured(words: str) -> Callable[[Sublayers, dict[str, Any]], float]:
    """What computes ours, by its name in `OURS` and its arguments, as in "speedup t3_mca max"."""
    measure, *arguments = words.split()
    return OURS[measure](*arguments)
