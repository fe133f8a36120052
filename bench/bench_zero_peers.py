"""Data parallelism beside FSDP2 (`fully_shard`), on the same ranks and backend, steps in turn.

ZeRO 3, hybrid sharding (PyTorch's HSDP, a mesh of two axes), and ``reshard_after_forward`` False
and 2. A step is forward and backward. The losses, and the gradients of every parameter, must agree,
and both must send as many collectives of each kind with as many bytes.
"""

import sys
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from harness import interleaved, ratio, report, row, slowest, timing

import tpviz as tv
from tpviz.evidence import peers
from tpviz.schemes.gpt.program import batch_of

WORKLOAD = tv.GPT(layers=4, hidden=256, heads=8, seq=64, batch=8, tied=False)
PAIRS = 20
CASES: dict[str, dict[str, Any]] = {
    "ZeRO 3": {},
    "shard=2": {"shard": 2},
    "reshard_after_forward=False": {"reshard_after_forward": False},
    "reshard_after_forward=2": {"reshard_after_forward": 2},
}
BOTH = "DataParallel", "FSDP2"


def gradients_of(program):
    """{name: full gradient}, of a program of ours or of PyTorch's."""
    if program.buckets:
        return program.gradients()
    return {name: p.grad.full_tensor() for name, p in program.module.named_parameters()}


def sent(program, batch):
    """[(collective, count, payload bytes, wire bytes)] of a step."""
    with tv.record() as recorder, recorder.step():
        program.step(batch)
    found = {}
    for line in recorder.trace.ledger():
        numbers = line.count, line.payload_bytes, line.wire_bytes
        before = found.get(line.collective, (0, 0, 0))
        found[line.collective] = tuple(map(sum, zip(before, numbers)))
    return sorted((kind, *numbers) for kind, numbers in found.items())


def race(case, recorded):
    """On a rank: {contestant: seconds of each step}, {contestant: loss}, the largest difference of
    their gradients, what each sends (of recorded ones)."""
    knobs, batch = CASES[case], batch_of(WORKLOAD, 0)
    strategies = tv.DataParallel(zero=3, **knobs), peers.FSDP2(**knobs)
    programs = {
        who: s.build(WORKLOAD, tv.Mesh(s.axes).device_mesh(), torch.float32, "cpu")
        for who, s in zip(BOTH, strategies)
    }
    losses = {}

    def run(who):
        losses[who] = programs[who].step(batch)

    functions = {who: lambda who=who: run(who) for who in BOTH}
    with tv.record() if recorded else nullcontext():
        times = interleaved(functions, PAIRS, before=dist.barrier)
    ours, theirs = (gradients_of(programs[who]) for who in BOTH)
    apart = max(float((ours[n] - theirs[n]).abs().max()) for n in theirs)
    kinds = [sent(programs[who], batch) for who in BOTH] if recorded else []
    return times, {who: float(x) for who, x in losses.items()}, apart, kinds


def rows_of(case, kind, results):
    """Rows of one race; exits where the contestants do not compute or send the same."""
    times = slowest([r[0] for r in results])
    losses = [sum(r[1][who] for r in results) for who in BOTH]
    if abs(losses[0] - losses[1]) > 1e-4 or max(r[2] for r in results) > 1e-5:
        sys.exit(f"{case}: losses {losses}, gradients {max(r[2] for r in results)} apart")
    if any(r[3] and r[3][0] != r[3][1] for r in results):
        sys.exit(f"{case}: they do not send the same: {results[0][3]}")
    pairs = [a / b for a, b in zip(*(times[who] for who in BOTH))]
    return [
        *(timing(f"{case}: {who} step, {kind}", times[who]) for who in BOTH),
        row(f"{case}: ours / FSDP2, {kind}", ratio(times, *BOTH), "x", 1.0, pairs),
    ]


def main():
    rows, printed = [], []
    for case in CASES:
        for kind, backend in [("plain gloo", "gloo"), ("recorded", "tpviz")]:
            results = tv.launch(
                race, case, backend == "tpviz", world_size=4, backend=backend, timeout=600
            )
            rows += rows_of(case, kind, results)
        printed.append(f"{case}: each sends {results[0][3][0]}")
    report("zero_peers", f"DataParallel beside FSDP2 on 4 ranks, {WORKLOAD}", rows)
    print(*printed, sep="\n")
    tv.shutdown()


if __name__ == "__main__":
    sys.exit(main())
