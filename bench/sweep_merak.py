"""Merak on every (pp, tp, dp) of 1, 2, 4 and 8 ranks against one process: what the tests sample.

With every place go the schedules, recomputation, levels of sub-pipelining, the lean knob, ZeRO
stages, sequence parallelism and tied or untied ends, so that each pair of values of two knobs
occurs, unless it is refused; ``all`` runs every combination. By `tv.verify` in float64, two AdamW
steps each. Exits with 1 at the first that is not equal.
"""

import sys
from dataclasses import replace
from itertools import product

from harness import sweep
from sweep_axonn import pairwise

import tpviz as tv
from tpviz.core.schedules import SCHEDULES
from tpviz.schemes.advice import fits

WORKLOAD = tv.GPT(layers=8, hidden=16, heads=8, seq=8, batch=8, vocab=32)
PLACES = [
    (pp, tp, n // (pp * tp))
    for n in (1, 2, 4, 8)
    for pp, tp in product((1, 2, 4, 8), repeat=2)
    if n % (pp * tp) == 0
]
KNOBS = {
    "schedule": tuple(SCHEDULES),
    "recompute": ("none", "selective", "full", "stage_aware"),
    "subpipeline": (0, 1, 2, 3),
    "skip_last_allreduce": (True, False),
    "zero": (0, 1, 2, 3),
    "sp": (False, True),
    "tied": (True, False),
}


def cases(every):
    """(strategy, workload) in turn."""
    choices = [dict(zip(KNOBS, v)) for v in product(*KNOBS.values())]
    if not every:
        choices = pairwise(KNOBS, lambda knobs: fits(*case((2, 2, 2), knobs)))
    for place, knobs in product(PLACES, choices):
        strategy, workload = case(place, knobs)
        if fits(strategy, workload):
            yield strategy, workload


def case(place, knobs):
    """(strategy, workload) at (pp, tp, dp)."""
    (pp, tp, dp), knobs = place, dict(knobs)
    tied = knobs.pop("tied")
    strategy = tv.Merak(pp=pp, tp=tp, dp=dp, microbatches=max(4, 2 * pp), **knobs)
    layers, batch = max(8, strategy.stages), 2 * dp * strategy.microbatches
    return strategy, replace(WORKLOAD, tied=tied, layers=layers, batch=batch)


if __name__ == "__main__":
    sweep(cases("all" in sys.argv[1:]), steps=2)
