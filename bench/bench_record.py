"""What recording costs: microseconds per event, and the share of a training step of 10 ms or more.

Recorded and plain steps take turns, a few at a time, on the same ranks of the same backend; a step
counts with its slowest rank.
"""

import sys
from statistics import median

import torch
import torch.distributed as dist
from harness import interleaved, ratio, report, row, seconds, slowest, timing
from torch.distributed.device_mesh import init_device_mesh

import tpviz as tv
from tpviz.schemes.gpt.program import batch_of

WORKLOAD = tv.GPT(layers=2, hidden=128, heads=4, seq=64, batch=8)
RANKS = (1, 2)
PAIRS = 30
STEPS = 3  # timed in a row, after one that settles; one recorder sees all of them
OPERATIONS = 1000


def steps(ranks):
    """On a rank: seconds of plain and of recorded steps, and the events of one recorded step."""
    strategy = tv.Megatron(tp=ranks)
    mesh = init_device_mesh(
        "cpu", tuple(strategy.axes.values()), mesh_dim_names=tuple(strategy.axes)
    )
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
                taken = interleaved({name: train}, STEPS, warmup=1, before=dist.barrier)
            else:
                with recorder:
                    taken = interleaved({name: recorded}, STEPS, warmup=1, before=dist.barrier)
                events.append(len(recorder.trace.select(step=1)))
            if turn >= 0:
                times[name] += taken[name]
    return times, median(events)


def each():
    """On a lone rank: seconds that recording adds to one small kernel and to one collective."""
    x = torch.ones(8, 8)
    work = {"kernel": lambda: torch.mm(x, x), "collective": lambda: dist.all_reduce(x)}
    found = {}
    for name, function in work.items():

        def many(function=function):
            for _ in range(OPERATIONS):
                function()

        plain, recorded = [], []
        for _ in range(15):
            plain.append(seconds(many))
            with tv.record():
                recorded.append(seconds(many))
        found[name] = (min(recorded) - min(plain)) / OPERATIONS
    return found


def main():
    per_event = tv.launch(each, world_size=1)[0]
    rows = [
        row("one kernel", 1e6 * per_event["kernel"], "µs"),
        row(
            "one blocking collective (issue, wait: two events)", 1e6 * per_event["collective"], "µs"
        ),
    ]
    kept = {}
    for ranks in RANKS:
        results = tv.launch(steps, ranks, world_size=ranks, timeout=300)
        kept[ranks] = times = slowest([times for times, _ in results])
        both = [r / p for r, p in zip(times["recorded"], times["plain"])]
        rows += [
            timing(f"plain step, {ranks} ranks", times["plain"]),
            timing(f"recorded step, {ranks} ranks", times["recorded"]),
            row("events of a recorded step, each rank", results[0][1]),
            row(
                f"recorded / plain step, {ranks} ranks",
                ratio(times, "recorded", "plain"),
                "x",
                bound=1.03,
                samples=both,
            ),
        ]
    report("record", f"Recording steps of Megatron, {WORKLOAD}", rows, times_s=kept)
    tv.shutdown()


if __name__ == "__main__":
    sys.exit(main())
