"""Merak's executor beside ``torch.distributed.pipelining``: the same stages of the same GPT on the
same four ranks, backend and schedule, steps in turn.

Both run 1F1B, interleaved 1F1B and a zero-bubble schedule (PyTorch's ``InterleavedZeroBubble``,
with one stage a rank, beside ZB-H1) without recomputation, which PyTorch's cannot express. A step
is forward and backward of all microbatches; the losses must agree.
"""

import sys
import warnings
from dataclasses import replace

import torch
import torch.distributed as dist
from harness import interleaved, ratio, report, row, slowest, timing

import tpviz as tv
from tpviz.schemes.gpt.program import batch_of

WORKLOAD = tv.GPT(layers=8, hidden=256, heads=8, seq=64, batch=16, tied=False)
PAIRS, MICROBATCHES, RANKS = 20, 8, 4
SCHEDULES = {
    "1f1b": ("Schedule1F1B", 1),
    "interleaved_1f1b": ("ScheduleInterleaved1F1B", 2),
    "zb_h1": ("ScheduleInterleavedZeroBubble", 1),
}


def torchs(program, name):
    """PyTorch's schedule on this rank's own stages: a function that makes a step, its loss."""
    from torch.distributed import pipelining

    kind, chunks = SCHEDULES[name]
    strategy, group = program.strategy, program.mesh.get_group("pp")
    stages = []
    for number, stage in program.pipeline.stages.items():

        class Whole(torch.nn.Module):
            def __init__(self, stage):
                super().__init__()
                self.stage = stage

            def forward(self, x):
                stage = self.stage
                values = stage.begin((x,), (x, None))
                values = stage.run(values, 0, None)
                if stage.number < strategy.stages - 1:
                    return values[0]
                return stage.head(stage.norm(*values))

        stages.append(
            pipelining.PipelineStage(
                Whole(stage), number, strategy.stages, torch.device("cpu"), group=group
            )
        )
    make = getattr(pipelining, kind, None) or getattr(pipelining.schedules, kind)

    def loss_of(logits, targets):
        return torch.nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())

    several = chunks > 1 or "Interleaved" in kind
    schedule = make(stages if several else stages[0], MICROBATCHES, loss_fn=loss_of)
    first, last = 0 in program.pipeline.stages, strategy.stages - 1 in program.pipeline.stages

    def step(batch):
        program.optimizer.zero_grad()
        losses = []
        inputs = (batch[0],) if first else ()
        schedule.step(*inputs, target=batch[1] if last else None, losses=losses if last else None)
        return torch.stack(losses).mean() if last else None

    return step


def race(name):
    """On a rank: {contestant: seconds of each step}, {contestant: loss}."""
    warnings.simplefilter("ignore")
    strategy = tv.Merak(pp=RANKS, microbatches=MICROBATCHES, schedule=name, recompute="none")
    mesh = tv.Mesh(strategy.axes).device_mesh()
    batch = batch_of(WORKLOAD, 0)
    ours, theirs = (strategy.build(WORKLOAD, mesh, torch.float32, "cpu") for _ in range(2))
    other = torchs(theirs, name)
    losses = {}

    def run(who, step):
        losses[who] = step(batch)

    times = interleaved(
        {"tpviz": lambda: run("tpviz", ours.step), "PyTorch": lambda: run("PyTorch", other)},
        PAIRS,
        before=dist.barrier,
    )
    gradients = [
        max(
            float((a.grad - b.grad).abs().max())  # pyright: ignore[reportOptionalOperand, reportOperatorIssue]
            for a, b in zip(ours.named.values(), theirs.named.values())
        )
    ]
    return times, {who: float(loss) for who, loss in losses.items() if loss is not None}, gradients


def rows():
    for name in SCHEDULES:
        results = tv.launch(race, name, world_size=RANKS, backend="gloo", timeout=900)
        times = slowest([times for times, _, _ in results])
        losses = {who: loss for _, found, _ in results for who, loss in found.items()}
        if abs(losses["tpviz"] - losses["PyTorch"]) > 1e-4:
            sys.exit(f"{name}: they do not compute the same: losses {losses}")
        yield from (timing(f"{name}: {who} step", times[who]) for who in times)
        pairs = [a / b for a, b in zip(times["tpviz"], times["PyTorch"])]
        yield row(f"{name}: tpviz / PyTorch", ratio(times, "tpviz", "PyTorch"), "x", 1.05, pairs)


def main():
    report(
        "merak_peers",
        f"Merak's executor beside torch.distributed.pipelining on {RANKS} ranks, "
        f"plain gloo, {MICROBATCHES} microbatches, {replace(WORKLOAD)}",
        [*rows()],
    )
    tv.shutdown()


if __name__ == "__main__":
    main()
