"""Plausible wrong answers of an independent reader whose causes were not told, or that passed, with
the words that they should get. Each was written before its message was known."""

import math
from dataclasses import replace

import solutions_merak
import solutions_t3
import torch
import torch.distributed as dist

from tpviz.evidence.t3_hardware import simulate


def _all_reduced(tensor, **group):
    dist.all_reduce(tensor, **group)
    return tensor


# -- ranks --
def bucket_by_parameters(first, second, third):
    gradients = [first, second, third]
    return _all_reduced(torch.cat([one.flatten() for one in gradients])) / len(gradients)


def _two(x):
    blocks = list(x.chunk(dist.get_world_size()))
    mine = torch.empty_like(blocks[0])
    dist.reduce_scatter(mine, blocks)
    gathered = [torch.empty_like(mine) for _ in blocks]
    dist.all_gather(gathered, mine)
    return blocks, gathered


def two_old_blocks(x):
    return torch.cat(_two(x)[0])


def two_side_by_side(x):
    return torch.cat(_two(x)[1], 1)


def two_stacked(x):
    return torch.stack(_two(x)[1])


def ring_from_own_block(x):
    n, rank = dist.get_world_size(), dist.get_rank()
    blocks = list(x.chunk(n))
    for add in (True, False):
        for i in range(n - 1):
            mine, theirs = (rank - i) % n, (rank - i - 1) % n
            got = torch.empty_like(blocks[0])
            works = dist.isend(blocks[mine], (rank + 1) % n), dist.irecv(got, (rank - 1) % n)
            for work in works:
                work.wait()
            blocks[theirs].copy_(blocks[theirs] + got if add else got)
    return torch.cat(blocks)


def mlp_of_summed_hidden(x, w1, w2, mesh):
    return _all_reduced(torch.relu(x @ w1), group=mesh.get_group("tp")) @ w2


def rows_with_relu(x, w):
    return _all_reduced((x @ w).relu())


