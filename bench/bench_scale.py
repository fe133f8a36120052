"""4,096 ranks of every scheme on a virtual clock: seconds of CPU and memory of the simulation.

python bench/bench_scale.py            # every scheme, each in a process of its own
python bench/bench_scale.py Merak      # one
"""

import resource
import subprocess
import sys
import time
from typing import Any

BOUND_SECONDS, BOUND_GB = 20.0, 3.0
WORKLOAD = {
    "layers": 24,
    "hidden": 4096,
    "heads": 64,
    "seq": 2048,
    "batch": 4096,
    "vocab": 51200,
    "dtype": "bfloat16",
}
MIXTURE = {"experts": 8, "top_k": 2, "tied": False}  # its experts have uneven loads


def strategies(tv):
    """{name: a strategy of 4,096 ranks}."""
    return {
        "Megatron": tv.Megatron(tp=8) * tv.DataParallel(dp=512),
        "ZeRO": tv.DataParallel(dp=4096, zero=3),
        "ATP": tv.ATP(mesh=(4, 2)) * tv.DataParallel(dp=512),
        "AxoNN": tv.AxoNN(x=8, y=2, z=16, data=16, overlap=("oar", "ors", "oag")),
        "Merak": tv.Merak(pp=8, tp=8, dp=64, microbatches=16, schedule="1f1b"),
        "T3": tv.T3(tp=8, mode="tile") * tv.DataParallel(dp=512),
        "Experts": tv.Megatron(tp=8, sp=True)
        * tv.Experts(ep=8, etp=8)
        * tv.Context(cp=2)
        * tv.Pipeline(pp=8, microbatches=16)
        * tv.DataParallel(dp=4),
    }


def one(name):
    """Capture and simulate one strategy; print its figures; whether they are within the bounds."""
    import tpviz as tv

    sizes: dict[str, Any] = {**WORKLOAD}
    if name == "Experts":
        sizes |= MIXTURE | {"routing": tv.Routing(skew=1)}
    strategy, workload = strategies(tv)[name], tv.GPT(**sizes)
    tv.capture(tv.Megatron(tp=2), tv.GPT())  # torch itself is loaded
    start = time.process_time()
    capture = tv.capture(strategy, workload)
    captured = time.process_time() - start
    trace = tv.simulate(strategy, workload, tv.clusters.nvswitch_nodes(512), capture=capture)
    seconds = time.process_time() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    good = seconds <= BOUND_SECONDS and memory <= BOUND_GB
    print(
        f"{name:9} {seconds:6.1f} s CPU ({captured:.1f} s of it the capture), {memory:.2f} GB, "
        f"{len(trace)} rows: {trace.meta['badge']}{'' if good else '  TOO MUCH'}",
        flush=True,
    )
    return good


def main(names):
    """Every scheme in a process of its own: its peak memory is its own."""
    import tpviz as tv

    if len(names) == 1:
        return 0 if one(names[0]) else 1
    return max(
        subprocess.run([sys.executable, __file__, name]).returncode
        for name in names or strategies(tv)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
