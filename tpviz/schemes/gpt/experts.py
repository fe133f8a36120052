"""Mixture of experts in one process: the router, and an evaluation of all experts.

Shapes: T tokens, H hidden, E experts, k of them a token, F an expert's width.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from tpviz.core.labels import current

if TYPE_CHECKING:
    from tpviz.core.workload import GPT
    from tpviz.schemes.collectives import Group


class Stack(nn.Module):
    """The weights of several linear layers without biases, (experts, out, in)."""

    def __init__(self, experts: int, features_in: int, features_out: int, **kw: Any):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, features_out, features_in, **kw))


class Router(nn.Linear):
    """Scores of all experts, in float32 at least, and the choice among them. where : the places of
    the tokens in the sequence, all of them unless said.

    offset : what is added to the scores for the choice alone, (E,), where there is a
    ``bias_balance`` (`LoadBias` changes it); loads : how many tokens of a step have chosen each
    expert, int64 (E,).
    """

    def __init__(self, w: "GPT", where: Tensor | None = None, **kw: Any):
        super().__init__(w.hidden, w.experts, bias=False, **kw)
        self.top_k, self.sigmoid, self.given = w.top_k, w.router == "sigmoid", None
        self.taken = w.taken if w.capacity else 0
        self.groups, self.top_groups = w.groups, w.top_groups or w.groups
        self.norm, self.scale = w.norm_top_k and w.top_k > 1, w.routed_scale
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        zeros = self.weight.new_zeros(w.experts, dtype=wide) if w.bias_balance else None
        self.register_buffer("offset", zeros)
        self.register_buffer("loads", zeros if zeros is None else zeros.long())
        if w.routing:
            table = w.routing.decisions(w.experts, w.top_k, w.num_positions)
            given = torch.tensor(table, device=self.weight.device)
            self.given = given if where is None else given[where]

    def scores(self, x: Tensor) -> Tensor:
        """(..., H) -> (..., E), each from 0 to 1."""
        wide = torch.promote_types(x.dtype, torch.float32)
        logits = F.linear(x.to(wide), self.weight.to(wide))
        return logits.sigmoid() if self.sigmoid else logits.softmax(-1)

    def choose(self, scores: Tensor, sequence: int = 1) -> tuple[Tensor, Tensor, Tensor | None]:
        """(the experts of each token, (B, S, k); their weights, which add up to 1 where there are
        several; under a capacity each choice's number among those of its expert in its sequence,
        which is dropped from `taken` on). sequence : the dim of ``scores`` along which the places
        are, 0 where (S, B, k) is meant."""
        if self.given is None:
            experts = self._best(scores.detach())
        else:
            given = self.given.unsqueeze(1 - sequence)
            experts = given.expand(*scores.shape[:-1], -1)
        if isinstance(self.loads, Tensor) and current().phase != "recompute":
            chosen = experts.flatten()  # each token counts once
            self.loads.scatter_add_(0, chosen, torch.ones_like(chosen))
        weights = scores.gather(-1, experts)
        if self.norm:
            weights = weights / weights.sum(-1, keepdim=True)
        weights = weights * self.scale if self.scale != 1 else weights
        if not self.taken:
            return experts, weights, None
        numbers = self._numbers(experts.movedim(sequence, 1)).movedim(1, sequence)
        return experts, weights * (numbers < self.taken), numbers

    def _best(self, scores):
        """The ``top_k`` experts by score and bias, in the best groups."""
        if self.offset is not None:
            scores = scores + self.offset
        if self.top_groups < self.groups:
            in_groups = scores.unflatten(-1, (self.groups, -1))
            of_group = in_groups.topk(min(2, in_groups.shape[-1]), -1).values.sum(-1)
            left = torch.ones_like(of_group, dtype=torch.bool)
            left.scatter_(-1, of_group.topk(self.top_groups, -1).indices, False)
            scores = in_groups.masked_fill(left.unsqueeze(-1), float("-inf")).flatten(-2)
        return scores.topk(self.top_k, -1).indices

    def _numbers(self, experts):
        """Of choices (B, S, k): the first of all tokens come before any second one."""
        in_order = experts.transpose(1, 2).flatten(1)
        one_hot = F.one_hot(in_order, self.out_features)
        found = (one_hot.cumsum(1) * one_hot).sum(-1) - 1
        return found.unflatten(1, (self.top_k, -1)).transpose(1, 2)


class LossBeside(torch.autograd.Function):
    """y as it is; backward adds a loss's gradient, times ``factor``, to what flows back."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, loss: Tensor, factor: float) -> Tensor:
        ctx.factor, ctx.like = factor, loss
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad, torch.full_like(ctx.like, ctx.factor), None


