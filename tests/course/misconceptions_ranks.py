"""Plausible wrong answers on real ranks (notebooks 00 to 07), with words of the verdict, and right
ones written in other ways: ``WRONG`` {name: [(answer, words)]}, ``RIGHT`` {name: [answer]}."""

import torch
import torch.distributed as dist
from solutions_costs_runs import _pass_on
from torch.distributed._functional_collectives import all_reduce as functional

MAX = dist.ReduceOp.MAX


def summed(x, group=None, op=dist.ReduceOp.SUM):
    """The all-reduce of a copy."""
    x = x.clone()
    dist.all_reduce(x, op=op, group=group)
    return x


def size():
    return dist.get_world_size()


# --- mean_over_ranks ---


def mean_divided_twice(x):
    return summed(x / size()) / size()


def mean_is_nan(x):
    return summed(x) * float("nan")


def mean_as_array(x):
    return (summed(x) / size()).numpy()


def mean_sparse(x):
    return (summed(x) / size()).to_sparse()


def mean_on_no_device(x):
    return (summed(x) / size()).to("meta")


def mean_in_half(x):
    return summed(x.half()).float() / size()


def mean_in_double(x):
    return summed(x.double()).float() / size()


def mean_of_rank_0(x):
    dist.broadcast(x, 0)
    return x


def mean_of_a_constant(x):
    return 0 * summed(x)


def mean_in_a_group_of_all(x):
    return summed(x, dist.new_group(list(range(size())))) / size()


# --- row_parallel ---


def rows_twice(x, w):
    return summed(summed(x @ w))


def rows_maximum(x, w):
    return summed(x @ w, op=MAX)


def rows_on_rank_0(x, w):
    y = x @ w
    dist.reduce(y, 0)
    return y


def rows_functional(x, w):
    return functional(x @ w, "sum", dist.group.WORLD)


def rows_by_elements(x, w):
    return summed((x[:, :, None] * w[None]).sum(1))


# --- all_reduce_in_two ---


def _two(x, send=lambda blocks: blocks, join=torch.cat, op=dist.ReduceOp.SUM):
    blocks = list(x.chunk(size()))
    block = torch.empty_like(blocks[0])
    dist.reduce_scatter(block, send(blocks), op=op)
    dist.all_gather(blocks, block)
    return join(blocks)


def two_rolled(x):
    return _two(x, join=lambda blocks: torch.cat(blocks[1:] + blocks[:1]))


def two_reversed(x):
    return _two(x, send=lambda blocks: blocks[::-1])


def two_averaged(x):
    return _two(x) / size()


def two_maximum(x):
    return _two(x, op=MAX)


def two_forgotten(x):
    _two(x)


def two_block_by_block(x):
    blocks = x.chunk(size())
    for act in (dist.reduce, dist.broadcast):
        for rank in range(size()):
            act(blocks[rank], rank)
    return x


def two_through_other_ranks(x):
    dist.reduce(x, 0)
    dist.broadcast(x, 1)
    return x


def two_reversed_twice(x):
    return _two(x, lambda blocks: blocks[::-1], lambda blocks: torch.cat(blocks[::-1]))


# --- mlp_on_mesh ---


def _mlp(x, w1, w2, mesh, axes=("tp",), by=1):
    y = torch.relu(x @ w1) @ w2
    for axis in axes:
        y = summed(y, mesh.get_group(axis))
    return y / by


def mlp_averaged_over_dp(x, w1, w2, mesh):
    return _mlp(x, w1, w2, mesh, ("tp", "dp"), 2)


def mlp_summed_over_both(x, w1, w2, mesh):
    return _mlp(x, w1, w2, mesh, ("dp", "tp"))


def mlp_twice(x, w1, w2, mesh):
    return _mlp(x, w1, w2, mesh, ("tp", "tp"))


def mlp_averaged(x, w1, w2, mesh):
    return _mlp(x, w1, w2, mesh, by=2)


def mlp_without_relu(x, w1, w2, mesh):
    return summed(x @ w1 @ w2, mesh.get_group("tp"))


def mlp_relu_at_the_end(x, w1, w2, mesh):
    return mlp_without_relu(x, w1, w2, mesh).relu()


def mlp_relu_twice(x, w1, w2, mesh):
    return _mlp(x, w1, w2, mesh).relu()


def mlp_hidden_summed(x, w1, w2, mesh):
    return torch.relu(summed(x @ w1, mesh.get_group("tp"))) @ w2


def mlp_inputs_averaged(x, w1, w2, mesh):
    return _mlp(summed(x, mesh.get_group("dp")) / 2, w1, w2, mesh)


def _own_group(pairs):
    groups = [dist.new_group(pair) for pair in pairs]
    return next(group for group, pair in zip(groups, pairs) if dist.get_rank() in pair)


