"""Answers to notebook 10 on real ranks: right ones, and wrong ones with the hint they get."""

import torch
import torch.distributed as dist
from solutions_start import gather

# --- atp_column_linear ---


def column(x, w, b, mesh):
    y = x @ w.t()
    dist.all_reduce(y, group=mesh.get_group("d2"))
    return y + b


def column_bias_once_before(x, w, b, mesh):
    """One rank of the sum adds it."""
    y = torch.nn.functional.linear(x, w, b if mesh.get_local_rank("d2") == 0 else None)
    dist.all_reduce(y, group=mesh.get_group("d2"))
    return y


def column_not_summed(x, w, b, mesh):
    return x @ w.t() + b


def column_bias_before(x, w, b, mesh):
    y = x @ w.t() + b
    dist.all_reduce(y, group=mesh.get_group("d2"))
    return y


def column_no_bias(x, w, b, mesh):
    return column(x, w, 0 * b, mesh)


def column_over_d1(x, w, b, mesh):
    y = x @ w.t()
    dist.all_reduce(y, group=mesh.get_group("d1"))
    return y + b


def column_over_world(x, w, b, mesh):
    y = x @ w.t()
    dist.all_reduce(y)
    return y + b


def column_gathered(x, w, b, mesh):
    return sum(gather(x @ w.t(), mesh.get_group("d2"))) + b


def column_gathered_inputs(x, w, b, mesh):
    d2 = mesh.get_group("d2")
    return torch.cat(gather(x, d2), 1) @ torch.cat(gather(w, d2), 1).t() + b


def column_reduced_twice(x, w, b, mesh):
    y = column(x, w, 0 * b, mesh)
    dist.all_reduce(y, group=mesh.get_group("d2"))
    return y + b


def column_transposed(x, w, b, mesh):
    return column(x, w, b, mesh).t()


def column_averaged(x, w, b, mesh):
    return (column(x, w, 0 * b, mesh)) / mesh.size(1) + b


def column_through_one_rank(x, w, b, mesh):
    y, d2 = x @ w.t(), mesh.get_group("d2")
    dist.reduce(y, group=d2, group_dst=0)
    dist.broadcast(y, group=d2, group_src=0)
    return y + b


def column_sums_a_copy_too(x, w, b, mesh):
    y = x @ w.t()
    both = torch.cat([y, y])
    dist.all_reduce(both, group=mesh.get_group("d2"))
    return both[: len(y)] + b


# --- atp_column_backward ---


def _backward(x, w, grad, mesh, axis="d1"):
    dx = grad @ w
    work = dist.all_reduce(dx, group=mesh.get_group(axis), async_op=True)
    dw = grad.t() @ x
    work.wait()
    return torch.cat([dx, dw])


def backward(x, w, grad, mesh):
    return _backward(x, w, grad, mesh)


def backward_blocking(x, w, grad, mesh):
    dx = grad @ w
    dist.all_reduce(dx, group=mesh.get_group("d1"))
    return torch.cat([dx, grad.t() @ x])


def backward_weight_first(x, w, grad, mesh):
    dw, dx = grad.t() @ x, grad @ w
    dist.all_reduce(dx, group=mesh.get_group("d1"), async_op=True).wait()
    return torch.cat([dx, dw])


def backward_not_summed(x, w, grad, mesh):
    return torch.cat([grad @ w, grad.t() @ x])


def backward_over_d2(x, w, grad, mesh):
    return _backward(x, w, grad, mesh, "d2")


def backward_all_summed(x, w, grad, mesh):
    both = torch.cat([grad @ w, grad.t() @ x])
    dist.all_reduce(both, group=mesh.get_group("d1"))
    return both


def backward_never_waits(x, w, grad, mesh):
    dx = grad @ w
    dist.all_reduce(dx, group=mesh.get_group("d1"), async_op=True)
    return torch.cat([dx, grad.t() @ x])


def backward_over_world(x, w, grad, mesh):
    dx = grad @ w
    work = dist.all_reduce(dx, async_op=True)
    dw = grad.t() @ x
    work.wait()
    return torch.cat([dx, dw])


def backward_without_weights(x, w, grad, mesh):
    return _backward(x, w, grad, mesh)[: len(x)]


def backward_upside_down(x, w, grad, mesh):
    both = _backward(x, w, grad, mesh)
    return both.roll(w.shape[0], 0)


# --- atp_chunked_linear ---


def _chunked(x, w, b, mesh, count=4, axis="d2", wait=lambda work: None):
    parts, works = [], []
    for piece in x.chunk(count):
        parts.append(piece @ w.t())
        works.append(dist.all_reduce(parts[-1], group=mesh.get_group(axis), async_op=True))
        wait(works[-1])
    return parts, works


def _join(parts, works, b):
    for work in works:
        work.wait()
    return torch.cat(parts) + b


def chunked(x, w, b, mesh):
    return _join(*_chunked(x, w, b, mesh), b)


