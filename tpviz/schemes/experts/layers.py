"""Experts over ranks, as modules and autograd functions on plain collectives.

A token's row is sent to the ranks that have its experts and the results are sent back (Lepikhin et
al. 2020, GShard, arXiv 2006.16668): as many rows as were chosen, whose numbers are exchanged first
(Gale et al. 2022, MegaBlocks, arXiv 2211.15841), or, under a capacity, buffers of equal size.

Shapes: B batch, S sequence, T tokens that a rank chooses for, k experts of each, H hidden; n =
ranks of ep; R rows that a rank computes.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable

from tpviz.schemes.collectives import Alone, Group, own_of
from tpviz.schemes.gpt.experts import Balance, Router, Stack
from tpviz.schemes.gpt.model import activation
from tpviz.schemes.grid.operators import Cut, Gather
from tpviz.schemes.operators import Reduce, ReduceScatter, Same

from .cut import ExpertCut, cut_of, parts_over
from .gathered import on_all_ranks
from .travel import Turns, by_numbers, equally, finished, in_turns, travelling

if TYPE_CHECKING:
    from tpviz.core.workload import GPT
    from tpviz.schemes.gpt.model import ResidualBlock
    from tpviz.schemes.grid.program import Groups


# -- rows between ranks ----------------------------------------------------------------------------
class Reorder(torch.autograd.Function):
    """rows[order], a permutation; its gradient is the inverse one's, without any sum."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.inverse = inverse
        return rows[order]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad[ctx.inverse], None, None


