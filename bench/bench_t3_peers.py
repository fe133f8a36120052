"""T3's chunk mode beside PyTorch's ``fused_matmul_reduce_scatter``: same ranks, same shapes.

PyTorch's operator needs symmetric memory, which no CPU has; what it does without is its fallback, a
GEMM and then a reduce-scatter, here on gloo as ours is. Calls in turn, the slowest rank counts, the
figure is the median of the ratios of pairs; below 1 ours is faster. Nothing is emulated, so on few
cores there is little to hide: sending costs the processor that computes. What chunk mode gains is
mostly gloo's reduce-scatter, which moves as much as an all-reduce, against n - 1 messages of a
chunk; what tile mode loses is a GEMM and two handles for every tile. Sequential mode, the same
fallback through our code, says what the functional collective around PyTorch's costs. gloo adds in
the ring's order too, so the results are the same bits.

    python bench/bench_t3_peers.py [pairs]
"""

import sys
import warnings

import torch
import torch.distributed as dist
from harness import interleaved, ratio, report, row, slowest, timing

import tpviz as tv
from tpviz.schemes.t3.program import ring_of

PAIRS = 30
SHAPES = [(2048, 256, 512), (2048, 1024, 512), (8192, 256, 256), (512, 128, 128)]
"""Tokens, features of a rank, hidden."""
MODES = {"chunk": "chunk", "tile, 4 a chunk": "tile", "sequential": "sequential"}


def race(shape, pairs):
    """On a rank: {contestant: seconds of each call}, the largest difference of a result."""
    from torch.distributed._symmetric_memory import _fused_matmul_reduce_scatter_fallback as theirs

    warnings.simplefilter("ignore")
    tokens, features, hidden = shape
    mesh = tv.Mesh({"tp": dist.get_world_size()}).device_mesh()
    rings = {name: ring_of(tv.T3(tp=mesh.size(), mode=mode), mesh) for name, mode in MODES.items()}
    group = mesh.get_group("tp")
    torch.manual_seed(dist.get_rank())
    a, b = torch.randn(tokens, features), torch.randn(features, hidden)
    calls = {"PyTorch": lambda: theirs(a, b, "sum", 0, group.group_name)}
    calls |= {name: lambda ring=ring: ring.reduce_scatter(a, b) for name, ring in rings.items()}
    expected = calls["PyTorch"]()
    apart = max(float((call() - expected).abs().max()) for call in calls.values())
    times = interleaved(calls, pairs, before=dist.barrier)
    return times, apart / float(expected.abs().max())


def main():
    warnings.simplefilter("ignore")
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS
    rows = []
    for ranks in (2, 4):
        for shape in SHAPES:
            found = tv.launch(race, shape, pairs, world_size=ranks, timeout=200)
            times = slowest([each for each, _ in found])
            what = f"{ranks} ranks, {' x '.join(map(str, shape))}"
            rows.append(timing(f"{what}: PyTorch's fallback", times["PyTorch"]))
            for name in MODES:
                each = [a / b for a, b in zip(times[name], times["PyTorch"])]
                rows.append(
                    row(f"  {name} over PyTorch", ratio(times, name, "PyTorch"), "x", None, each)
                )
            rows.append(
                row(
                    "  results apart, of the largest number",
                    max(apart for _, apart in found),
                    "",
                    1e-5,
                )
            )
    report("t3_peers", "T3 beside PyTorch's fused_matmul_reduce_scatter on gloo", rows)
    tv.shutdown()


if __name__ == "__main__":
    main()
