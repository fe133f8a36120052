"""Answers to the exercises on pipelines: right ones, and wrong ones with the hint they get."""

import torch
import torch.distributed as dist

# --- pipe_bubble ---


def bubble(name, p, m):
    if name == "naive":
        return 1 - 1 / p
    v = 2 if name == "interleaved_1f1b" else 1
    return (p - 1) / (v * m + p - 1)


def bubble_by_time(name, p, m, f=1, b=2):
    step = {
        "naive": p * m * (f + b),
        "interleaved_1f1b": m * (f + b) + (p - 1) * (f + b) / 2,
    }.get(name, (m + p - 1) * (f + b))
    return 1 - m * (f + b) / step


def bubble_over_work(name, p, m):
    return (p - 1) / m


def bubble_fills_in_p(name, p, m):
    return p / (m + p)


def bubble_always_gpipe(name, p, m):
    return (p - 1) / (m + p - 1)


def bubble_of_the_busy(name, p, m):
    return 1 - bubble(name, p, m)


def bubble_of_all_stages(name, p, m):
    stages, slots = (2 * p, 2 * m) if name == "interleaved_1f1b" else (p, m)
    return bubble(name, p, m) if name == "naive" else (stages - 1) / (slots + stages - 1)


def bubble_halved_in_1f1b(name, p, m):
    return bubble("interleaved_1f1b" if name == "1f1b" else name, p, m)


# --- pipe_in_flight ---


def in_flight(name, p, m, s, size):
    counts = {"gpipe": m, "1f1b": min(m, p - s)}
    return counts.get(name, (p + 2 * (p - 1 - s) + 1) / 2) * size


def in_flight_by_warmup(name, p, m, s, size):
    if name == "gpipe":
        return m * size
    stages = 2 if name == "interleaved_1f1b" else 1
    warmup = p - 1 - s if stages == 1 else 2 * (p - 1 - s) + (stages - 1) * p
    return min(stages * m, warmup + 1) * size / stages


def in_flight_all(name, p, m, s, size):
    return m * size


def in_flight_always_1f1b(name, p, m, s, size):
    return min(m, p - s) * size


def in_flight_more_than_there_are(name, p, m, s, size):
    return (p - s) * size if name == "1f1b" else in_flight(name, p, m, s, size)


def in_flight_one_less(name, p, m, s, size):
    return (p - s - 1) * size if name == "1f1b" else in_flight(name, p, m, s, size)


def in_flight_from_the_other_end(name, p, m, s, size):
    return in_flight(name, p, m, s if name != "1f1b" else p - 1 - s, size)


def in_flight_of_stages(name, p, m, s, size):
    return in_flight(name, p, m, s, size * (2 if name == "interleaved_1f1b" else 1))


def in_flight_warmup_alone(name, p, m, s, size):
    return in_flight(name, p, m, s, size) - size / 2 * (name == "interleaved_1f1b")


# --- pipe_1f1b ---


def generated(p, m):
    lines = []
    for s in range(p):
        w, line = min(m, p - s), []
        line += [f"F{i}" for i in range(w)]
        for i in range(m):
            line.append(f"B{i}")
            if w + i < m:
                line.append(f"F{w + i}")
        lines.append(" ".join(line))
    return lines


def generated_as_text(p, m):
    return "\n".join(f"s{s}: {line}" for s, line in enumerate(generated(p, m)))


def generated_gpipe(p, m):
    return [" ".join([f"F{i}" for i in range(m)] + [f"B{i}" for i in range(m)])] * p


def generated_naive(p, m):
    return [" ".join(f"F{i} B{i}" for i in range(m))] * p


def generated_one_too_few(p, m):
    return [*generated(p, m)[1:], generated(p, m)[-1]]


def generated_one_too_many(p, m):
    return generated(p + 1, m)[:-1]


def generated_for_too_many_microbatches(p, m):
    return generated(p, max(m, p))


def generated_backwards(p, m):
    return generated(p, m)[::-1]


def generated_of_one_rank(p, m):
    return generated(p, m)[0]


def generated_as_lists(p, m):
    return [line.split() for line in generated(p, m)]


# --- pipe_by_hand ---


