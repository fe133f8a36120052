"""What recording costs: microseconds per event, and the share of a training step of 10 ms or more.

Recorded and plain steps take turns on the same ranks of the same backend; a step counts with its
slowest rank.
"""

import sys
from statistics import median

import torch
import torch.distributed as dist
from harness import interleaved, ratio, report, row, slowest, timing
from torch.distributed.device_mesh import init_device_mesh

import tpviz as tv
from tpviz.schemes.gpt.program import batch_of

WORKLOAD = tv.GPT(layers=4, hidden=128, heads=4, seq=64, batch=8)
RANKS = 2
PAIRS = 40
OPERATIONS = 2000


def steps():
    """On a rank: seconds of plain and of recorded steps, and the events of one recorded step."""
    strategy = tv.Megatron(tp=RANKS)
    mesh = init_device_mesh("cpu", tuple(strategy.axes.values()),
                            mesh_dim_names=tuple(strategy.axes))
    program = strategy.build(WORKLOAD, mesh, torch.float32, "cpu")
    batch, events = batch_of(WORKLOAD, 0), []

    def train():
        program.step(batch)
        program.optimizer_step()

    def recorded():
        with recorder.step():
            train()

    times = {"plain": [], "recorded": []}
    for turn in range(-2, PAIRS):
        for name in ("plain", "recorded") if turn % 2 else ("recorded", "plain"):
            recorder = tv.record()
            if name == "plain":
                taken = interleaved({name: train}, 1, warmup=0, before=dist.barrier)
            else:
                with recorder:
                    taken = interleaved({name: recorded}, 1, warmup=0, before=dist.barrier)
                events.append(len(recorder.trace))
            if turn >= 0:
                times[name] += taken[name]
    return times, median(events)


def each():
    """On a lone rank: seconds of one small kernel and of one collective, plain and recorded."""
    x = torch.ones(8, 8)
    work = {"kernel": lambda: torch.mm(x, x), "collective": lambda: dist.all_reduce(x)}
    found = {}
    for name, function in work.items():
        def many(function=function):
            for _ in range(OPERATIONS):
                function()

        times = {"plain": [], "recorded": []}
        for _ in range(7):
            times["plain"] += interleaved({"": many}, 1, warmup=0)[""]
            with tv.record():
                times["recorded"] += interleaved({"": many}, 1, warmup=0)[""]
        found[name] = [(r - p) / OPERATIONS for p, r in zip(times["plain"], times["recorded"])]
    return found


def main():
    per_event = tv.launch(each, world_size=1)[0]
    results = tv.launch(steps, world_size=RANKS, timeout=300)
    times = slowest([times for times, _ in results])
    share = ratio(times, "recorded", "plain")
    report("record", f"Recording, {RANKS} ranks, {tv.Megatron(tp=RANKS)}, {WORKLOAD}", [
        timing("one kernel", per_event["kernel"], "us"),
        timing("one blocking collective (issue, wait, two events)", per_event["collective"], "us"),
        timing("plain step", times["plain"]),
        timing("recorded step", times["recorded"]),
        row("events of a recorded step, per rank", results[0][1]),
        row("recorded / plain step", share, "x", bound=1.03,
            samples=[r / p for r, p in zip(times["recorded"], times["plain"])])], times_s=times)
    tv.shutdown()


if __name__ == "__main__":
    sys.exit(main())
