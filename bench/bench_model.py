"""The verbs that run nothing: predict, capture, simulate; and what explore does while one drags."""

import time
from functools import partial
from statistics import median

from harness import report, row, seconds, timing

import tpviz as tv

WORKLOADS = {
    2: tv.GPT(layers=2, hidden=64, heads=8, batch=8),
    24: tv.GPT(layers=24, hidden=1024, heads=16, seq=256, batch=8, vocab=8192),
}
STRATEGIES = [
    tv.Megatron(tp=8),
    tv.Megatron(tp=8, sp=True),
    tv.Megatron(tp=8, chunks=4),
    tv.DataParallel(dp=8),
    tv.DataParallel(dp=8, zero=3),
    tv.Megatron(tp=4) * tv.DataParallel(dp=2, zero=1),
    tv.ATP(mesh=(4, 2)),
    tv.AxoNN(x=2, z=4),
    tv.Merak(pp=2, tp=2, dp=2, microbatches=4),
    tv.T3(tp=8),
]
REPEATS = 50


def predictions():
    cluster = tv.clusters.nvlink_pairs()
    for layers, workload in WORKLOADS.items():
        for strategy in STRATEGIES:
            tv.predict(strategy, workload, cluster)
            call = partial(tv.predict, strategy, workload, cluster)
            samples = [seconds(call) for _ in range(REPEATS)]
            yield timing(f"predict, {layers} layers, {strategy.short}", samples, "ms", 1.0)


def simulations():
    strategy = tv.Megatron(tp=8) * tv.DataParallel(dp=128)
    workload = tv.GPT(layers=2, heads=8, batch=128)
    cluster = tv.clusters.perlmutter(nodes=256)
    tv.capture(tv.Megatron(tp=2), tv.GPT())  # the first one in a process also loads parts of torch
    start = time.perf_counter()
    program = tv.capture(strategy, workload)
    trace = tv.simulate(strategy, workload, cluster, capture=program)
    yield row("capture and simulate 1024 ranks", time.perf_counter() - start, "s", 10)
    for contention in (True, False):
        rates = []
        for _ in range(7):
            start = time.perf_counter()
            tv.simulate(strategy, workload, cluster, capture=program, contention=contention)
            rates.append(1e6 * (time.perf_counter() - start) / len(trace))
        words = "with" if contention else "without"
        what = f"simulate, {len(trace)} events, {words} contention: microseconds an event"
        yield row(what, median(rates), "µs", 5.0, rates)


def moves():
    workload = tv.GPT(layers=2, heads=8, batch=8)
    view = tv.explore(workload, tv.clusters.nvlink_pairs())
    slider = view._inner.controls["tp"]
    samples = []
    for i in range(REPEATS):
        value = (1, 2, 4, 8)[i % 4]
        samples.append(seconds(partial(setattr, slider, "value", value)))
    yield timing("explore: a slider is moved (Python, no browser)", samples[1:], "ms", 50)


def main():
    rows = [*predictions(), *simulations(), *moves()]
    report("model", "Formulas and simulation: what they cost", rows)


if __name__ == "__main__":
    main()