def forwards(weight, data, out=lambda x, weight: x @ weight):
    """Every microbatch's input of this rank's layer, after its output was sent on."""
    rank, kept = dist.get_rank(), []
    for own in data:
        x = own.clone()
        if rank:
            dist.recv(x, rank - 1)
        if rank < dist.get_world_size() - 1:
            dist.send(out(x, weight), rank + 1)
        kept.append(x)
    return kept


def by_hand(weight, data, back=lambda grad, weight: grad @ weight.T, only=slice(None), kept=None):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept, total = kept or forwards(weight, data), torch.zeros_like(weight)
    chosen = range(len(data))[only]
    for i, own in enumerate(data):
        grad = own.clone()
        if rank < last:
            dist.recv(grad, rank + 1)
        if i in chosen:
            total += kept[i].T @ grad
        if rank:
            dist.send(back(grad, weight).contiguous(), rank - 1)
    return total


def by_hand_with_autograd(weight, data):
    """1F1B at the last rank, and sends that do not block."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    weight.requires_grad_()
    kept, sent = [], []

    def backward(x, y, grad):
        if rank < last:
            dist.recv(grad, rank + 1)
        y.backward(grad)
        if rank:
            sent.append(dist.isend(x.grad, rank - 1))

    for own in data:
        x = own.clone()
        if rank:
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = x @ weight
        if rank < last:
            sent.append(dist.isend(y.detach(), rank + 1))
            kept.append((x, y))
        else:
            backward(x, y, own)
    for x, y in kept:
        backward(x, y, torch.empty_like(y))
    for work in sent:
        work.wait()
    return weight.grad


def by_hand_in_reverse(weight, data):
    """Backwards from the last microbatch to the first, on all ranks."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept, total = forwards(weight, data), 0
    for x, own in zip(kept[::-1], data.flip(0)):
        grad = own.clone()
        if rank < last:
            dist.recv(grad, rank + 1)
        total = total + x.T @ grad
        if rank:
            dist.send(grad @ weight.T, rank - 1)
    return total


def by_hand_alone(weight, data):
    return sum(x.T @ (x @ weight) for x in data)


def by_hand_forward_only(weight, data):
    return sum(x.T @ own for x, own in zip(forwards(weight, data), data))


def by_hand_gradient_of_outputs(weight, data):
    return by_hand(weight, data, lambda grad, weight: grad)


def by_hand_not_transposed(weight, data):
    return by_hand(weight, data, lambda grad, weight: grad @ weight)


def by_hand_last_only(weight, data):
    return by_hand(weight, data, only=slice(-1, None))


def by_hand_inputs_sent_on(weight, data):
    return by_hand(weight, data, kept=forwards(weight, data, lambda x, weight: x))


def by_hand_one_transposed(weight, data):
    """The forward of rank 1 is with the transposed weight."""
    second = dist.get_rank() == 1
    kept = forwards(weight, data, lambda x, weight: x @ (weight.T if second else weight))
    return by_hand(weight, data, kept=kept)


def by_hand_one_sends_back_outputs(weight, data):
    second = dist.get_rank() == 2
    return by_hand(weight, data, lambda grad, weight: grad if second else grad @ weight.T)


def by_hand_into_one_tensor(weight, data):
    rank, kept, x = dist.get_rank(), [], torch.empty_like(data[0])
    for own in data:
        if rank:
            dist.recv(x, rank - 1)
        else:
            x = own
        if rank < dist.get_world_size() - 1:
            dist.send(x @ weight, rank + 1)
        kept.append(x)
    return by_hand(weight, data, kept=kept)


def by_hand_without_first(weight, data):
    return by_hand(weight, data, only=slice(1, None))


def by_hand_first_twice(weight, data):
    kept = forwards(weight, data)
    return by_hand(weight, data, kept=[2 * kept[0], *kept[1:]])


def by_hand_transposed(weight, data):
    return by_hand(weight, data).T


def by_hand_of_outputs(weight, data):
    return by_hand(weight, data, kept=[x @ weight for x in forwards(weight, data)])


def by_hand_of_what_it_had(weight, data):
    by_hand(weight, data)
    return sum(own.T @ own for own in data) * 0


def by_hand_mean(weight, data):
    return by_hand(weight, data) / len(data)


