"""Answers to notebook 11 on real ranks and on the order of a step: right and wrong ones."""

import torch
import torch.distributed as dist

# --- axonn_linear ---


def _gather(piece, group):
    pieces = [torch.empty_like(piece) for _ in range(group.size())]
    dist.all_gather(pieces, piece, group=group)
    return torch.cat(pieces)


def linear(x, piece, mesh):
    block = _gather(piece, mesh.get_group("z")).view(-1, x.shape[1])
    y = x @ block.t()
    dist.all_reduce(y, group=mesh.get_group("y"))
    return y


def linear_of_own_piece(x, piece, mesh):
    return x @ piece.view(-1, x.shape[1]).t()


def linear_not_summed(x, piece, mesh):
    return x @ _gather(piece, mesh.get_group("z")).view(-1, x.shape[1]).t()


def linear_over_x(x, piece, mesh):
    y = linear_not_summed(x, piece, mesh)
    dist.all_reduce(y, group=mesh.get_group("x"))
    return y


def linear_gathers_over_y(x, piece, mesh):
    block = _gather(piece, mesh.get_group("y")).view(-1, x.shape[1])
    return x @ block.t()


def linear_gathers_x(x, piece, mesh):
    """All rows on every rank, and a piece of the output: more bytes or the wrong layout."""
    rows = _gather(x, mesh.get_group("z"))
    return linear(rows, piece, mesh)


def linear_sums_over_all(x, piece, mesh):
    y = linear_not_summed(x, piece, mesh)
    dist.all_reduce(y)
    return y


# --- axonn_backward ---


def _pieces(block, mesh):
    return list(block.flatten().chunk(mesh.get_group("z").size()))


def _scatter(dw, mesh):
    pieces = _pieces(dw, mesh)
    mine = torch.empty_like(pieces[0])
    dist.reduce_scatter(mine, pieces, group=mesh.get_group("z"))
    return mine


def backward(x, block, grad, mesh):
    dx = grad @ block
    work = dist.all_reduce(dx, group=mesh.get_group("x"), async_op=True)
    dw = grad.t() @ x
    work.wait()
    return torch.cat([dx.flatten(), _scatter(dw, mesh)])


def backward_all_at_once(x, block, grad, mesh):
    """Scatter and sum both under way."""
    dx = grad @ block
    work = dist.all_reduce(dx, group=mesh.get_group("x"), async_op=True)
    mine = _scatter(grad.t() @ x, mesh)
    work.wait()
    return torch.cat([dx.flatten(), mine])


def backward_blocking(x, block, grad, mesh):
    dx = grad @ block
    dist.all_reduce(dx, group=mesh.get_group("x"))
    return torch.cat([dx.flatten(), _scatter(grad.t() @ x, mesh)])


def backward_weight_first(x, block, grad, mesh):
    mine = _scatter(grad.t() @ x, mesh)
    dx = grad @ block
    dist.all_reduce(dx, group=mesh.get_group("x"), async_op=True).wait()
    return torch.cat([dx.flatten(), mine])


def backward_over_y(x, block, grad, mesh):
    dx = grad @ block
    dist.all_reduce(dx, group=mesh.get_group("y"))
    return torch.cat([dx.flatten(), _scatter(grad.t() @ x, mesh)])


def backward_averaged(x, block, grad, mesh):
    return torch.cat(
        [
            backward(x, block, grad, mesh)[: x.numel()],
            _scatter(grad.t() @ x, mesh) / mesh.get_group("z").size(),
        ]
    )


def backward_unscattered(x, block, grad, mesh):
    dx = grad @ block
    dist.all_reduce(dx, group=mesh.get_group("x"))
    return torch.cat([dx.flatten(), _pieces(grad.t() @ x, mesh)[mesh.get_local_rank("z")]])


def backward_sums_block(x, block, grad, mesh):
    dx = grad @ block
    work = dist.all_reduce(dx, group=mesh.get_group("x"), async_op=True)
    dw = grad.t() @ x
    work.wait()
    dist.all_reduce(dw, group=mesh.get_group("z"))
    return torch.cat([dx.flatten(), _pieces(dw, mesh)[mesh.get_local_rank("z")]])


def backward_sends_nothing(x, block, grad, mesh):
    mine = _pieces(grad.t() @ x, mesh)[mesh.get_local_rank("z")]
    return torch.cat([(grad @ block).flatten(), mine])


# --- axonn_gathers ---


def gathers(layers, keep, recompute):
    order, blocks = list(layers), layers[1:-1]
    if not keep:
        order.append("head")
    for start in reversed(range(0, len(blocks), 4)):
        four = list(blocks[start : start + 4])
        order += four * recompute + four[::-1] * (not keep)
    return order


def gathers_of_modules(layers, keep, recompute):
    back = gathers(layers, keep, recompute)[len(layers) :]
    return list(layers) + sorted(back, key=list(layers).index)


def gathers_all_reversed(layers, keep, recompute):
    """The recomputed layers from the last to the first as well."""
    back = gathers(layers, keep, recompute)[len(layers) :]
    return list(layers) + (back[::-1] if recompute and keep else back)


def gathers_forward_alone(layers, keep, recompute):
    return list(layers)


def gathers_in_any_order(layers, keep, recompute):
    return gathers(layers[::-1], keep, recompute) if keep else gathers(layers, keep, recompute)


