"""Mixture of experts in one process: the router, and an evaluation of all experts.

Shapes: T tokens, H hidden, E experts, k of them a token, F an expert's width.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from tpviz.core.workload import GPT


class Stack(nn.Module):
    """The weights of several linear layers without biases, (experts, out, in)."""

    def __init__(self, experts: int, features_in: int, features_out: int, **kw: Any):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, features_out, features_in, **kw))


class Router(nn.Linear):
    """Scores of all experts, in float32 at least, and the choice among them. where : the places of
    the tokens in the sequence, all of them unless said."""

    def __init__(self, w: "GPT", where: Tensor | None = None, **kw: Any):
        super().__init__(w.hidden, w.experts, bias=False, **kw)
        self.top_k, self.sigmoid, self.given = w.top_k, w.router == "sigmoid", None
        if w.routing:
            table = w.routing.decisions(w.experts, w.top_k, w.num_positions)
            given = torch.tensor(table, device=self.weight.device)
            self.given = given if where is None else given[where]

    def scores(self, x: Tensor) -> Tensor:
        """(..., H) -> (..., E), each from 0 to 1."""
        wide = torch.promote_types(x.dtype, torch.float32)
        logits = F.linear(x.to(wide), self.weight.to(wide))
        return logits.sigmoid() if self.sigmoid else logits.softmax(-1)

    def choose(self, scores: Tensor, sequence: int = 1) -> tuple[Tensor, Tensor]:
        """(the experts of each token, (..., k); their weights, which add up to 1 where there are
        several). sequence : the dim of ``scores`` along which the places are."""
        if self.given is None:
            experts = scores.topk(self.top_k, -1).indices
        else:
            given = self.given.unsqueeze(1 - sequence)
            experts = given.expand(*scores.shape[:-1], -1)
        weights = scores.gather(-1, experts)
        return experts, weights / weights.sum(-1, keepdim=True) if self.top_k > 1 else weights


class DenseExperts(nn.Module):
    """The MLP of the reference model: every expert computes every token, and those that were not
    chosen count nothing. Dispatch is the schemes' matter, so this has none."""

    def __init__(
        self,
        w: "GPT",
        activation: Callable[[Tensor], Tensor],
        where: Tensor | None = None,
        **kw: Any,
    ):
        super().__init__()
        self.activation, self.chosen = activation, None
        self.router = Router(w, where, **kw)
        self.up = Stack(w.experts, w.hidden, w.up_features, **kw)
        self.down = Stack(w.experts, w.mlp_width, w.hidden, **kw)
        self.shared_up = self.shared_down = None
        if n := w.shared_experts:
            self.shared_up = nn.Linear(w.hidden, n * w.up_features, bias=False, **kw)
            self.shared_down = nn.Linear(n * w.mlp_width, w.hidden, bias=False, **kw)

    def forward(self, x_BSH: Tensor) -> Tensor:
        experts, weights = self.router.choose(self.router.scores(x_BSH))
        self.chosen = experts.detach()  # (B, S, k) of the last forward, for whoever checks bytes
        y = torch.zeros_like(x_BSH)
        for number, (up, down) in enumerate(zip(self.up.weight, self.down.weight)):
            share = (weights * (experts == number)).sum(-1, keepdim=True).to(x_BSH.dtype)
            y = y + share * F.linear(self.activation(F.linear(x_BSH, up)), down)
        if self.shared_up is None or self.shared_down is None:
            return y
        return y + self.shared_down(self.activation(self.shared_up(x_BSH)))