class Spread(torch.autograd.Function):
    """Each token's row (T, H) as often as it has experts, in the ``order`` of these: (T k, H)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.tokens, ctx.inverse = len(x), inverse
        return x[order // (len(order) // len(x))]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad[ctx.inverse].unflatten(0, (ctx.tokens, -1)).sum(1), None, None


def inverse_of(order: Tensor) -> Tensor:
    """The permutation that undoes this one."""
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    return inverse


def numbers_of_rows(experts: Tensor, number: int, group: Group) -> tuple[Tensor, Tensor]:
    """(how many of the choices (T k) are of each expert; those of every rank for each of this
    rank's experts, rank after rank), both (experts,)."""
    counts = experts.new_zeros(number).scatter_add_(0, experts, torch.ones_like(experts))
    if group.size() == 1:
        return counts, counts
    known = torch.empty_like(counts)
    dist.all_to_all_single(known, counts, group=group)
    return counts, known


def there_and_back(
    x: Tensor,
    experts: Tensor,
    send: Sequence[int],
    receive: Sequence[int],
    group: Group,
    computed: Callable[[Tensor], Tensor],
) -> Turns:
    """(T, H) and the experts of each token (T k) -> their results (T k, H), token by token. send,
    receive : rows for and from each rank. computed : what the ranks do with rows that they get.
    Gives way while rows go there, and while they come back."""
    order = experts.argsort(stable=True)
    inverse = inverse_of(order)
    sent: Any = Spread.apply(x, order, inverse)
    rows = yield from travelling(sent, by_numbers(send, receive, group), group)
    y = yield from travelling(computed(rows), by_numbers(receive, send, group), group)
    return Reorder.apply(y, inverse, order)  # pyright: ignore[reportReturnType]


def placed(w: "GPT", mesh: Any, cut: ExpertCut) -> "GPT":
    """The workload as that of this rank, as far as its rows are concerned."""
    axes = [*(w.context.axes if w.context else ()), *(a for a in ("ep", cut.inside) if a)]
    sizes = {"ep": cut.ep, cut.inside: cut.tp}
    axes = [axis for axis in axes if sizes.get(axis, 2) > 1]
    return replace(w, place=tuple((axis, mesh.get_group(axis).rank()) for axis in axes))


# -- the module ------------------------------------------------------------------------------------
class ExpertMLP(nn.Module):
    """A rank's router and experts, in place of its MLP: (B, S, H), or (S, B, H), of the stream."""

    def __init__(self, w: "GPT", groups: "Groups", **kw: Any):
        super().__init__()
        self.cut, self.sp, self.inside = cut_of(groups.layout, w), groups.layout.sp, groups.inside
        self.group = groups.mesh.get_group("ep") if self.cut.ep > 1 else Alone()
        self.halves = self.cut.halves
        self.w = placed(w.with_batch(w.batch // self.halves), groups.mesh, self.cut)
        own, parts = w.experts // self.cut.ep, self.cut.etp
        where = groups.where(w)
        if self.cut.parts > 1:
            where = torch.arange(w.seq) if where is None else where
            where = own_of(where, self.inside)
        self.balance = Balance(w, self.cut.tp * self.cut.halves) if w.aux_loss else None
        self.parts = [groups.mesh.get_group(axis) for axis in parts_over(self.cut, w)]
        self.router = Router(w, where, **kw)
        self.up = Stack(own, w.hidden, w.up_features // parts, **kw)
        self.down = Stack(own, w.mlp_width // parts, w.hidden, **kw)
        self.activation, self.shared_up, self.shared_down = activation(w), None, None
        if n := w.shared_experts:
            self.shared_up = nn.Linear(w.hidden, n * w.up_features // parts, bias=False, **kw)
            self.shared_down = nn.Linear(n * w.mlp_width // parts, w.hidden, bias=False, **kw)

    def forward(self, x: Tensor, summed: bool = True) -> Tensor:
        """The block's second part. summed : of no matter here: the last sum is made in any case."""
        return finished(self.turns(x))

    def in_halves(self, block: "ResidualBlock", x: Tensor) -> Tensor:
        """x after both parts of the block, whose halves go on in turn while rows travel."""
        dim = int(self.sp)
        halves = [self._half(block, part) for part in x.chunk(self.halves, dim)]
        return torch.cat(in_turns(halves), dim)

    def _half(self, block, x):
        x = x + block.join(block.attention(block.norm1(x)))
        y = yield from self.turns(block.norm2(x))
        return x + block.join(y)

    def turns(self, x: Tensor) -> Turns:
        """As of `forward`, of one half of the batch where they go on in turn."""
        x, at = self._before(x), int(not self.sp)
        scores = self.router.scores(x)
        experts, weights, numbers = self.router.choose(scores, at)
        rows, chosen = x.flatten(0, 1), experts.flatten()
        shared = SharedExperts(self, x) if self.shared_up else None
        if self.cut.gathered:
            y = self._gathered(rows, experts, weights, numbers)
        elif numbers is None:
            y = self._through(rows, chosen)
        else:
            y = self._taken(rows, *self._slots(experts, numbers))
        if shared and self.cut.overlap:
            y = finished(y, (shared.first, shared.second))
        else:
            y = yield from y
        if self.cut.gathered:
            y = y.view_as(x)
        else:
            y = (y.view(*experts.shape, -1) * weights.unsqueeze(-1).to(y.dtype)).sum(-2)
        y = self._after(y + shared.result() if shared else y)
        if not self.balance:
            return y
        of = scores.movedim(at, 1), experts.movedim(at, 1)
        return self.balance.beside(y, *of, self._add_up)

    def _before(self, x):
        """The tokens that this rank chooses for, from those of the stream."""
        if self.cut.etp > 1:
            return Same.apply(x, self.inside, self.sp)
        return Cut.apply(x, self.inside, 1) if self.cut.parts > 1 and not self.sp else x

    def _after(self, y):
        if self.cut.etp > 1:
            if self.sp:
                return ReduceScatter.apply(y, self.inside)
            return Reduce.apply(y.clone() if y._is_view() else y, self.inside)  # works in place
        return Gather.apply(y, self.inside, 1) if self.cut.parts > 1 and not self.sp else y

    def _through(self, x, experts):
        """(T, H) and the experts of each token (T k) -> their results (T k, H), token by token."""
        send, received = self._numbers(experts)
        sorting = by_expert(received).to(x.device)
        back, loads = inverse_of(sorting), [sum(of_expert) for of_expert in zip(*received)]
        own = lambda rows: self._computed(Reorder.apply(rows, sorting, back), loads)
        computed = lambda rows: Reorder.apply(own(rows), back, sorting)
        receive = list(map(sum, received))
        return there_and_back(x, experts, send, receive, self.group, computed)

    def _slots(self, experts, numbers, ranks=1):
        """(of each choice its place in a buffer (experts, batch, taken), where that ends), which is
        the place of dropped ones. experts, numbers : (ranks, two dims of the stream, k)."""
        taken, sequences = self.router.taken, ranks * self.w.batch
        of = torch.arange(sequences, device=experts.device).view(ranks, self.w.batch)
        of = of.unsqueeze(1 if self.sp else 2).unsqueeze(-1)
        experts = experts.view(ranks, *experts.shape[-3:])
        found = (experts * sequences + of) * taken + numbers.view_as(experts)
        behind = self.w.experts * sequences * taken
        return found.masked_fill(numbers.view_as(experts) >= taken, behind).flatten(), behind

    def _gathered(self, x, experts, weights, numbers):
        """(T, H) -> the weighted sums of results (T, H), each rank having seen all tokens."""
        told = experts if numbers is None else torch.cat([experts, numbers], -1)
        pick = lambda told: self._picked(told.view(-1, *experts.shape[:2], told.shape[-1]))
        weights, told = weights.flatten(0, 1), told.flatten(0, 1)
        return on_all_ranks(x, weights, told, self.group, pick, self._computed)

    def _picked(self, told):
        """Of what all ranks have told, (n, two dims of the stream, ...), this one's choices."""
        (n, *_), k, own = told.shape, self.router.top_k, self.w.experts // self.cut.ep
        experts, first = told[..., :k], own * self.group.rank()
        if self.router.taken:
            slots, behind = self._slots(experts, told[..., k:], n)
            each = behind // self.w.experts
            choices = _in_slots(slots, behind)[first * each : (first + own) * each]
            real = choices < len(slots)
            return choices * real, [each] * own, real
        chosen, start = experts.flatten(), 0
        counts = numbers_of_rows(chosen, self.w.experts, Alone())[0]
        if isinstance(experts, FakeTensor):
            loads = self.cut.loads(self.w, self.group.rank()).tolist()
        else:
            counts = counts.tolist()
            start, loads = sum(counts[:first]), counts[first : first + own]
        return chosen.argsort(stable=True)[start : start + sum(loads)], loads, None

    def _taken(self, x, slots, behind):
        """As `_through`, in buffers of equal size: rows that are not taken come back as zeros."""
        n, each = self.cut.ep, len(slots) // len(x)
        rows = F.pad(x.repeat_interleave(each, 0), (0, 0, 0, 1))
        source = _in_slots(slots, behind)
        way, own = equally(self.group), self.w.experts // n
        sent = yield from travelling(rows[source], way, self.group)
        parts = sent.view(n, own, -1, x.shape[-1]).transpose(0, 1)
        y = self._computed(parts.flatten(0, 2), [parts.shape[1] * parts.shape[2]] * own)
        y = y.view(own, n, -1, x.shape[-1]).transpose(0, 1).flatten(1, 2)
        y = yield from travelling(y.flatten(0, 1), way, self.group)
        return F.pad(y, (0, 0, 0, 1))[slots]

    def _add_up(self, counts):
        """Over the ranks that have other parts of the same sequences; how many these are."""
        for group in self.parts:
            dist.all_reduce(counts, group=group)
        return prod(group.size() for group in self.parts)

    def _computed(self, rows, loads):
        """Rows that lie expert after expert, so many of each of this rank's."""
        parts = zip(rows.split(loads), self.up.weight.unbind(), self.down.weight.unbind())
        return torch.cat(
            [F.linear(self.activation(F.linear(part, up)), down) for part, up, down in parts]
        )

    def _numbers(self, experts):
        """(rows for each rank of ep, [[rows from a rank for each of this one's experts]])."""
        n, (counts, known) = self.cut.ep, numbers_of_rows(experts, self.w.experts, self.group)
        if isinstance(experts, FakeTensor):  # it has no numbers: those that formulas take
            sent = self.cut.sent(self.w).reshape(n, -1)
            return sent.sum(1).tolist(), [sent[self.group.rank()].tolist()] * n
        return counts.view(n, -1).sum(1).tolist(), known.view(n, -1).tolist()


class SharedExperts:
    """The shared experts of a module on x, layer by layer, whenever they are asked for."""

    def __init__(self, of: ExpertMLP, x: Tensor):
        self.of, self.x, self.inner, self.y = of, x, None, None

    def first(self) -> None:
        """The first layer and the activation."""
        self.inner = self.of.activation(self.of.shared_up(self.x))  # pyright: ignore[reportOptionalCall]

    def second(self) -> None:
        """The second layer."""
        self.y, self.inner = self.of.shared_down(self.inner), None  # pyright: ignore[reportOptionalCall]

    def result(self) -> Tensor:
        """(..., H), computed now where nobody has asked for the layers before."""
        if self.y is None:
            self.first()
            self.second()
        return self.y  # pyright: ignore[reportReturnType]


def _in_slots(slots, behind):
    """The choice in each place before ``behind``; where there is none, the number of choices."""
    source = slots.new_full((behind + 1,), len(slots))
    source[slots] = torch.arange(len(slots), device=slots.device)
    return source[:-1]


def by_expert(received: Sequence[Sequence[int]]) -> Tensor:
    """The order that puts rows, which lie rank after rank, expert after expert. received : rows
    from each rank for each expert."""
    parts = torch.arange(sum(map(sum, received))).split([n for of in received for n in of])
    experts = len(received[0])
    return torch.cat([part for e in range(experts) for part in parts[e::experts]])
