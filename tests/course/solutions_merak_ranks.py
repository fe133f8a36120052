"""Answers to notebook 12 on graphs and on real ranks: right ones; wrong ones with hints."""

from functools import partial

import torch
import torch.distributed as dist

# --- merak_cuts ---


def cuts(operations, most=1):
    last = {taken: k for k, (_, takes) in enumerate(operations) for taken in takes}
    return [
        name
        for k, (name, _) in enumerate(operations[:-1])
        if sum(last.get(other, 0) > k for other, _ in operations[: k + 1]) <= most
    ]


cuts_with_two = partial(cuts, most=2)


def cuts_everywhere(operations):
    return [name for name, _ in operations[:-1]]


def cuts_behind_adds(operations):
    return [name for name in cuts(operations) if "add" in name]


def cuts_with_the_last(operations):
    return [*cuts(operations), operations[-1][0]]


def cuts_of_inputs(operations):
    return ["x", *cuts(operations)]


def cuts_counted(operations):
    return len(cuts(operations))


# --- merak_ties ---


def _ends():
    return dist.new_group([0, dist.get_world_size() - 1])


def _is_end():
    return dist.get_rank() in (0, dist.get_world_size() - 1)


def ties(grads, mesh, whole=torch.mean, share=1.0):
    grad, ends = whole(grads, 0), _ends()
    if _is_end():
        dist.all_reduce(grad, group=ends)
        grad = grad * share
    return grad


def ties_by_messages(grads, mesh):
    """Each end sends its own to the other."""
    grad = grads.mean(0)
    if not _is_end():
        return grad
    other, received = dist.get_world_size() - 1 - dist.get_rank(), torch.empty_like(grad)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, grad, other), dist.P2POp(dist.irecv, received, other)]
    )
    for work in works:
        work.wait()
    return grad + received


ties_summed = partial(ties, whole=torch.sum)
ties_averaged = partial(ties, share=0.5)


def ties_of_the_last_microbatch(grads, mesh):
    return ties(grads[-1:], mesh)


def ties_apart(grads, mesh):
    return grads.mean(0)


def ties_everyone(grads, mesh):
    grad = grads.mean(0)
    dist.all_reduce(grad)
    return grad


def ties_for_each(grads, mesh):
    ends, found = _ends(), torch.zeros_like(grads[0])
    for grad in grads:
        if _is_end():
            dist.all_reduce(grad, group=ends)
        found += grad / len(grads)
    return found


def ties_at_one_end(grads, mesh):
    grad, ends = grads.mean(0), _ends()
    if _is_end():
        dist.reduce(grad, 0, group=ends)
        grad = grad if dist.get_rank() == 0 else grads.mean(0)
    return grad


def ties_with_all_called(grads, mesh):
    """Everyone takes part; those in the middle with zeros."""
    grad = grads.mean(0)
    sent = grad.clone() if _is_end() else torch.zeros_like(grad)
    dist.all_reduce(sent)
    return sent if _is_end() else grad


# --- merak_halves ---


def _part(x, up, down):
    h = (x @ up.t()).relu()
    return h @ down.t(), h


def _part_back(h, up, down, grad):
    return (grad @ down * (h > 0)) @ up


def halves(
    x,
    up1,
    down1,
    up2,
    down2,
    grad,
    mesh,
    stranger=False,
    skip=1.0,
    group="tp",
    at_once=False,
    turned=False,
):
    group, weights = mesh.get_group(group), [(up1, down1), (up2, down2)]
    xs, grads = list(x.chunk(2)), list(grad.chunk(2))
    hs, under_way, kept = [[], []], [None, None], []

    def start(half, tensor):
        work = dist.all_reduce(tensor, group=group, async_op=True)
        under_way[half] = tensor, work
        if at_once:
            work.wait()

    def add(around, half, skip=1.0):
        if under_way[half]:
            tensor, work = under_way[half]
            work.wait()
            around[half] = skip * around[half] + tensor

    for number, (up, down) in enumerate(weights):
        for half in range(2):
            add(xs, half)
            found, h = _part(xs[half], up, down)
            hs[half].append(h)
            start(half, found)
            if stranger and number == 1:
                kept.append(xs[half])
                xs[half] = kept[0]
    for half in range(2):
        add(xs, half)
    under_way[:] = None, None
    for number in (1, 0):
        for half in (1, 0):
            add(grads, half, skip)
            start(half, _part_back(hs[half][number], *weights[number], grads[half]))
    for half in range(2):
        add(grads, half, skip)
    if turned:
        grads.reverse()
        xs.reverse()
    return torch.cat([*xs, *grads])


