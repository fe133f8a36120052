"""What uneven loads of experts cost, simulated and on emulated clusters, and who is named for it.

Ranks are real, devices and links emulated in slow motion. The cost of a skew is its step over that
without skew, medians of repeated steps; the residual should name the rank with most rows and its
expert in every seed.

python bench/bench_experts_emulated.py [PRODUCTS [SEEDS [NAMED]]]      # all: 6, 2, 20
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from harness import report, row

import tpviz as tv

RANKS, STEPS, SKEWS = 4, 3, (0.5, 1.0, 2.0)
TRIES, LATE = 4, 0.02
CLUSTERS = {
    "NVSwitch": tv.clusters.nvswitch(RANKS).scale_model(hidden=64),
    "two pairs": tv.clusters.nvlink_pairs(pairs=2).scale_model(hidden=64),
}
WORKLOAD = tv.GPT(
    layers=2, hidden=64, heads=4, seq=32, batch=16, vocab=64, experts=8, routing=tv.Routing()
)
TWO = tv.Experts(ep=2)
PRODUCTS = [
    tv.Experts(ep=4),
    TWO * tv.DataParallel(dp=2),
    tv.Megatron(tp=2) * TWO,
    TWO,
    tv.Megatron(tp=2, sp=True) * tv.Experts(ep=2, etp=2),
    TWO * tv.Pipeline(pp=2, microbatches=2),
]


def both(plan: tv.Strategy, w: tv.GPT, cluster: tv.Cluster) -> tuple[float, float]:
    """(seconds simulated, seconds emulated), medians of steps. Where a busy machine had the
    emulation overrun its clock by more than `LATE`, it runs again, and the least late run counts.
    """
    runs = []
    while len(runs) < TRIES and not (runs and runs[-1].fact("late")["share"] < LATE):
        runs.append(tv.run(plan, w, cluster, steps=STEPS, progress=False))
    ran = min(runs, key=lambda run: run.fact("late")["share"])
    return tv.simulate(plan, w, cluster, steps=STEPS).step_time, ran.step_time


def costs(products: int, seeds: int) -> Iterator[dict[str, Any]]:
    """The largest differences of each product, and of all."""
    worst = 0.0
    for name, cluster in CLUSTERS.items():
        for plan in PRODUCTS[:products]:
            slow = tv.in_slow_motion(plan, replace(WORKLOAD, routing=tv.Routing(2.0)), cluster)
            even = both(plan, WORKLOAD, slow)
            found = {"even loads, emulated over simulated": even[1] / even[0]}
            for skew in SKEWS:
                for seed in range(1, seeds + 1):
                    w = replace(WORKLOAD, routing=tv.Routing(skew, seed))
                    cost = [a / b for a, b in zip(both(plan, w, slow), even)]
                    words = f"skew {skew:g}, seed {seed}: {cost[0]:.3f} simulated, emulated over it"
                    found[words] = cost[1] / cost[0]
            for words, ratio in found.items():
                worst = max(worst, abs(ratio - 1))
                print(f"{name}, {plan.short}, {words}: {ratio:.4f}", flush=True)
                yield row(f"{name}, {plan.short}, {words}", ratio)
    yield row("largest difference of all", worst, "", 0.05)


def named(seeds: int) -> Iterator[dict[str, Any]]:
    """Of so many seeds, those in which the residual of an emulated run names the hot rank."""
    plan, right, alone = tv.Experts(ep=4), 0, 0
    slow = tv.in_slow_motion(plan, replace(WORKLOAD, routing=tv.Routing(1.5)), CLUSTERS["NVSwitch"])
    for seed in range(seeds):
        w = replace(WORKLOAD, routing=tv.Routing(1.5, seed))
        found = tv.compare(plan, w, slow, steps=STEPS, progress=False).residual
        counts = w.routing.counts(w.experts, w.top_k, w.seq)  # pyright: ignore[reportOptionalMemberAccess]
        rank = int(counts.reshape(RANKS, -1).sum(1).argmax())
        expert = 2 * rank + int(counts.reshape(RANKS, -1)[rank].argmax())
        right += f"ank {rank} has expert {expert}, which" in found.verdict
        alone += not found.stragglers and not found.slow_links
        total = sum(found.parts.values())
        assert np.isclose(total, found.measured), (total, found.measured)
        print(f"seed {seed}: {found.verdict}", flush=True)
    yield row(f"seeds of {seeds} that are named wrongly", seeds - right, "", 0)
    yield row(f"seeds of {seeds} with a straggler or slow link besides", seeds - alone, "", 0)


def main() -> None:
    products, seeds, names = [*map(int, sys.argv[1:]), *(6, 2, 20)[len(sys.argv) - 1 :]]
    rows = [*costs(products, seeds), *named(names)]
    report("experts_emulated", f"Uneven experts over {RANKS} emulated ranks", rows)
    tv.shutdown()


if __name__ == "__main__":
    main()
