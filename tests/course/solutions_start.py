"""Answers to the exercises of notebook 00: right ones, and wrong ones with the hint they get."""

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


def gather(x, group=None):
    """The tensors of all ranks of ``group``, as a list."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return parts


def rows_gathered_inputs(x, w):
    return torch.cat(gather(x), dim=1) @ torch.cat(gather(w))


def rows_gathered_products(x, w):
    return sum(gather(x @ w))


def rows_multiplied_twice(x, w):
    return 0 * (x @ w) + rows(x, w)


def rows_wrong_shape(x, w):
    return torch.cat(gather(x @ w))


RIGHT = {
    "mean_over_ranks": [mean, mean_divided_first, mean_asynchronous, mean_functional],
    "row_parallel": [rows],
}

WRONG = {
    "mean_over_ranks": [
        (mean_alone, "no collective at all"),
        (mean_is_sum, "the sum over the ranks, not the mean"),
        (mean_of_four, r"Right on 4 ranks, but on 2 ranks: you divided by 4"),
        (mean_by_gathering, r"numbers are right, but you sent 2x the bytes needed: all_gather"),
        (mean_on_rank_0, "only rank 0 has the mean"),
        (mean_in_two_trips, r"2 collectives \(1 x broadcast on world, 1 x reduce on world\)"),
        (mean_of_everything, r"returned shape \[\]; it should be \["),
        (mean_is_maximum, r"numbers are wrong on every rank. On rank 0, element \[\d, \d\] is"),
        (mean_divided_on_rank_0, "rank 0 is right, but ranks 1, 2, 3 are not"),
        (mean_not_awaited, "started all_reduce without waiting"),
        (mean_forgotten, "rank 0 returned NoneType, not a tensor"),
    ],
    "row_parallel": [
        (rows_partial, "only its partial sum"),
        (rows_averaged, "you averaged the partial sums"),
        (rows_summed_before, "you added x over .* multiply first, then add"),
        (rows_all_summed_before, "you added x and w over .* multiply first, then add"),
        (rows_gathered_inputs, "each rank did 4x its share of the multiplications"),
        (rows_gathered_products, r"each rank sent 2x the bytes needed"),
        (rows_multiplied_twice, "numbers are right, but each rank did 2x its share"),
        (rows_wrong_shape, "returned shape"),
    ],
}