def chunked_into_one_buffer(x, w, b, mesh):
    """Each chunk's sum is in its slice of the output."""
    y, works = x.new_empty(x.shape[0], w.shape[0]), []
    for piece, out in zip(x.chunk(4), y.chunk(4)):
        out.copy_(piece @ w.t())
        works.append(dist.all_reduce(out, group=mesh.get_group("d2"), async_op=True))
    for work in works:
        work.wait()
    return y + b


def chunked_blocking(x, w, b, mesh):
    return _join(*_chunked(x, w, b, mesh, wait=lambda work: work.wait()), b)


def chunked_in_two(x, w, b, mesh):
    return _join(*_chunked(x, w, b, mesh, count=2), b)


def chunked_one_late(x, w, b, mesh):
    """Waits for a chunk's sum before the product after the next."""
    parts, works = [], []
    for piece in x.chunk(4):
        if len(works) > 1:
            works[-2].wait()
        parts.append(piece @ w.t())
        works.append(dist.all_reduce(parts[-1], group=mesh.get_group("d2"), async_op=True))
    return _join(parts, works, b)


def chunked_products_first(x, w, b, mesh):
    """All products, then all sums: nothing is hidden."""
    parts = [piece @ w.t() for piece in x.chunk(4)]
    works = [dist.all_reduce(y, group=mesh.get_group("d2"), async_op=True) for y in parts]
    return _join(parts, works, b)


def chunked_last_first(x, w, b, mesh):
    parts, works = _chunked(x, w, b, mesh)
    return _join(parts[::-1], works, b)


def chunked_bias_in_parts(x, w, b, mesh):
    parts, works = [], []
    for piece in x.chunk(4):
        parts.append(piece @ w.t() + b)
        works.append(dist.all_reduce(parts[-1], group=mesh.get_group("d2"), async_op=True))
    return _join(parts, works, 0)


def chunked_over_d1(x, w, b, mesh):
    return _join(*_chunked(x, w, b, mesh, axis="d1"), b)


def chunked_waits_for_the_last(x, w, b, mesh):
    parts, works = _chunked(x, w, b, mesh)
    return _join(parts, works[-1:], b)


def chunked_rounded(x, w, b, mesh):
    return _join(*_chunked(x, w, b, mesh), b) * (1 + 1e-12)


RIGHT = {
    "atp_column_linear": [column, column_bias_once_before],
    "atp_column_backward": [backward],
    "atp_chunked_linear": [chunked, chunked_into_one_buffer, chunked_one_late],
}

WRONG = {
    "atp_column_linear": [
        (column_not_summed, "no collective. A rank has only some of the input features"),
        (column_bias_before, "the bias counts 2 times: every rank along d2 added it"),
        (column_no_bias, "the products are right, but the bias is missing"),
        (column_over_d1, "you all-reduced over d1. Ranks along d1 have other rows of W"),
        (column_over_world, r"ran on all ranks \(the default group\), but .* axis d2"),
        (column_gathered, "numbers are right, but you gathered where an all-reduce is enough"),
        (column_gathered_inputs, "numbers are right, but you gathered where an all-reduce is"),
        (column_reduced_twice, "2 all-reduces over d2: after the first one every rank has the"),
        (column_transposed, "returned shape"),
        (column_averaged, "you averaged the terms over d2"),
        (column_through_one_rank, "trace shows 1 x broadcast on d2, 1 x reduce on d2, and this"),
        (column_sums_a_copy_too, "each rank sent 2x the bytes needed"),
    ],
    "atp_column_backward": [
        (backward_blocking, "kernel > issue > wait > kernel: the kernel of dW begins after"),
        (backward_weight_first, "kernel > kernel > issue > wait: the all-reduce of dX starts when"),
        (backward_not_summed, "dX = dY W contracts the output features"),
        (backward_over_d2, "you all-reduced over d2, as forward does"),
        (backward_all_summed, "only dX is a partial sum.* along d1 have other rows"),
        (backward_never_waits, "started all_reduce without waiting"),
        (backward_upside_down, "the right numbers are all present, in another order"),
        (backward_over_world, r"ran on all ranks \(the default group\), but .* axis d1"),
        (backward_without_weights, "returned shape"),
    ],
    "atp_chunked_linear": [
        (chunked_blocking, r"kernels would wait 1 of an all-reduce; 0.25 is possible"),
        (chunked_products_first, r"kernels would wait 1 of an all-reduce.*kernel > kernel > issue"),
        (chunked_in_two, "2 x all_reduce on d2: each of the 4 chunks needs its own"),
        (chunked_last_first, "all rows are present, in another order: join"),
        (chunked_bias_in_parts, "the bias counts 2 times"),
        (chunked_over_d1, "you all-reduced over d1"),
        (chunked_waits_for_the_last, "Rank 0 started 4 and never waits for number 1, 2, 3: "),
        (chunked_rounded, "not equal bit by bit"),
    ],
}
