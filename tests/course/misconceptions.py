"""Plausible wrong answers to formulas and choices, with words of the verdict, and right ones
written in other ways. ``WRONG`` {name: [(answer, words)]}, ``RIGHT`` {name: [answer]}."""

from fractions import Fraction
from math import ceil, inf, log2, nan

import solutions_atp as atp
import solutions_costs as costs


def _named(name, fn):
    fn.__name__ = name
    return fn


def constant(value, name):
    """An answer that is the same for every question."""
    return _named(name, lambda *asked: value)


# --- numbers of any kind: what a formula must refuse everywhere ---
NO_ANSWERS = [
    constant(value, f"returns_{name}")
    for name, value in {
        "none": None,
        "nan": nan,
        "inf": inf,
        "a_complex": 1j,
        "a_dict": {},
        "huge": 10**400,
        "nans": (nan,) * 4,
        "nothing": [],
        "unequal_parts": [[0, 1], [2]],
        "zero": 0,
        "one": 1,
        "text": "?",
    }.items()
]


# --- notebook 07 ---
def time_latency_of_each_byte(payload, n, latency, bandwidth):
    return 2 * (n - 1) * (latency + payload / bandwidth)


def time_of_a_tree(payload, n, latency, bandwidth):
    return 2 * log2(n) * (latency + payload / bandwidth)


def time_of_four_ranks(payload, n, latency, bandwidth):
    return costs.ring_time(payload, 4, latency, bandwidth)


def time_exact(payload, n, latency, bandwidth):
    return 2 * (n - 1) * (Fraction(latency) + Fraction(payload, n) / Fraction(bandwidth))


def bus_always_once(collective, payload, n, seconds):
    return (n - 1) / n * payload / seconds


def bus_of_eight_ranks(collective, payload, n, seconds):
    return costs.bus_bandwidth(collective, payload, 8, seconds)


def _axis_seconds(cluster, mesh, payload):
    return lambda axis: cluster.collective_time(
        "all_reduce", payload, mesh.axes[axis], cluster.axis_link(mesh, axis)
    )


def axis_slowest(*asked):
    return max(asked[1].axes, key=_axis_seconds(*asked))


def axis_outermost(cluster, mesh, payload):
    return mesh.names[0]


def axis_of_least_latency(cluster, mesh, payload):
    return min(mesh.axes, key=lambda axis: cluster.axis_link(mesh, axis).latency)


def axis_by_library(*asked):
    return min(asked[1].axes, key=_axis_seconds(*asked))


def _root(payload, links, latency, bandwidth):
    return (links * payload / (latency * bandwidth)) ** 0.5


def chunks_of_all_links(*sizes):
    return round(_root(*sizes))


def chunks_rounded_up(payload, links, *rates):
    return ceil(_root(payload, links - 1, *rates))


def chunks_without_links(payload, links, *rates):
    return round(_root(payload, 1, *rates))


def rates_grow(flops, memory_bandwidth, bandwidth, latency, c):
    return flops * c**2, memory_bandwidth * c, bandwidth * c, latency


def rates_of_cubes(flops, memory_bandwidth, bandwidth, latency, c):
    return flops / c**3, memory_bandwidth / c, bandwidth / c, latency


def straggler_ends_last(trace):
    return max(trace.ranks, key=lambda r: trace.select(rank=r)["end"].max())


# --- notebook 10 ---
def owned_always_row(weight, shape, mesh, order, rank):
    return atp.owned(weight, shape, mesh, "row", rank)


def owned_by_rank_0(weight, shape, mesh, order, rank):
    return atp.owned(weight, shape, mesh, order, 0)


def wire_in_float32(*sizes):
    return atp.wire_bytes(*sizes[:-1], 4)


def wire_axes_exchanged(d1, d2, *others):
    return atp.wire_bytes(d2, d1, *others)


def best_weighs_twice(*asked):
    return atp._best(*asked, second=2)


def best_weighs_four_times(*asked):
    return atp._best(*asked, second=4)


def best_turned(*asked):
    return atp.best_mesh(*asked)[::-1]


def best_is_worst(world_size, b1, b2):
    return 1, world_size


def best_with_whole_rings(world_size, b1, b2):
    """d in place of d - 1 adds the same to all meshes."""
    meshes = [(world_size >> k, 1 << k) for k in range(world_size.bit_length())]
    return min(meshes, key=lambda m: m[0] / b1 + 3 * m[1] / b2)


RIGHT = {
    "ring_time": [time_exact],
    "axis_for_tp": [axis_by_library],
    "atp_best_mesh": [best_with_whole_rings],
}


# --- notebooks 02 to 08 ---
def sent_with_an_all_reduce_and_a_gather(size, dp, zero):
    return (3 if zero else 2) * size * (dp - 1) / dp


