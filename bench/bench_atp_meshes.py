"""Emulated interconnects: is the mesh that `search` picks for ATP the fastest when all are run?

Every mesh of 8 ranks in both orders, on a scale model of each interconnect: time of a step by
formula, by simulation and measured; Kendall's tau of the orders; the gain over 1D. The paper claims
37 to 64 % "on specific interconnects" (abstract); everything here is emulated.
"""

import sys
import warnings
from statistics import median
from typing import Any

from harness import report, row, step_seconds

import tpviz as tv
from tpviz import clusters
from tpviz.verbs.search import kendall_tau

REPEATS = 5
WORLD = 8
WORKLOAD = tv.GPT(layers=2, hidden=96, heads=8, seq=64, batch=8)
STEP = 6.0  # seconds of the slowest mesh's step, in slow motion


def interconnects():
    """{name: (cluster, how many times as wide the emulated model is)}: 16-bit numbers in all."""
    return {
        "NVLink pairs, multi-ring": (clusters.nvlink_pairs(), 32),
        "NVLink pairs, 1D held to one PCIe link": (clusters.nvlink_pairs(rings="single"), 128),
        "two NVSwitch nodes behind one NIC": (clusters.nvswitch_nodes(2, gpus=4, nics=1), 32),
        "2D torus 4 x 2": (clusters.torus(4, 2), 16),
    }


def ranked(name, cluster, wider):
    """Rows of one interconnect."""
    meshes = list(tv.ATP.meshes(WORKLOAD, WORLD))
    plain = cluster.scale_model(hidden=wider, dtype="bfloat16")
    name += f", hidden {WORKLOAD.hidden * wider}"
    longest = max(tv.predict(s, WORKLOAD, plain).step_time for s in meshes)
    slow = plain.scale_model(slow_motion=STEP / longest)
    picked: Any = tv.search(WORKLOAD, slow, meshes).best
    predicted, measured, rows = {}, {}, []
    for s in meshes:
        predicted[s] = tv.predict(s, WORKLOAD, slow).step_time
        simulated = tv.simulate(s, WORKLOAD, slow).step_time
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            trace = tv.run(s, WORKLOAD, slow, steps=REPEATS, memory=False, timeout=400)
        warned = any("not faithful" in str(w.message) for w in said)
        steps = [step_seconds(trace, step) for step in trace.steps]
        measured[s] = median(steps)
        what = f"{name}: {s.mesh} {s.order}{' (picked)' if s == picked else ''}"
        rows.append(row(f"{what}, seconds measured", measured[s], "s", None, steps))
        apart = abs(predicted[s] / measured[s] - 1)
        rows.append(row("  predicted / measured - 1", apart, "", 0.06))
        rows.append(
            row(
                "  simulated / measured - 1" + " (WARNED)" * warned,
                abs(simulated / measured[s] - 1),
                "",
                0.06,
            )
        )
        print(
            what,
            f"{predicted[s]:.3f} {simulated:.3f} {measured[s]:.3f}",
            "warned" if warned else "",
            flush=True,
        )
    fastest = min(measured, key=measured.__getitem__)
    tau = kendall_tau(*([times[s] for s in meshes] for times in (predicted, measured)))
    one = next(s for s in meshes if s.mesh == (WORLD, 1))
    gain = measured[one] / measured[picked] - 1
    rows.append(row(f"{name}: the picked is not the fastest", fastest != picked, "", 0))
    rows.append(row(f"{name}: 1 - Kendall's tau, predicted and measured", 1 - tau, "", 0.1))
    rows.append(
        row(f"{name}: gain of {picked.mesh} {picked.order} over 1D, emulated", 100 * gain, "%")
    )
    print(
        f"{name}: tau {tau:.3f}, picked {picked.short}, fastest {fastest.short}, "
        f"gain {100 * gain:.1f} %",
        flush=True,
    )
    return rows


def main():
    rows = []
    for name, (cluster, wider) in interconnects().items():
        rows += ranked(name, cluster, wider)
    report(
        "atp_meshes", f"ATP on emulated interconnects, {WORLD} ranks, scale model {WORKLOAD}", rows
    )
    tv.shutdown()


if __name__ == "__main__":
    sys.exit(main())
