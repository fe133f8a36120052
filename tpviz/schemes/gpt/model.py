"""The reference GPT in one process: what every split model must equal.

GPT-2's network (Radford et al., 2019). Shapes: B batch, S sequence, H hidden, N heads, D = H/N, F
MLP width, V vocabulary.
"""

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

if TYPE_CHECKING:
    from tpviz.workload import GPT


class Embedding(nn.Module):
    """Token plus learned position embedding: (B, S) -> (B, S, H)."""

    def __init__(self, w: "GPT", **kw: Any):
        super().__init__()
        self.token = nn.Embedding(w.vocab, w.hidden, **kw)
        self.position = nn.Embedding(w.seq, w.hidden, **kw)

    def forward(self, tokens_BS: torch.Tensor) -> torch.Tensor:
        return self.token(tokens_BS) + self.position.weight


class Attention(nn.Module):
    """Causal multi-head attention; the rows of ``qkv`` are grouped by head."""

    def __init__(self, w: "GPT", **kw: Any):
        super().__init__()
        self.heads = w.heads
        self.qkv = nn.Linear(w.hidden, 3 * w.hidden, **kw)
        self.out = nn.Linear(w.hidden, w.hidden, **kw)

    def forward(self, x_BSH: torch.Tensor) -> torch.Tensor:
        q_BNSD, k_BNSD, v_BNSD = (
            self.qkv(x_BSH).unflatten(2, (self.heads, 3, -1)).permute(3, 0, 2, 1, 4)
        )
        y_BNSD = F.scaled_dot_product_attention(q_BNSD, k_BNSD, v_BNSD, is_causal=True)
        return self.out(y_BNSD.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Up, exact GELU, down."""

    def __init__(self, w: "GPT", **kw: Any):
        super().__init__()
        self.up = nn.Linear(w.hidden, w.mlp_ratio * w.hidden, **kw)
        self.down = nn.Linear(w.mlp_ratio * w.hidden, w.hidden, **kw)

    def forward(self, x_BSH: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x_BSH)))


class Block(nn.Module):
    """LayerNorm before each part, both parts on the residual stream."""

    def __init__(self, w: "GPT", **kw: Any):
        super().__init__()
        self.norm1 = nn.LayerNorm(w.hidden, **kw)
        self.attention = Attention(w, **kw)
        self.norm2 = nn.LayerNorm(w.hidden, **kw)
        self.mlp = MLP(w, **kw)

    def forward(self, x_BSH: torch.Tensor) -> torch.Tensor:
        x_BSH = x_BSH + self.attention(self.norm1(x_BSH))
        return x_BSH + self.mlp(self.norm2(x_BSH))


class ReferenceGPT(nn.Module):
    """Embedding, blocks, final LayerNorm, head (the embedding's own matrix if tied), loss."""

    def __init__(self, workload: "GPT", **kw: Any):
        super().__init__()
        w = workload
        self.embed = Embedding(w, **kw)
        self.blocks = nn.ModuleList(Block(w, **kw) for _ in range(w.layers))
        self.norm = nn.LayerNorm(w.hidden, **kw)
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
