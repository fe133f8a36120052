"""ATP beside its peers on the same ranks and backend, steps and layers in turn.

`ATP(mesh=(4, 1))` against `Megatron(tp=4)`: the same communication. And the pair of layers of a
(2, 2) mesh against DTensor with the same placements: the first weight (columns over d1, rows over
d2), the second the other way round, each product's partial sums made whole before the next.
"""

import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from harness import interleaved, ratio, report, row, slowest, timing
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import tpviz as tv
from tpviz.schemes.gpt.program import batch_of
from tpviz.schemes.grid.layers import GridLinear
from tpviz.schemes.grid.operators import LinearSharding

WORKLOAD = tv.GPT(layers=4, hidden=256, heads=8, seq=64, batch=8, tied=False)
SIZES = {"tokens": 512, "hidden": 256, "wide": 1024}
PAIRS = 30


def steps():
    """Whole steps, on a rank: {name: seconds}, {name: loss}."""
    batch, losses, programs = batch_of(WORKLOAD, 0), {}, {}
    for strategy in (tv.ATP(mesh=(4, 1)), tv.Megatron(tp=4)):
        mesh = tv.Mesh(strategy.axes).device_mesh()
        programs[type(strategy).__name__] = strategy.build(WORKLOAD, mesh, torch.float32)

    def step(name):
        losses[name] = float(programs[name].step(batch))

    functions = {name: lambda name=name: step(name) for name in programs}
    return interleaved(functions, PAIRS, before=dist.barrier), losses


def layers():
    """Up, GELU and down on a (2, 2) mesh, forward and backward: {name: seconds}, {name: sum}."""
    torch.manual_seed(0)
    tokens, hidden, wide = SIZES.values()
    x, up, down = (
        torch.randn(shape) / 16 for shape in ((tokens, hidden), (wide, hidden), (hidden, wide))
    )
    mesh = tv.Mesh({"d1": 2, "d2": 2}).device_mesh()
    d1, d2 = mesh.get_group("d1"), mesh.get_group("d2")
    ours = [
        GridLinear(hidden, wide, LinearSharding(d2, d1), bias=False),
        GridLinear(wide, hidden, LinearSharding(d1, d2), bias=False),
    ]
    i, j = d1.rank(), d2.rank()
    with torch.no_grad():
        ours[0].weight.copy_(up.chunk(2, 0)[i].chunk(2, 1)[j])
        ours[1].weight.copy_(down.chunk(2, 0)[j].chunk(2, 1)[i])
    own = x.chunk(2, 1)[j].contiguous().requires_grad_()

    def split(whole, *placements):
        return (
            DTensor.from_local(whole, mesh, [Replicate()] * 2)
            .redistribute(mesh, placements)
            .detach()
            .requires_grad_()
        )

    theirs: list[Any] = [split(up, Shard(0), Shard(1)), split(down, Shard(1), Shard(0))]
    entering, sums = split(x, Replicate(), Shard(1)), {}

    def atp():
        y = ours[1](F.gelu(ours[0](own)))
        (y.square().sum()).backward()
        sums["ATP"] = y.detach()

    def dtensor():
        inner: Any = F.linear(entering, theirs[0])
        assert inner.placements == (Shard(1), Partial()), inner.placements
        inner = inner.redistribute(mesh, [Shard(1), Replicate()])
        y: Any = F.linear(F.gelu(inner), theirs[1])
        assert y.placements == (Partial(), Shard(1)), y.placements
        y = y.redistribute(mesh, [Replicate(), Shard(1)])
        (y.to_local().square().sum()).backward()
        sums["DTensor"] = y.to_local().detach()

    with tv.record() as recorder:
        with recorder.step():
            atp()
        with recorder.step():
            dtensor()
    ledgers = {name: recorder.trace.ledger(step=k) for k, name in enumerate(("ATP", "DTensor"))}
    times = interleaved({"ATP": atp, "DTensor": dtensor}, PAIRS, before=dist.barrier)
    apart = float((sums["ATP"] - sums["DTensor"]).abs().max())
    grads = [(ours[k].weight.grad - theirs[k].grad.to_local()).abs().max() for k in (0, 1)]
    return times, (apart, *map(float, grads)), ledgers


def main():
    found = tv.launch(steps, world_size=4, backend="gloo", timeout=600)
    times, losses = slowest([f[0] for f in found]), found[0][1]
    if abs(losses["ATP"] - losses["Megatron"]) > 1e-5:
        sys.exit(f"the two do not compute the same: losses {losses}")
    rows = [timing(f"{name} step", times[name]) for name in times]
    rows.append(
        row(
            "ATP(mesh=(4, 1)) / Megatron(tp=4), a step",
            ratio(times, "ATP", "Megatron"),
            "x",
            1.03,
            [a / b for a, b in zip(times["ATP"], times["Megatron"])],
        )
    )
    found = tv.launch(layers, world_size=4, timeout=600)
    times = slowest([f[0] for f in found])
    rows += [timing(f"MLP pair on (2, 2), {name}", times[name]) for name in times]
    rows.append(
        row(
            "ATP / DTensor, the same placements",
            ratio(times, "ATP", "DTensor"),
            "x",
            1.05,
            [a / b for a, b in zip(times["ATP"], times["DTensor"])],
        )
    )
    rows.append(row("largest difference of their results (float32)", found[0][1][0], "", 1e-3))
    report("atp_layer", f"ATP beside its peers, {WORKLOAD}, pair {SIZES}", rows)
    for name, ledger in found[0][2].items():
        print(f"\n{name}, one pair forward and backward\n{ledger}")
    print("gradients of the weights apart:", found[0][1][1:], "(DTensor's gradients accumulate)")
    tv.shutdown()


if __name__ == "__main__":
    sys.exit(main())
