"""Plain runs on this machine against `predict` and `simulate` after `calibrate` alone.

Nothing paces these runs, so the comparison is not circular: the calibration trains small models in
one process and times collectives; it sees none of the strategies. Beside it the ideal device, whose
kernels all reach their peak, on links without factors. Exits with 1 above a bound.

    python bench/bench_host.py [2 4]      # ranks
"""

import sys
from dataclasses import replace
from statistics import median

from harness import report, row

import tpviz as tv
from tpviz.cluster import Cluster, Device

BOUNDS = {2: 0.15, 4: 0.25}  # median error of a simulation, by ranks
STEPS, WARMUP = 7, 2
WORKLOADS = (
    tv.GPT(layers=2, hidden=128, heads=8, seq=64, batch=8),
    tv.GPT(layers=2, hidden=384, heads=8, seq=64, batch=8),
)


def strategies(n):
    """16 ways to split over n ranks, of every scheme."""
    half = n // 2
    found = [tv.DataParallel(dp=n, zero=zero) for zero in range(4)]
    found += [tv.Megatron(tp=n), tv.Megatron(tp=n, sp=True), tv.Megatron(tp=n, chunks=2)]
    found += [tv.ATP(mesh=(n, 1)), tv.ATP(mesh=(1, n)), tv.ATP(mesh=(half, 2), chunks=2)]
    found += [tv.AxoNN(x=n, z=1), tv.AxoNN(x=half, z=2), tv.AxoNN(x=1, y=2, z=1, data=half)]
    found += [tv.Merak(pp=2, dp=half, microbatches=4, schedule=s) for s in ("1f1b", "gpipe")]
    return [*found, tv.T3(tp=n, mode="chunk")]


def ideal(cluster: Cluster) -> Cluster:
    """The cluster as it was described before: kernels at their peak, no core shared."""
    d = cluster.device
    device = Device(d.flops, d.memory, d.memory_bandwidth, d.name)
    return replace(cluster, device=device, factors={}, overhead=0.0, queued=1.0, cores=0)


def main():
    rows, off = [], False
    for n in [int(a) for a in sys.argv[1:]] or list(BOUNDS):
        found = tv.calibrate(n)
        print(found.describe())
        print(f"factors {found.cluster.factors}, core share {found.cluster.core_share:.2f}")
        errors = {"predicted": [], "simulated": [], "ideal": []}
        for workload in WORKLOADS:
            for strategy in strategies(n):
                on = strategy, workload
                run = tv.run(*on, steps=STEPS, warmup=WARMUP, memory=False, progress=False)
                seconds = {
                    "predicted": tv.predict(*on, found.cluster).step_time,
                    "simulated": tv.simulate(*on, found.cluster).step_time,
                    "ideal": tv.predict(*on, ideal(found.cluster)).step_time,
                }
                for name, taken in seconds.items():
                    errors[name].append(abs(taken / run.step_time - 1))
                words = ", ".join(f"{k} {v / run.step_time:.2f}" for k, v in seconds.items())
                print(
                    f"{n} ranks, hidden {workload.hidden}, {strategy.short}: "
                    f"{1e3 * run.step_time:.1f} ms; {words}",
                    flush=True,
                )
        for name, own in errors.items():
            bound = BOUNDS.get(n) if name == "simulated" else None
            words = f"{n} ranks, {name}: median error over {len(own)} plain runs"
            rows.append(row(words, median(own), "", bound, own))
            off |= not rows[-1]["ok"]
    report("host", "Plain runs on this machine: distance of prediction and simulation", rows)
    tv.shutdown()
    sys.exit(off)


if __name__ == "__main__":
    main()
