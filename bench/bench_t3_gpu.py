"""T3 on a GPU: virtual ranks of one GPU in three modes, what traffic costs a GEMM, PyTorch's own.

Modes: medians of runs in turn, in units of the GEMM alone with the same programs, of which movers
leave fewer; a virtual link is the GPU's memory, so what shows is contention for it, not a slow
link. Memory: bandwidths by kind, what copies take from a GEMM, and the fields that both give the
simulator (`Machine`), of the nominal rate in `tpviz.clusters.GPUS`.
With two GPUs or more also several processes, beside PyTorch's `fused_matmul_reduce_scatter`. Says
so and ends where there is no CUDA device.
"""

import sys

import torch
from harness import ratio, report, row, timing

from tpviz.cluster.clusters import GPUS

SIZES = (8192, 532, 4256)
"""m, k, n of each virtual rank: T-NLG's FC-2 at tp=32, k = 4 * 4256 / 32; 8192 tokens recalled."""
RANKS = 4
REPEATS = 20


def in_turn(runs, repeats=REPEATS):
    """{name: seconds}, by CUDA events, taking turns; ``runs``: {name: (before, timed)}."""
    from tpviz.evidence.t3_gpu.traffic import timed

    times = {name: [] for name in runs}
    for turn in range(-3, repeats):
        for name in list(runs) if turn % 2 else reversed(runs):
            before, function = runs[name]
            before()
            taken = timed(function)
            if turn >= 0:
                times[name].append(taken)
    return times


def modes():
    """Rows: each mode and way to move tiles, and over the GEMM alone on the same programs."""
    from tpviz.evidence.t3_gpu import Settings, VirtualRing

    m, k, n = SIZES
    a = torch.randn(RANKS, m, k, device="cuda").half()
    b = torch.randn(RANKS, k, n, device="cuda").half()
    nothing = lambda: None
    plain = VirtualRing(a, b)
    runs = {
        "cuBLAS, all ranks in one batch": (nothing, lambda: torch.bmm(a, b)),
        "sequential": (nothing, lambda: plain.run("sequential")),
        "chunk": (nothing, lambda: plain.run("chunk")),
    }
    pairs = [(name, "GEMM alone, movers=0") for name in runs]
    for movers in (0, 1, 4):
        alone = f"GEMM alone, movers={movers}"
        for reduce in ("atomic", "turn"):
            ring, name = (
                VirtualRing(a, b, Settings(movers=movers, reduce=reduce)),
                (f"tile, {reduce}, movers={movers}"),
            )
            runs[name] = ring.clear, lambda ring=ring: ring.run("tile", clear=False)
            pairs.append((name, alone))
        runs[alone] = nothing, ring.partials  # its movers are not launched, their SMs stay free
    times = in_turn(runs)
    return [timing(name, taken) for name, taken in times.items()] + [
        row(f"{name} / {alone}", ratio(times, name, alone), "x") for name, alone in pairs
    ]


def memory():
    """Rows: what the memory gives, what traffic takes from a GEMM."""
    from tpviz.evidence.t3_gpu import bandwidths, contention, machine_fields

    found = bandwidths()
    rows = [row(f"memory: {kind}", rate / 1e9, "GB/s") for kind, rate in found.items()]
    device = torch.cuda.get_device_name()
    dram = next((d.memory_bandwidth for n, d in GPUS.items() if n.split("-")[0] in device), 0.0)
    try:
        fields = machine_fields(found, dram, contention(32768, 32768, 64, kind="copy"))
        rows += [
            row(f"Machine({name}=...), dram={dram:.3g}", value) for name, value in fields.items()
        ]
    except ValueError as error:
        print(f"nothing for the simulator: {error}")
    for kind in ("copy", "update"):
        for r in contention(kind=kind):
            what = f"GEMM beside {kind} of {r.rate / 1e9:.0f} GB/s: time / alone"
            rows.append(row(what, r.slowdown, "x"))
    return rows


def race():
    """On a rank: {contestant: seconds}; checks that both compute the same."""
    import torch.distributed as dist

    from tpviz.evidence.t3_gpu import SymmetricRing

    m, k, n = SIZES
    a = torch.randn(m, k, device="cuda").half() / 16
    b = torch.randn(k, n, device="cuda").half() / 16
    assert dist.group.WORLD is not None
    name = dist.group.WORLD.group_name
    ring = SymmetricRing(a, b)
    torchs = lambda: torch.ops.symm_mem.fused_matmul_reduce_scatter(a, b, "sum", 0, name)
    torch.testing.assert_close(ring.run().half(), torchs(), rtol=0.02, atol=0.02)
    return in_turn(
        {
            "T3, tile": (dist.barrier, lambda: ring.run(check=False)),
            "fused_matmul_reduce_scatter": (dist.barrier, torchs),
        }
    )


def several(gpus):
    """Rows: a process for each GPU."""
    import tpviz as tv

    per_rank = tv.launch(race, world_size=gpus, device="cuda", backend="nccl", timeout=300)
    times = {
        name: [max(t[name][i] for t in per_rank) for i in range(REPEATS)] for name in per_rank[0]
    }
    tv.shutdown()
    return [timing(f"{gpus} GPUs: {name}", taken) for name, taken in times.items()] + [
        row(
            f"{gpus} GPUs: T3 / fused_matmul_reduce_scatter",
            ratio(times, "T3, tile", "fused_matmul_reduce_scatter"),
            "x",
        )
    ]


def main():
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return
    rows = modes() + memory()
    gpus = torch.cuda.device_count()
    if gpus > 1:
        rows += several(gpus)
    title = f"T3 on {torch.cuda.get_device_name()}, {RANKS} virtual ranks, m, k, n = {SIZES}"
    report("t3_gpu", title, rows)


if __name__ == "__main__":
    sys.exit(main())
