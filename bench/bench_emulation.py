"""Emulated clusters: do real ranks take what the model says? By topology and program.

First single collectives against the ring formula, then whole training steps of our strategies and
of PyTorch's own against `tpviz.simulate`, with the overlap and the order of the strategies.
"""

import sys
import time
import warnings
from itertools import combinations
from statistics import median

import numpy as np
import torch
import torch.distributed as dist
from harness import report, row, step_seconds

import tpviz as tv
from tpviz import clusters
from tpviz.cluster import Cluster, Device, Level
from tpviz.evidence import peers

REPEATS = 5
CLOSE = 0.02  # strategies closer than this are a tie
WORKLOAD = tv.GPT(layers=2, hidden=64, heads=8, seq=64, batch=8)
HIDDEN = 64  # the emulated model is as wide as 64 x 64
STEP = {4: 1.5, 8: 4.0}  # seconds that the slowest strategy's step is stretched to
LINE = Cluster(
    "line",
    Device({"float32": 1e9}, 1e9, 1e12),
    (Level("link", 8, 4e6, 4e6, 2e-3),),
)


def collectives(name, sizes, cluster):
    """Seconds of each repeat of a collective by the wall's clock, for each size in elements."""
    world, walls = dist.get_world_size(), []
    with tv.record(cluster=cluster):
        for size in sizes:
            whole, part = torch.ones(size), torch.ones(size // world)
            parts = list(whole.chunk(world))
            for _ in range(REPEATS):
                dist.barrier()
                start = time.perf_counter()
                if name == "all_reduce":
                    dist.all_reduce(whole)
                elif name == "all_gather":
                    dist.all_gather(parts, part)
                else:
                    dist.reduce_scatter(part, parts)
                walls.append(time.perf_counter() - start)
    return np.reshape(walls, (len(sizes), REPEATS))


def single():
    rows = []
    for world in (2, 4, 8):
        link = LINE.link(range(world), world)
        for name in ("all_reduce", "all_gather", "reduce_scatter"):
            sizes = [40_000, 80_000, 160_000]
            ranks = tv.launch(collectives, name, sizes, LINE, world_size=world, timeout=300)
            for size, times in zip(sizes, np.max(ranks, axis=0)):
                model = LINE.collective_time(name, 4 * size, world, link)
                off = [abs(t / model - 1) for t in times]
                what = f"{name} of {4 * size // 1000} kB on {world} ranks, {1e3 * model:.0f} ms"
                rows.append(row(what, abs(median(times) / model - 1), "", 0.05, off))
    return rows


def programs(world):
    half = world // 2
    return [
        tv.Megatron(tp=world),
        tv.Megatron(tp=world, sp=True),
        tv.Megatron(tp=world, chunks=4),
        tv.Megatron(tp=half) * tv.DataParallel(dp=2),
        tv.Megatron(tp=half) * tv.DataParallel(dp=2, zero=3),
        tv.DataParallel(dp=world, zero=1),
        peers.DTensorTP(tp=world),
        peers.FSDP2(dp=world),
    ]


def topologies(world):
    half = world // 2
    return [
        clusters.nvlink_pairs(pairs=half),
        clusters.nvswitch_nodes(2, gpus=half, nics=1),
        clusters.torus(half, 2),
    ]


def steps(world):
    rows = []
    for cluster in topologies(world):
        found = []
        captures = {s: tv.capture(s, WORKLOAD) for s in programs(world)}
        plain = cluster.scale_model(hidden=HIDDEN)
        longest = max(
            tv.simulate(s, WORKLOAD, plain, capture=c).step_time for s, c in captures.items()
        )
        slow = cluster.scale_model(hidden=HIDDEN, slow_motion=STEP[world] / longest)
        for strategy, program in captures.items():
            simulated = tv.simulate(strategy, WORKLOAD, slow, capture=program)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                run = tv.run(strategy, WORKLOAD, slow, steps=REPEATS, memory=False, timeout=400)
            warned = any("not faithful" in str(w.message) for w in said)
            each = [step_seconds(run, step) / simulated.step_time for step in run.steps]
            apart = abs(run.overlap() - simulated.overlap())
            found.append((simulated.step_time, run.step_time, warned))
            what = f"{cluster.name}, {world} ranks, {_short(strategy)}"
            rows.append(
                row(
                    what,
                    abs(median(each) - 1),
                    "",
                    None if warned else 0.05,
                    [abs(e - 1) for e in each],
                )
            )
            rows.append(
                row(
                    "  the same by the wall's clock",
                    abs(run.step_time / simulated.step_time * (1 + run.meta["late"]["behind"]) - 1),
                    "",
                    None if warned else 0.05,
                )
            )
            rows.append(
                row(
                    f"  overlap {100 * simulated.overlap():.1f} % simulated, points apart"
                    + (" (WARNED)" if warned else ""),
                    100 * apart,
                    "",
                    None if warned else 3,
                )
            )
            print(
                rows[-3]["what"],
                f"{simulated.step_time:.3f} s simulated",
                rows[-3]["value"],
                f"{100 * apart:.2f} points",
                f"wall {run.meta['late']['behind']:+.4f}",
                f"late {run.meta['late']['share']:.4f}",
                "warned" if warned else "",
                flush=True,
            )
        from tpviz.verbs.search import kendall_tau

        tau = kendall_tau([f[0] for f in found], [f[1] for f in found])
        rows.append(row(f"{cluster.name}, {world} ranks: 1 - Kendall's tau of the order", 1 - tau))
        swapped = sum(
            (a[0] - b[0]) * (a[1] - b[1]) < 0 and abs(a[0] / b[0] - 1) > CLOSE
            for a, b in combinations(found, 2)
        )
        rows.append(
            row(f"  pairs more than {100 * CLOSE:.0f} % apart in the wrong order", swapped, "", 0)
        )
        print(rows[-2]["what"], rows[-2]["value"], "swapped", swapped, flush=True)
    return rows


def _short(strategy):
    if getattr(strategy, "inner", None):
        return f"{_short(strategy.inner)} x dp={strategy.dp} zero={strategy.zero}"
    name = type(strategy).__name__
    knobs = [f"{k}={v}" for k, v in vars(strategy).items() if k != "inner" and "mb" not in k]
    return f"{name}({', '.join(knobs)})"


def main():
    chosen = [int(a) for a in sys.argv[1:]] or [0, 4, 8]
    rows = single() if 0 in chosen else []
    for world in chosen:
        rows += steps(world) if world else []
    report(
        "emulation" + "".join(f"_{c}" for c in sys.argv[1:]),
        "Emulated clusters: distance of measured from model",
        rows,
    )


if __name__ == "__main__":
    main()