class Balance:
    """The load balance loss of a module's router, which counts beside that of the model.

    weight : the workload's ``aux_loss``. factor : that of a microbatch's loss, as
    `tpviz.schemes.gradients.share` gives it; over ``ranks`` that have the same loss.
    """

    factor = 1.0

    def __init__(self, w: "GPT", ranks: int = 1):
        self.weight, self.experts, self.top_k, self.ranks = w.aux_loss, w.experts, w.top_k, ranks

    def beside(
        self, y: Tensor, scores: Tensor, chosen: Tensor, add_up: Callable[[Tensor], int]
    ) -> Tensor:
        """y, whose backward balances the loads too. scores (B, S, E), chosen (B, S, k). add_up :
        adds up the counts of ranks that have parts of the sequences, in place; how many these are.
        """
        counts = torch.zeros_like(scores[:, 0]).scatter_add_(
            1, chosen.flatten(1), torch.ones_like(chosen.flatten(1), dtype=scores.dtype)
        )
        tokens = add_up(counts) * scores.shape[1]
        parts = scores / scores.sum(-1, keepdim=True)
        loss = (counts / tokens * parts.mean(1)).sum(1).mean() * self.experts / self.top_k
        return LossBeside.apply(y, loss, self.factor * self.weight / self.ranks)  # pyright: ignore[reportReturnType]


class LoadBias:
    """Balances loads without a loss: the biases of the routers of ``modules``, which change after
    each step by the loads of all its tokens (Wang et al. 2024, arXiv 2408.15664, algorithm 1).

    group : of the ranks that have other tokens of the batch, None for one that has all. Their loads
    are added up in one message, and then all change their biases alike.
    """

    def __init__(self, w: "GPT", modules: Iterable[nn.Module], group: "Group | None" = None):
        found = (part for module in modules for part in module.modules())
        self.routers = [part for part in found if isinstance(part, Router)]
        self.rate, self.group = w.bias_balance, group

    @torch.no_grad()
    def update(self) -> None:
        """Change the biases by what was chosen since the last time."""
        if not self.routers:
            return
        loads = torch.stack([router.loads for router in self.routers])  # pyright: ignore[reportArgumentType]
        if self.group:
            dist.all_reduce(loads, group=self.group)  # pyright: ignore[reportArgumentType]
        more = loads.sum(1, keepdim=True) - loads * loads.shape[1]  # whole numbers: exact
        for router, few in zip(self.routers, more.sign()):
            router.offset.add_(few.to(router.offset.dtype), alpha=self.rate)  # pyright: ignore
            router.loads.zero_()  # pyright: ignore


def weigh(module: nn.Module, factor: float) -> None:
    """Have load balance losses count as a microbatch's loss does."""
    for part in module.modules():
        if isinstance(balance := getattr(part, "balance", None), Balance):
            balance.factor = factor


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
        self.activation, self.chosen = activation, torch.empty(0)
        self.balance = Balance(w) if w.aux_loss else None
        self.router = Router(w, where, **kw)
        self.up = Stack(w.experts, w.hidden, w.up_features, **kw)
        self.down = Stack(w.experts, w.mlp_width, w.hidden, **kw)
        self.shared_up = self.shared_down = None
        if n := w.shared_experts:
            self.shared_up = nn.Linear(w.hidden, n * w.up_features, bias=False, **kw)
            self.shared_down = nn.Linear(n * w.mlp_width, w.hidden, bias=False, **kw)

    def forward(self, x_BSH: Tensor) -> Tensor:
        scores = self.router.scores(x_BSH)
        experts, weights, _ = self.router.choose(scores)
        self.chosen = experts.detach()  # (B, S, k) of the last forward, for whoever checks bytes
        y = torch.zeros_like(x_BSH)
        for number, (up, down) in enumerate(zip(self.up.weight, self.down.weight)):
            share = (weights * (experts == number)).sum(-1, keepdim=True).to(x_BSH.dtype)
            y = y + share * F.linear(self.activation(F.linear(x_BSH, up)), down)
        if self.balance:
            y = self.balance.beside(y, scores, experts, lambda counts: 1)
        if self.shared_up is None or self.shared_down is None:
            return y
        return y + self.shared_down(self.activation(self.shared_up(x_BSH)))
