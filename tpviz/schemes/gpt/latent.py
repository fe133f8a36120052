"""Multi-head latent attention, of all heads or of a rank's (`tpviz.core.latent` has its sizes).

DeepSeek-AI 2024 (arXiv 2405.04434, section 2.1, equations 9 to 19). On a rank of tensor parallelism
projections down, and the norms of latents, are whole, those up have its heads' rows, as in
Megatron-LM's: all heads need the whole latents, whose gradients are added up where ranks part.

Shapes: B batch, S sequence, N heads, C features of a head's query or key without position, R of
those that turn, D = C + R, V of its value.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tpviz.schemes.operators import SplitNorm

from .heads import Heads, recomputed, rotary_turns, turned

if TYPE_CHECKING:
    from tpviz.core.workload import GPT


class LatentNorm(nn.Module):
    """RMSNorm of a latent."""

    def __init__(self, features: int, eps: float = 1e-5, **kw: Any):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(features, **kw)), eps

    def forward(self, x: Tensor) -> Tensor:
        return SplitNorm.apply(x, self.weight, None, self.eps, None, True)  # pyright: ignore[reportReturnType]


class LatentHeads:
    """Attention on what the projections up give. heads : computes it of queries, keys and values
    side by side. where, again : as of `Heads`."""

    again = False

    def __init__(self, w: "GPT", heads: Heads, where: Tensor | None = None, **kw: Any):
        self.heads, self.turns = heads, rotary_turns(w, kw["dtype"], kw.get("device"), where)
        self.query, self.key = (w.key_size, w.rope_dim or 0), (w.key_size, w.value_size)

    def __call__(self, q: Tensor, kv: Tensor, key: Tensor, sequence_first: bool = False) -> Tensor:
        """(B, S, N D), (B, S, N (C + V)) and the shared key (B, S, R), not turned, to (B, S, N V);
        or all (S, B, ...)."""
        if self.again:
            return recomputed(self.attend, q, kv, key, sequence_first)
        return self.attend(q, kv, key, sequence_first)

    def attend(self, q: Tensor, kv: Tensor, key: Tensor, sequence_first: bool) -> Tensor:
        """As calling it, without recomputation."""
        around = self.turns.unsqueeze(1).unsqueeze(1) if sequence_first else self.turns.unsqueeze(1)
        size, (_, of_value) = sum(self.query), self.key
        still, turning = q.unflatten(2, (-1, size)).split(self.query, -1)
        own, value = kv.unflatten(2, (-1, sum(self.key))).split(self.key, -1)
        shared = turned(key.unsqueeze(2), around).expand(-1, -1, still.shape[2], -1)
        parts = still, turned(turning, around), own, shared, F.pad(value, (0, size - of_value))
        y = self.heads.attend(torch.cat(parts, -1).flatten(2), sequence_first)
        return y if of_value == size else y.unflatten(2, (-1, size))[..., :of_value].flatten(2)


class LatentAttention(nn.Module):
    """Causal attention whose queries, keys and values come from latents.

    heads : as of `LatentHeads`. linear : makes a layer without bias whose products are a rank's
    alone, of (features in, features out). q, out : layers in place of the whole ones. ranks : that
    share the heads. share : of latents (..., features), whole on each rank, what they compute their
    heads from.
    """

    def __init__(
        self,
        w: "GPT",
        heads: Heads,
        where: Tensor | None = None,
        linear: Callable[..., nn.Module] | None = None,
        q: nn.Module | None = None,
        out: nn.Module | None = None,
        ranks: int = 1,
        share: Callable[[Tensor], Tensor] | None = None,
        sequence_first: bool = False,
        **kw: Any,
    ):
        super().__init__()
        made = linear or (lambda *sizes: nn.Linear(*sizes, bias=False, **kw))
        queries, both = w.query_features // ranks, w.heads * (w.key_size + w.value_size) // ranks
        self.heads, self.share = LatentHeads(w, heads, where, **kw), share
        self.kv, self.sequence_first = (w.kv_lora, w.rope_dim), sequence_first
        self.q_down = self.q_norm = self.q_up = self.q = None
        if w.q_lora:
            self.q_down, self.q_norm = made(w.hidden, w.q_lora), LatentNorm(w.q_lora, **kw)
            self.q_up = made(w.q_lora, queries)
        else:
            self.q = q or made(w.hidden, queries)
        self.kv_down = made(w.hidden, w.shared_features)
        self.kv_norm, self.kv_up = LatentNorm(w.kv_lora or 0, **kw), made(w.kv_lora, both)
        self.out = out or nn.Linear(w.mixed_features, w.hidden, w.bias, **kw)

    def forward(self, x: Tensor) -> Tensor:
        """What attention adds to the stream, of the normed stream."""
        latents = []
        if self.q_down and self.q_norm:
            latents.append(self.q_norm(self.q_down(x)))
        direct = [self.q(x)] if self.q else []
        latent, key = self.kv_down(x).split(self.kv, -1)
        latents += [self.kv_norm(latent), key]
        if self.share:
            sizes = [part.shape[-1] for part in latents]
            latents = self.share(torch.cat(latents, -1)).split(sizes, -1)
        *latents, latent, key = latents
        q = self.q_up(*latents) if self.q_up else direct[0]
        return self.out(self.heads(q, self.kv_up(latent), key, self.sequence_first))