def activations_of_the_mlp_once(tokens, hidden, itemsize, tp):
    unit = tokens * hidden * itemsize
    return unit * (4 + 8 / tp), unit * 12 / tp


def scale_doubles_from_then_on(gradients, scale, interval):
    weight, taken, good = 0.0, 0, 0
    for gradient in gradients:
        if gradient * scale > 65504:
            scale, good = scale / 2, 0
            continue
        weight, taken, good = weight - gradient, taken + 1, good + 1
        if good >= interval:
            scale *= 2
    return weight, scale, taken


def exposed_of_two_lengths(compute, communication):
    busy, last = 0, -inf
    for start, end in sorted(communication):
        busy, last = busy + max(0, end - max(start, last)), max(last, end)
    return max(0, busy - sum(end - start for start, end in compute))


def early_of_the_last_start(program):
    flying = None
    for place, (what, name) in enumerate(program):
        if what == "start":
            flying = name
        elif name == flying and what == "use":
            return place
        elif name == flying:
            flying = None
    return -1


def early_until_any_wait(program):
    flying = set()
    for place, (what, name) in enumerate(program):
        if what == "start":
            flying.add(name)
        elif what == "wait":
            flying.clear()
        elif name in flying:
            return place
    return -1


def early_waited_once(program):
    started, waited = set(), set()
    for place, (what, name) in enumerate(program):
        {"start": started, "wait": waited}.get(what, set()).add(name)
        if what == "use" and name in started - waited:
            return place
    return -1


def between_of_one_microbatch(layers, hidden, tokens, microbatches, inside, between):
    activations = 2 * tokens * hidden
    sends = {"tp": 2 * layers * activations, "pp": activations, "dp": 12 * layers * hidden**2}
    return min(sends, key=sends.get)


def wire_of_forward(d1, d2, order, tokens, hidden, itemsize):
    i, s = (d1, d2) if order == "column" else (d2, d1)
    return 2 * tokens * hidden * itemsize * ((i - 1) * 2 + (s - 1) * 7) / (i * s)


WRONG = {
    "ring_time": [
        (time_latency_of_each_byte, "n=4, .*you sent the whole tensor in each"),
        (time_of_a_tree, "n=4, .*the time of a tree"),
        (time_of_four_ranks, "n=2, .*the time with 4 ranks"),
    ],
    "bus_bandwidth": [
        (bus_always_once, "all_reduce.* goes round the ring twice"),
        (bus_of_eight_ranks, "n=4, .* the answer is"),
    ],
    "axis_for_tp": [
        (axis_slowest, r"Axis \w takes the longest of all"),
        (axis_outermost, r"Axis \w is the outermost axis, which"),
        (
            axis_of_least_latency,
            r"two wide NVLink nodes.* has the least latency of a hop, which",
        ),
    ],
    "best_chunks": [
        (chunks_of_all_links, "(fewer|more) chunks are faster here"),
        (chunks_rounded_up, "(fewer|more) chunks are faster here"),
        (chunks_without_links, "more chunks are faster here"),
    ],
    "scale_rates": [
        (rates_grow, "flops .* they shrink by c"),
        (rates_of_cubes, "flops .* they shrink by c"),
    ],
    "find_straggler": [
        (straggler_ends_last, "Did you compare when the ranks end"),
    ],
    "atp_owned": [
        (owned_always_row, "order column, .* the axes are swapped"),
        (owned_by_rank_0, "that is rank 0's block"),
    ],
    "atp_wire_bytes": [
        (
            wire_in_float32,
            "itemsize=2 .* (for itemsize=4|2 times the right answer|for twice `itemsize`)",
        ),
        (wire_axes_exchanged, "the axes are swapped"),
        (wire_of_forward, "that is forward: backward has"),
    ],
    "atp_best_mesh": [
        (best_weighs_twice, "d2 has too many ranks|Weight the axes|A square"),
        (best_weighs_four_times, "d1 has too many ranks|Weight the axes|A square"),
        (best_turned, r"The sizes are exchanged: a mesh is \(d1, d2\)"),
        (best_is_worst, r"\(1, \d+\) spends .* d2 has too many ranks"),
    ],
    "zero_sent": [
        (sent_with_an_all_reduce_and_a_gather, "of their all-reduce the reduce-scatter is enough"),
    ],
    "tp_activations": [(activations_of_the_mlp_once, "four before GELU and four after")],
    "loss_scale": [(scale_doubles_from_then_on, "doubles in every step from then on")],
    "overlap_exposed": [(exposed_of_two_lengths, "a kernel beside which none runs hides nothing")],
    "overlap_used_early": [
        (early_of_the_last_start, "the last one started alone"),
        (early_until_any_wait, "a wait completes the collective of its own name"),
        (early_waited_once, "a wait in the step before"),
    ],
    "beat_between": [(between_of_one_microbatch, "counted one microbatch over pp")],
}
