"""As `misconceptions_ranks`, of notebooks 10 to 12."""

import torch
import torch.distributed as dist
from misconceptions_ranks import MAX, summed
from solutions_atp_layers import _chunked, _join
from solutions_axonn_layers import _gather, _norm, _pieces, _scatter, linear, linear_not_summed
from solutions_merak_ranks import halves
from torch.distributed._functional_collectives import all_reduce as functional

# --- atp_column_linear, atp_chunked_linear ---


def column_averaged_over_d1(x, w, b, mesh):
    y = summed(x @ w.t(), mesh.get_group("d2"))
    return summed(y, mesh.get_group("d1")) / mesh.size(0) + b


def column_maximum(x, w, b, mesh):
    return summed(x @ w.t(), mesh.get_group("d2"), MAX) + b


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


def chunked_first_for_last(x, w, b, mesh):
    parts, works = _chunked(x, w, b, mesh)
    return _join([*parts[:-1], parts[0]], works, b)


def chunked_result(x, w, b, mesh):
    y = x @ w.t()
    works = [
        dist.all_reduce(part, group=mesh.get_group("d2"), async_op=True) for part in y.chunk(4)
    ]
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


def back_weights_summed(x, w, grad, mesh):
    return _back(x, w, grad, mesh, lambda dx, dw: torch.cat([dx, summed(dw, mesh.get_group("d2"))]))


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
        return _gather(mine, mesh.get_group("z"))[: mine.numel()]

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
    "atp_column_linear": [column_bias_shared],
    "atp_column_backward": [back_functional],
    "atp_chunked_linear": [chunked_bias_at_each_wait],
}

WRONG = {
    "atp_column_linear": [
        (column_averaged_over_d1, "only ranks along axis d2 hold .* on axis d1 is one too many"),
        (column_maximum, "you have the largest of the ranks. numbers"),
        (column_of_summed_inputs, "x is added over axis d2, .*; and x Wᵀ is not added|the bytes"),
    ],
    "atp_column_backward": [
        (back_averaged, "divided by 2, .* a sum is asked for, no mean"),
        (back_weights_summed, "only dX is a partial sum.* along d2 have other columns"),
    ],
    "atp_chunked_linear": [
        (chunked_averaged_over_d1, "only ranks along axis d2 hold .* on axis d1 is one too many"),
        (chunked_averaged, "you averaged the terms over d2"),
        (chunked_without_bias, "the products are right, but the bias is missing"),
        (chunked_first_for_last, "the numbers are wrong on every rank"),
        (chunked_result, "1 of 4 products, and an all-reduce cannot start before its chunk's"),
    ],
    "axonn_linear": [
        (grid_maximum, "you have the largest of the ranks. numbers"),
        (grid_averaged, "a sum is asked for, no mean"),
        (grid_summed_over_z, "added over axis z, where each is right by itself"),
        (grid_pieces_summed, "`piece` is added over axis z, but"),
    ],
    "axonn_backward": [
        (grid_back_averaged, "divided by 2, .* a sum is asked for, no mean"),
        (grid_back_halved, "every number is 1/2 of what it should be"),
        (grid_back_over_z, "the terms are added over axis z, but they are of one sum over axis x"),
        (grid_back_transposed, "the numbers are wrong|another order"),
        (grid_back_own_pieces, "your all_gather|numbers are wrong|are not. On rank"),
    ],
    "axonn_norm": [
        (norm_squared, "the root is missing: that is the sum of squares"),
        (norm_not_over_x, "the squares are not added over axis x"),
        (norm_without_bias, "`bias` is left out of the norm"),
        (norm_as_float, "returned float, not a tensor of numbers"),
    ],
    "merak_ties": [
        (ties_of_a_middle_stage, "rank 1 is right, but ranks 0, 2, 3 are not|wrong"),
        (ties_maximum, "ranks 1, 2 are right, but ranks 0, 3 are not"),
        (ties_copied, "one end has the sum|ranks 1, 2 are right, but ranks 0, 3 are not"),
    ],
    "merak_halves": [
        (halves_averaged, "every number is 1/2 of what it should be"),
        (halves_gradient_first, "in another order|the numbers are wrong|shifted by"),
    ],
}
