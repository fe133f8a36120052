"""Chunk-based overlap on an emulated cluster: does the U-curve of the model hold for real ranks?

The balanced case: GEMM and sum of qkv, up and out take equally long (bytes alone), ranks as (2, 2).
Step and exposed communication by chunk count: formula, simulation, measured (emulated).
"""

import sys
import warnings
from statistics import median

from harness import report, row, step_seconds

import tpviz as tv
from tpviz.cluster import Cluster, Device, Level

REPEATS = 3
COUNTS = (1, 2, 4, 8, 16)
WORKLOAD = tv.GPT(layers=4, hidden=128, heads=4, seq=64, batch=16, vocab=64)
RATE, OWN = 1e9, 64  # FLOP/s; input features of a rank: 128 over an axis of 2
# 2 T k n / RATE seconds of GEMM against (ring of two: 1.0) 4 T n / B seconds of sum
BALANCED = Cluster(
    "balanced",
    Device({"float32": RATE}, 1e9, 1e12),
    (Level("link", 4, 2 * RATE / OWN, 8 * RATE / OWN, 2e-4),),
    rings="single",
)
SLOW = 5


def strategy(chunks, chunking="batch"):
    return tv.ATP(mesh=(2, 2), attention="A1", chunks=chunks, chunking=chunking)


def curve(cluster, chunking):
    rows, found = [], {}
    for count in COUNTS:
        s = strategy(count, chunking)
        predicted, simulated = tv.predict(s, WORKLOAD, cluster), tv.simulate(s, WORKLOAD, cluster)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            trace = tv.run(s, WORKLOAD, cluster, steps=REPEATS, memory=False, timeout=400)
        warned = any("not faithful" in str(w.message) for w in said)
        steps = [step_seconds(trace, step) for step in trace.steps]
        exposed = trace.exposed_communication() / len(trace.steps)
        found[count] = predicted.step_time, median(steps), exposed
        what = f"chunking={chunking!r}, {count} chunks" + " (WARNED)" * warned
        rows.append(row(f"{what}: step measured", median(steps), "s", None, steps))
        rows.append(
            row(
                "  simulated / measured - 1", abs(simulated.step_time / median(steps) - 1), "", 0.06
            )
        )
        rows.append(row("  exposed communication measured", exposed, "s"))
        rows.append(row("  exposed communication predicted", sum(predicted.exposed.values()), "s"))
        print(
            what,
            f"{predicted.step_time:.3f} {simulated.step_time:.3f} {median(steps):.3f} "
            f"exposed {sum(predicted.exposed.values()):.3f} {exposed:.3f}",
            flush=True,
        )
    model, measured = (min(COUNTS, key=lambda c: found[c][k]) for k in (0, 1))
    apart = abs(COUNTS.index(model) - COUNTS.index(measured))
    rows.append(
        row(f"best count of the model is {model}, measured {measured}: steps apart", apart, "", 1)
    )
    at_an_end = measured in (COUNTS[0], COUNTS[-1])
    rows.append(row("  the measured is at an end of the counts", at_an_end, "", 0))
    fall = 1 - found[measured][2] / found[1][2]
    rows.append(row("  exposed communication left of that without chunks", 1 - fall, "", 0.4))
    print(f"best {model} {measured}, exposed falls {100 * fall:.0f} %", flush=True)
    return rows


def main():
    cluster = BALANCED.scale_model(slow_motion=SLOW)
    rows = curve(cluster, "batch") + curve(cluster, "pipelined")
    report(
        "atp_chunks", f"ATP's chunks on an emulated cluster, {strategy(1).short}, {WORKLOAD}", rows
    )
    tv.shutdown()


if __name__ == "__main__":
    sys.exit(main())
