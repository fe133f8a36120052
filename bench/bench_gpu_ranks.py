"""Ranks that share a GPU against `predict` and `simulate` after `calibrate` alone; a Kineto trace.

As `bench_host`, on CUDA: the calibration trains small models in one process and times collectives,
which gloo carries through the host, and sees none of the strategies. Steps are timed as any program
would, since to record a kernel costs the host more than to launch it; how much is in the report.
Each strategy is verified there, too. Says so and ends where there is no CUDA device.

    python bench/bench_gpu_ranks.py [2 4]      # ranks
"""

import gzip
import json
import shutil
import sys
import time
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from bench_host import STEPS, WARMUP, ideal, strategies
from harness import OUT, report, row

import tpviz as tv
from tpviz.verbs.run import program_here, train_step

WORKLOADS = (
    tv.GPT(2, 512, 8, 256, batch=8, vocab=8192, dtype="bfloat16"),
    tv.GPT(2, 1024, 16, 512, batch=8, vocab=8192, dtype="bfloat16"),
)
SMALL = tv.GPT(2, 64, 8, 32, batch=8, vocab=64)
ROUNDS = 6  # of steps at most, until gloo's copies need no more pinned memory
TRACED = tv.Megatron(tp=2), tv.GPT(2, 1024, 16, 512, batch=4, vocab=8192, dtype="bfloat16")


def pinned() -> int:
    """How often torch has allocated pinned host memory: some 12 ms each, kept for later copies."""
    return torch.cuda.host_memory_stats()["num_host_alloc"]


def times(strategy: tv.Strategy, workload: tv.GPT) -> tuple[list[tuple[float, float]], tv.Trace]:
    """On a rank: (start and end of each of some steps, the trace of as many recorded ones)."""
    program, device = program_here(strategy, workload)

    def train() -> tuple[float, float]:
        torch.cuda.synchronize()
        dist.barrier()
        start = time.perf_counter()
        train_step(program, workload, 0, device)
        torch.cuda.synchronize()
        return start, time.perf_counter()

    for _ in range(WARMUP):
        train()
    plain = []
    for _ in range(ROUNDS):
        before = pinned()
        plain = [train() for _ in range(STEPS)]
        made = torch.tensor(pinned() - before, device=device)
        dist.all_reduce(made)
        if not made:
            break
    with tv.record() as recorder:
        for _ in range(STEPS):
            with recorder.step():
                train_step(program, workload, 0, device)
    return plain, recorder.trace


def profiled(strategy: tv.Strategy, workload: tv.GPT, folder: str) -> None:
    """On a rank: write a step's Kineto file into the folder."""
    program, device = program_here(strategy, workload)
    for _ in range(WARMUP):
        train_step(program, workload, 0, device)
    dist.barrier()
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA], record_shapes=True) as profiler:
        train_step(program, workload, 0, device)
        torch.cuda.synchronize()
    path = f"{folder}/rank{dist.get_rank()}.json"
    profiler.export_chrome_trace(path)
    with open(path, "rb") as plain, gzip.open(f"{path}.gz", "wb") as packed:
        shutil.copyfileobj(plain, packed)


def compared(found: tv.Calibration, n: int) -> list[dict[str, Any]]:
    """A dict for each workload and strategy: seconds of a step, plain, recorded and foreseen."""
    rows = []
    for workload in WORKLOADS:
        for strategy in strategies(n):
            ranks = tv.launch(times, strategy, workload, world_size=n, device="cuda")
            plain, traces = zip(*ranks)
            steps = [
                max(end for _, end in step) - min(start for start, _ in step)
                for step in zip(*plain)
            ]
            on = strategy, workload
            rows.append(
                {
                    "ranks": n,
                    "workload": workload.short,
                    "strategy": strategy.short,
                    "plain": median(steps),
                    "recorded": tv.Trace.merge(traces).step_time,
                    "predicted": tv.predict(*on, found.cluster).step_time,
                    "simulated": tv.simulate(*on, found.cluster).step_time,
                    "ideal": tv.predict(*on, ideal(found.cluster)).step_time,
                }
            )
            words = ", ".join(f"{k} {1e3 * v:.1f}" for k, v in list(rows[-1].items())[3:])
            print(f"{n} ranks, hidden {workload.hidden}, {strategy.short}: {words} ms", flush=True)
    return rows


def verified(n: int) -> list[dict[str, Any]]:
    """A dict for each strategy: its distance from one process, and whether its ledger is exact."""
    rows = []
    for strategy in strategies(n):
        found = tv.verify(strategy, SMALL, steps=2, device="cuda", progress=False)
        error, exact = found.max_error, not found.ledger_diff
        rows.append({"ranks": n, "strategy": strategy.short, "error": error, "exact": exact})
    return rows


def main() -> None:
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return
    details: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "calibrations": {}}
    details |= {"steps": [], "verified": []}
    OUT.mkdir(parents=True, exist_ok=True)
    folder = OUT / "kineto"
    folder.mkdir(exist_ok=True)
    tv.launch(profiled, *TRACED, str(folder), world_size=2, device="cuda")
    rows = []
    for n in [int(a) for a in sys.argv[1:]] or [2, 4]:
        details["verified"] += verified(n)
        found = tv.calibrate(n, device="cuda")
        print(found.describe(), flush=True)
        cluster = json.loads(found.cluster.to_json())
        details["calibrations"][n] = {"cluster": cluster, "points": found.points}
        of_n = compared(found, n)
        details["steps"] += of_n
        for name in ("predicted", "simulated", "ideal"):
            errors = [abs(r[name] / r["plain"] - 1) for r in of_n]
            words = f"{n} ranks, {name}: median error over {len(errors)} plain runs"
            rows.append(row(words, median(errors), "", None, errors))
        ratios = [r["recorded"] / r["plain"] for r in of_n]
        rows.append(row(f"{n} ranks: a recorded step over a plain one", median(ratios), "", None))
        off = [r for r in details["verified"] if r["ranks"] == n]
        words = f"{n} ranks: largest distance from one process"
        rows.append(row(words, max(r["error"] for r in off), "", 1e-10))
        rows.append(row(f"{n} ranks: ledgers off", sum(not r["exact"] for r in off), "", 0))
        report("gpu_ranks", f"Ranks that share one {details['gpu']}", rows, **details)
    tv.shutdown()


if __name__ == "__main__":
    main()
