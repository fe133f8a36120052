"""Sequences over ranks, predicted and on emulated clusters: whether the kinds are ranked alike, and
how much of a balanced ring's messages is hidden.

Ranks are real, devices and links emulated in slow motion, one step each.
"""

from collections.abc import Iterator
from typing import Any

from harness import report, row

import tpviz as tv
from tpviz.schemes.context.sequence import KINDS
from tpviz.verbs.search import kendall_tau

RANKS = 4
CLUSTERS = {
    "pairs on NVLink": tv.clusters.nvlink_pairs(pairs=2),
    "Perlmutter": tv.clusters.perlmutter(1),
    "a torus": tv.clusters.torus(2, 2),
}
WORKLOAD = tv.GPT(layers=1, hidden=256, heads=8, seq=2048, batch=1, vocab=256)
LONGER = tv.GPT(layers=1, hidden=256, heads=8, seq=4096, batch=1, vocab=256)


def rows() -> Iterator[dict[str, Any]]:
    for name, cluster in CLUSTERS.items():
        plans = [tv.Context(cp=RANKS, kind=kind) for kind in KINDS]
        slow = tv.in_slow_motion(plans, WORKLOAD, cluster)
        predicted = [tv.predict(plan, WORKLOAD, slow).step_time for plan in plans]
        ran = [tv.run(plan, WORKLOAD, slow, steps=1, progress=False).step_time for plan in plans]
        for kind, seconds, measured in zip(KINDS, predicted, ran):
            yield row(f"{name}, {kind}: predicted", seconds, "s")
            yield row(f"{name}, {kind}: emulated", measured, "s")
        yield row(f"{name}: kinds ranked unlike, 1 - tau", 1 - kendall_tau(predicted, ran), "", 0.1)
    plan, cluster = tv.Context(cp=RANKS), CLUSTERS["Perlmutter"]
    trace = tv.run(plan, LONGER, tv.in_slow_motion(plan, LONGER, cluster), steps=1, progress=False)
    for phase in ("forward", "backward"):
        exposed = 1 - trace.select(phase=phase).overlap()
        yield row(f"zigzag, {phase}: part of its messages not hidden", exposed, "", 0.2)


def main() -> None:
    report("context_emulated", f"Sequences over {RANKS} emulated ranks", [*rows()])
    tv.shutdown()


if __name__ == "__main__":
    main()