def mlp_in_odd_groups(x, w1, w2, mesh):
    return summed(torch.relu(x @ w1) @ w2, _own_group(([0, 3], [1, 2])))


def mlp_in_own_groups(x, w1, w2, mesh):
    return summed(torch.relu(x @ w1) @ w2, _own_group(([0, 1], [2, 3])))


def mlp_of_a_submesh(x, w1, w2, mesh):
    return summed((x @ w1).clamp(min=0) @ w2, mesh["tp"].get_group())


# --- ring_all_reduce ---


def _ring(x, steps=lambda n: (n - 1, n - 1), shift=(0, 0)):
    n, rank, blocks = size(), dist.get_rank(), list(x.chunk(size()))
    for half, (count, offset) in enumerate(zip(steps(n), shift)):
        for i in range(count):
            send = (rank + half - i + offset) % n
            receive = (send - 1) % n
            got = _pass_on(blocks, send, receive)
            blocks[receive].copy_(got if half else blocks[receive] + got)
    return x


def ring_starts_elsewhere(x):
    return _ring(x, shift=(0, 1))


def ring_one_step_more(x):
    return _ring(x, lambda n: (n, n - 1))


def ring_one_step_less(x):
    return _ring(x, lambda n: (n - 1, n - 2))


def ring_averaged(x):
    return _ring(x) / size()


def ring_shifted(x):
    return _ring(x, shift=(1, 1))


RIGHT = {
    "mean_over_ranks": [mean_in_a_group_of_all],
    "row_parallel": [rows_functional, rows_by_elements],
    "all_reduce_in_two": [two_reversed_twice],
    "mlp_on_mesh": [mlp_in_own_groups, mlp_of_a_submesh],
    "ring_all_reduce": [ring_shifted],
}

WRONG = {
    "mean_over_ranks": [
        (mean_divided_twice, "divided by 4, the number of ranks, once more"),
        (mean_is_nan, r"wrong on every rank. On rank 0, element \[0, 0\] is nan"),
        (mean_as_array, r"rank 0 returned ndarray, not a tensor of numbers\.$"),
        (mean_sparse, "returned a tensor of torch.float32, torch.sparse_coo, on cpu, not a tensor"),
        (mean_on_no_device, "on meta, not a tensor of numbers"),
        (
            mean_in_half,
            r"all_reduce on world, \d+ bytes sent per rank, and this exercise asks for "
            r"1 x all_reduce on world, \d+ bytes",
        ),
        (mean_in_double, "each rank sent 2x the bytes needed"),
        (mean_of_rank_0, "You used 1 x broadcast on world"),
        (mean_of_a_constant, r"is 0; one process computes"),
    ],
    "row_parallel": [
        (rows_twice, "4 times too large: what is reduced already is added once more"),
        (rows_maximum, "you have the largest of the ranks. numbers, not their sum"),
        (rows_on_rank_0, r"rank 0 is right, but ranks 1, 2, 3 are not. On rank 1, element \["),
    ],
    "all_reduce_in_two": [
        (two_rolled, "dim 0 of the result has its 4 parts in another order"),
        (two_reversed, "dim 0 of the result has its 4 parts in another order"),
        (two_averaged, "a sum is asked for, no mean"),
        (two_maximum, "you have the largest of the ranks. numbers"),
        (two_forgotten, "NoneType, not a tensor of numbers. Does every path"),
        (two_block_by_block, "8 collectives .* where 2 will do|4 x broadcast on world, 4 x reduce"),
        (two_through_other_ranks, "the numbers are wrong|are not. On rank"),
    ],
    "mlp_on_mesh": [
        (mlp_averaged_over_dp, "all-reduce over tp is right, but then you averaged the results"),
        (mlp_summed_over_both, "all-reduce over tp is right, but then you added the results over"),
        (mlp_twice, "2 times too large: what is reduced already is added once more"),
        (mlp_averaged, "a sum is asked for, no mean"),
        (mlp_without_relu, "relu is missing"),
        (mlp_relu_at_the_end, "relu is in the wrong place"),
        (mlp_relu_twice, "you applied relu twice"),
        (mlp_hidden_summed, "you added over the ranks at the wrong product"),
        (mlp_inputs_averaged, "your all_reduce ran on axis dp, .* on axis dp is one too many"),
        (mlp_in_odd_groups, r"your all_reduce ran on ranks [03,12]+, but only ranks along axis tp"),
    ],
    "ring_all_reduce": [
        (ring_starts_elsewhere, r"the second round begins with block \(rank \+ 2\)"),
        (ring_one_step_more, "sent 7 messages .* needs 6 messages"),
        (ring_one_step_less, "sent 5 messages .* needs 6 messages"),
        (ring_averaged, "a sum is asked for, no mean"),
    ],
}
