"""Ring attention beside PyTorch's: the same blocks of the same queries, keys and values on the same
ranks, forward and backward, in turn.

PyTorch's is the loop behind `torch.distributed.tensor.experimental.context_parallel` with its
balanced chunks, which it offers on GPUs; here it is given the CPU's fused operators. A time is that
of the slowest rank; results and gradients must agree.
"""

from importlib import import_module

import torch
import torch.distributed as dist
from harness import interleaved, ratio, report, row, slowest, timing
from torch import Tensor

import tpviz as tv
from tpviz.core.mesh import Mesh
from tpviz.schemes.context.layers import BlockAttention, RingKeys
from tpviz.schemes.context.sequence import SequenceCut
from tpviz.schemes.ring import Neighbours, neighbours

PAIRS, HEADS, SIZE = 20, 8, 64
CASES = [(2, 1024), (2, 4096), (4, 2048), (4, 4096)]  # (ranks, tokens of a sequence)


def peer(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, group: dist.ProcessGroup
) -> tuple[Tensor, ...]:
    """(output, gradients of q, k, v) by PyTorch's loop."""
    from torch.distributed.tensor.experimental._context_parallel import _attention as torchs

    aten = import_module("torch").ops.aten  # by name: torch.ops cannot be sent to a rank
    how = {"is_causal": True, "dropout_p": 0.0}
    out, sums = torchs._templated_ring_attention(
        group, 2, aten._scaled_dot_product_flash_attention_for_cpu, q, k, v, **how
    )[:2]
    back = aten._scaled_dot_product_flash_attention_for_cpu_backward
    of = torchs._templated_ring_attention_backward(
        group, 2, back, grad, "grad_out", q, k, v, out, sums, **how
    )
    return out, *of[:3]


def ours(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, source: RingKeys) -> tuple[Tensor, ...]:
    """The same by `BlockAttention`."""
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    out = BlockAttention.apply(*leaves, source)
    return out.detach(), *torch.autograd.grad(out, leaves, grad)


def on_rank(ranks: int, tokens: int) -> tuple[dict[str, list[float]], float]:
    """{name: seconds of each pair}, the largest difference of the two."""
    mesh = Mesh({"cp": ranks}).device_mesh("cpu")
    group, cut = mesh.get_group("cp"), SequenceCut(ranks, "zigzag")
    torch.manual_seed(0)
    whole = torch.randn(4, 1, HEADS, tokens, SIZE)
    q, k, v, grad = whole[..., cut.positions(tokens, mesh), :]
    source = RingKeys(cut, Neighbours(*neighbours(mesh, "cp")))
    both = {
        "tpviz": lambda: ours(q, k, v, grad, source),
        "PyTorch": lambda: peer(q, k, v, grad, group),
    }
    one, other = (run() for run in both.values())
    apart = max(float((a - b).abs().max()) for a, b in zip(one, other))
    return interleaved(both, PAIRS, before=dist.barrier), apart


def main() -> None:
    """The table."""
    rows = []
    for ranks, tokens in CASES:
        found = tv.launch(on_rank, ranks, tokens, world_size=ranks, backend="gloo", timeout=600)
        times = slowest([times for times, _ in found])
        apart = max(apart for _, apart in found)
        if apart > 1e-4:
            raise SystemExit(f"results differ by {apart}")
        what = f"{ranks} ranks, {tokens} tokens"
        rows += [timing(f"{name}, {what}", values) for name, values in times.items()]
        pairs = [a / b for a, b in zip(times["tpviz"], times["PyTorch"])]
        rows.append(
            row(f"tpviz / PyTorch, {what}", ratio(times, "tpviz", "PyTorch"), "x", 1.05, pairs)
        )
        rows.append(row(f"largest difference, {what}", apart, ""))
    report("context_peers", "Ring attention beside PyTorch's", rows)
    tv.shutdown()


if __name__ == "__main__":
    main()
