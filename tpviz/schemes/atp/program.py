"""The GPT on ATP's mesh, module by module beside `tpviz.schemes.gpt.model`, and a rank's program.

Shapes as in `layers`; N' heads of a rank (N/i, under A3 N/(i s)), D = H/N.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tpviz.schemes.gpt.model import Heads, Residual, activation
from tpviz.schemes.gpt.program import Program, load_parts
from tpviz.schemes.gpt.vocabulary import ParallelEmbedding, cross_entropy

from .layers import ATPLinear, norm
from .operators import Gather, LinearSharding, PipelinedMLP

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.workload import GPT

    from .layout import Layout
    from .strategy import ATP


class Groups:
    """The two groups of a rank, the way of every linear layer, and what the layers are made of.

    A scheme on more axes than these two makes its own of ``linear`` and ``embedding``.
    """

    linear: Callable[..., ATPLinear] = ATPLinear

    def __init__(self, layout: "Layout", mesh: "DeviceMesh"):
        at = self.layout = layout
        self.inside, self.stream = mesh.get_group(at.inside), mesh.get_group(at.stream)
        sequence, heads = 0 if at.sp else None, -1 if at.a3 else None
        dim = int(at.sp) if at.chunking == "batch" else "tokens"
        first = partial(LinearSharding, self.stream, self.inside, gather=sequence)
        second = partial(
            LinearSharding, self.inside, self.stream, scatter=sequence, chunks=at.chunks, dim=dim
        )
        self.qkv, self.up = (
            first(scatter=scatter, chunks=at.chunks, dim=dim) for scatter in (heads, None)
        )
        self.out, self.down = second(gather=heads), second()
        self.head = first()

    def join(self, y: Tensor) -> Tensor:
        """What a pair of layers adds to the residual stream, in the stream's layout."""
        return Gather.apply(y, self.stream) if self.layout.l2 else y

    def embedding(self, w: "GPT", **kw: Any) -> "ATPEmbedding":
        """The module of tokens and positions."""
        return ATPEmbedding(w, self, **kw)


class ATPAttention(nn.Module):
    """Causal attention with N' whole heads on each rank."""

    def __init__(self, w: "GPT", groups: Groups, **kw: Any):
        super().__init__()
        self.heads, self.sp = Heads(w, **kw), groups.layout.sp
        self.qkv = groups.linear(w.hidden, w.qkv_features, groups.qkv, bias=w.bias, **kw)
        self.out = groups.linear(w.hidden, w.hidden, groups.out, bias=w.bias, **kw)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.heads(self.qkv(x), self.sp))


class ATPMLP(nn.Module):
    """Up, the activation, down."""

    def __init__(self, w: "GPT", groups: Groups, **kw: Any):
        super().__init__()
        self.pipelined, self.activation = groups.layout.pipelined, activation(w)
        self.up = groups.linear(w.hidden, w.up_features, groups.up, bias=w.bias, **kw)
        self.down = groups.linear(w.mlp_width, w.hidden, groups.down, bias=w.bias, **kw)

    def forward(self, x: Tensor) -> Tensor:
        up, down = self.up, self.down
        if not self.pipelined:
            return down(self.activation(up(x)))
        ways = up.way, down.way
        y = PipelinedMLP.apply(x, down.weight, up.weight, up.bias, *ways, self.activation)
        return y if down.bias is None else y + down.bias


class ATPBlock(Residual):
    """The block on the mesh; the norms are of what a rank has of the stream."""

    def __init__(self, w: "GPT", groups: Groups, **kw: Any):
        super().__init__()
        self.join = groups.join
        self.norm1 = norm(w, groups.layout, groups.stream, **kw)
        self.attention = ATPAttention(w, groups, **kw)
        self.norm2 = norm(w, groups.layout, groups.stream, **kw)
        self.mlp = ATPMLP(w, groups, **kw)


class ATPEmbedding(ParallelEmbedding):
    """Tokens by vocabulary over *inside*, features over *stream*."""

    def __init__(self, w: "GPT", groups: Groups, **kw: Any):
        width = w.hidden // groups.layout.s
        super().__init__(w, groups.inside, groups.layout.sp, width, **kw)
        self.join = groups.join

    def forward(self, tokens_BS: Tensor) -> Tensor:
        return self.join(super().forward(tokens_BS))


class ATPGPT(nn.Module):
    """The reference GPT on the mesh; the same parameter names."""

    def __init__(self, workload: "GPT", groups: Groups, **kw: Any):
        super().__init__()
        w = workload
        self.groups = groups
        self.embed = groups.embedding(w, **kw)
        self.blocks = nn.ModuleList(ATPBlock(w, groups, **kw) for _ in range(w.layers))
        self.norm = norm(w, groups.layout, groups.stream, **kw)
        self.head = groups.linear(w.hidden, w.vocab, groups.head, bias=False, **kw)
        if w.tied:
            self.head.weight = self.embed.token.weight

    def forward(self, tokens_BS: Tensor, targets_BS: Tensor) -> Tensor:
        """The mean cross-entropy of the batch, the same scalar on every rank."""
        x = self.embed(tokens_BS)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if logits.dtype == torch.bfloat16:
            logits = logits.float()
        targets = targets_BS.t() if self.groups.layout.sp else targets_BS
        return cross_entropy(logits, targets, self.groups.inside)


def build(
    strategy: "ATP",
    workload: "GPT",
    mesh: "DeviceMesh",
    dtype: torch.dtype | None,
    device: str | torch.device,
    **options: Any,
) -> Program:
    """This rank's `Program`, on a ``DeviceMesh`` that has the axes d1 and d2."""
    at = strategy.layout
    module = ATPGPT(
        workload, Groups(at, mesh), device=device, dtype=dtype or getattr(torch, workload.dtype)
    )
    splits = strategy.splits(workload)
    load_parts(module, workload, splits, mesh)
    program = Program(workload, module, mesh, splits, **options)
    program.partial, program.partial_axis = strategy.partial(workload), at.inside
    program.sequence_first = at.sp
    program.output_splits = [(2, at.inside)]
    program.input_splits = [(0, at.inside)] * at.sp + [(2, at.stream)] * (not at.l2)
    return program
