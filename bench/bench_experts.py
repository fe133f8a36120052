"""The experts of a block beside the same by hand on ``all_to_all_single``, on the same ranks.

By hand: choices sorted by expert, counts exchanged, rows there and back by an autograd function,
each expert on its rows. Both compute forward and backward of one MLP, of equal weights and tokens,
in turn; outputs and gradients must agree.

And what it brings to compute shared experts, or the other half of a microbatch, while rows travel:
an emulated step of each, beside the simulated one, so slow that ranks here keep up.
"""

import sys
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from harness import interleaved, ratio, report, row, slowest, timing

import tpviz as tv

WORKLOAD = tv.GPT(
    layers=1, hidden=256, heads=8, seq=128, batch=16, experts=8, top_k=2, moe_ffn=512, tied=False
)
RANKS, PAIRS = 4, 20
BOTH = "tv.Experts", "by hand"


class Rows(torch.autograd.Function):
    """Rows to each rank and from it; their gradients go back."""

    @staticmethod
    def forward(ctx: Any, rows, send, receive):
        """The rows received."""
        ctx.back = receive, send
        out = rows.new_empty((sum(receive), rows.shape[1]))
        dist.all_to_all_single(out, rows, receive, send)
        return out

    @staticmethod
    def backward(ctx: Any, grad):
        """The gradients of those sent."""
        send, receive = ctx.back
        out = grad.new_empty((sum(receive), grad.shape[1]))
        dist.all_to_all_single(out, grad.contiguous(), receive, send)
        return out, None, None


def by_hand(x, router, up, down):
    """The MLP of these weights, (E, H) and those of this rank's experts."""
    tokens = x.flatten(0, 1)
    weights, experts = F.linear(tokens, router).softmax(-1).topk(2, -1)
    weights = weights / weights.sum(-1, keepdim=True)
    order = experts.flatten().argsort(stable=True)
    counts = experts.flatten().bincount(minlength=len(router))
    known = torch.empty_like(counts)
    dist.all_to_all_single(known, counts)
    send, receive = (of.view(RANKS, -1).sum(1).tolist() for of in (counts, known))
    rows = Rows.apply(tokens[order // 2], send, receive)
    whose = torch.arange(len(up)).repeat(RANKS).repeat_interleave(known)
    sorting = whose.argsort(stable=True)
    loads = known.view(RANKS, -1).sum(0).tolist()
    parts = zip(rows[sorting].split(loads), up, down)
    done = torch.cat([F.linear(F.gelu(F.linear(part, a)), b) for part, a, b in parts])
    results = Rows.apply(done[sorting.argsort()], receive, send)[order.argsort()]
    return (results.view(*experts.shape, -1) * weights.unsqueeze(-1)).sum(1).view_as(x)


def race():
    """On a rank: {contestant: seconds of each repeat}, how far apart results and gradients are."""
    strategy = tv.Experts(ep=RANKS)
    program = strategy.build(WORKLOAD, tv.Mesh(strategy.axes).device_mesh(), torch.float32, "cpu")
    mlp: Any = program.module.get_submodule("blocks.0.mlp")
    weights = mlp.router.weight, mlp.up.weight, mlp.down.weight
    x = torch.randn(WORKLOAD.batch // RANKS, WORKLOAD.seq, WORKLOAD.hidden)
    runs, found = {BOTH[0]: mlp, BOTH[1]: lambda x: by_hand(x, *weights)}, {}

    def step(who):
        mlp.zero_grad()
        y = runs[who](x)
        y.square().sum().backward()
        found[who] = [y.detach(), *(p.grad.clone() for p in weights)]

    times = interleaved(
        {who: lambda who=who: step(who) for who in BOTH}, PAIRS, before=dist.barrier
    )
    pairs = zip(found[BOTH[0]], found[BOTH[1]])
    return times, max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def overlapped():
    """Rows of the report: emulated steps over simulated ones, and with the overlap over without."""
    w = replace(WORKLOAD, layers=2, hidden=128, heads=4, seq=64, moe_ffn=128, shared_experts=4)
    w = replace(w, routing=tv.Routing(), gated=True, norm="rms", bias=False, vocab=64)
    box = tv.clusters.nvlink_pairs(pairs=2).scale_model(hidden=4)
    box = tv.in_slow_motion(tv.Experts(ep=RANKS), w, box).scale_model(slow_motion=3)
    rows, took = [], []
    for overlap in ("none", "shared", "halves"):
        strategy = tv.Experts(ep=RANKS, overlap=overlap)
        steps = [tv.simulate(strategy, w, box), tv.run(strategy, w, box, steps=3, progress=False)]
        took.append([trace.step_time for trace in steps])
        rows.append(row(f"emulated / simulated, {overlap}", took[-1][1] / took[-1][0], "x", 1.05))
    for kind, (none, *others) in zip(("simulated", "emulated"), zip(*took)):
        for overlap, step in zip(("shared", "halves"), others):
            rows.append(row(f"overlap {overlap} / none, {kind}", step / none, "x", 0.95))
    return rows


def main():
    rows = overlapped()
    for kind, backend in [("plain gloo", "gloo"), ("recorded", "tpviz")]:
        results = tv.launch(race, world_size=RANKS, backend=backend, timeout=600)
        if max(apart for _, apart in results) > 1e-5:
            sys.exit(f"results are {max(apart for _, apart in results)} apart")
        times = slowest([r[0] for r in results])
        pairs = [a / b for a, b in zip(*(times[who] for who in BOTH))]
        rows += [
            *(timing(f"{who}, {kind}", times[who]) for who in BOTH),
            row(f"ours / by hand, {kind}", ratio(times, *BOTH), "x", 1.05, pairs),
        ]
    report("experts", f"Experts beside the same by hand on {RANKS} ranks, {WORKLOAD.short}", rows)
    tv.shutdown()


if __name__ == "__main__":
    sys.exit(main())