def gathers_of_strangers(layers, keep, recompute):
    return [name.replace("blocks.", "block") for name in gathers(layers, keep, recompute)]


def gathers_counted(layers, keep, recompute):
    return len(gathers(layers, keep, recompute))


# --- axonn_norm ---


def _norm(piece, bias, scale, mesh, bias_on="yz", scale_on="xz", over="zyx"):
    total = (piece**2).sum()
    for part, axes in ((bias, bias_on), (scale, scale_on)):
        share = (part**2).sum()
        for axis in axes:
            share = share / mesh.get_group(axis).size()
        total = total + share
    for axis in over:
        dist.all_reduce(total, group=mesh.get_group(axis))
    return total.sqrt()


def norm(piece, bias, scale, mesh):
    return _norm(piece, bias, scale, mesh)


def norm_over_all_at_once(piece, bias, scale, mesh):
    y, x, z = (mesh.get_group(axis).size() for axis in "yxz")
    total = (piece**2).sum() + (bias**2).sum() / (y * z) + (scale**2).sum() / (x * z)
    dist.all_reduce(total)
    return total.sqrt()


def norm_of_copies(piece, bias, scale, mesh):
    return _norm(piece, bias, scale, mesh, "", "")


def norm_of_shares_of_all(piece, bias, scale, mesh):
    return _norm(piece, bias, scale, mesh, "xyz", "xyz")


def norm_copies_of_z(piece, bias, scale, mesh):
    return _norm(piece, bias, scale, mesh, "z", "z")


def norm_exchanged(piece, bias, scale, mesh):
    return _norm(piece, bias, scale, mesh, "xz", "yz")


def norm_of_norms(piece, bias, scale, mesh):
    total = torch.cat([piece, bias, scale]).norm()
    for axis in "zyx":
        dist.all_reduce(total, group=mesh.get_group(axis))
    return total


def norm_gathers(piece, bias, scale, mesh):
    """All pieces to everyone: right, and many bytes."""
    for axis in "zyx":
        piece = _gather(piece, mesh.get_group(axis))
    bias, scale = _gather(bias, mesh.get_group("x")), _gather(scale, mesh.get_group("y"))
    return torch.cat([piece, bias, scale]).norm()


def norm_with_a_dim(piece, bias, scale, mesh):
    return _norm(piece, bias, scale, mesh).view(1)


def norm_of_own(piece, bias, scale, mesh):
    return torch.cat([piece, bias, scale]).norm()


RIGHT = {
    "axonn_linear": [linear],
    "axonn_backward": [backward, backward_all_at_once],
    "axonn_gathers": [gathers],
    "axonn_norm": [norm, norm_over_all_at_once],
}

WRONG = {
    "axonn_linear": [
        (linear_of_own_piece, "the trace shows no collective. A rank has a shard of its block"),
        (linear_not_summed, "the block is complete, but its product with x is a partial sum"),
        (linear_over_x, "you all-reduced over x, as backward does"),
        (linear_gathers_over_y, "you gathered over y. The shards of one block are along z"),
        (linear_gathers_x, r"returned shape \[.*\]; it should be"),
        (
            linear_sums_over_all,
            "only ranks along axis y hold parts of the same result. Give it "
            'the group: `group=mesh.get_group."y".`',
        ),
    ],
    "axonn_backward": [
        (backward_blocking, "its wait: dW's begins after the wait. dW does not need the sum"),
        (backward_weight_first, "its wait: dW's had ended before the start. dX does not"),
        (backward_over_y, "you all-reduced over y, as forward does"),
        (backward_averaged, "your shard is 1/2 of the right one"),
        (backward_sums_block, "you all-reduced the whole block over z, .* a rank keeps only its"),
        (backward_unscattered, "nothing was sent over z. A rank's dW is of its own rows only"),
        (backward_sends_nothing, "the trace shows no collective. Other ranks had other output"),
    ],
    "axonn_gathers": [
        (
            gathers_of_modules,
            r"keep=False, recompute=False: .* \d+ of \d+ gathers .* were not prefetched. "
            "The first: it needed head, yours was blocks.0.attention.qkv",
        ),
        (gathers_all_reversed, "keep=True, recompute=True.* recomputes each block's forward"),
        (gathers_forward_alone, r"a step needs \d+ gathers, you list \d+\. What does"),
        (gathers_in_any_order, "keep=True, recompute=False: .* it needed embed, yours was h"),
        (gathers_of_strangers, "'block0.attention.qkv' is none of the layers embed, blocks.0"),
        (gathers_counted, "returned 10, not a list of layers' names"),
    ],
    "axonn_norm": [
        (norm_of_copies, "bias are divided by 1, those of scale by 1. 4 ranks have the same bias"),
        (norm_of_shares_of_all, "bias are divided by 8, those of scale by 8"),
        (norm_copies_of_z, "bias are divided by 2, those of scale by 2"),
        (
            norm_exchanged,
            "mesh z 3 x y 2 x x 1: the squares of bias are divided by 3, those of scale by 6",
        ),
        (norm_of_norms, "norms do not add up; their squares do"),
        (norm_gathers, "each rank sent .*x the bytes needed"),
        (norm_with_a_dim, r"returned shape \[1\]; it should be \[\]"),
        (norm_of_own, "that is the norm of one rank's shards"),
    ],
}
