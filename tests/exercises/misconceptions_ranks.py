"""Plausible wrong answers on real ranks, with words of the verdict, and right ones written in other
ways. ``WRONG`` {name: [(answer, words)]}, ``RIGHT`` {name: [answer]}, on the first world."""

import torch
import torch.distributed as dist
from solutions_atp_layers import _chunked, _join
from solutions_axonn_layers import _gather, _norm, _pieces, _scatter, linear, linear_not_summed
from solutions_costs_runs import _pass_on
from solutions_merak_ranks import halves
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


def mean_as_bools(x):
    return summed(x) > 0


def mean_as_array(x):
    return (summed(x) / size()).numpy()


def mean_in_a_tuple(x):
    return (summed(x) / size(),)


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


def mean_after_a_barrier(x):
    dist.barrier()
    return summed(x) / size()


def mean_of_a_constant(x):
    return 0 * summed(x)


def mean_in_a_group_of_all(x):
    return summed(x, dist.new_group(list(range(size())))) / size()


# --- row_parallel ---


def rows_twice(x, w):
    return summed(summed(x @ w))


def rows_maximum(x, w):
    return summed(x @ w, op=MAX)


def rows_transposed(x, w):
    return summed((x @ w).t().contiguous())


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


def mlp_in_other_own_groups(x, w1, w2, mesh):
    return summed(torch.relu(x @ w1) @ w2, _own_group(([0, 2], [1, 3])))


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


# --- atp_column_linear, atp_chunked_linear ---


def column_averaged_over_d1(x, w, b, mesh):
    y = summed(x @ w.t(), mesh.get_group("d2"))
    return summed(y, mesh.get_group("d1")) / mesh.size(0) + b


def column_averaged_parts(x, w, b, mesh):
    return summed(x @ w.t(), mesh.get_group("d2")) / mesh.size(1) + b


def column_maximum(x, w, b, mesh):
    return summed(x @ w.t(), mesh.get_group("d2"), MAX) + b


def column_all_divided(x, w, b, mesh):
    return summed(x @ w.t() + b, mesh.get_group("d2")) / mesh.size(1)


def column_of_summed_inputs(x, w, b, mesh):
    return summed(x, mesh.get_group("d2")) @ w.t() + b


def column_bias_shared(x, w, b, mesh):
    return summed(x @ w.t() + b / mesh.size(1), mesh.get_group("d2"))


def chunked_averaged_over_d1(x, w, b, mesh):
    y = _join(*_chunked(x, w, b, mesh), 0)
    return summed(y, mesh.get_group("d1")) / mesh.size(0) + b


def chunked_averaged(x, w, b, mesh):
    return _join(*_chunked(x, w, b, mesh), 0) / mesh.size(1) + b


def chunked_without_bias(x, w, b, mesh):
    return _join(*_chunked(x, w, b, mesh), 0)


def chunked_interleaved(x, w, b, mesh):
    y = _join(*_chunked(x, w, b, mesh), b)
    return y.view(4, -1, y.shape[1]).flip(0).flatten(0, 1)


def chunked_first_for_last(x, w, b, mesh):
    parts, works = _chunked(x, w, b, mesh)
    return _join([*parts[:-1], parts[0]], works, b)


def chunked_result(x, w, b, mesh):
    y = x @ w.t()
    works = [dist.all_reduce(part, group=mesh.get_group("d2"), async_op=True)
             for part in y.chunk(4)]
    return _join([y], works, b)


def chunked_bias_at_each_wait(x, w, b, mesh):
    parts, works = _chunked(x, w, b, mesh)
    return torch.cat([part + b for part, work in zip(parts, works) if work.wait() or True])


# --- atp_column_backward ---


def _back(x, w, grad, mesh, join=lambda dx, dw: torch.cat([dx, dw])):
    dx = grad @ w
    work = dist.all_reduce(dx, group=mesh.get_group("d1"), async_op=True)
    dw = grad.t() @ x
    work.wait()
    return join(dx, dw)


def back_averaged(x, w, grad, mesh):
    return _back(x, w, grad, mesh, lambda dx, dw: torch.cat([dx / mesh.size(0), dw]))


def back_upside_down(x, w, grad, mesh):
    return _back(x, w, grad, mesh, lambda dx, dw: torch.cat([dw, dx]))


def back_weights_summed(x, w, grad, mesh):
    return _back(x, w, grad, mesh,
                 lambda dx, dw: torch.cat([dx, summed(dw, mesh.get_group("d2"))]))


def back_functional(x, w, grad, mesh):
    dx = functional(grad @ w, "sum", mesh.get_group("d1"))
    return torch.cat([dx, grad.t() @ x])


# --- axonn_linear, axonn_backward, axonn_norm ---


def grid_maximum(x, piece, mesh):
    return summed(linear_not_summed(x, piece, mesh), mesh.get_group("y"), MAX)


