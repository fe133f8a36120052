"""Reference solutions of all exercises, other right answers, and known wrong ones with the hint
they must get.

Kept out of the package, so that a learner does not meet them by accident.
"""

import time

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce

# --- mean_over_ranks ---


def mean(x):
    dist.all_reduce(x)
    return x / dist.get_world_size()


def mean_divided_first(x):
    x = x / dist.get_world_size()
    dist.all_reduce(x)
    return x


def mean_asynchronous(x):
    dist.all_reduce(x, async_op=True).wait()
    return x / dist.get_world_size()


def mean_functional(x):
    return all_reduce(x, "sum", dist.group.WORLD) / dist.get_world_size()


def mean_alone(x):
    return x


def mean_is_sum(x):
    dist.all_reduce(x)
    return x


def mean_of_four(x):
    dist.all_reduce(x)
    return x / 4


def mean_by_gathering(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return torch.stack(parts).mean(0)


def mean_on_rank_0(x):
    dist.reduce(x, dst=0)
    return x / dist.get_world_size()


def mean_in_two_trips(x):
    dist.reduce(x, dst=0)
    dist.broadcast(x, src=0)
    return x / dist.get_world_size()


def mean_of_everything(x):
    dist.all_reduce(x)
    return x.mean()


def mean_is_maximum(x):
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x


def mean_divided_on_rank_0(x):
    dist.all_reduce(x)
    return x / dist.get_world_size() if dist.get_rank() == 0 else 0 * x


def mean_not_awaited(x):
    dist.all_reduce(x, async_op=True)
    return x / dist.get_world_size()


def mean_forgotten(x):
    dist.all_reduce(x)


def mean_raises(x):
    dist.all_reduce(x)
    return x / number_of_ranks  # noqa: F821


def mean_hangs(x):
    if dist.get_rank() != 2:
        dist.all_reduce(x)
    return x / dist.get_world_size()


def mean_sleeps(x):
    time.sleep(3600)


# --- row_parallel ---


def rows(x, w):
    y = x @ w
    dist.all_reduce(y)
    return y


def rows_partial(x, w):
    return x @ w


def rows_averaged(x, w):
    y = x @ w
    dist.all_reduce(y)
    return y / dist.get_world_size()


def rows_summed_before(x, w):
    dist.all_reduce(x)
    return x @ w


def rows_all_summed_before(x, w):
    dist.all_reduce(x)
    dist.all_reduce(w)
    return x @ w


def _gather(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return parts


def rows_gathered_inputs(x, w):
    return torch.cat(_gather(x), dim=1) @ torch.cat(_gather(w))


def rows_gathered_products(x, w):
    return sum(_gather(x @ w))


def rows_multiplied_twice(x, w):
    return 0 * (x @ w) + rows(x, w)


def rows_wrong_shape(x, w):
    return torch.cat(_gather(x @ w))


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
    return sum(_gather(x))


def two_gathered_then_scattered(x):
    n = dist.get_world_size()
    total = sum(_gather(x))
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


def _gather_along(x, group, dim):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, dim)


def mlp_gathered(x, w1, w2, mesh):
    tp = mesh.get_group("tp")
    return _gather_along(torch.relu(x @ w1), tp, 1) @ _gather_along(w2, tp, 0)


def mlp_reduced_twice(x, w1, w2, mesh):
    y = mlp(x, w1, w2, mesh)
    dist.broadcast(y, group=mesh.get_group("tp"), group_src=0)
    return y


RIGHT = {
    "mean_over_ranks": [mean, mean_divided_first, mean_asynchronous, mean_functional],
    "row_parallel": [rows],
    "all_reduce_in_two": [in_two, in_two_without_lists],
    "mlp_on_mesh": [mlp],
}

WRONG = {
    "mean_over_ranks": [
        (mean_alone, "no collective at all"),
        (mean_is_sum, "the sum over the ranks, not the mean"),
        (mean_of_four, r"Right on 4 ranks, but on 2 ranks: you divided by 4"),
        (mean_by_gathering, r"numbers are right, but you moved 2x the bytes needed: all_gather"),
        (mean_on_rank_0, "only rank 0 has the mean"),
        (mean_in_two_trips, r"2 collectives \(1 x broadcast on world, 1 x reduce on world\) where"),
        (mean_of_everything, r"returned shape \[\]; it should be \["),
        (mean_is_maximum, r"numbers are wrong on every rank. On rank 0, element \[\d, \d\] is"),
        (mean_divided_on_rank_0, "rank 0 is right, but ranks 1, 2, 3 are not"),
        (mean_not_awaited, "started all_reduce without waiting"),
        (mean_forgotten, "rank 0 returned NoneType, not a tensor"),
    ],
    "row_parallel": [
        (rows_partial, "only its part of the sum"),
        (rows_averaged, "you averaged the parts"),
        (rows_summed_before, "multiply first, then add"),
        (rows_all_summed_before, "multiply first, then add"),
        (rows_gathered_inputs, "each rank did 4x its share of the multiplications"),
        (rows_gathered_products, r"each rank sent 2x the bytes needed"),
        (rows_multiplied_twice, "numbers are right, but each rank did 2x its share"),
        (rows_wrong_shape, "returned shape"),
    ],
    "all_reduce_in_two": [
        (two_alone, "every rank still has only its own tensor"),
        (two_is_one, "`all_reduce` is what we want to build"),
        (two_half_way, "half way: after reduce_scatter each rank holds 1/4 of the sum"),
        (two_by_hand, "moved 2x the bytes needed"),
        (two_gathered_then_scattered, "every number is 4x too large"),
        (two_by_all_to_all, "trace shows 1 x all_gather on world, 1 x all_to_all on world, and"),
        (two_through_rank_0, "pass everything through rank 0"),
    ],
    "mlp_on_mesh": [
        (mlp_partial, "each rank returned a partial sum"),
        (mlp_over_world, r"ran on all ranks \(the default group\), but only ranks along axis tp"),
        (mlp_over_dp, "your all_reduce ran on axis dp, but only ranks along axis tp"),
        (mlp_summed_hidden, "other columns of H"),
        (mlp_gathered, "nothing has to be gathered"),
        (mlp_reduced_twice, r"each rank sent 1.5x the bytes needed"),
    ],
}
