"""The GPT of a rank under any layout, module by module beside `tpviz.schemes.gpt.model`, and its
program.

Shapes as in `layers`; N' heads of a rank (N/i, under A3 N/(i s)), D = H/N. What a scheme does in
its own way it gives as its own `Groups`: a linear layer or an embedding of another kind.
"""

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tpviz.core.labels import label
from tpviz.schemes.collectives import Alone
from tpviz.schemes.gpt.model import Heads, ResidualBlock, activation
from tpviz.schemes.gpt.program import Program, load_parts
from tpviz.schemes.gpt.vocabulary import ParallelEmbedding, cross_entropy

from .layers import GridLinear, norm
from .operators import Gather, LinearSharding, PipelinedMLP

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.core.workload import GPT

    from .layout import Layout
    from .tensor import TensorParallel


class Groups:
    """The two groups of a rank, the way of every linear layer, and the parts of a network that are
    made of them. back : as of `LinearSharding`, for the layers of blocks."""

    linear: Callable[..., GridLinear] = GridLinear

    def __init__(self, layout: "Layout", mesh: "DeviceMesh", back: int = 1):
        at, self.mesh = layout, mesh
        self.layout, self.splits = layout, layout.splits
        self.inside = mesh.get_group(at.inside) if at.inside else Alone()
        self.stream = mesh.get_group(at.stream) if at.stream else Alone()
        sequence, heads = 0 if at.sp else None, -1 if at.a3 else None
        dim = int(at.sp) if at.chunking == "batch" else "tokens"
        first = partial(LinearSharding, self.stream, self.inside, gather=sequence)
        second = partial(
            LinearSharding, self.inside, self.stream, scatter=sequence, chunks=at.chunks, dim=dim
        )
        self.qkv, self.up = (
            first(scatter=scatter, chunks=at.chunks, dim=dim, back=back)
            for scatter in (heads, None)
        )
        self.out, self.down = second(gather=heads), second()
        self.last = first()

    def join(self, y: Tensor) -> Tensor:
        """What a pair of layers adds to the residual stream, in the stream's layout."""
        return Gather.apply(y, self.stream) if self.layout.l2 else y

    def embedding(self, w: "GPT", **kw: Any) -> "GridEmbedding":
        """The rank's module that embeds tokens and positions."""
        return GridEmbedding(w, self, **kw)

    def heads(self, w: "GPT", **kw: Any) -> Heads:
        """The attention of a rank's heads."""
        return w.context.heads(w, self.mesh, **kw) if w.context else Heads(w, **kw)

    def attention(self, w: "GPT", **kw: Any) -> nn.Module:
        """The first part of a block: of layers, or from latents."""
        if not w.kv_lora:
            return GridAttention(w, self, **kw)
        return import_module("tpviz.schemes.grid.latent_layers").attention(w, self, **kw)

    def mlp(self, w: "GPT", **kw: Any) -> nn.Module:
        """The second part of a block: layers, or experts."""
        if not w.experts:
            return GridMLP(w, self, **kw)
        return import_module("tpviz.schemes.experts.layers").ExpertMLP(w, self, **kw)

    def where(self, w: "GPT") -> Tensor | None:
        """The places of a rank's tokens in the sequence; None for all."""
        return w.context.positions(w.num_positions, self.mesh) if w.context else None

    def norm(self, w: "GPT", **kw: Any) -> nn.Module:
        """A norm of the stream."""
        return norm(w, self.layout, self.stream, **kw)

    def head(self, w: "GPT", **kw: Any) -> GridLinear:
        """The rank's layer that computes the logits."""
        return self.linear(w.hidden, w.vocab, self.last, bias=False, **kw)

    def load(self, module: nn.Module, w: "GPT", mesh: Any, copies: Any = ()) -> None:
        """Fill each parameter with this rank's part of its initial value; copies: as of
        `load_parts`."""
        load_parts(module, w, self.splits(w), mesh, copies)

    def blocks(self, shards: Mapping[str, Tensor], w: "GPT", mesh: Any) -> Mapping[str, Tensor]:
        """The parts of parameters that a rank computes with, from its ``shards``; collective."""
        return shards

    def begin(self, what: Any = None) -> None:
        """Begin a step, or a pass of a pipeline stage; ``what`` identifies passes that repeat."""

    def collect(self) -> None:
        """Wait for the collectives that backward has left in flight."""

    def loss(self, logits: Tensor, targets_BS: Tensor) -> Tensor:
        """The mean cross-entropy of the rows, the same scalar on every rank of the plane."""
        if logits.dtype == torch.bfloat16:
            logits = logits.float()
        return cross_entropy(logits, targets_BS.t() if self.layout.sp else targets_BS, self.inside)


class GridAttention(nn.Module):
    """Causal attention with N' whole heads on each rank."""

    def __init__(self, w: "GPT", groups: Groups, **kw: Any):
        super().__init__()
        self.heads, self.sp = groups.heads(w, **kw), groups.layout.sp
        self.qkv = groups.linear(w.hidden, w.qkv_features, groups.qkv, bias=w.bias, **kw)
        self.out = groups.linear(w.query_features, w.hidden, groups.out, bias=w.bias, **kw)

    def forward(self, x: Tensor, **how: bool) -> Tensor:
        """how : ``alone``, as of `GridLinear`."""
        return self.out(self.heads(self.qkv(x, **how), self.sp), **how)


