"""`Megatron(tp=4)` against PyTorch's own tensor parallelism (DTensor's ``parallelize_module``).

The same GPT from the same initial parameters, on the same ranks of the same backend, steps in turn;
a step is forward and backward. Both losses must agree, or there is nothing to compare.
"""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from harness import interleaved, ratio, report, row, slowest, timing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

import tpviz as tv
from tpviz.schemes.gpt.initial import load_initial
from tpviz.schemes.gpt.model import Attention, ReferenceGPT
from tpviz.schemes.gpt.program import batch_of

WORKLOAD = tv.GPT(layers=4, hidden=256, heads=8, seq=64, batch=8, tied=False)
TP = 4
PAIRS = 30


class LocalHeads(Attention):
    """The reference's attention, told by its input how many heads this rank has."""

    def forward(self, x_BSH):  # noqa: D102
        B, S, _ = x_BSH.shape
        q, k, v = self.qkv(x_BSH).view(B, S, -1, 3, self.heads.size).permute(3, 0, 2, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(B, S, -1))


def with_dtensor(workload, mesh):
    """PyTorch's way: the reference network, a plan, and vocabulary-parallel embedding and loss."""
    model = ReferenceGPT(workload, dtype=torch.float32)
    load_initial(model, workload)
    for block in model.blocks:
        block.attention.__class__ = LocalHeads  # pyright: ignore[reportAttributeAccessIssue]
    plan = {
        "embed.token": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    for part, style in [
        ("attention.qkv", ColwiseParallel),
        ("attention.out", RowwiseParallel),
        ("mlp.up", ColwiseParallel),
        ("mlp.down", RowwiseParallel),
    ]:
        plan |= {f"blocks.{i}.{part}": style() for i in range(workload.layers)}
    return parallelize_module(model, mesh["tp"], plan)


def compare(recorded):
    """On a rank: seconds of each step, the two losses, and both ledgers when recorded."""
    strategy = tv.Megatron(tp=TP)
    mesh = init_device_mesh(
        "cpu", tuple(strategy.axes.values()), mesh_dim_names=tuple(strategy.axes)
    )
    program = strategy.build(WORKLOAD, mesh, torch.float32, "cpu")
    peer, batch, losses = with_dtensor(WORKLOAD, mesh), batch_of(WORKLOAD, 0), {}

    def megatron():
        losses["megatron"] = program.step(batch)

    def dtensor():
        peer.zero_grad()
        with loss_parallel():
            loss = peer(*batch)
            loss.backward()
        losses["dtensor"] = loss.detach()

    functions, ledgers = {"megatron": megatron, "dtensor": dtensor}, {}
    if not recorded:
        times = interleaved(functions, PAIRS, before=dist.barrier)
    else:
        with tv.record():
            times = interleaved(functions, PAIRS, before=dist.barrier)
        for name, function in functions.items():
            with tv.record() as recorder, recorder.step():
                function()
            ledgers[name] = recorder.trace.ledger()
    values = {
        name: float(getattr(loss, "full_tensor", lambda loss=loss: loss)())
        for name, loss in losses.items()
    }
    return times, values, ledgers


def main():
    rows, kept = [], {}
    for kind, backend in [("plain gloo", "gloo"), ("recorded", "tpviz")]:
        results = tv.launch(
            compare, backend == "tpviz", world_size=TP, backend=backend, timeout=600
        )
        times, losses = slowest([r[0] for r in results]), results[0][1]
        if abs(losses["megatron"] - losses["dtensor"]) > 1e-4:
            sys.exit(f"the two do not compute the same: losses {losses}")
        rows += [
            timing(f"Megatron step, {kind}", times["megatron"]),
            timing(f"DTensor step, {kind}", times["dtensor"]),
            row(
                f"Megatron / DTensor, {kind}",
                ratio(times, "megatron", "dtensor"),
                "x",
                bound=1.05,
                samples=[m / d for m, d in zip(times["megatron"], times["dtensor"])],
            ),
        ]
        kept[kind] = {"times_s": times, "losses": losses}
    report("megatron", f"Megatron(tp={TP}) against DTensor, {WORKLOAD}", rows, runs=kept)
    for name, ledger in results[0][2].items():
        print(f"\n{name}, one step\n{ledger}")
    tv.shutdown()


if __name__ == "__main__":
    sys.exit(main())
