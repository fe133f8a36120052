"""Answers to the exercises on tensor parallelism: right ones, and wrong ones with the hint they
get."""

import torch
import torch.distributed as dist


def summed(x):
    dist.all_reduce(x)
    return x


def gathered(x, dim=0):
    """Of all ranks, in their order, along ``dim``."""
    found = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(found, x.contiguous())
    return torch.cat(found, dim)


def scattered(y):
    out = y.new_empty(len(y) // dist.get_world_size(), *y.shape[1:])
    dist.reduce_scatter_tensor(out, y)
    return out


def own(y):
    return y.chunk(dist.get_world_size())[dist.get_rank()]


# --- tp_input_gradient ---


def tp_input_gradient(grad_up, up, grad_gate, gate):
    return summed(grad_up @ up.T + grad_gate @ gate.T)


def gradient_of_one_product(grad_up, up, grad_gate, gate):
    return summed(torch.cat([grad_up, grad_gate], 1) @ torch.cat([up, gate], 1).T)


def gradient_partial(grad_up, up, grad_gate, gate):
    return grad_up @ up.T + grad_gate @ gate.T


def gradient_averaged(*inputs):
    return tp_input_gradient(*inputs) / dist.get_world_size()


def gradient_of_up(grad_up, up, grad_gate, gate):
    return summed(grad_up @ up.T)


def gradient_of_gate(grad_up, up, grad_gate, gate):
    return summed(grad_gate @ gate.T)


def gradient_twice(grad_up, up, grad_gate, gate):
    return summed(grad_up @ up.T) + summed(grad_gate @ gate.T)


def gradient_reduced_first(grad_up, up, grad_gate, gate):
    return summed(grad_up) @ up.T + summed(grad_gate) @ gate.T


def gradient_gathered(*inputs):
    grad_up, up, grad_gate, gate = (gathered(one, 1) for one in inputs)
    return grad_up @ up.T + grad_gate @ gate.T


# --- sp_mlp ---


def inner(x, w1, w2):
    return torch.relu(x @ w1) @ w2


def sp_mlp(x, w1, w2):
    return scattered(inner(gathered(x), w1, w2))


def sp_of_lists(x, w1, w2):
    n, mine = dist.get_world_size(), torch.empty_like(x)
    whole = torch.cat([x] * n)
    dist.all_gather(list(whole.chunk(n)), x)
    y = (whole @ w1).clamp(min=0) @ w2
    dist.reduce_scatter(mine, list(y.chunk(n)))
    return mine


def sp_without_reducing(x, w1, w2):
    return own(inner(gathered(x), w1, w2))


def sp_all_tokens(x, w1, w2):
    return summed(inner(gathered(x), w1, w2))


def sp_all_tokens_again(x, w1, w2):
    return gathered(sp_mlp(x, w1, w2))


def sp_own_tokens_summed(x, w1, w2):
    return summed(inner(x, w1, w2))


def sp_by_all_reduce(x, w1, w2):
    return own(sp_all_tokens(x, w1, w2)).clone()


def sp_of_whole_weights(x, w1, w2):
    return inner(x, gathered(w1, 1), gathered(w2))


def sp_without_gathering(x, w1, w2):
    return scattered(torch.cat([inner(x, w1, w2)] * dist.get_world_size()))


def sp_without_relu(x, w1, w2):
    return scattered(gathered(x) @ w1 @ w2)


def sp_averaged(x, w1, w2):
    return sp_mlp(x, w1, w2) / dist.get_world_size()


# --- tp_sent ---


def tp_sent(payload, tp, sp):
    half = (tp - 1) / tp * payload
    return 4 * half, (6 if sp else 4) * half


def sent_by_collective(payload, tp, sp):
    all_reduce = 2 * (payload - payload / tp)
    forward = 2 * all_reduce
    return forward, forward * 3 / 2 if sp else forward


def sent_without_ring(payload, tp, sp):
    return 4 * payload, (6 if sp else 4) * payload


def sent_as_forward(payload, tp, sp):
    return tp_sent(payload, tp, False)


def sent_always_again(payload, tp, sp):
    return tp_sent(payload, tp, True)


def sent_again_in_forward(payload, tp, sp):
    return tp_sent(payload, tp, sp)[::-1]


def sent_less_with_sp(payload, tp, sp):
    half = (tp - 1) / tp * payload
    return (2 * half, 2 * half) if sp else (4 * half, 4 * half)


def sent_of_one_part(payload, tp, sp):
    return [size / 2 for size in tp_sent(payload, tp, sp)]


# --- tp_activations ---


def tp_activations(tokens, hidden, itemsize, tp):
    unit = tokens * hidden * itemsize
    return (4 + 12 / tp) * unit, 16 / tp * unit


def activations_by_tensor(tokens, hidden, itemsize, tp):
    stream = 4 * tokens * hidden * itemsize
    between = stream / tp + 2 * tokens * 4 * hidden * itemsize / tp
    return stream + between, stream / tp + between


def activations_all_sharded(*sizes):
    return (tp_activations(*sizes)[1],) * 2


def activations_nothing_saved(*sizes):
    return (tp_activations(*sizes)[0],) * 2


def activations_whole(tokens, hidden, itemsize, tp):
    return 16 * tokens * hidden * itemsize, 16 * tokens * hidden * itemsize / tp


def activations_weights_whole(tokens, hidden, itemsize, tp):
    unit = tokens * hidden * itemsize
    return (4 + 12 / tp) * unit, (12 + 4 / tp) * unit


def activations_narrow(tokens, hidden, itemsize, tp):
    unit = tokens * hidden * itemsize
    return (4 + 6 / tp) * unit, 10 / tp * unit


def activations_of_one_norm(tokens, hidden, itemsize, tp):
    unit = tokens * hidden * itemsize
    return (2 + 12 / tp) * unit, 14 / tp * unit


def activations_in_elements(tokens, hidden, itemsize, tp):
    return tp_activations(tokens, hidden, 1, tp)


def activations_swapped(*sizes):
    return tp_activations(*sizes)[::-1]


RIGHT = {
    "tp_input_gradient": [tp_input_gradient, gradient_of_one_product],
    "sp_mlp": [sp_mlp, sp_of_lists],
    "tp_sent": [tp_sent, sent_by_collective],
    "tp_activations": [tp_activations, activations_by_tensor],
}
WRONG = {
    "tp_input_gradient": [
        (gradient_partial, "each rank returned a partial sum"),
        (gradient_averaged, "do not divide"),
        (gradient_of_up, "through one of the two layers, of U"),
        (gradient_of_gate, "through one of the two layers, of G"),
        (gradient_twice, "one all-reduce for each layer"),
        (gradient_reduced_first, "multiply first"),
        (gradient_gathered, "you gathered"),
    ],
    "sp_mlp": [
        (inner, "no collective"),
        (sp_without_reducing, "tokens of a partial sum"),
        (sp_all_tokens, "returned all tokens"),
        (sp_all_tokens_again, "and then you gathered all of them"),
        (sp_own_tokens_summed, "mixes tokens of all ranks"),
        (sp_by_all_reduce, "brings every rank the sums of all tokens"),
        (sp_of_whole_weights, "gathered the weights"),
        (sp_without_gathering, "never gathered X"),
        (sp_without_relu, "relu is missing"),
        (sp_averaged, "do not divide"),
    ],
    "tp_sent": [
        (sent_without_ring, "not all of it"),
        (sent_as_forward, "gathers the inputs .* once more"),
        (sent_always_again, "nothing is gathered again"),
        (sent_again_in_forward, "are in backward"),
        (sent_less_with_sp, "twice as many"),
        (sent_of_one_part, "two parts, attention and MLP"),
    ],
    "tp_activations": [
        (activations_all_sharded, "does not shard what the norms keep"),
        (activations_nothing_saved, "shards what the norms keep by tokens"),
        (activations_whole, "only its own columns"),
        (activations_weights_whole, "the weights are still cut"),
        (activations_narrow, "four times as wide"),
        (activations_of_one_norm, "four tensors"),
        (activations_in_elements, "one takes `itemsize` bytes"),
        (activations_swapped, "then with sequence parallelism"),
    ],
}