def grid_averaged(x, piece, mesh):
    return linear(x, piece, mesh) / mesh.get_group("y").size()


def grid_summed_over_z(x, piece, mesh):
    return summed(linear(x, piece, mesh), mesh.get_group("z"))


def grid_pieces_summed(x, piece, mesh):
    block = torch.cat([summed(piece, mesh.get_group("z"))] * mesh.get_group("z").size())
    return summed(x @ block.view(-1, x.shape[1]).t(), mesh.get_group("y"))


def grid_back(x, block, grad, mesh, scatter=_scatter, by=1, over="x"):
    dx = grad @ block
    work = dist.all_reduce(dx, group=mesh.get_group(over), async_op=True)
    dw = grad.t() @ x
    work.wait()
    return torch.cat([dx.flatten() / by, scatter(dw, mesh)])


def grid_back_averaged(x, block, grad, mesh):
    return grid_back(x, block, grad, mesh, by=mesh.get_group("x").size())


def grid_back_halved(x, block, grad, mesh):
    return grid_back(x, block, grad, mesh) / 2


def grid_back_over_z(x, block, grad, mesh):
    return grid_back(x, block, grad, mesh, over="z")


def grid_back_transposed(x, block, grad, mesh):
    return grid_back(x, block, grad, mesh, lambda dw, mesh: _scatter(dw.t().contiguous(), mesh))


def grid_back_own_pieces(x, block, grad, mesh):
    def pieces_gathered(dw, mesh):
        mine = _pieces(dw, mesh)[mesh.get_local_rank("z")]
        return _gather(mine, mesh.get_group("z"))[:mine.numel()]
    return grid_back(x, block, grad, mesh, pieces_gathered)


def norm_squared(piece, bias, scale, mesh):
    return _norm(piece, bias, scale, mesh) ** 2


def norm_not_over_x(piece, bias, scale, mesh):
    return _norm(piece, bias, scale, mesh, over="zy")


def norm_without_bias(piece, bias, scale, mesh):
    return _norm(piece, 0 * bias, scale, mesh)


def norm_as_float(piece, bias, scale, mesh):
    return float(_norm(piece, bias, scale, mesh))


# --- merak_ties, merak_halves ---


def _ties(grads, ends=(0, 3), act=summed):
    grad, group = grads.mean(0), dist.new_group(list(ends))
    return act(grad, group) if dist.get_rank() in ends else grad


def ties_of_a_middle_stage(grads, mesh):
    return _ties(grads, (0, 2))


def ties_maximum(grads, mesh):
    return _ties(grads, act=lambda grad, group: summed(grad, group, MAX))


def ties_copied(grads, mesh):
    def copied(grad, group):
        dist.broadcast(grad, 3, group=group)
        return grad
    return _ties(grads, act=copied)


def halves_averaged(*args):
    return halves(*args) / 2


def halves_gradient_first(x, *args):
    return halves(x, *args).roll(len(x), 0)


RIGHT = {
    "mean_over_ranks": [mean_in_a_group_of_all],
    "row_parallel": [rows_functional, rows_by_elements],
    "all_reduce_in_two": [two_reversed_twice],
    "mlp_on_mesh": [mlp_in_own_groups, mlp_of_a_submesh],
    "ring_all_reduce": [ring_shifted],
    "atp_column_linear": [column_bias_shared],
    "atp_column_backward": [back_functional],
    "atp_chunked_linear": [chunked_bias_at_each_wait],
}