def by_hand_mixed(weight, data):
    """Gradients of microbatches in another order than activations."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    return by_hand(weight, data.flip(0) if rank == last else data)


def by_hand_all_at_once(weight, data):
    size = data.shape
    return by_hand(weight, data.flatten(0, 1)[None]).view(*weight.shape) if size else None


def by_hand_gathered(weight, data):
    n, rank = dist.get_world_size(), dist.get_rank()
    weights = [torch.empty_like(weight) for _ in range(n)]
    dist.all_gather(weights, weight)
    dist.all_reduce(data)
    return weights[rank]


def by_hand_through_rank_0(weight, data):
    """Every gradient goes to rank 0 first."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if rank == last:
        dist.send(data, 0)
    if rank == 0:
        dist.recv(torch.empty_like(data), last)
    return by_hand(weight, data)


RIGHT = {
    "pipe_bubble": [bubble, bubble_by_time],
    "pipe_in_flight": [in_flight, in_flight_by_warmup],
    "pipe_1f1b": [generated, generated_as_text],
    "pipe_by_hand": [by_hand, by_hand_with_autograd, by_hand_in_reverse],
}
WRONG = {
    "pipe_bubble": [
        (bubble_over_work, "over the busy time"),
        (bubble_fills_in_p, "fills in p - 1 slots"),
        (bubble_always_gpipe, "one rank of p works at a time|each half as long"),
        (bubble_of_the_busy, "in which a rank works"),
        (bubble_of_all_stages, "p - 1 short slots are idle"),
        (bubble_halved_in_1f1b, "its bubble is GPipe's"),
    ],
    "pipe_in_flight": [
        (in_flight_all, "all .* as in GPipe"),
        (in_flight_always_1f1b, "GPipe runs backwards at the end|more microbatches start before"),
        (in_flight_more_than_there_are, "there are only"),
        (in_flight_one_less, "the last one, p - 1, holds one"),
        (in_flight_from_the_other_end, "the first rank holds most|the last one, p - 1, holds one"),
        (in_flight_of_stages, "half of `size`"),
        (in_flight_warmup_alone, "one more: the microbatch"),
    ],
    "pipe_1f1b": [
        (generated_gpipe, "1F1B holds"),
        (generated_naive, "The longest gap"),
        (generated_one_too_few, "The longest gap"),
        (generated_one_too_many, "1F1B holds"),
        (generated_for_too_many_microbatches, "p=., m=2.* it cannot run|p=., m=2"),
        (generated_backwards, "it cannot run.* rank 0 runs 1 of the forwards.* waits longest"),
        (generated_of_one_rank, "1 lines for"),
        (generated_as_lists, "not a list of . lines of text"),
    ],
    "pipe_by_hand": [
        (by_hand_alone, "shows no message"),
        (by_hand_forward_only, "no gradient came back"),
        (by_hand_gradient_of_outputs, "the gradient of your inputs"),
        (by_hand_not_transposed, "left out the transposition"),
        (by_hand_last_only, "only the last microbatch"),
        (by_hand_inputs_sent_on, "every rank has the inputs of rank 0"),
        (by_hand_one_transposed, "rank 2 probably received other activations .* from rank 1"),
        (
            by_hand_one_sends_back_outputs,
            "rank 1 probably received another gradient .* from rank 2",
        ),
        (
            by_hand_into_one_tensor,
            "wrong on (rank 1|ranks 1, 2, 3). On rank 1 .*received into one tensor",
        ),
        (
            by_hand_without_first,
            "On rank 0 .*lacks microbatch 0: look at the ends|only the last microbatch",
        ),
        (by_hand_first_twice, "On rank 0 .*counts microbatch 0 twice"),
        (by_hand_transposed, "On rank 0 the gradient is transposed"),
        (by_hand_of_outputs, "the layer's outputs in place of its inputs"),
        (by_hand_of_what_it_had, "On rank 0 .*zeros of `data` were used"),
        (by_hand_mean, "not the mean"),
        (by_hand_mixed, "of different microbatches"),
        (by_hand_all_at_once, "one for each microbatch and neighbour"),
        (by_hand_gathered, "is a collective"),
        (by_hand_through_rank_0, "only to its neighbours"),
    ],
}