halves_with_a_stranger = partial(halves, stranger=True)
halves_without_skip = partial(halves, skip=0.0)
halves_over_dp = partial(halves, group="dp")
halves_blocking = partial(halves, at_once=True)
halves_turned = partial(halves, turned=True)


def halves_whole(x, up1, down1, up2, down2, grad, mesh):
    total = partial(dist.all_reduce, group=mesh.get_group("tp"))
    a, h1 = _part(x, up1, down1)
    total(a)
    y = x + a
    b, h2 = _part(y, up2, down2)
    total(b)
    dy = _part_back(h2, up2, down2, grad)
    total(dy)
    dy = grad + dy
    dx = _part_back(h1, up1, down1, dy)
    total(dx)
    return torch.cat([y + b, dy + dx])


def halves_unsummed(x, up1, down1, up2, down2, grad, mesh):
    y = x + _part(x, up1, down1)[0]
    return torch.cat([y + _part(y, up2, down2)[0], grad])


def halves_unwaited(x, up1, down1, up2, down2, grad, mesh):
    found = halves(x, up1, down1, up2, down2, grad, mesh)
    dist.all_reduce(torch.zeros(1), group=mesh.get_group("tp"), async_op=True)
    return found


RIGHT = {
    "merak_cuts": [cuts],
    "merak_ties": [ties, ties_by_messages],
    "merak_halves": [halves],
}

WRONG = {
    "merak_cuts": [
        (
            cuts_everywhere,
            "you cut at every gap, but after layer_norm 2 tensors cross: embedding, used by add; "
            "layer_norm, used by linear",
        ),
        (cuts_with_two, "transformer layer: after layer_norm 2 tensors cross: embedding"),
        (cuts_behind_adds, r"a cut after \w+ is missing. There only \w+ crosses"),
        (cuts_with_the_last, r"after the last operation, \w+, there is nothing"),
        (cuts_of_inputs, "no operation is called 'x'"),
        (cuts_counted, r"function returned \d+, not a list of names"),
    ],
    "merak_ties": [
        (ties_apart, "no collective. First and last stage each have"),
        (ties_summed, r"every number is \d times too large. The loss of a step is the mean"),
        (ties_averaged, "first and last have half of the right gradient: the gradients of two"),
        (ties_of_the_last_microbatch, "only the last microbatch is left"),
        (ties_everyone, "you all-reduced over all stages. Those in the middle have other weights"),
        (ties_for_each, r"each of \d microbatches was sent separately, \d+ bytes where \d+ will"),
        (ties_at_one_end, "one end has the sum, and the other has not"),
        (ties_with_all_called, "rank 1 takes part, but has no copy"),
    ],
    "merak_halves": [
        (halves_unsummed, "no collective. Each rank along tp has a part of the inner features"),
        (halves_whole, r"the trace shows 4 x all_reduce on tp: two parts, two halves, .* 8"),
        (halves_with_a_stranger, "the first half is right, and z of the second half has the"),
        (halves_without_skip, "z is right; the gradient only passed through the parts"),
        (halves_over_dp, "all_reduce ran on axis dp, but only ranks along axis tp"),
        (halves_blocking, "kernels would wait 1 of all all-reduces; 0.25 is possible. The trace"),
        (halves_turned, "the halves are right but in the wrong order"),
        (halves_unwaited, "you started all_reduce without waiting for the end"),
    ],
}
