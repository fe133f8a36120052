"""AxoNN's special cases beside PyTorch's own parallelism: same ranks, same backend, steps in turn.

z alone against FSDP2 (`fully_shard` on every block): FSDP2 gathers a block's weights again for
backward, in one message, so ``keep=False, gather="block"`` is what sends as much in as few. With
``gather="weight"`` as much is sent in four times as many messages (no promise: it shows what a
message costs); ``keep=True`` is AxoNN's default. FSDP2 shards biases and norms too; AxoNN sums
their gradients at the end. x alone against DTensor's tensor parallelism, once with
vocabulary-parallel ends as AxoNN has (bench_megatron's plan) and once as `tpviz.evidence.peers` has
it, ends whole on each rank.

The z race is run at two widths: what a collective costs beside its bytes weighs more in a narrow
model.

A step is forward and backward. The losses must agree. Both ledgers are printed.
"""

import sys
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from bench_megatron import with_dtensor
from harness import interleaved, ratio, report, row, slowest, timing
from torch.distributed.tensor.parallel import loss_parallel

import tpviz as tv
from tpviz.evidence import peers
from tpviz.schemes.gpt.program import batch_of

WORKLOAD = tv.GPT(layers=4, hidden=256, heads=8, seq=64, batch=8, tied=False)
PAIRS = 20
Z: dict[str, Any] = {"x": 1, "y": 1, "z": 4}
X: dict[str, Any] = {"x": 4, "y": 1, "z": 1}
OVER_Z = {
    "FSDP2": peers.FSDP2(dp=4),
    "AxoNN, keep=True": tv.AxoNN(**Z),
    **{
        f"AxoNN, keep=False, gather={gather}": tv.AxoNN(**Z, keep=False, gather=gather)
        for gather in ("block", "weight")
    },
}
OVER_X = {"DTensor": "parallel ends", "DTensorTP": peers.DTensorTP(tp=4), "AxoNN": tv.AxoNN(**X)}
RACES = {
    "z only, hidden 256": (WORKLOAD, OVER_Z),
    "z only, hidden 512": (replace(WORKLOAD, hidden=512), OVER_Z),
    "x only": (WORKLOAD, OVER_X),
}
BOUNDED = {
    ("AxoNN, keep=False, gather=block", "FSDP2"),
    ("AxoNN, keep=True", "FSDP2"),
    ("AxoNN", "DTensor"),
}
"""What promises the same work, or less of it; the other ratios are for information."""


def step_of(strategy, workload):
    """On a rank: what makes one step and gives this rank's loss."""
    batch = batch_of(workload, 0)
    if isinstance(strategy, str):
        model = with_dtensor(workload, tv.Mesh({"tp": 4}).device_mesh())

        def step():
            model.zero_grad()
            with loss_parallel():
                loss = model(*batch)
                loss.backward()
            return loss.full_tensor().detach()

        return step
    program = strategy.build(workload, tv.Mesh(strategy.axes).device_mesh(), torch.float32, "cpu")
    return lambda: program.step(batch)


def race(name, recorded):
    """On a rank: {contestant: seconds of each step}, {contestant: loss}, {contestant: ledger}."""
    workload, contestants = RACES[name]
    steps = {who: step_of(strategy, workload) for who, strategy in contestants.items()}
    losses, ledgers = {}, {}

    def run(who):
        losses[who] = steps[who]()

    functions = {who: lambda who=who: run(who) for who in steps}
    if not recorded:
        times = interleaved(functions, PAIRS, before=dist.barrier)
    else:
        with tv.record():
            times = interleaved(functions, PAIRS, before=dist.barrier)
        for who in steps:
            with tv.record() as recorder, recorder.step():
                run(who)
            ledgers[who] = recorder.trace.ledger()
    return times, {who: float(loss) for who, loss in losses.items()}, ledgers


def rows_of(name, kind, results):
    """Rows of one race; exits where the contestants do not compute the same."""
    times = slowest([r[0] for r in results])
    losses = {who: sum(r[1][who] for r in results) / len(results) for who in times}
    if max(losses.values()) - min(losses.values()) > 1e-4:
        sys.exit(f"they do not compute the same: losses {losses}")
    rows = [timing(f"{name}: {who} step, {kind}", times[who]) for who in times]
    ours = [who for who in times if who.startswith("AxoNN")]
    for who in ours:
        for other in [other for other in times if other not in ours]:
            pairs = [a / b for a, b in zip(times[who], times[other])]
            rows.append(
                row(
                    f"{name}: {who} / {other}, {kind}",
                    ratio(times, who, other),
                    "x",
                    1.05 if (who, other) in BOUNDED else None,
                    pairs,
                )
            )
    return rows


def traffic(name, ledgers):
    """Rows of the bytes that a rank sends in a step by rings, ends of the model included."""
    return [
        row(f"{name}: {who}, megabytes sent", sum(r.wire_bytes for r in ledger) / 1e6, "MB")
        for who, ledger in ledgers.items()
    ]


def main():
    rows, printed = [], []
    for name in RACES:
        for kind, backend in [("plain gloo", "gloo"), ("recorded", "tpviz")]:
            results = tv.launch(
                race, name, backend == "tpviz", world_size=4, backend=backend, timeout=600
            )
            rows += rows_of(name, kind, results)
        rows += traffic(name, results[0][2])
        printed += [f"\n{name}: {who}, one step\n{ledger}" for who, ledger in results[0][2].items()]
    report("axonn_peers", f"AxoNN beside FSDP2 and DTensor on 4 ranks, {WORKLOAD}", rows)
    print(*printed, sep="\n")
    tv.shutdown()


if __name__ == "__main__":
    sys.exit(main())
