"""The reference GPT in one process: what every split model must equal.

GPT-2's network (Radford et al., 2019), or as the `tpviz.GPT` says: RMSNorm, rotary positions,
grouped queries, a gated MLP. Shapes: B batch, S sequence, H hidden, N heads of D, H/N unless said,
K heads of keys and values, g = N/K, F MLP width, V vocabulary. What a rank has of them: see the
schemes.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from tpviz.schemes.operators import SplitNorm

from .experts import DenseExperts
from .heads import Heads, positions_at, recomputed
from .latent import LatentAttention

if TYPE_CHECKING:
    from tpviz.core.workload import GPT
    from tpviz.schemes.collectives import Group


class Norm(nn.LayerNorm):
    """LayerNorm, or RMSNorm, which neither subtracts the mean nor has a bias.

    group : the ranks that the features are split over, if they are.
    """

    def __init__(self, w: "GPT", group: "Group | None" = None, **kw: Any):
        self.rms, ranks = w.norm == "rms", group.size() if group else 1
        super().__init__(w.hidden // ranks, bias=w.bias and not self.rms, **kw)
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.group is None and not self.rms:
            return super().forward(x)
        return SplitNorm.apply(x, self.weight, self.bias, self.eps, self.group, self.rms)


def norm(w: "GPT", **kw: Any) -> nn.LayerNorm:
    """A norm of all features. PyTorch's own where that is LayerNorm: under FSDP2 with torch 2.15 a
    subclass's module outlives its program."""
    return Norm(w, **kw) if w.norm == "rms" else nn.LayerNorm(w.hidden, bias=w.bias, **kw)


def recompute(module: nn.Module, what: str) -> None:
    """Have a network's blocks recompute in backward. what : as ``recompute`` of a `Strategy`."""
    for block in module.modules() if what != "none" else ():
        if isinstance(block, ResidualBlock):
            block.again, block.attention.heads.again = what == "full", what == "selective"


def swiglu(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) up, of features up and gate in turn."""
    up, gate = x.unflatten(-1, (-1, 2)).unbind(-1)
    return F.silu(gate) * up


def activation(w: "GPT") -> Callable[[torch.Tensor], torch.Tensor]:
    """What is between the MLP's layers: exact GELU, or `swiglu`."""
    return swiglu if w.gated else F.gelu


def positions(w: "GPT", width: int, **kw: Any) -> nn.Embedding | None:
    """The table of learned positions, None if they are rotary."""
    return None if w.rotary else nn.Embedding(w.num_positions, width, **kw)


class Embedding(nn.Module):
    """Token plus learned position embedding: (B, S) -> (B, S, H). where : as of `Heads`."""

    def __init__(self, w: "GPT", where: torch.Tensor | None = None, **kw: Any):
        super().__init__()
        self.token = nn.Embedding(w.vocab, w.hidden, **kw)
        self.position, self.where = positions(w, w.hidden, **kw), positions_at(w, where)

    def forward(self, tokens_BS: torch.Tensor) -> torch.Tensor:
        x_BSH = self.token(tokens_BS)
        if self.position is None:
            return x_BSH
        table = self.position.weight
        return x_BSH + (table if self.where is None else table[self.where])


class Attention(nn.Module):
    """Causal multi-head attention; the rows of ``qkv`` are grouped by head of keys."""

    def __init__(self, w: "GPT", where: torch.Tensor | None = None, **kw: Any):
        super().__init__()
        self.heads = Heads(w, where=where, **kw)
        self.qkv = nn.Linear(w.hidden, w.qkv_features, w.bias, **kw)
        self.out = nn.Linear(w.mixed_features, w.hidden, w.bias, **kw)

    def forward(self, x_BSH: torch.Tensor) -> torch.Tensor:
        return self.out(self.heads(self.qkv(x_BSH)))


def attention(w: "GPT", where: torch.Tensor | None = None, **kw: Any) -> nn.Module:
    """The first part of a block: `Attention`, or from latents."""
    if not w.kv_lora:
        return Attention(w, where, **kw)
    return LatentAttention(w, Heads(w, where=where, **kw), where, **kw)


class MLP(nn.Module):
    """Up, the activation, down."""

    def __init__(self, w: "GPT", **kw: Any):
        super().__init__()
        self.activation = activation(w)
        self.up = nn.Linear(w.hidden, w.up_features, w.bias, **kw)
        self.down = nn.Linear(w.mlp_width, w.hidden, w.bias, **kw)

    def forward(self, x_BSH: torch.Tensor) -> torch.Tensor:
        return self.down(self.activation(self.up(x_BSH)))


class ResidualBlock(nn.Module):
    """A block: a norm before each part, both parts on the residual stream. again : whether
    backward computes it once more. away : what copies activations, if
    anything does. join : what a part adds to the stream, in its layout."""

    again = False
    away: Any = None
    norm1: nn.Module
    attention: Any
    norm2: nn.Module
    mlp: Any

    def forward(self, x: torch.Tensor, **how: Any) -> torch.Tensor:
        # inside of the module: its hooks, such as those of ZeRO 3, see one forward
        run = partial(recomputed, self.through) if self.again else self.through
        return self.away.forward(self, run, x, **how) if self.away else run(x, **how)

    def through(self, x: torch.Tensor, **how: Any) -> torch.Tensor:
        """x after both parts of the block. how : options of the second part."""
        if getattr(self.mlp, "halves", 1) > 1:
            return self.mlp.in_halves(self, x)
        x = x + self.join(self.attention(self.norm1(x)))
        return x + self.join(self.mlp(self.norm2(x), **how))

    def join(self, y: torch.Tensor) -> torch.Tensor:
        return y


class Block(ResidualBlock):
    """A block of the reference model, in one process."""

    def __init__(self, w: "GPT", where: torch.Tensor | None = None, **kw: Any):
        super().__init__()
        self.norm1 = norm(w, **kw)
        self.attention = attention(w, where, **kw)
        self.norm2 = norm(w, **kw)
        experts = w.experts and DenseExperts(w, activation(w), where, **kw)
        self.mlp = experts or MLP(w, **kw)


class ReferenceGPT(nn.Module):
    """Embedding, blocks, final norm, head (the embedding's own matrix if tied), loss. where : as of
    `Heads`."""

    def __init__(self, workload: "GPT", where: torch.Tensor | None = None, **kw: Any):
        super().__init__()
        w = workload
        self.embed = Embedding(w, where, **kw)
        self.blocks = nn.ModuleList(Block(w.like(i), where, **kw) for i in range(w.layers))
        self.norm = norm(w, **kw)
        self.head = nn.Linear(w.hidden, w.vocab, bias=False, **kw)
        if w.tied:
            self.head.weight = self.embed.token.weight

    def forward(self, tokens_BS: torch.Tensor, targets_BS: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy of the batch, a scalar."""
        x_BSH = self.embed(tokens_BS)
        for block in self.blocks:
            x_BSH = block(x_BSH)
        logits_BSV = self.head(self.norm(x_BSH))
        if logits_BSV.dtype == torch.bfloat16:
            logits_BSV = logits_BSV.float()
        return F.cross_entropy(logits_BSV.flatten(0, 1), targets_BS.flatten())
