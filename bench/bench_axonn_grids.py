"""Emulated interconnects: is the best of AxoNN's grids among the first three of the formula?

Every grid (x, y, z, data) of 8 ranks on a scale model of each interconnect, in slow motion: time of
a step by formula, simulated and measured, Kendall's tau of the orders, and each grid with all
overlaps against the same without: the gain and the communication that nothing hides. The paper
says that of all grids its model's top ten have nine efficient ones, and that overlaps gain up to
53 % for 20 billion parameters; everything here is emulated.

Last a case in which a third of the step without overlaps is communication: each overlap alone, and
all of them.

    python bench/bench_axonn_grids.py [repeats] [name of an interconnect, or "balanced" ...]
"""

import sys
import warnings
from dataclasses import replace
from statistics import median

from harness import report, row, step_seconds

import tpviz as tv
from tpviz import Cluster, Device, Level, clusters
from tpviz.core.trace.analyses import breakdown
from tpviz.evidence import axonn
from tpviz.schemes.axonn.strategy import OVERLAPS
from tpviz.verbs.search import kendall_tau

REPEATS = 3
WORLD = 8
WORKLOAD = tv.GPT(layers=2, hidden=96, heads=8, seq=16, batch=16, vocab=64)
WIDER = 32
STEP = 12.0  # seconds of the slowest grid's step, in slow motion


def interconnects():
    """{name: cluster}: few NICs for four devices, and as many as devices."""
    return {
        "nvswitch": clusters.nvswitch_nodes(2, gpus=4, nics=1),
        "perlmutter": clusters.perlmutter(nodes=2),
    }


def scale_model(cluster, times=WIDER):
    """The cluster for a workload whose hidden size, batch and vocabulary are all so many times
    those of `WORKLOAD`.

    Dividing the hidden size alone makes weights too light beside activations, which is what the
    choice of z is about. With the batch too all weights, gradients and activations shrink by
    times^2, GEMMs by times^3, so links and devices are slower by as much; hops are as long as they
    were (`Cluster.scale_model` would make them longer, so they begin shorter).
    """
    hops = {key: seconds / times for key, seconds in cluster.latencies.items()}
    levels = tuple(part.slower(1, 1 / times) for part in cluster.levels)
    nearer = replace(cluster, levels=levels, latencies=hops)
    return nearer.scale_model(hidden=times, slow_motion=times, dtype="bfloat16")


def measured(strategy, cluster, repeats):
    """(seconds of each step, seconds of exposed communication a step, whether a run warned)."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trace = tv.run(
            strategy, WORKLOAD, cluster, steps=repeats, memory=False, timeout=600, progress=False
        )
    warned = any("not faithful" in str(w.message) for w in said)
    exposed = max(rank.exposed for rank in breakdown(trace).values()) / repeats
    return [step_seconds(trace, step) for step in trace.steps], exposed, warned


def ranked(name, cluster, repeats):
    """Rows of one interconnect."""
    grids = list(tv.AxoNN.space(WORKLOAD, WORLD))
    plain = scale_model(cluster)
    longest = max(tv.predict(replace(s, overlap=()), WORKLOAD, plain).step_time for s in grids)
    slow = plain.scale_model(slow_motion=STEP / longest)
    predicted, found, rows = {}, {}, []
    for s in grids:
        grid = f"{s.x, s.y, s.z, s.data}"
        predicted[s] = tv.predict(s, WORKLOAD, slow).step_time
        simulated = tv.simulate(s, WORKLOAD, slow).step_time
        steps, exposed, warned = measured(s, slow, repeats)
        plain_steps, plain_exposed, _ = measured(replace(s, overlap=()), slow, repeats)
        found[s], without = median(steps), median(plain_steps)
        rows += [
            row(f"{name}: {grid}, seconds measured", found[s], "s", None, steps),
            row("  predicted / measured - 1", abs(predicted[s] / found[s] - 1), "", 0.06),
            row(
                "  simulated / measured - 1" + " (WARNED)" * warned,
                abs(simulated / found[s] - 1),
                "",
                0.06,
            ),
            row("  gain of overlaps", 100 * (without / found[s] - 1), "%"),
            row("  exposed communication with overlaps", 100 * exposed / found[s], "%"),
            row("  exposed communication without", 100 * plain_exposed / without, "%"),
        ]
        print(
            f"{name} {grid}: {predicted[s]:.3f} {simulated:.3f} {found[s]:.3f}, without overlaps "
            f"{without:.3f}, exposed {exposed:.3f} and {plain_exposed:.3f}" + " (WARNED)" * warned,
            flush=True,
        )
    return rows + summary(name, predicted, found)


def summary(name, predicted, found):
    """Rows on the order of the grids."""
    by_formula, by_clock = (sorted(times, key=times.get) for times in (predicted, found))
    best = by_clock[0]
    place = 1 + by_formula.index(best)
    tau = kendall_tau(*([times[s] for s in found] for times in (predicted, found)))
    one = next(s for s in found if s.x == WORLD)
    lost = found[by_formula[0]] / found[best] - 1
    print(
        f"{name}: fastest {best.short}, place {place} by formula; tau {tau:.3f}; the formula's "
        f"first is {100 * lost:.1f} % slower",
        flush=True,
    )
    return [
        row(f"{name}: place of the fastest, {best.short}, by formula", place, "", 3),
        row(f"{name}: 1 - Kendall's tau, predicted and measured", 1 - tau, "", 0.1),
        row(f"{name}: the formula's first is slower than the fastest by", 100 * lost, "%"),
        row(
            f"{name}: gain of the formula's first over x alone (1D), emulated",
            100 * (found[one] / found[by_formula[0]] - 1),
            "%",
        ),
    ]


def balanced(repeats):
    """Rows of one grid whose kernels last about as long as what it sends."""
    workload = tv.GPT(layers=4, hidden=128, heads=8, seq=32, batch=16, vocab=64)
    link = Level("link", WORLD, p2p=1e7, group=4e7, latency=1e-3)
    cluster = Cluster("balanced", Device({"float32": 4e8}, 1e9, 1e12), (link,), rings="single")
    found = axonn.overlaps(
        workload,
        cluster.scale_model(slow_motion=3),
        (2, 1, 4, 1),
        "alone",
        run=True,
        steps=repeats,
        progress=False,
    )
    print(found.describe(), flush=True)
    for source, times in found.times.items():
        before, after = times[()], times[OVERLAPS]
        yield row(f"balanced: gain of all overlaps, {source}", 100 * found.gain(source=source), "%")
        yield row(
            f"  exposed communication with them / without, {source}",
            after.waits / before.waits,
            "x",
            0.5,
        )


def main(repeats: int | str = REPEATS, *names: str) -> None:
    rows, every, repeats = [], interconnects(), int(repeats)
    for name in names or (*every, "balanced"):
        rows += balanced(repeats) if name == "balanced" else ranked(name, every[name], repeats)
    report(
        "axonn_grids",
        f"AxoNN's grids of {WORLD} ranks on emulated interconnects, {WORKLOAD}, "
        f"hidden, batch and vocabulary {WIDER} times as large",
        rows,
    )
    tv.shutdown()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