WRONG = {
    "mean_over_ranks": [
        (mean_divided_twice, "every number is 1/4 of what it should be"),
        (mean_is_nan, r"wrong on every rank. On rank 0, element \[0, 0\] is nan"),
        (mean_as_bools, "the numbers are wrong on every rank"),
        (mean_as_array, r"rank 0 returned ndarray, not a tensor of numbers\.$"),
        (mean_in_a_tuple, r"rank 0 returned tuple, not a tensor of numbers\.$"),
        (mean_sparse, "returned a tensor of torch.float32, torch.sparse_coo, on cpu, not a tensor"),
        (mean_on_no_device, "on meta, not a tensor of numbers"),
        (mean_in_half, r"all_reduce on world, \d+ bytes sent per rank, and this exercise asks for "
                       r"1 x all_reduce on world, \d+ bytes"),
        (mean_in_double, "each rank sent 2x the bytes needed"),
        (mean_of_rank_0, "You used 1 x broadcast on world"),
        (mean_after_a_barrier, r"2 collectives \(1 x all_reduce on world, 1 x barrier on world\)"),
        (mean_of_a_constant, r"is 0; one process computes"),
    ],
    "row_parallel": [
        (rows_twice, "every number is 4 times what it should be"),
        (rows_maximum, "the numbers are wrong on every rank"),
        (rows_transposed, r"returned shape|in another order|wrong on every rank"),
        (rows_on_rank_0, r"rank 0 is right, but ranks 1, 2, 3 are not. On rank 1, element \["),
    ],
    "all_reduce_in_two": [
        (two_rolled, "the right numbers are all there, in another order"),
        (two_reversed, "the right numbers are all there, in another order"),
        (two_averaged, "every number is 1/4 of what it should be"),
        (two_maximum, "the numbers are wrong on every rank"),
        (two_forgotten, "NoneType, not a tensor of numbers. Does every path"),
        (two_block_by_block, "8 collectives .* where 2 will do|4 x broadcast on world, 4 x reduce"),
        (two_through_other_ranks, "the numbers are wrong|are not. On rank"),
    ],
    "mlp_on_mesh": [
        (mlp_averaged_over_dp, "sum over tp is right, but then you mixed the results over dp"),
        (mlp_summed_over_both, "sum over tp is right, but then you mixed the results over dp"),
        (mlp_twice, "every number is 2 times what it should be"),
        (mlp_averaged, "every number is 1/2 of what it should be"),
        (mlp_without_relu, "relu is missing"),
        (mlp_relu_at_the_end, "relu belongs to the hidden activations alone"),
        (mlp_relu_twice, "relu belongs to the hidden activations alone"),
        (mlp_hidden_summed, "you added the hidden activations over the ranks"),
        (mlp_inputs_averaged, "your all_reduce ran on axis dp, .* on axis dp is too much"),
        (mlp_in_other_own_groups, "your all_reduce ran on axis dp, .* Give it the group"),
        (mlp_in_odd_groups, r"your all_reduce ran on ranks [03,12]+, but only ranks along axis tp"),
    ],
    "ring_all_reduce": [
        (ring_starts_elsewhere, "the numbers are wrong on every rank"),
        (ring_one_step_more, "sent 7 messages .* needs 6 messages"),
        (ring_one_step_less, "sent 5 messages .* needs 6 messages"),
        (ring_averaged, "every number is 1/4 of what it should be"),
    ],
    "atp_column_linear": [
        (column_averaged_over_d1, "only ranks along axis d2 hold .* on axis d1 is too much"),
        (column_averaged_parts, "you averaged the parts over d2"),
        (column_maximum, "the numbers are wrong on every rank"),
        (column_all_divided, "you averaged the parts over d2"),
        (column_of_summed_inputs, "the numbers are wrong on every rank|the bytes needed"),
    ],
    "atp_column_backward": [
        (back_averaged, "the numbers are wrong on every rank"),
        (back_upside_down, "in another order|the numbers are wrong"),
        (back_weights_summed, "only dX is a part of a sum"),
    ],
    "atp_chunked_linear": [
        (chunked_averaged_over_d1, "only ranks along axis d2 hold .* on axis d1 is too much"),
        (chunked_averaged, "you averaged the parts over d2"),
        (chunked_without_bias, "the products are right, but the bias is missing"),
        (chunked_interleaved, "the rows are all there, in another order"),
        (chunked_first_for_last, "the numbers are wrong on every rank"),
        (chunked_result, "1 of 4 products, and a sum cannot start before its chunk's"),
    ],
    "axonn_linear": [
        (grid_maximum, "the numbers are wrong on every rank"),
        (grid_averaged, "every number is 1/2 of what it should be"),
        (grid_summed_over_z, "wrong on every rank.* 1 x all_reduce on z"),
        (grid_pieces_summed, "your all_reduce ran on axis z|numbers are wrong|another order"),
    ],
    "axonn_backward": [
        (grid_back_averaged, "the numbers are wrong on every rank"),
        (grid_back_halved, "every number is 1/2 of what it should be"),
        (grid_back_over_z, "the numbers are wrong|your all_reduce|you summed the whole block"),
        (grid_back_transposed, "the numbers are wrong|another order"),
        (grid_back_own_pieces, "your all_gather|numbers are wrong|are not. On rank"),
    ],
    "axonn_norm": [
        (norm_squared, "the numbers are wrong on every rank"),
        (norm_not_over_x, "the numbers are wrong on every rank|are not. On rank"),
        (norm_without_bias, "the numbers are wrong on every rank"),
        (norm_as_float, "returned float, not a tensor of numbers"),
    ],
    "merak_ties": [
        (ties_of_a_middle_stage, r"rank 1 is right, but ranks 0, 2, 3 are not|wrong"),
        (ties_maximum, "ranks 1, 2 are right, but ranks 0, 3 are not"),
        (ties_copied, "one end has the sum|ranks 1, 2 are right, but ranks 0, 3 are not"),
    ],
    "merak_halves": [
        (halves_averaged, "every number is 1/2 of what it should be"),
        (halves_gradient_first, "in another order|the numbers are wrong"),
    ],
}