def grid_of_columns(x, piece, mesh):
    z = mesh.get_group("z")
    pieces = [torch.empty_like(piece) for _ in range(z.size())]
    dist.all_gather(pieces, piece, group=z)
    block = torch.cat([one.view(-1, x.shape[1] // z.size()) for one in pieces], 1)
    return _all_reduced(x @ block.t(), group=mesh.get_group("y"))


def halves_without_a_residual(x, up1, down1, up2, down2, grad, mesh):
    group, weights = mesh.get_group("tp"), ((up1, down1), (up2, down2))
    xs, grads, hidden = list(x.chunk(2)), list(grad.chunk(2)), [[], []]
    for up, down in weights:
        for half in (0, 1):
            h = (xs[half] @ up.t()).relu()
            hidden[half].append(h)
            xs[half] = xs[half] + _all_reduced(h @ down.t(), group=group)
    for number, (up, down) in ((1, weights[1]), (0, weights[0])):
        for half in (0, 1):
            through = (grads[half] @ down * (hidden[half][number] > 0)) @ up
            own = 0 if number else grads[half]
            grads[half] = own + _all_reduced(through, group=group)
    return torch.cat([*xs, *grads])


# -- numbers --
def coords_remainders_by_x(rank, grid, order):
    x, y, z, _ = grid
    rest, a = divmod(rank, x)
    rest, b = divmod(rest, y)
    d, c = divmod(rest, z)
    return (a, b, c, d) if order == "xyz" else (b, a, c, d)


def activations_with_whole_attention(tokens, hidden, itemsize, tp):
    unit = tokens * hidden * itemsize
    return (5 + 11 / tp) * unit, 16 / tp * unit


def _shards(parameters, dp, zero, order, sizes=(2, 2, 12)):
    return tuple(n * parameters / (dp if zero >= k else 1) for n, k in zip(sizes, order))


def states_gradients_first(parameters, dp, zero):
    return _shards(parameters, dp, zero, (3, 1, 2))


def states_two_moments(parameters, dp, zero):
    return _shards(parameters, dp, zero, (3, 2, 1), (2, 2, 8))


def sent_gradients_only(size, dp, zero):
    return {0: 2, 1: 2, 2: 1, 3: 3}[zero] * (dp - 1) / dp * size


def bucket_as_if_link_bound(size, backward, latency, bandwidth):
    return min(1000, max(1, round(math.sqrt(backward / latency))))


def regret_of_the_prediction(predicted, measured):
    i = predicted.index(min(predicted))
    return measured[i] / predicted[i] - 1, sum(measured) / len(measured) / min(measured) - 1


def wire_forward_twice(d1, d2, order, tokens, hidden, itemsize):
    if order == "row":
        d1, d2 = d2, d1
    unit, ring = tokens * hidden * itemsize, lambda d: 2 * (d - 1) / d
    return 2 * (ring(d2) * 7 * unit / d1 + ring(d1) * 2 * unit / d2)


def bubble_one_recomputation(p, m, f, r, b):
    plain, _, third = solutions_merak.RIGHT["merak_bubble"][0](p, m, f, r, b)
    return plain, plain - r, third


def cuts_with_inputs(operations):
    last = {name: i for i, (_, takes) in enumerate(operations) for name in takes}
    made = {name: i for i, (name, _) in enumerate(operations)}
    return [
        name
        for i, (name, _) in enumerate(operations[:-1])
        if sum(made.get(t, -1) <= i < end for t, end in last.items()) == 1
    ]


def pays_with_hidden_gather(k, ranks, flops, link, itemsize):
    x = 2 * k * link * ranks / ((ranks - 1) * flops * itemsize)
    return x, (x + 2) / max(x, 2), 2 * k / x


def tracker_by_peak(gemm, ranks, machine):
    peak, sets = simulate(gemm, ranks, machine, "t3").tracker.peak, 1
    while sets * machine.tracker_records < peak:
        sets *= 2
    counted = solutions_t3.RIGHT["t3_tracker"][0](gemm, ranks, replace(machine))[0]
    return counted, sets


# -- of another reader --
def states_copy_whole(parameters, dp, zero):
    d = lambda s: dp if zero >= s else 1
    return (2 * parameters / d(3), 2 * parameters / d(2), 4 * parameters + 8 * parameters / d(1))


def gradient_added_first(grad_up, up, grad_gate, gate):
    dx = (grad_up + grad_gate) @ (up + gate).T
    dist.all_reduce(dx)
    return dx


def activations_of_whole_outputs(tokens, hidden, itemsize, tp):
    unit = tokens * hidden * itemsize
    return (4 + 12 / tp) * unit, (2 + 14 / tp) * unit


def p_forwards_on_each_rank(p, m):
    lines = []
    for _ in range(p):
        warm = min(m, p)
        words = [f"F{i}" for i in range(warm)]
        for i in range(m):
            words.append(f"B{i}")
            if warm + i < m:
                words.append(f"F{warm + i}")
        lines.append(" ".join(words))
    return lines


def prefetch_overwrites_its_handle(x, first, second, third):
    shards = (first, second, third)

    def start(shard):
        rows = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
        return rows, dist.all_gather(rows, shard, async_op=True)

    rows, handle = start(first)
    for i in range(3):
        now = rows
        if i < 2:
            rows, handle = start(shards[i + 1])
        handle.wait()  # pyright: ignore[reportOptionalMemberAccess]
        x = x @ torch.cat(now)
    return x


def time_latency_of_each_half(payload, n, latency, bandwidth):
    return 2 * latency + 2 * (n - 1) / n * payload / bandwidth


def regret_relative_to_the_pick(predicted, measured):
    i = predicted.index(min(predicted))
    return measured[i] / min(measured) - 1, sum(measured) / len(measured) / measured[i] - 1


def column_bias_by_d1(x, w, b, mesh):
    y = x @ w.t() + b / mesh.get_group("d1").size()
    dist.all_reduce(y, group=mesh.get_group("d2"))
    return y


def best_by_the_larger(world_size, b1, b2):
    meshes = [(d, world_size // d) for d in range(1, world_size + 1) if world_size % d == 0]
    return min(meshes, key=lambda m: max((m[0] - 1) / b1, 3 * (m[1] - 1) / b2))


def best_by_the_larger_of_ties(world_size, b1, b2):
    meshes = [(world_size >> k, 1 << k) for k in range(world_size.bit_length())]
    return min(meshes, key=lambda m: max((m[0] - 1) / b1, 3 * (m[1] - 1) / b2))


def grid_read_by_columns(x, piece, mesh):
    parts = [torch.empty_like(piece) for _ in range(mesh.get_group("z").size())]
    dist.all_gather(parts, piece, group=mesh.get_group("z"))
    block = torch.cat(parts).view(x.shape[1], -1)
    y = x @ block
    dist.all_reduce(y, group=mesh.get_group("y"))
    return y


RIGHT = {}
WRONG = {
    "zero_bucket": [(bucket_by_parameters, "the sum is divided by 3; its mean is over 4 ranks")],
    "all_reduce_in_two": [
        (two_old_blocks, "is returned as it came: collectives ran, but what they brought"),
        (two_side_by_side, "joined along dim 1, but they are parts of dim 0"),
        (two_stacked, r"stacked along a new dim: join them with `torch\.cat`"),
    ],
    "ring_all_reduce": [
        (ring_from_own_block, r"begins with block \(rank \+ 0\) % 4\. .* \(r \+ 1\) % 4"),
    ],
    "mlp_on_mesh": [(mlp_of_summed_hidden, "H is added over axis tp, .* and Y is not added")],
    "row_parallel": [(rows_with_relu, "relu is taken of each rank's term, before the sum")],
    "axonn_linear": [
        (grid_read_by_columns, r"the block is read as \[in, out\], column by column"),
        (grid_of_columns, "the shards are joined as columns of the block"),
    ],
    "merak_halves": [(halves_without_a_residual, "the residual's grad in dy is left out")],
    "axonn_coords": [(coords_remainders_by_x, "you divided by the size of x first")],
    "tp_activations": [
        (activations_of_whole_outputs, "by tokens; you have 2 of them whole"),
        (activations_with_whole_attention, "the output of attention .* 1/tp of it"),
    ],
    "zero_states": [
        (states_copy_whole, "a stage shards all three: you have the copy, or one moment, whole"),
        (states_gradients_first, "you have gradients then optimizer states then parameters"),
        (states_two_moments, "a float32 copy of the weights and two moments.* two of the three"),
    ],
    "zero_sent": [(sent_gradients_only, "stage 2 reduce-scatters gradients, and then .*gathered")],
    "overlap_bucket": [(bucket_as_if_link_bound, "Backward is the longer lane here.* sqrt")],
    "beat_regret": [
        (
            regret_relative_to_the_pick,
            "relative to the fastest measured layout too, not to the pick",
        ),
        (regret_of_the_prediction, "that is the prediction's error"),
    ],
    "atp_wire_bytes": [(wire_forward_twice, "you doubled forward")],
    "merak_bubble": [(bubble_one_recomputation, "p - 1 recomputations less, not one")],
    "merak_cuts": [(cuts_with_inputs, "x is an input of the model: each stage can load it")],
    "t3_pays": [(pays_with_hidden_gather, "the best k is not where x = 2")],
    "t3_tracker": [(tracker_by_peak, "records enough, but each part has its set")],
    "tp_input_gradient": [
        (gradient_added_first, "dU and dG, and the two weights, are added before the product")
    ],
    "pipe_1f1b": [
        (
            p_forwards_on_each_rank,
            "Every rank, wherever it is, runs 3 of the forwards before its first backward",
        )
    ],
    "overlap_prefetch": [
        (
            prefetch_overwrites_its_handle,
            "Rank 0 started 3 and never waits for number 1: .* overwritten",
        )
    ],
    "ring_time": [(time_latency_of_each_half, "you counted a latency for each half")],
    "atp_column_linear": [
        (column_bias_by_d1, "the bias is divided by 3, the size of axis d1, before the all-reduce")
    ],
    "atp_best_mesh": [
        (best_by_the_larger, "the larger of the two terms is least"),
        (best_by_the_larger_of_ties, "the larger of the two terms is least"),
    ],
}