class GridMLP(nn.Module):
    """Up, the activation, down."""

    def __init__(self, w: "GPT", groups: Groups, **kw: Any):
        super().__init__()
        self.pipelined, self.activation = groups.layout.pipelined, activation(w)
        self.up = groups.linear(w.hidden, w.up_features, groups.up, bias=w.bias, **kw)
        self.down = groups.linear(w.mlp_width, w.hidden, groups.down, bias=w.bias, **kw)

    def forward(self, x: Tensor, summed: bool = True, **how: bool) -> Tensor:
        """how : ``alone``, as of `GridLinear`, as is ``summed``, of the last layer."""
        up, down = self.up, self.down
        if not self.pipelined:
            last = how if summed else how | {"summed": False}
            return down(self.activation(up(x, **how)), **last)
        ways = up.way, down.way
        y = PipelinedMLP.apply(x, down.weight, up.weight, up.bias, *ways, self.activation)
        return y if down.bias is None else y + down.bias


class GridBlock(ResidualBlock):
    """The block of a rank; the norms are of what it has of the stream."""

    def __init__(self, w: "GPT", groups: Groups, **kw: Any):
        super().__init__()
        self.join = groups.join
        self.norm1 = groups.norm(w, **kw)
        self.attention = groups.attention(w, **kw)
        self.norm2 = groups.norm(w, **kw)
        self.mlp = groups.mlp(w, **kw)


class GridEmbedding(ParallelEmbedding):
    """Tokens by vocabulary over *inside*, features over *stream*."""

    def __init__(self, w: "GPT", groups: Groups, **kw: Any):
        width, where = w.hidden // groups.layout.s, groups.where(w)
        super().__init__(w, groups.inside, groups.layout.sp, width, where, **kw)
        self.join = groups.join

    def forward(self, tokens_BS: Tensor) -> Tensor:
        return self.join(super().forward(tokens_BS))


class GridGPT(nn.Module):
    """The reference GPT on the plane; the same parameter names."""

    def __init__(self, workload: "GPT", groups: Groups, **kw: Any):
        super().__init__()
        w = workload
        self.groups = groups
        self.embed = groups.embedding(w, **kw)
        self.blocks = nn.ModuleList(GridBlock(w.like(i), groups, **kw) for i in range(w.layers))
        self.norm = groups.norm(w, **kw)
        self.head = groups.head(w, **kw)
        if w.tied:
            self.head.weight = self.embed.token.weight

    def forward(self, tokens_BS: Tensor, targets_BS: Tensor) -> Tensor:
        """The mean cross-entropy of the batch, the same scalar on every rank of the plane."""
        x = self.embed(tokens_BS)
        for block in self.blocks:
            x = block(x)
        return self.groups.loss(self.head(self.norm(x)), targets_BS)


def groups(strategy: "TensorParallel", mesh: "DeviceMesh", halves: int = 1) -> Groups:
    """The `Groups` of a rank; halves : 2 where a pair's sums come in two halves of the rows."""
    layout = strategy.layout
    return Groups(layout._replace(chunks=halves) if halves > 1 else layout, mesh, halves)


class GridProgram(Program):
    """A rank's step of a tensor-parallel strategy, on its own rows of the batch."""

    mesh: "DeviceMesh"

    def __init__(
        self,
        strategy: "TensorParallel",
        workload: "GPT",
        module: nn.Module,
        mesh: "DeviceMesh",
        groups: Groups,
        **options: Any,
    ):
        super().__init__(
            workload,
            module,
            mesh,
            strategy.splits(workload),
            accumulation=strategy.accumulation,
            clip=strategy.clip,
            layout=strategy.layout,
            rows=[(0, axis) for axis in reversed(strategy.shares)],
            sequence=strategy.sequence,
            summed=strategy.summed(workload),
            **options,
        )
        self.groups = groups

    def begin(self) -> None:
        super().begin()
        self.groups.begin()

    def before_backward(self) -> None:
        """Collect what the previous microbatch has left in flight: this forward overlapped it."""
        self.groups.collect()

    def synchronise(self) -> None:
        with label(phase="sync"):
            self.groups.collect()
        super().synchronise()

    def full(self, locals_by_name: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return super().full(self.groups.blocks(locals_by_name, self.workload, self.mesh))


def build(
    strategy: "TensorParallel",
    workload: "GPT",
    mesh: "DeviceMesh",
    dtype: torch.dtype | None,
    device: str | torch.device,
    program: type[GridProgram] = GridProgram,
    **options: Any,
) -> GridProgram:
    """This rank's ``program``, on a ``DeviceMesh`` that has the axes of the strategy."""
    parts, local = strategy.groups(mesh), strategy.local(workload)
    module = GridGPT(local, parts, device=device, dtype=dtype or getattr(torch, workload.dtype))
    parts.load(module, local, mesh)
    return program(strategy, workload, module, mesh, parts, **options)
