"""Mixtures of experts: tokens travel to the rank of their expert and back."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from zoo import ITEM, RANKS, READS, data, gradients, on_own_data, program
from zoo_models import WIDTH


class Exchange(torch.autograd.Function):
    """all_to_all_single of ``sent[i]`` rows to rank i, and ``received[i]`` from it."""

    @staticmethod
    def forward(ctx, x, sent, received):
        ctx.rows = sent, received
        y = x.new_empty(sum(received), *x.shape[1:])
        dist.all_to_all_single(y, x.contiguous(), received, sent)
        return y

    @staticmethod
    def backward(ctx, gradient):
        sent, received = ctx.rows
        return Exchange.apply(gradient, received, sent), None, None


# Of a rank's ten tokens two go to each of the experts 0, 1 and 2, and four to expert 3.
CHOSEN = (2, 2, 2, 4)
TOKENS, ROW = sum(CHOSEN), WIDTH * ITEM


def _moved(rank):
    """Dispatch, and backward of combine, send a rank's tokens for others; combine, and backward of
    dispatch, what its expert has of other ranks."""
    return 2 * (TOKENS - CHOSEN[rank]) * ROW + 2 * (RANKS - 1) * CHOSEN[rank] * ROW


def _expert():
    torch.manual_seed(on_own_data())
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.GELU(), nn.Linear(8, WIDTH)).double()


def _tokens():
    return data(on_own_data(), TOKENS, WIDTH).requires_grad_()


def _uneven(rank):
    """The counts (int64) go first; the router's weight and bias are reduced in the end."""
    return {
        ("world", "all_to_all"): (1, RANKS * 8),
        ("world", "all_to_all_v"): (4, _moved(rank)),
        ("world", "all_reduce"): (2, (WIDTH * RANKS + RANKS) * ITEM),
    }


@program(_uneven, uncaptured=READS)
def experts_uneven():
    """One expert a rank, a gate that is learned, tokens sent in unequal parts."""
    expert, x = _expert(), _tokens()
    torch.manual_seed(0)
    router = nn.Linear(WIDTH, RANKS).double()
    choice = torch.arange(RANKS).repeat_interleave(torch.tensor(CHOSEN)).flip(0)
    order, counts = choice.argsort(stable=True), torch.bincount(choice, minlength=RANKS)

    def step():
        expert.zero_grad(), router.zero_grad()
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        sent, received = counts.tolist(), theirs.tolist()
        arrived = Exchange.apply(x[order], sent, received)
        returned = Exchange.apply(expert(arrived), received, sent)
        gate = router(x.detach()).softmax(-1).gather(1, choice[:, None])
        loss = (torch.zeros_like(x).index_copy(0, order, returned) * gate).square().mean()
        loss.backward()
        for p in router.parameters():
            dist.all_reduce(p.grad)
        return loss

    return step, lambda: gradients(expert, router)


@program(lambda rank: {("ep", "all_to_all_v"): (4, _moved(rank))})
def experts_functional():
    """The same exchange by functional collectives with autograd, on a mesh."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,), mesh_dim_names=("ep",))
    expert, x = _expert(), _tokens()
    sent, received = list(CHOSEN), [CHOSEN[dist.get_rank()]] * RANKS

    def step():
        expert.zero_grad()
        exchange = functional.all_to_all_single_autograd
        arrived = exchange(x, received, sent, mesh)
        loss = exchange(expert(arrived), sent, received, mesh).square().sum()
        loss.backward()
        return loss

    return step, lambda: gradients(expert)


CAPACITY = 4


@program({("world", "all_to_all"): (2, 2 * RANKS * CAPACITY * ROW)})
def experts_of_fixed_capacity():
    """As in GShard every expert has room for so many tokens of a rank; forward alone, by lists."""
    expert, x, found = _expert(), data(on_own_data(), RANKS * CAPACITY, WIDTH), []

    def exchanged(parts):
        arrived = [torch.empty_like(part) for part in parts]
        dist.all_to_all(arrived, list(parts))
        return arrived

    def step():
        with torch.no_grad():
            found[:] = exchanged([expert(part) for part in exchanged(x.split(CAPACITY))])
        return torch.cat(found).sum()

    return step, lambda: found
