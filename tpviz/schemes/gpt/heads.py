"""Attention of heads, and what backward computes once more; shapes as of `gpt.model`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tpviz.core.labels import label

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

ROTARY_BASE = 10_000.0
"""Of the wavelengths (Su et al. 2021, section 3.2.2); later models have others, at equal cost."""


def recomputed(run: Callable[..., torch.Tensor], *args: Any) -> torch.Tensor:
    """run(*args), of which only ``args`` are kept: backward computes it once more, all of it, with
    its collectives. Without random numbers, as a GPT here has no dropout."""
    return checkpoint(
        run,
        *args,
        use_reentrant=False,
        preserve_rng_state=False,
        context_fn=_contexts,
        early_stop=False,
    )


def _contexts():
    return label(), label(phase="recompute")


class Heads:
    """Causal attention on the features that ``qkv`` gives, of all heads or of a rank's, inside each
    document. where : the places of the tokens in the sequence, all of them unless said. again :
    whether backward computes it once more."""

    again = False

    def __init__(
        self,
        w: "GPT",
        dtype: torch.dtype,
        device: "torch.device | str | None" = None,
        where: torch.Tensor | None = None,
    ):
        self.queries, self.size = w.heads // w.num_kv_heads, w.head_size
        self.documents = w.documents
        self.turns = None  # of latent attention what turns has turned before
        if w.rotary and not w.kv_lora:
            self.turns = rotary_turns(w, dtype, device, where)

    def __call__(self, qkv: torch.Tensor, sequence_first: bool = False) -> torch.Tensor:
        """(B, S, K (g + 2) D) -> (B, S, N D), or both (S, B, ...)."""
        if self.again:
            return recomputed(self.attend, qkv, sequence_first)
        return self.attend(qkv, sequence_first)

    def attend(self, qkv: torch.Tensor, sequence_first: bool) -> torch.Tensor:
        """As calling it, without recomputation: autograd keeps all that backward needs."""
        batch, sequence = (1, 0) if sequence_first else (0, 1)
        qkv = qkv.unflatten(2, (-1, self.queries + 2, self.size))
        parts = qkv.permute(batch, 2, 3, sequence, 4).split((self.queries, 1, 1), 2)
        if self.turns is not None:
            parts = *(turned(part, self.turns) for part in parts[:2]), parts[2]
        q_BNSD, k_BKSD, v_BKSD = (part.flatten(1, 2) for part in parts)
        y_BNSD = self.mixed(q_BNSD, k_BKSD, v_BKSD)
        y = y_BNSD.permute(2, 0, 1, 3) if sequence_first else y_BNSD.transpose(1, 2)
        return y.flatten(2)

    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Values (B, N, S, D) mixed by attention: q (B, N, S, D), k and v (B, K, S, D)."""
        how: Any = {"is_causal": True, "enable_gqa": self.queries > 1}
        if not self.documents:
            return F.scaled_dot_product_attention(q, k, v, **how)
        squares = zip(*(x.split(self.documents, 2) for x in (q, k, v)))
        mixed = [F.scaled_dot_product_attention(*square, **how) for square in squares]
        # as one of them lays it out: tokens before heads
        return torch.cat([y.transpose(1, 2) for y in mixed], 1).transpose(1, 2)


def positions_at(w: "GPT", where: torch.Tensor | None = None) -> torch.Tensor | None:
    """The positions of the tokens at these places of a sequence, all unless said: they begin anew
    in each document. None: all, in order."""
    if not w.documents:
        return where
    found = torch.cat([torch.arange(n) for n in w.documents])
    return found if where is None else found[where]


def rotary_turns(
    w: "GPT",
    dtype: torch.dtype,
    device: "torch.device | str | None",
    where: torch.Tensor | None = None,
) -> torch.Tensor:
    """Complex numbers (S, D/2) of length 1: position s turns pair i by s / base^(2i/D), D the
    features of a head that turn. where : as of `Heads`."""
    wide, where = torch.promote_types(dtype, torch.float32), positions_at(w, where)
    size, more = w.rope_dim or w.head_size, {"dtype": wide, "device": device}
    rates = ROTARY_BASE ** (torch.arange(0, size, 2, **more) / -size)
    angles = torch.outer(torch.arange(w.num_positions, **more), rates)
    turns = torch.polar(torch.ones_like(angles), angles)
    return turns if where is None else turns[where]


def turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Rotary positions: x (..., S, D) with each pair of neighbouring features rotated by
    ``turns``."""
    pairs = x.to(turns.real.dtype).unflatten(-1, (-1, 2))
    return torch.view_as_real(torch.view_as_complex(pairs) * turns).flatten(-2).to(x.dtype)
