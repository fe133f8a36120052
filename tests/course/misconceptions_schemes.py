"""As `misconceptions`, of notebooks 11 to 13."""

from math import floor

import solutions_axonn as axonn
import solutions_merak as merak
import solutions_t3 as t3


# --- notebook 11 ---
def coords_always_yxz(rank, grid, order):
    return axonn.coords(rank, grid, "yxz")


def piece_always_second(weight, shape, grid, rank):
    return axonn.piece("down", shape, grid, rank)


def coords_turned(rank, grid, order):
    x, y, *outer = axonn.coords(rank, grid, order)
    return (y, x, *outer) if order == "yxz" else (x, y, *outer)


def coords_run_past_z(rank, grid, order):
    x, y, _, data = axonn.coords(rank, grid, order)
    return x, y, rank // (grid[0] * grid[1]), data


def piece_runs_past_z(weight, shape, grid, rank):
    *block, start, end = axonn.piece(weight, shape, grid, rank)
    past = rank // (grid[0] * grid[1]) // grid[2] * grid[2] * (end - start)
    return *block, start + past, end + past


def grid_wire_in_float32(*sizes):
    return axonn.wire(*sizes[:-1], 4)


def grid_wire_of_other_weight(k, n, *others):
    return axonn.wire(n, k, *others)


def special_turned(scheme, ranks, node):
    return axonn.special(scheme, ranks, ranks // node)


def special_of_eight(scheme, ranks, node):
    return axonn.special(scheme, 8, node)


# --- notebook 12 ---
def in_flight_one_more_in_1f1b(name, p, m, s):
    return min(m, p - s) + (s == p - 2)


def in_flight_one_more_everywhere(name, p, m, s):
    return min(m, p - s) + (name == merak.SCP)


def in_flight_from_the_other_end(name, p, m, s):
    return min(m, s + 1)


def bubble_as_plain(p, m, f, r, b):
    return [(m + p - 1) * (f + r + b)] * 3


def bubble_twice_filled(p, m, f, r, b):
    return [(m + 2 * (p - 1)) * (f + r + b)] * 3


def keep_above_all(name, p, layers, keep):
    k = [keep * (p - 1) / (p - 1 - s) for s in range(p - 1)] + [1]
    if name != "1f1b" and p > 2:
        k[p - 2] = k[p - 3]
    return [floor(layers * (1 - part) + 1e-9) for part in k]


def keep_what_is_kept(name, p, layers, keep):
    return [layers - dropped for dropped in merak.keep(name, p, layers, keep)]


def keep_from_the_other_end(name, p, layers, keep):
    return merak.keep(name, p, layers, keep)[::-1]


def memory_of_what_is_dropped(name, p, m, s, whole, inputs, keep):
    return merak.memory(name, p, m, s, whole, inputs, 1 - keep)


def memory_without_backward(name, p, m, s, whole, inputs, keep):
    return merak.memory(name, p, m, s, whole, inputs, keep, one=0)


# --- notebook 13 ---
def share_in_percent(*sizes):
    sent, part = t3.share(*sizes)
    return sent, 100 * part


def share_of_the_gemm(*sizes):
    sent, part = t3.share(*sizes)
    return sent, 1 - part


def order_of_all(rank, ranks):
    return list(range(ranks))


def order_backwards(rank, ranks):
    return t3.order(rank, ranks)[::-1]


def order_of_four(rank, ranks):
    return t3.order(rank, 4)


def traffic_as_kernel(how, step, ranks):
    return t3.traffic("kernel", step, ranks)


def traffic_of_eight(how, step, ranks):
    return t3.traffic(how, step, 8)


RIGHT = {}

WRONG = {
    "axonn_coords": [
        (coords_always_yxz, "that is order .yxz.* along x"),
        (coords_turned, "right numbers for other axes: x and y are exchanged"),
        (coords_run_past_z, "take the quotient modulo"),
    ],
    "axonn_piece": [
        (piece_always_second, "x and y are swapped"),
        (piece_runs_past_z, "take the quotient modulo"),
    ],
    "axonn_wire_bytes": [
        (grid_wire_in_float32, "these are counts of numbers|the answer for itemsize=4"),
        (grid_wire_of_other_weight, "you exchanged k and n. Forward all-reduces the output"),
    ],
    "axonn_special": [
        (special_turned, "(Weights are sharded within a node|A node is one replica)"),
        (special_of_eight, "16 ranks"),
    ],
    "merak_in_flight": [
        (in_flight_one_more_in_1f1b, "name='1f1b', .*you returned 3"),
        (in_flight_one_more_everywhere, "shifted_critical_path.* you returned"),
        (in_flight_from_the_other_end, "rank 0 holds most, and the last holds one"),
    ],
    "merak_bubble": [
        (bubble_as_plain, "863 on the clock, your 871, as without early recomputation"),
        (bubble_twice_filled, "the makespan of 1f1b should be"),
    ],
    "merak_keep": [
        (keep_above_all, "k above 1 means all layers"),
        (keep_what_is_kept, "not those that it keeps"),
        (keep_from_the_other_end, "your list begins with the last one"),
    ],
    "merak_memory": [
        (memory_of_what_is_dropped, "you have it the other way round"),
        (memory_without_backward, "`whole` is missing once"),
    ],
    "t3_share": [
        (share_in_percent, "the bytes are right, .* not in per cent"),
        (share_of_the_gemm, "the bytes are right, .* of the all-reduce, not of the GEMM"),
    ],
    "t3_order": [
        (order_of_all, "all ranks begin with chunk 0"),
        (order_backwards, "so that one must be last|needs it at position"),
        (order_of_four, "each of the chunks 0 to .* once|computes chunk"),
    ],
    "t3_traffic": [
        (traffic_as_kernel, "its stores go to the next GPU"),
        (traffic_of_eight, "all N chunks|it is the last|In this step"),
    ],
}
