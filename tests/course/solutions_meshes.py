"""Answers to the exercises of notebook 01: right ones, and wrong ones with the hint they get."""

import torch
import torch.distributed as dist
from solutions_start import gather

# --- all_reduce_in_two ---


def in_two(x):
    blocks = list(x.chunk(dist.get_world_size()))
    block = torch.empty_like(blocks[0])
    dist.reduce_scatter(block, blocks)
    dist.all_gather(blocks, block)
    return torch.cat(blocks)


# torch 2.13 calls them "single" and warns about the older names, which 2.9 knows alone.
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


def in_two_without_lists(x):
    block = x.new_empty(x.shape[0] // dist.get_world_size(), x.shape[1])
    _reduce_scatter(block, x)
    _all_gather(x, block)
    return x


def two_alone(x):
    return x


def two_is_one(x):
    dist.all_reduce(x)
    return x


def two_half_way(x):
    block = x.new_empty(x.shape[0] // dist.get_world_size(), x.shape[1])
    _reduce_scatter(block, x)
    return block


def two_by_hand(x):
    return sum(gather(x))


def two_gathered_then_scattered(x):
    n = dist.get_world_size()
    total = sum(gather(x))
    block = x.new_empty(x.shape[0] // n, x.shape[1])
    _reduce_scatter(block, total)
    _all_gather(total, block)
    return total


def two_by_all_to_all(x):
    blocks = torch.empty_like(x)
    dist.all_to_all_single(blocks, x)
    block = sum(blocks.chunk(dist.get_world_size()))
    _all_gather(x, block)
    return x


def two_through_rank_0(x):
    dist.reduce(x, dst=0)
    dist.broadcast(x, src=0)
    return x


# --- mlp_on_mesh ---


def mlp(x, w1, w2, mesh):
    y = torch.relu(x @ w1) @ w2
    dist.all_reduce(y, group=mesh.get_group("tp"))
    return y


def mlp_partial(x, w1, w2, mesh):
    return torch.relu(x @ w1) @ w2


def mlp_over_world(x, w1, w2, mesh):
    y = torch.relu(x @ w1) @ w2
    dist.all_reduce(y)
    return y


def mlp_over_dp(x, w1, w2, mesh):
    y = torch.relu(x @ w1) @ w2
    dist.all_reduce(y, group=mesh.get_group("dp"))
    return y


def mlp_summed_hidden(x, w1, w2, mesh):
    h = x @ w1
    dist.all_reduce(h, group=mesh.get_group("tp"))
    y = torch.relu(h) @ w2
    dist.all_reduce(y, group=mesh.get_group("tp"))
    return y


def mlp_gathered(x, w1, w2, mesh):
    tp = mesh.get_group("tp")
    return torch.cat(gather(torch.relu(x @ w1), tp), 1) @ torch.cat(gather(w2, tp))


def mlp_reduced_twice(x, w1, w2, mesh):
    y = mlp(x, w1, w2, mesh)
    dist.broadcast(y, group=mesh.get_group("tp"), group_src=0)
    return y


RIGHT = {
    "all_reduce_in_two": [in_two, in_two_without_lists],
    "mlp_on_mesh": [mlp],
}

WRONG = {
    "all_reduce_in_two": [
        (two_alone, "every rank still has only its own tensor"),
        (two_is_one, "this exercise builds `all_reduce`"),
        (two_half_way, "half way: after reduce_scatter each rank holds 1/4 of the sum"),
        (two_by_hand, "sent 2x the bytes needed"),
        (two_gathered_then_scattered, "every number is 4x too large"),
        (two_by_all_to_all, "trace shows 1 x all_gather on world, 1 x all_to_all on world, and"),
        (two_through_rank_0, "send everything through rank 0"),
    ],
    "mlp_on_mesh": [
        (mlp_partial, "each rank returned a partial sum"),
        (mlp_over_world, "you added over all ranks at once"),
        (mlp_over_dp, "your all_reduce ran on axis dp, but only ranks along axis tp"),
        (mlp_summed_hidden, "other columns of H"),
        (mlp_gathered, "nothing has to be gathered"),
        (mlp_reduced_twice, r"each rank sent 1.5x the bytes needed"),
    ],
}
